"""Schedules: the scripts and reads of recurring tasks. Same form as ``store.protocol``.

``ref`` is ``tenant:id``; a schedule and all its occurrences live on one shard.
"""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tasksched.model.recurring import (
    LEDGER_MS,
    LedgerEntry,
    Run,
    Schedule,
    ScheduleSpec,
    occurrence_id,
    plan_runs,
    policy_json,
    read_policy,
    shard_of_schedule,
)
from tasksched.model.schedule.fixed import Delay
from tasksched.model.schedule.misfire import Plan
from tasksched.model.schedule.parse import parse_rule
from tasksched.model.schedule.rule import Rule
from tasksched.model.task import DEFAULT_OPTIONS, TaskSpec, decode_options
from tasksched.store.protocol import Changed, Store, opt, target_of
from tasksched.store.scripts import Arg

FIRE_MAX = 50
_FIELDS = (
    "status", "version", "generation", "created_ms", "updated_ms", "rule", "policy", "overlap",
    "after", "owner", "jitter_ms", "max_runs", "lane", "options", "lease_ms", "next_ms", "last_ms",
    "runs", "reason", "head", "payload", "body",
)  # fmt: skip


class Owed(NamedTuple):
    """A schedule whose next nominal time has come."""

    ref: str
    status: str
    version: int
    generation_ms: int
    rule: Rule
    policy: bytes | None
    next_ms: int
    last_ms: int | None
    jitter_ms: int | None


class Firing(NamedTuple):
    """One schedule's plan, as ``fire`` reads it."""

    owed: Owed
    plan: Plan
    runs: Sequence[Run]


def firing_of(owed: Owed, now_ms: int) -> Firing:
    """The plan for a schedule that owes something."""
    found, runs = plan_runs(
        owed.ref,
        owed.rule,
        read_policy(owed.policy),
        next_ms=owed.next_ms,
        now_ms=now_ms,
        jitter_ms=owed.jitter_ms or 0,
    )
    return Firing(owed, found, runs)


def bound_rule(ref: str, text: bytes | str, generation_ms: int) -> Rule:
    """The stored rule of a schedule, bound to it."""
    return parse_rule(msgspec.json.decode(text)).bind(ref, generation_ms)


class Schedules:
    """The recurring tasks of one namespace. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run = store.gateway.run

    def shard_of(self, ref: str) -> int:
        tenant, _, schedule_id = ref.partition(":")
        return shard_of_schedule(tenant, schedule_id, self._store.shards)

    def _values(self, ref: str, **values: Arg) -> dict[str, Arg]:
        shard = self.shard_of(ref)
        keys = self._store.keys[shard]
        return {"clock": keys.clock, "now_ms": self._store.now_ms, "ref": ref, **values}

    # -- definitions ----------------------------------------------------------------------------

    async def put_schedule(
        self,
        spec: ScheduleSpec,
        *,
        expected: int | None,
        created_ms: int,
        next_ms: int | None,
        fingerprint: str,
    ) -> Changed:
        """Words: created, replaced, same, exists, missing, version, owed."""
        template, rule = spec.template, spec.rule
        values = self._values(
            spec.ref,
            expected=opt(expected),
            created_ms=created_ms,
            op=secrets.token_hex(8),
            kind=rule.kind,
            rule=msgspec.json.encode(rule.fields()),
            policy=policy_json(spec),
            overlap=spec.overlap,
            after=spec.after,
            owner=spec.owner or "",
            delay_ms=opt(rule.delay_ms if isinstance(rule, Delay) else None),
            jitter_ms=opt(spec.jitter_ms),
            end_ms=opt(rule.end_ms),
            max_runs=opt(spec.max_runs),
            lane=template.lane,
            payload=b"=" + template.payload if template.payload else b"",
            options=template.options,
            lease_ms=opt(template.lease_ms),
            next_ms=opt(next_ms),
            fingerprint=fingerprint,
        )
        return _changed(await self._run("put_schedule", values))

    async def pause_schedule(self, ref: str, expected: int | None) -> Changed:
        return _changed(
            await self._run("pause_schedule", self._values(ref, expected=opt(expected)))
        )

    async def resume_schedule(
        self, ref: str, expected: int | None, *, next_ms: int | None
    ) -> Changed:
        values = self._values(ref, expected=opt(expected), next_ms=opt(next_ms))
        return _changed(await self._run("resume_schedule", values))

    async def remove_schedule(self, ref: str, expected: int | None) -> Changed:
        """Removes it, however many occurrences are open."""
        while True:
            values = self._values(ref, expected=opt(expected))
            changed = _changed(await self._run("remove_schedule", values))
            if changed.word != "more":
                return changed
            expected = None

    async def trigger(
        self, ref: str, runs: Sequence[tuple[str, int, str]]
    ) -> list[str | None] | None:
        """Ids of the extra occurrences (what, nominal, due); None where it was there; None: no schedule."""
        reply = await self._run("trigger", self._values(ref), runs)
        if reply == [b"missing"]:
            return None
        return [task_id.decode() or None for task_id in reply]

    # -- firing ---------------------------------------------------------------------------------

    async def owed(self, shard: int, limit: int = FIRE_MAX) -> tuple[int, list[Owed]]:
        """The server's now, and the schedules that owe something."""
        clock = self._store.keys[shard].clock
        values: dict[str, Arg] = {"clock": clock, "now_ms": self._store.now_ms, "limit": limit}
        reply = await self._run("owed", values)
        return reply[0], [_owed(row) for row in reply[1:] if row[1] is not None and row[7]]

    async def fire(self, shard: int, firings: Sequence[Firing]) -> list[str]:
        """Words: ``fired``, or ``stale`` when somebody else was first."""
        values: dict[str, Arg] = {
            "clock": self._store.keys[shard].clock,
            "now_ms": self._store.now_ms,
        }
        rows = [_fire_row(firing) for firing in firings]
        return [word.decode() for word in await self._run("fire", values, rows)]

    async def settle_owed(self, schedule: Schedule, now_ms: int) -> None:
        """Fires what one schedule owes, as a scheduler would; does nothing if somebody was first."""
        if schedule.next_ms is None or schedule.next_ms > now_ms:
            return
        spec = schedule.spec
        owed = Owed(
            ref=spec.ref,
            status=schedule.status,
            version=schedule.version,
            generation_ms=schedule.generation_ms,
            rule=spec.rule,
            policy=policy_json(spec).encode() or None,
            next_ms=schedule.next_ms,
            last_ms=schedule.last_ms,
            jitter_ms=spec.jitter_ms,
        )
        await self.fire(self.shard_of(spec.ref), [firing_of(owed, now_ms)])

    # -- reads ----------------------------------------------------------------------------------

    async def get(self, ref: str) -> Schedule | None:
        found = await self.get_many([ref])
        return found[0]

    async def get_many(self, refs: Sequence[str]) -> list[Schedule | None]:
        commands = [("HMGET", self._key(ref), *_FIELDS) for ref in refs]
        rows = await self._store.gateway.pipeline(commands) if commands else []
        found: list[Schedule | None] = []
        for ref, row in zip(refs, rows, strict=True):
            raw = dict(zip(_FIELDS, row, strict=True))
            if raw["status"] is None:
                found.append(None)
                continue
            if raw["body"]:
                raw["payload"] = await self._store.gateway.command("GET", f"{self._key(ref)}:body")
            found.append(_schedule(ref, raw))
        return found

    def _key(self, ref: str) -> str:
        return self._store.keys[self.shard_of(ref)].schedule(ref)

    async def ledger(self, schedule: Schedule, now_ms: int) -> list[LedgerEntry]:
        """What became of each nominal time, newest first: the last 100 entries of seven days."""
        ref = schedule.spec.ref
        shard = self.shard_of(ref)
        raws = await self._store.gateway.command(
            "LRANGE", self._store.keys[shard].ledger(ref), 0, -1
        )
        entries = [_entry(raw.decode(), schedule, shard) for raw in reversed(raws)]
        return [entry for entry in entries if entry.last_ms > now_ms - LEDGER_MS]


def _changed(reply: list[Any]) -> Changed:
    return Changed(reply[0].decode(), reply[1].decode(), reply[2] or 0)


def _int(raw: bytes | None) -> int | None:
    return None if raw is None else int(raw)


def _owed(row: list[Any]) -> Owed:
    ref, generation_ms = row[0].decode(), int(row[3])
    return Owed(
        ref=ref,
        status=row[1].decode(),
        version=int(row[2]),
        generation_ms=generation_ms,
        rule=bound_rule(ref, row[5], generation_ms),
        policy=row[6],
        next_ms=int(row[7]),
        last_ms=_int(row[8]),
        jitter_ms=_int(row[9]),
    )


def _fire_row(firing: Firing) -> tuple[Arg, ...]:
    owed, plan = firing.owed, firing.plan
    return (
        owed.ref,
        owed.version,
        owed.next_ms,
        opt(plan.next_ms),
        max([owed.next_ms, *(run[0] for run in firing.runs), *(s.last_ms for s in plan.skipped)]),
        " ".join([f"{nominal}:{due}:{missed}" for nominal, due, missed in firing.runs]),
        " ".join([f"{s.outcome}:{s.first_ms}:{s.last_ms}:{s.count}:{int(s.is_exact)}" for s in plan.skipped]),
    )  # fmt: skip


def _schedule(ref: str, raw: dict[str, Any]) -> Schedule:
    queue, priority, tenant, route = raw["lane"].decode().split(":")
    options = decode_options(raw["options"]) if raw["options"] else DEFAULT_OPTIONS
    generation_ms = int(raw["generation"])
    template = TaskSpec(
        target=target_of(route, options),
        payload=raw["payload"] or b"",
        tenant=tenant,
        queue=queue,
        priority=priority,
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        lease_ms=_int(raw["lease_ms"]),
        tags=options.tags,
    )
    overlap: Any = (raw["overlap"] or b"skip").decode()
    after: Any = (raw["after"] or b"terminal").decode()
    spec = ScheduleSpec(
        id=ref.partition(":")[2],
        template=template,
        rule=bound_rule(ref, raw["rule"], generation_ms),
        overlap=overlap,
        after=after,
        misfire=read_policy(raw["policy"]),
        jitter_ms=_int(raw["jitter_ms"]),
        max_runs=_int(raw["max_runs"]),
        owner=raw["owner"].decode() if raw["owner"] else None,
    )
    return Schedule(
        spec=spec,
        status=raw["status"].decode(),
        version=int(raw["version"]),
        generation_ms=generation_ms,
        created_ms=int(raw["created_ms"]),
        updated_ms=int(raw["updated_ms"]),
        next_ms=_int(raw["next_ms"]),
        last_ms=_int(raw["last_ms"]),
        runs=int(raw["runs"] or 0),
        reason=raw["reason"].decode() if raw["reason"] else None,
        head=raw["head"].decode() if raw["head"] else None,
    )


def _entry(text: str, schedule: Schedule, shard: int) -> LedgerEntry:
    outcome: Any
    outcome, first, last, count, *note = text.split(" ")
    remark = note[0] if note else ""
    fired = outcome == "fired"
    by_hand = remark == "by_hand"
    task_id = None
    if fired and not by_hand and schedule.spec.rule.kind != "delay":
        task_id = occurrence_id(schedule.spec.ref, schedule.generation_ms, first, shard)
    return LedgerEntry(
        outcome=outcome,
        first_ms=int(first),
        last_ms=int(last),
        count=int(count),
        is_exact=remark != "+",
        lateness_ms=max(int(remark), 0) if fired and not by_hand and remark else None,
        task_id=task_id,
        by_hand=by_hand,
    )
