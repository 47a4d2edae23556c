"""Recurring: what a user may ask for about schedules, one method a request.

Pause and edit first settle what is overdue under the old definition (the scripts answer ``owed``,
and it is fired here as a scheduler would). An edit never fires by itself; the same definition put
again changes nothing.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from tasksched.errors import Conflict, Invalid, NotFound, PreconditionFailed
from tasksched.model import codec
from tasksched.model.endpoint import open_receivers, seal_receivers
from tasksched.model.notify import Receiver
from tasksched.model.receivers import with_secrets
from tasksched.model.recurring import (
    LedgerEntry,
    Schedule,
    ScheduleSpec,
    fires_of,
    policy_json,
    resumed_ms,
)
from tasksched.model.schedule.parse import require_first
from tasksched.model.schedule.preview import Fire
from tasksched.model.seal import PLAIN, Bodies
from tasksched.model.states import WAITING
from tasksched.model.task import Task
from tasksched.store.protocol import Changed, Store
from tasksched.store.reads import Place, Reads
from tasksched.store.schedules import Schedules

OWED_TRIES = 20
BACKFILL_MAX = 10_000
TRIGGER_BATCH = 100
EXAMINED_MAX = 1_000
LEDGER_LOOK = 10


class Backfilled(msgspec.Struct, frozen=True):
    """``count`` nominal times lie in the range; ``task_ids``: those that made a task now."""

    count: int
    task_ids: list[str]
    is_exact: bool = True


class Standing(NamedTuple):
    """A schedule's next and last run, by their nominal times; None: there is none."""

    next_ms: int | None
    last_ms: int | None


class Recurring:
    """The requests about recurring tasks. Safe for concurrent use in one event loop."""

    def __init__(self, store: Store, bodies: Bodies = PLAIN) -> None:
        self._store = store
        self._bodies = bodies
        self._reads = Reads(store)
        self.schedules = Schedules(store)

    async def get(self, tenant: str, schedule_id: str) -> Schedule:
        found = await self.schedules.get(f"{tenant}:{schedule_id}")
        if found is None:
            raise NotFound(f"no recurring task {schedule_id}", recurring_task_id=schedule_id)
        return self._bodies.open_schedule(found)

    async def page(
        self, tenant: str, after: Place | None, *, limit: int, status: str | None = None
    ) -> tuple[list[Schedule], Place | None]:
        """Recurring tasks of the tenant by their next time; the place to go on from, if any."""
        found: list[Schedule] = []
        place, examined = after, 0
        indexes = {shard: ["schedules"] for shard in range(self._store.shards)}
        while examined < EXAMINED_MAX:
            # One more than is needed tells whether anything follows.
            ask = min(limit + 1, EXAMINED_MAX - examined)
            entries = await self._reads.page(indexes, place, limit=ask)
            mine = [entry.id for entry in entries if entry.id.startswith(f"{tenant}:")]
            known = dict(zip(mine, await self.schedules.get_many(mine), strict=True))
            for entry in entries:
                schedule = known.get(entry.id)
                if schedule is not None and status in {None, schedule.status}:
                    if len(found) == limit:
                        return found, place
                    found.append(self._bodies.open_schedule(schedule))
                place = Place(*entry)
            examined += len(entries)
            if len(entries) < ask:
                return found, None
        return found, place

    async def standings(self, schedules: Sequence[Schedule]) -> list[Standing]:
        """When each runs next, the waiting run of a fixed delay included, and when it last did.

        From the newest entries of the ledger; where none of them tells, from what is settled.
        """
        now_ms = await self._reads.now_ms()
        shards = [self._store.keys[self.schedules.shard_of(one.spec.ref)] for one in schedules]
        rows = [
            ("LRANGE", keys.ledger(one.spec.ref), -LEDGER_LOOK, -1)
            for keys, one in zip(shards, schedules, strict=True)
        ]
        ledgers = await self._store.gateway.pipeline(rows) if rows else []
        heads = await self._reads.tasks([one.head for one in schedules if one.head])
        waiting = {
            t.id: t for t in heads if t is not None and t.status in WAITING and not t.attempts
        }
        return [
            _standing(one, ledger, waiting.get(one.head or ""), now_ms)
            for one, ledger in zip(schedules, ledgers, strict=True)
        ]

    async def put(
        self, spec: ScheduleSpec, *, version: int | None = None
    ) -> tuple[Changed, Schedule]:
        """Create, or with ``version`` replace. Words: created, replaced, same, exists.

        Raises Invalid when the rule never fires, PreconditionFailed for another version, NotFound
        when a version is named and there is nothing.
        """
        for _ in range(OWED_TRIES):
            before = await self.schedules.get(spec.ref)
            spec = _with_known_secrets(self._bodies, spec, before)
            sealed = self._bodies.seal_schedule(_with_sealed_receivers(self._bodies, spec))
            mark = fingerprint_of(spec)
            now_ms = await self._reads.now_ms()
            changed = await self.schedules.put_schedule(
                sealed,
                expected=version,
                created_ms=now_ms,
                next_ms=self._first_owed(spec, before, now_ms),
                fingerprint=mark,
            )
            if changed.word != "owed":
                _require(changed, spec.id)
                return changed, await self.get(spec.template.tenant, spec.id)
            if before is not None:
                await self.schedules.settle_owed(before, now_ms)
        raise Conflict(f"recurring task {spec.id} fires faster than it can be edited")

    def _first_owed(self, spec: ScheduleSpec, before: Schedule | None, now_ms: int) -> int | None:
        """The first nominal time that is owed from now on: nothing of the past is, after an edit."""
        if before is None:
            rule = spec.rule.bind(spec.ref, now_ms)
            return require_first(rule, now_ms)
        rule = spec.rule.bind(spec.ref, before.generation_ms)
        same_rule = rule.canonical() == before.spec.rule.canonical()
        if same_rule and before.next_ms is not None:
            return before.next_ms
        if not same_rule:
            require_first(rule, now_ms)
        return resumed_ms(rule, now_ms)

    async def pause(self, tenant: str, schedule_id: str, *, version: int | None = None) -> Changed:
        ref = f"{tenant}:{schedule_id}"
        return await self._settling(ref, lambda: self.schedules.pause_schedule(ref, version))

    async def resume(self, tenant: str, schedule_id: str, *, version: int | None = None) -> Changed:
        """ACTIVE again; nothing is owed for the time of the pause."""
        for _ in range(OWED_TRIES):
            schedule = await self.get(tenant, schedule_id)
            if version not in {None, schedule.version} and schedule.status != "ACTIVE":
                raise PreconditionFailed(
                    f"the version is {schedule.version}", version=schedule.version
                )
            # The next time belongs to the definition it was computed from.
            changed = await self.schedules.resume_schedule(
                schedule.spec.ref,
                schedule.version,
                next_ms=resumed_ms(schedule.spec.rule, await self._reads.now_ms()),
            )
            if changed.word not in {"late", "version"}:
                return _require(changed, schedule_id)
        raise Conflict(f"recurring task {schedule_id} changes faster than it can be resumed")

    async def remove(self, tenant: str, schedule_id: str, *, version: int | None = None) -> Changed:
        changed = await self.schedules.remove_schedule(f"{tenant}:{schedule_id}", version)
        return _require(changed, schedule_id)

    async def trigger(self, tenant: str, schedule_id: str) -> str:
        """An extra occurrence, now; returns its task id."""
        now_ms = await self._reads.now_ms()
        name = f"x{secrets.token_hex(8)}"
        ids = await self.schedules.trigger(f"{tenant}:{schedule_id}", [(name, now_ms, "+0")])
        if ids is None:
            raise NotFound(f"no recurring task {schedule_id}", recurring_task_id=schedule_id)
        return ids[0] or ""

    async def backfill(
        self,
        tenant: str,
        schedule_id: str,
        span_ms: tuple[int, int],
        *,
        dry_run: bool,
        rate: float = 10.0,
    ) -> Backfilled:
        """Occurrences for the nominal times in [from, to], ``rate`` of them due per second.

        What has an occurrence on record already gets no second one, so asking twice is safe.
        Raises Invalid for a fixed delay, and over BACKFILL_MAX.
        """
        schedule = await self.get(tenant, schedule_id)
        rule = schedule.spec.rule
        if rule.kind == "delay":
            raise Invalid("a fixed delay has no past to fill", "/from")
        if not rate > 0:
            raise Invalid("it is a number above 0", "/rate")
        if span_ms[1] < span_ms[0]:
            raise Invalid("to lies before from", "/to")
        if span_ms[1] > await self._reads.now_ms():
            raise Invalid("a backfill fills the past; to lies in the future", "/to")
        count = rule.count(span_ms[0] - 1, span_ms[1], BACKFILL_MAX + 1)
        if dry_run:
            return Backfilled(count, [], is_exact=count <= BACKFILL_MAX)
        if count > BACKFILL_MAX:
            raise Invalid(f"more than {BACKFILL_MAX} nominal times; take a shorter range", "/to")
        nominals = rule.between(span_ms[0] - 1, span_ms[1], BACKFILL_MAX)
        rows = [(str(at_ms), at_ms, f"+{int(n * 1000 / rate)}") for n, at_ms in enumerate(nominals)]
        made: list[str] = []
        for first in range(0, len(rows), TRIGGER_BATCH):
            ids = await self.schedules.trigger(
                schedule.spec.ref, rows[first : first + TRIGGER_BATCH]
            )
            made += [task_id for task_id in ids or () if task_id]
        return Backfilled(count, made)

    async def next_fires(self, tenant: str, schedule_id: str, n: int) -> list[Fire]:
        """The next ``n`` nominal times, with notes about daylight saving."""
        return fires_of(await self.get(tenant, schedule_id), n)

    async def ledger(self, tenant: str, schedule_id: str) -> list[LedgerEntry]:
        schedule = await self.get(tenant, schedule_id)
        return await self.schedules.ledger(schedule, await self._reads.now_ms())

    async def _settling(self, ref: str, ask: Callable[[], Awaitable[Changed]]) -> Changed:
        """The answer, after what was owed under the old definition has been fired."""
        for _ in range(OWED_TRIES):
            changed = await ask()
            if changed.word != "owed":
                return _require(changed, ref.partition(":")[2])
            before = await self.schedules.get(ref)
            if before is not None:
                await self.schedules.settle_owed(before, await self._reads.now_ms())
        raise Conflict(f"recurring task {ref} fires faster than it can be changed")


def _with_known_secrets(
    bodies: Bodies, spec: ScheduleSpec, before: Schedule | None
) -> ScheduleSpec:
    """The definition with the secrets of its receivers in the clear: those of before, where a
    receiver of the same URL names none.
    """
    if not spec.template.notify:
        return spec
    tenant = spec.template.tenant
    known = () if before is None else open_receivers(bodies, tenant, before.spec.template.notify)
    asked = open_receivers(bodies, tenant, spec.template.notify)
    return _with_receivers(spec, with_secrets(asked, known))


def _with_sealed_receivers(bodies: Bodies, spec: ScheduleSpec) -> ScheduleSpec:
    template = spec.template
    return _with_receivers(spec, seal_receivers(bodies, template.tenant, template.notify))


def _with_receivers(spec: ScheduleSpec, receivers: tuple[Receiver, ...]) -> ScheduleSpec:
    template = msgspec.structs.replace(spec.template, notify=receivers)
    return msgspec.structs.replace(spec, template=template)


def fingerprint_of(spec: ScheduleSpec) -> str:
    """Equal exactly for equal normalised definitions."""
    payload = codec.decode(spec.template.payload) if spec.template.payload else None
    template = msgspec.to_builtins(msgspec.structs.replace(spec.template, payload=b"", key=None))
    template["retry"] = spec.template.retry.to_json()
    fields = [spec.rule.fields(), template, bool(spec.template.payload), payload, policy_json(spec)]
    return codec.fingerprint(
        [*fields, spec.overlap, spec.after, spec.jitter_ms, spec.max_runs, spec.owner]
    )


def _standing(
    schedule: Schedule, ledger: Sequence[bytes], waiting: Task | None, now_ms: int
) -> Standing:
    next_ms = schedule.next_ms
    if waiting is not None and waiting.nominal_ms is not None:
        next_ms = waiting.nominal_ms if schedule.status == "ACTIVE" else None
    fired = [raw.split(b" ") for raw in ledger if raw.startswith(b"fired ")]
    times = [int(entry[1]) for entry in fired if not entry[-1].startswith(b"by_hand")]
    if schedule.last_ms is not None and not times:
        times = [schedule.last_ms]
    waits_ms = None if waiting is None else waiting.nominal_ms
    ran = [at_ms for at_ms in times if at_ms <= now_ms and at_ms != waits_ms]
    return Standing(next_ms, ran[-1] if ran else None)


def _require(changed: Changed, schedule_id: str) -> Changed:
    """The change itself, or the error its word stands for."""
    known: dict[str, Any] = {"recurring_task_id": schedule_id}
    if changed.word == "missing":
        raise NotFound(f"no recurring task {schedule_id}", **known)
    if changed.word == "version":
        raise PreconditionFailed(
            f"the version is {changed.version}", version=changed.version, **known
        )
    if changed.word == "state":
        raise Conflict(
            f"recurring task {schedule_id} is {changed.state}",
            status=changed.state,
            recurring_status=changed.state,
            **known,
        )
    return changed
