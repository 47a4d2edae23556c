"""Recurring: a handle on one recurring task, and ``Repeat``, which makes one of a handler.

::

    s = await charge.every("15m", id="quarterly").create("inv_9", 5)
    s.next_fires(10)
    await s.pause()

``record`` is what was last heard and may be old; every verb brings it up to date. What follows from
the record alone (``next_fires``, ``description``) asks nobody. Every coroutine has a twin ``…_sync``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from tasksched import clock
from tasksched.client.link import Link
from tasksched.client.recurring_backend import Fill, RecurringBackend
from tasksched.client.schedule_options import EditOptions, changes_of
from tasksched.client.task import Task
from tasksched.commands.recurring import Backfilled
from tasksched.errors import Conflict, NotFound, PreconditionFailed
from tasksched.model.instants import Instant, parse_instant
from tasksched.model.recurring import LedgerEntry, Schedule, ScheduleSpec, ScheduleStatus, fires_of
from tasksched.model.schedule.describe import describe
from tasksched.model.schedule.preview import Fire, preview
from tasksched.model.task import Created

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

PUT_TRIES = 10
RATE_DEFAULT = 10.0

Encode = Callable[[tuple[Any, ...], dict[str, Any]], bytes]


class Recurring(Generic[R_co]):
    """A recurring task by its id. ``created`` is False where it was there before."""

    __slots__ = ("_link", "created", "id", "record", "tenant")

    def __init__(self, link: Link, tenant: str, schedule_id: str, *, created: bool = False) -> None:
        self._link = link
        self.tenant = tenant
        self.id = schedule_id
        self.created = created
        self.record: Schedule | None = None

    def __repr__(self) -> str:
        return f"<Recurring {self.id} {self.status or 'not read yet'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recurring) and (other.tenant, other.id) == (self.tenant, self.id)

    def __hash__(self) -> int:
        return hash((self.tenant, self.id))

    # -- looking --------------------------------------------------------------------------------

    @property
    def status(self) -> ScheduleStatus | None:
        """ACTIVE, PAUSED, BLOCKED or ENDED, as last heard; None before that."""
        return None if self.record is None else self.record.status

    @property
    def description(self) -> str:
        """The rule as a sentence."""
        return describe(self._known.spec.rule)

    def next_fires(self, n: int = 10) -> list[Fire]:
        """The next ``n`` nominal times with their notes on daylight saving; none unless ACTIVE.

        They follow from the record, without asking anybody. A fixed delay has one at most.
        """
        return fires_of(self._known, n)

    @property
    def _known(self) -> Schedule:
        if self.record is None:
            raise RuntimeError(f"recurring task {self.id} was not read yet: refresh() it first")
        return self.record

    async def refresh(self) -> Schedule:
        """The record as it stands now. Raises NotFound."""
        return self.heard(await (await self._backend()).get(self.tenant, self.id))

    async def runs(self) -> Sequence[LedgerEntry]:
        """What became of each nominal time, newest first: 100 entries, of seven days at most."""
        return await (await self._backend()).ledger(self.tenant, self.id)

    # -- changing -------------------------------------------------------------------------------

    async def pause(self, *, version: int | None = None) -> Schedule:
        """Fires no more until resumed; what is overdue is settled first. Raises Conflict if ENDED."""
        backend = await self._backend()
        return self.heard(await backend.pause(self.tenant, self.id, version))

    async def resume(self, *, version: int | None = None) -> Schedule:
        """Fires again; nothing is owed for the time of the pause. Also out of BLOCKED."""
        backend = await self._backend()
        return self.heard(await backend.resume(self.tenant, self.id, version))

    async def edit(self, *, version: int | None = None, **changes: Unpack[EditOptions]) -> Schedule:
        """Changes what is named; the rest stays. Fires nothing by itself."""
        asked = changes_of(changes)
        backend = await self._backend()
        return self.heard(await backend.edit(self.tenant, self.id, asked, version))

    async def trigger(self) -> Task[R_co]:
        """An extra run, now. It moves nothing and no other run waits for it."""
        task_id = await (await self._backend()).trigger(self.tenant, self.id)
        return Task(self._link, self.tenant, Created(task_id, created=True, due_ms=0))

    async def backfill(
        self, start: Instant, end: Instant, *, dry_run: bool = False, rate: float = RATE_DEFAULT
    ) -> Backfilled:
        """Runs for the nominal times from ``start`` to ``end``, ``rate`` of them a second.

        What has a run on record gets no second one. ``dry_run`` only counts. Raises Invalid for a
        fixed delay, for a range that is not past, and for more than 10,000 nominal times.
        """
        span_ms = parse_instant(start, "/from"), parse_instant(end, "/to")
        backend = await self._backend()
        return await backend.backfill(self.tenant, self.id, Fill(span_ms, dry_run, rate))

    async def delete(self, *, version: int | None = None) -> None:
        """Removes it: what waits is cancelled, what runs may finish. Raises NotFound."""
        await (await self._backend()).remove(self.tenant, self.id, version)

    async def _backend(self) -> RecurringBackend:
        return (await self._link.backend()).recurring

    def heard(self, record: Schedule) -> Schedule:
        """Take note of a record read elsewhere."""
        self.record = record
        return record

    # -- the same without an event loop ---------------------------------------------------------

    def refresh_sync(self) -> Schedule:
        return self._link.run(self.refresh())

    def runs_sync(self) -> Sequence[LedgerEntry]:
        return self._link.run(self.runs())

    def pause_sync(self, *, version: int | None = None) -> Schedule:
        return self._link.run(self.pause(version=version))

    def resume_sync(self, *, version: int | None = None) -> Schedule:
        return self._link.run(self.resume(version=version))

    def edit_sync(self, *, version: int | None = None, **changes: Unpack[EditOptions]) -> Schedule:
        return self._link.run(self.edit(version=version, **changes))

    def trigger_sync(self) -> Task[R_co]:
        return self._link.run(self.trigger())

    def backfill_sync(
        self, start: Instant, end: Instant, *, dry_run: bool = False, rate: float = RATE_DEFAULT
    ) -> Backfilled:
        return self._link.run(self.backfill(start, end, dry_run=dry_run, rate=rate))

    def delete_sync(self, *, version: int | None = None) -> None:
        self._link.run(self.delete(version=version))


class Repeat(Generic[P, R_co]):
    """A handler with a rule and an id, not sent yet. Made by ``handler.every(…)``."""

    __slots__ = ("_encode", "_link", "_spec")

    def __init__(self, link: Link, encode: Encode, spec: ScheduleSpec) -> None:
        self._link = link
        self._encode = encode
        self._spec = spec

    async def create(self, /, *args: P.args, **kwargs: P.kwargs) -> Recurring[R_co]:
        """Creates it; the same definition again is fine. Raises Conflict where it is another."""
        spec = self._with(args, kwargs)
        backend = (await self._link.backend()).recurring
        kept = await backend.create(spec)
        return self._handle(kept.schedule, created=kept.created)

    async def put(self, /, *args: P.args, **kwargs: P.kwargs) -> Recurring[R_co]:
        """Creates it, or replaces what is there, whichever version. Its history stays."""
        spec = self._with(args, kwargs)
        backend = (await self._link.backend()).recurring
        schedule, created = await keep(backend, spec)
        return self._handle(schedule, created=created)

    def create_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> Recurring[R_co]:
        """As ``create``, without an event loop."""
        return self._link.run(self.create(*args, **kwargs))

    def put_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> Recurring[R_co]:
        """As ``put``, without an event loop."""
        return self._link.run(self.put(*args, **kwargs))

    @property
    def description(self) -> str:
        """The rule as a sentence."""
        return describe(self._spec.rule)

    def next_fires(self, n: int = 10, *, after: Instant | None = None) -> list[Fire]:
        """The first ``n`` nominal times if it were created at ``after`` (now)."""
        after_ms = clock.wall_ms() if after is None else parse_instant(after, "/after")
        return preview(self._spec.rule.bind(self._spec.ref, after_ms), after_ms, n)

    def _with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScheduleSpec:
        template = msgspec.structs.replace(self._spec.template, payload=self._encode(args, kwargs))
        return msgspec.structs.replace(self._spec, template=template)

    def _handle(self, schedule: Schedule, *, created: bool) -> Recurring[R_co]:
        tenant = self._spec.template.tenant
        handle = Recurring[R_co](self._link, tenant, self._spec.id, created=created)
        handle.heard(schedule)
        return handle


async def keep(backend: RecurringBackend, spec: ScheduleSpec) -> tuple[Schedule, bool]:
    """Create or replace, whatever version is there; whether it was created."""
    for _ in range(PUT_TRIES):
        try:
            kept = await backend.create(spec)
        except Conflict as error:
            version = error.extra.get("version")
            if version is None:
                raise
        else:
            return kept.schedule, kept.created
        try:
            return await backend.replace(spec, version), False
        except (PreconditionFailed, NotFound):
            continue  # it was changed or removed in between
    raise Conflict(f"recurring task {spec.id} changes faster than it can be replaced")
