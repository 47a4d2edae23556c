"""RecurringBackend: the requests about recurring tasks, whoever carries them.

As ``backend`` for tasks. A ``Schedule`` that comes back has as ``next_ms`` and ``last_ms`` what users
are told over every transport: the next nominal time, that of a waiting run of a fixed delay included,
and the last one that ran.
"""

from typing import NamedTuple, Protocol

from tasksched.client.schedule_options import RecurringChanges
from tasksched.commands.recurring import Backfilled
from tasksched.model.recurring import LedgerEntry, Schedule, ScheduleSpec, ScheduleStatus


class Kept(NamedTuple):
    """The recurring task under its id. ``created`` is False where it was there, the same, before."""

    created: bool
    schedule: Schedule


class RecurringPage(NamedTuple):
    """Some of a tenant's recurring tasks; it may be short, or empty, and yet not the last one."""

    items: list[Schedule]
    next_cursor: str | None


class Fill(NamedTuple):
    """The nominal times to fill, both ends included, and how many of them a second."""

    span_ms: tuple[int, int]
    dry_run: bool
    rate: float


class RecurringBackend(Protocol):
    """What a transport does about recurring tasks. ``version`` None: whichever it is."""

    async def create(self, spec: ScheduleSpec) -> Kept:
        """Raises Conflict, with the ``version`` there is, where the id has another definition."""
        ...

    async def replace(self, spec: ScheduleSpec, version: int) -> Schedule:
        """Raises PreconditionFailed or NotFound where that version is not there any more."""
        ...

    async def get(self, tenant: str, schedule_id: str) -> Schedule: ...

    async def page(
        self, tenant: str, status: ScheduleStatus | None, cursor: str | None, limit: int
    ) -> RecurringPage: ...

    async def edit(
        self, tenant: str, schedule_id: str, changes: RecurringChanges, version: int | None
    ) -> Schedule: ...

    async def pause(self, tenant: str, schedule_id: str, version: int | None) -> Schedule: ...

    async def resume(self, tenant: str, schedule_id: str, version: int | None) -> Schedule: ...

    async def remove(self, tenant: str, schedule_id: str, version: int | None) -> None: ...

    async def trigger(self, tenant: str, schedule_id: str) -> str:
        """The id of the extra occurrence."""
        ...

    async def backfill(self, tenant: str, schedule_id: str, fill: Fill) -> Backfilled: ...

    async def ledger(self, tenant: str, schedule_id: str) -> list[LedgerEntry]: ...
