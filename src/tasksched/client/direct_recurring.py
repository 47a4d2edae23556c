"""Direct recurring: recurring tasks over Redis itself. As ``direct``, a RecurringBackend."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from tasksched.client.recurring_backend import Fill, Kept, RecurringPage
from tasksched.client.schedule_options import RecurringChanges, edited
from tasksched.commands.recurring import Backfilled, Recurring
from tasksched.errors import Conflict, PreconditionFailed
from tasksched.model.recurring import LedgerEntry, Schedule, ScheduleSpec, ScheduleStatus
from tasksched.model.seal import PLAIN, Bodies
from tasksched.store.protocol import Store
from tasksched.store.reads import Place

T = TypeVar("T")

EDIT_TRIES = 5


class DirectRecurring:
    """A RecurringBackend over one store."""

    def __init__(self, store: Store, bodies: Bodies = PLAIN) -> None:
        self._recurring = Recurring(store, bodies)

    async def create(self, spec: ScheduleSpec) -> Kept:
        changed, schedule = await self._recurring.put(spec)
        if changed.word == "exists":
            raise Conflict(
                f"recurring task {spec.id} exists with another definition",
                recurring_task_id=spec.id,
                recurring_status=changed.state,
                version=changed.version,
            )
        return Kept(changed.word == "created", await self._told(schedule))

    async def replace(self, spec: ScheduleSpec, version: int) -> Schedule:
        _, schedule = await self._recurring.put(spec, version=version)
        return await self._told(schedule)

    async def get(self, tenant: str, schedule_id: str) -> Schedule:
        return await self._told(await self._recurring.get(tenant, schedule_id))

    async def page(
        self, tenant: str, status: ScheduleStatus | None, cursor: str | None, limit: int
    ) -> RecurringPage:
        place = None
        if cursor is not None:
            score, _, ref = cursor.partition(" ")
            place = Place(int(score), ref)
        found, then = await self._recurring.page(tenant, place, limit=limit, status=status)
        next_cursor = None if then is None else f"{then.score} {then.id}"
        return RecurringPage(await self._all_told(found), next_cursor)

    async def edit(
        self, tenant: str, schedule_id: str, changes: RecurringChanges, version: int | None
    ) -> Schedule:
        async def once() -> Schedule:
            before = await self._recurring.get(tenant, schedule_id)
            expected = before.version if version is None else version
            return await self.replace(edited(before.spec, changes), expected)

        return await _unless_raced(once, tries=EDIT_TRIES if version is None else 1)

    async def pause(self, tenant: str, schedule_id: str, version: int | None) -> Schedule:
        await self._recurring.pause(tenant, schedule_id, version=version)
        return await self.get(tenant, schedule_id)

    async def resume(self, tenant: str, schedule_id: str, version: int | None) -> Schedule:
        await self._recurring.resume(tenant, schedule_id, version=version)
        return await self.get(tenant, schedule_id)

    async def remove(self, tenant: str, schedule_id: str, version: int | None) -> None:
        await self._recurring.remove(tenant, schedule_id, version=version)

    async def trigger(self, tenant: str, schedule_id: str) -> str:
        return await self._recurring.trigger(tenant, schedule_id)

    async def backfill(self, tenant: str, schedule_id: str, fill: Fill) -> Backfilled:
        return await self._recurring.backfill(
            tenant, schedule_id, fill.span_ms, dry_run=fill.dry_run, rate=fill.rate
        )

    async def ledger(self, tenant: str, schedule_id: str) -> list[LedgerEntry]:
        return await self._recurring.ledger(tenant, schedule_id)

    async def _told(self, schedule: Schedule) -> Schedule:
        return (await self._all_told([schedule]))[0]

    async def _all_told(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """With the next and the last time as users are told them."""
        standings = await self._recurring.standings(schedules)
        return [
            msgspec.structs.replace(one, next_ms=standing.next_ms, last_ms=standing.last_ms)
            for one, standing in zip(schedules, standings, strict=True)
        ]


async def _unless_raced(once: Callable[[], Awaitable[T]], *, tries: int) -> T:
    """What ``once`` gives; asked again where somebody changed it between its read and its write."""
    for left in range(tries, 0, -1):
        try:
            return await once()
        except PreconditionFailed:
            if left == 1:
                raise
    raise AssertionError("the last try returns or raises")
