"""Schedules: the scripts and reads of recurring tasks. Same form as ``store.protocol``.

``ref`` is ``tenant:id``; a schedule and all its occurrences live on one shard.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tasksched.errors import TaskschedError
from tasksched.model.recurring import (
    LEDGER_MS,
    LedgerEntry,
    Run,
    Schedule,
    ScheduleSpec,
    is_zoned,
    plan_runs,
    policy_json,
    read_policy,
    shard_of_schedule,
)
from tasksched.model.schedule.fixed import Delay
from tasksched.model.schedule.misfire import MisfirePolicy, Plan
from tasksched.model.schedule.rule import Rule
from tasksched.model.zones import TZDATA_VERSION
from tasksched.store.protocol import Changed, Store, new_op, opt
from tasksched.store.schedule_records import (
    FIELDS,
    bound_rule,
    read_entry,
    read_int,
    read_schedule,
)
from tasksched.store.scripts import Arg

FIRE_MAX = 50
SCAN_COUNT = 200
# What a definition may raise that was written by another version, or names a zone that is gone.
UNREADABLE = (
    TaskschedError,
    msgspec.MsgspecError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
# As ``lua/owed.lua`` answers them, after the name of the schedule.
_OWED_FIELDS = (
    "status", "version", "generation", "kind", "rule", "policy", "next_ms", "last_ms", "jitter_ms",
)  # fmt: skip


class Owed(NamedTuple):
    """A schedule as planning needs it. ``next_ms`` is None only where nothing is owed."""

    ref: str
    status: str
    version: int
    generation_ms: int
    rule: Rule
    policy: MisfirePolicy
    next_ms: int | None
    last_ms: int | None
    jitter_ms: int | None


class Broken(NamedTuple):
    """A schedule that owes something and cannot be planned: nobody can read its rule."""

    ref: str
    version: int
    next_ms: int
    reason: str


class Retiming(NamedTuple):
    """Another next nominal time for a schedule that stands as it was read."""

    ref: str
    version: int
    expected_ms: int | None
    next_ms: int | None
    broken: str = ""


class Firing(NamedTuple):
    """One schedule's plan, as ``fire`` reads it."""

    owed: Owed
    plan: Plan
    runs: Sequence[Run]


def firing_of(owed: Owed, now_ms: int) -> Firing:
    """The plan for a schedule that owes something."""
    assert owed.next_ms is not None, owed
    found, runs = plan_runs(
        owed.ref,
        owed.rule,
        owed.policy,
        next_ms=owed.next_ms,
        now_ms=now_ms,
        jitter_ms=owed.jitter_ms or 0,
    )
    return Firing(owed, found, runs)


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
            op=new_op(),
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
            wants=template.wants,
            concurrency=template.permit_key,
            next_ms=opt(next_ms),
            fingerprint=fingerprint,
            tzdata=TZDATA_VERSION if is_zoned(rule) else "",
        )
        return _changed(await self._run("put_schedule", values))

    # Each call of these has a name of its own, which its replays share.

    async def pause_schedule(self, ref: str, expected: int | None, *, op: str = "") -> Changed:
        """Words: paused, missing, version, state, owed."""
        values = self._values(ref, expected=opt(expected), op=op or new_op())
        return _changed(await self._run("pause_schedule", values))

    async def resume_schedule(
        self, ref: str, expected: int | None, *, next_ms: int | None, op: str = ""
    ) -> Changed:
        """Words: resumed, missing, version, state, late."""
        values = self._values(
            ref,
            expected=opt(expected),
            op=op or new_op(),
            next_ms=opt(next_ms),
            tzdata=TZDATA_VERSION,
        )
        return _changed(await self._run("resume_schedule", values))

    async def remove_schedule(self, ref: str, expected: int | None, *, op: str = "") -> Changed:
        """Removes it, however many occurrences are open."""
        op = op or new_op()
        while True:
            values = self._values(ref, expected=opt(expected), op=op)
            changed = _changed(await self._run("remove_schedule", values))
            if changed.word != "more":
                return changed
            expected = None

    async def trigger(
        self, ref: str, runs: Sequence[tuple[str, int, str]], *, op: str = ""
    ) -> list[str | None] | None:
        """Ids of the extra occurrences (what, nominal, due); None where it was there; None: no schedule."""
        reply = await self._run("trigger", self._values(ref, op=op or new_op()), runs)
        if reply == [b"missing"]:
            return None
        return [task_id.decode() or None for task_id in reply]

    # -- firing ---------------------------------------------------------------------------------

    def _of_shard(self, shard: int, **values: Arg) -> dict[str, Arg]:
        return {"clock": self._store.keys[shard].clock, "now_ms": self._store.now_ms, **values}

    async def owed(self, shard: int, limit: int = FIRE_MAX) -> tuple[int, list[Owed], list[Broken]]:
        """The server's now, the schedules that owe something, and those that nobody can plan."""
        reply = await self._run("owed", self._of_shard(shard, limit=limit))
        owed: list[Owed] = []
        broken: list[Broken] = []
        for row in reply[1:]:
            if row[1] is None or not row[7]:
                continue
            try:
                owed.append(_owed(row))
            except UNREADABLE as error:
                reason = f"it cannot be planned: {error}"
                broken.append(Broken(row[0].decode(), int(row[2]), int(row[7]), reason))
        return reply[0], owed, broken

    async def fire(self, shard: int, firings: Sequence[Firing]) -> list[str]:
        """Words: ``fired``, or ``stale`` when somebody else was first."""
        values = self._of_shard(shard, tzdata=TZDATA_VERSION)
        rows = [_fire_row(firing) for firing in firings]
        return [word.decode() for word in await self._run("fire", values, rows)]

    async def retime(self, shard: int, retimings: Sequence[Retiming]) -> list[str]:
        """Words: ``retimed``, ``blocked``, ``stale``, ``owed`` (to be fired first)."""
        values = self._of_shard(shard, tzdata=TZDATA_VERSION)
        rows = [
            (one.ref, one.version, opt(one.expected_ms), opt(one.next_ms), one.broken)
            for one in retimings
        ]
        return [word.decode() for word in await self._run("retime", values, rows)]

    async def outdated(self, shard: int, cursor: int) -> tuple[int, list[Owed]]:
        """A stretch of the schedules whose time was computed with other zone data; where to go on.

        ``cursor`` is 0 at first, and 0 again at the end. What nobody can read is left out.
        """
        keys, gateway = self._store.keys[shard], self._store.gateway
        raw, entries = await gateway.command("ZSCAN", keys.schedules, cursor, "COUNT", SCAN_COUNT)
        refs = _members(entries)
        reads = [("HMGET", keys.schedule(ref), *_OWED_FIELDS, "tzdata") for ref in refs]
        found: list[Owed] = []
        for ref, row in zip(refs, await gateway.pipeline(reads) if reads else [], strict=True):
            release = (row.pop() or b"").decode()
            if release and release != TZDATA_VERSION:
                with contextlib.suppress(*UNREADABLE):
                    found.append(_owed([ref.encode(), *row]))
        return int(raw), found

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
            policy=spec.misfire,
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
        commands = [("HMGET", self._key(ref), *FIELDS) for ref in refs]
        rows = await self._store.gateway.pipeline(commands) if commands else []
        found: list[Schedule | None] = []
        for ref, row in zip(refs, rows, strict=True):
            raw = dict(zip(FIELDS, row, strict=True))
            if raw["status"] is None:
                found.append(None)
                continue
            if raw["body"]:
                raw["payload"] = await self._store.gateway.command("GET", f"{self._key(ref)}:body")
            found.append(read_schedule(ref, raw))
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
        entries = [read_entry(raw.decode(), schedule, shard) for raw in reversed(raws)]
        # What was made by hand is of today, whatever nominal time it was made for.
        return [entry for entry in entries if entry.by_hand or entry.last_ms > now_ms - LEDGER_MS]


def _changed(reply: list[Any]) -> Changed:
    return Changed(reply[0].decode(), reply[1].decode(), reply[2] or 0)


def _owed(row: list[Any]) -> Owed:
    ref, generation_ms = row[0].decode(), int(row[3])
    return Owed(
        ref=ref,
        status=row[1].decode(),
        version=int(row[2]),
        generation_ms=generation_ms,
        rule=bound_rule(ref, row[5], generation_ms),
        policy=read_policy(row[6]),
        next_ms=read_int(row[7]),
        last_ms=read_int(row[8]),
        jitter_ms=read_int(row[9]),
    )


def _fire_row(firing: Firing) -> tuple[Arg, ...]:
    owed, plan = firing.owed, firing.plan
    assert owed.next_ms is not None, owed
    return (
        owed.ref,
        owed.version,
        owed.next_ms,
        opt(plan.next_ms),
        max([owed.next_ms, *(run[0] for run in firing.runs), *(s.last_ms for s in plan.skipped)]),
        " ".join([f"{nominal}:{due}:{missed}" for nominal, due, missed in firing.runs]),
        " ".join([f"{s.outcome}:{s.first_ms}:{s.last_ms}:{s.count}:{int(s.is_exact)}" for s in plan.skipped]),
    )  # fmt: skip


def _members(entries: Any) -> list[str]:
    """The names in a reply of ZSCAN, whichever form the connection gives it."""
    if entries and isinstance(entries[0], list | tuple):
        return [entry[0].decode() for entry in entries]
    return [entry.decode() for entry in entries[::2]]
