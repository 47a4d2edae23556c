"""Recurring: what a user may ask for about schedules, one method a request.

Pause and edit first settle what is overdue under the old definition (the scripts answer ``owed``,
and it is fired here as a scheduler would). An edit never fires by itself; the same definition put
again changes nothing.
"""

import secrets
from collections.abc import Awaitable, Callable

import msgspec

from tasksched.errors import Conflict, Invalid, NotFound, PreconditionFailed
from tasksched.model import codec
from tasksched.model.recurring import LedgerEntry, Schedule, ScheduleSpec, policy_json
from tasksched.model.schedule.parse import require_first
from tasksched.model.schedule.preview import Fire, preview
from tasksched.store.protocol import Changed, Store
from tasksched.store.reads import Place, Reads
from tasksched.store.schedules import Schedules

OWED_TRIES = 20
BACKFILL_MAX = 10_000
TRIGGER_BATCH = 100
EXAMINED_MAX = 1_000


class Backfilled(msgspec.Struct, frozen=True):
    """``count`` nominal times lie in the range; ``task_ids``: those that made a task now."""

    count: int
    task_ids: list[str]
    is_exact: bool = True


class Recurring:
    """The requests about recurring tasks. Safe for concurrent use in one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads = Reads(store)
        self.schedules = Schedules(store)

    async def get(self, tenant: str, schedule_id: str) -> Schedule:
        found = await self.schedules.get(f"{tenant}:{schedule_id}")
        if found is None:
            raise NotFound(f"no recurring task {schedule_id}", recurring_task_id=schedule_id)
        return found

    async def page(
        self, tenant: str, after: Place | None, *, limit: int, status: str | None = None
    ) -> tuple[list[Schedule], Place | None]:
        """Recurring tasks of the tenant by their next time; the place to go on from, if any."""
        found: list[Schedule] = []
        place, examined = after, 0
        indexes = {shard: ["schedules"] for shard in range(self._store.shards)}
        while len(found) < limit and examined < EXAMINED_MAX:
            entries = await self._reads.page(indexes, place, limit=limit)
            mine = [entry.id for entry in entries if entry.id.startswith(f"{tenant}:")]
            for schedule in await self.schedules.get_many(mine):
                if schedule is not None and status in {None, schedule.status}:
                    found.append(schedule)
            examined += len(entries)
            if len(entries) < limit:
                return found, None
            place = Place(*entries[-1])
        return found, place

    async def put(
        self, spec: ScheduleSpec, *, version: int | None = None
    ) -> tuple[Changed, Schedule]:
        """Create, or with ``version`` replace. Words: created, replaced, same, exists.

        Raises Invalid when the rule never fires, PreconditionFailed for another version, NotFound
        when a version is named and there is nothing.
        """
        mark = fingerprint_of(spec)
        for _ in range(OWED_TRIES):
            before = await self.schedules.get(spec.ref)
            now_ms = await self._reads.now_ms()
            changed = await self.schedules.put_schedule(
                spec,
                expected=version,
                created_ms=now_ms,
                next_ms=self._first_owed(spec, before, now_ms),
                fingerprint=mark,
            )
            if changed.word != "owed":
                _require(changed, spec.id)
                return changed, await self.get(spec.template.tenant, spec.id)
            assert before is not None
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
        if rule.kind == "delay":
            return rule.first(now_ms)
        return rule.next(max(now_ms, before.last_ms or now_ms))

    async def pause(self, tenant: str, schedule_id: str, *, version: int | None = None) -> Changed:
        ref = f"{tenant}:{schedule_id}"
        return await self._settling(ref, lambda: self.schedules.pause_schedule(ref, version))

    async def resume(self, tenant: str, schedule_id: str, *, version: int | None = None) -> Changed:
        """ACTIVE again; nothing is owed for the time of the pause."""
        schedule = await self.get(tenant, schedule_id)
        now_ms = await self._reads.now_ms()
        rule = schedule.spec.rule
        next_ms = rule.first(now_ms) if rule.kind == "delay" else rule.next(now_ms)
        changed = await self.schedules.resume_schedule(schedule.spec.ref, version, next_ms=next_ms)
        return _require(changed, schedule_id)

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
        if span_ms[1] < span_ms[0]:
            raise Invalid("to lies before from", "/to")
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
        schedule = await self.get(tenant, schedule_id)
        if schedule.next_ms is None:
            return []
        return preview(schedule.spec.rule, schedule.next_ms - 1, n)

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


def fingerprint_of(spec: ScheduleSpec) -> str:
    """Equal exactly for equal normalised definitions."""
    payload = codec.decode(spec.template.payload) if spec.template.payload else None
    template = msgspec.to_builtins(msgspec.structs.replace(spec.template, payload=b"", key=None))
    template["retry"] = spec.template.retry.to_json()
    fields = [spec.rule.fields(), template, bool(spec.template.payload), payload, policy_json(spec)]
    return codec.fingerprint(
        [*fields, spec.overlap, spec.after, spec.jitter_ms, spec.max_runs, spec.owner]
    )


def _require(changed: Changed, schedule_id: str) -> Changed:
    """The change itself, or the error its word stands for."""
    if changed.word == "missing":
        raise NotFound(f"no recurring task {schedule_id}", recurring_task_id=schedule_id)
    if changed.word == "version":
        raise PreconditionFailed(f"the version is {changed.version}", version=changed.version)
    if changed.word == "state":
        raise Conflict(f"recurring task {schedule_id} is {changed.state}", status=changed.state)
    return changed
