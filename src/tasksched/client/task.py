"""Task: a handle on one task. Cheap to make; nothing is sent or read until it is asked to.

``status`` and ``record`` are what was last heard and may be old; ``refresh`` looks again. A result
comes back as the handler returned it (in JSON's terms: a tuple as a list), a failure as
``TaskFailed`` with the error the handler raised. Every coroutine has a twin ``…_sync`` for callers
without an event loop.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar, Unpack, cast

from tasksched import clock
from tasksched.client.backend import Change
from tasksched.client.changes import Changed, changes_of
from tasksched.client.link import Link
from tasksched.client.live import follow
from tasksched.commands.tasks import UNSET, Changes
from tasksched.errors import Conflict, Invalid, TaskschedError
from tasksched.model import codec
from tasksched.model import task as model
from tasksched.model.durations import Duration, format_duration, parse_duration
from tasksched.model.instants import Instant, parse_instant
from tasksched.model.live import Followed, LineSaid, StateSeen
from tasksched.model.states import FINAL, State

R_co = TypeVar("R_co", covariant=True)

WAIT_MS = 20_000
"""One request waits at most this long; a longer wait is several."""


class TaskFailed(TaskschedError):
    """The task ended ``FAILED``. ``reason`` says why it was final, ``error`` what was raised."""

    title = "The task failed"

    def __init__(self, record: model.Task) -> None:
        self.record = record
        self.reason = record.reason
        self.error = record.error
        said = f": {record.error.type}: {record.error.message}" if record.error else ""
        super().__init__(f"task {record.id} failed ({record.reason or 'unknown'}){said}")


class TaskCancelled(TaskschedError):
    """The task ended ``CANCELLED``."""

    title = "The task was cancelled"

    def __init__(self, record: model.Task) -> None:
        self.record = record
        super().__init__(f"task {record.id} was cancelled")


class Task(Generic[R_co]):
    """A task by its id. ``created`` is False where an idempotency key led to one made before."""

    __slots__ = ("_link", "created", "id", "record", "status", "tenant")

    def __init__(self, link: Link, tenant: str, created: model.Created) -> None:
        self._link = link
        self.tenant = tenant
        self.id = created.id
        self.created = created.created
        self.record: model.Task | None = created.task
        self.status: State | None = "PENDING" if created.task is None else created.task.status

    @classmethod
    def known(cls, link: Link, tenant: str, task_id: str) -> "Task[Any]":
        """A handle on a task made elsewhere; whether it exists shows when it is asked."""
        handle = Task[Any](link, tenant, model.Created(task_id, created=False, due_ms=0))
        handle.status = None
        return handle

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.status or 'not read yet'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and (other.tenant, other.id) == (self.tenant, self.id)

    def __hash__(self) -> int:
        return hash((self.tenant, self.id))

    # -- looking --------------------------------------------------------------------------------

    async def refresh(self) -> model.Task:
        """The record as it stands now. Raises NotFound."""
        backend = await self._link.backend()
        return self.heard(await backend.get(self.tenant, self.id))

    async def attempts(self) -> Sequence[model.Attempt]:
        """Every execution on record, the oldest first."""
        backend = await self._link.backend()
        return await backend.attempts(self.tenant, self.id)

    async def log(self) -> Sequence[LineSaid]:
        """What its runs said by ``ctx.line``, the oldest first; the last 200 lines are kept."""
        backend = await self._link.backend()
        return await backend.live.lines(self.tenant, self.id)

    async def follow(self, after: str | None = None) -> AsyncGenerator[Followed, None]:
        """Lines, progress and states as they come, to the final state. Raises NotFound.

        ``after``: only lines after the one of this id.
        """
        backend = await self._link.backend()
        async with aclosing(follow(backend.live, self.tenant, self.id, after)) as found:
            async for each in found:
                if isinstance(each, StateSeen):
                    self.status = each.status
                yield each

    async def wait(self, timeout: Duration | None = None) -> model.Task:
        """The record once the task is final. Raises TimeoutError when that takes longer."""
        timeout_ms = None if timeout is None else parse_duration(timeout, "/timeout")
        began_ms = clock.mono_ms()
        backend = await self._link.backend()
        while True:
            left_ms = WAIT_MS
            if timeout_ms is not None:
                left_ms = min(WAIT_MS, max(0, began_ms + timeout_ms - clock.mono_ms()))
            record = self.heard(await backend.wait(self.tenant, self.id, left_ms))
            if record.status in FINAL:
                return record
            if timeout_ms is not None and clock.mono_ms() - began_ms >= timeout_ms:
                waited = format_duration(timeout_ms)
                raise TimeoutError(f"task {self.id} is {record.status} after {waited}")

    async def result(self, timeout: Duration | None = None) -> R_co:
        """What the handler returned, waited for.

        Raises TaskFailed, TaskCancelled, TimeoutError (the task goes on), or Conflict where it is
        encrypted with a key that is not here.
        """
        return self._result(await self.wait(timeout))

    def _result(self, record: model.Task) -> R_co:
        if record.status == "FAILED":
            raise TaskFailed(record)
        if record.status == "CANCELLED":
            raise TaskCancelled(record)
        if record.encrypted and record.result is None:
            raise Conflict(f"the result of task {record.id} is encrypted, and its key is not here")
        # Whether the worker's answer is an R is the handler's promise, checked by nobody here.
        return cast("R_co", codec.decode(record.result) if record.result else None)

    # -- changing -------------------------------------------------------------------------------

    async def cancel(self, *, version: int | None = None) -> Change:
        """Final at once where it waits; a request where it runs. Raises Conflict if finished."""
        backend = await self._link.backend()
        return self._changed(await backend.cancel(self.tenant, self.id, version))

    async def reschedule(
        self,
        *,
        at: Instant | None = None,
        delay: Duration | None = None,
        version: int | None = None,
    ) -> Change:
        """Due at another time. Raises Conflict unless it waits."""
        if (at is None) == (delay is None):
            raise Invalid("give at or delay, one of them", "/at")
        changes = Changes(
            run_at_ms=UNSET if at is None else parse_instant(at, "/at"),
            delay_ms=UNSET if delay is None else parse_duration(delay, "/delay"),
        )
        backend = await self._link.backend()
        return self._changed(await backend.edit(self.tenant, self.id, changes, version))

    async def run_now(self, *, version: int | None = None) -> Change:
        """Due at once. Raises Conflict unless it waits."""
        backend = await self._link.backend()
        return self._changed(await backend.run_now(self.tenant, self.id, version))

    async def retry(self, *, version: int | None = None, **changes: Unpack[Changed]) -> Change:
        """A new life for a failed or cancelled task, changed on the way. Raises Conflict for others.

        ``await task.retry(payload=["inv_2", 100], delay="1h")``
        """
        backend = await self._link.backend()
        asked = changes_of(changes) if changes else None
        return self._changed(await backend.redrive(self.tenant, self.id, version, asked))

    async def delete(self, *, version: int | None = None) -> None:
        """Removes it; one that waits is cancelled first. Raises Conflict where it runs."""
        backend = await self._link.backend()
        await backend.bulk.delete(self.tenant, self.id, version)

    def _changed(self, change: Change) -> Change:
        self.status = change.status
        return change

    def heard(self, record: model.Task) -> model.Task:
        """Take note of a record read elsewhere."""
        self.record, self.status = record, record.status
        return record

    # -- the same without an event loop ---------------------------------------------------------

    def refresh_sync(self) -> model.Task:
        return self._link.run(self.refresh())

    def attempts_sync(self) -> Sequence[model.Attempt]:
        return self._link.run(self.attempts())

    def log_sync(self) -> Sequence[LineSaid]:
        return self._link.run(self.log())

    def wait_sync(self, timeout: Duration | None = None) -> model.Task:
        return self._link.run(self.wait(timeout))

    def result_sync(self, timeout: Duration | None = None) -> R_co:
        return self._link.run(self.result(timeout))

    def cancel_sync(self, *, version: int | None = None) -> Change:
        return self._link.run(self.cancel(version=version))

    def reschedule_sync(
        self,
        *,
        at: Instant | None = None,
        delay: Duration | None = None,
        version: int | None = None,
    ) -> Change:
        return self._link.run(self.reschedule(at=at, delay=delay, version=version))

    def run_now_sync(self, *, version: int | None = None) -> Change:
        return self._link.run(self.run_now(version=version))

    def retry_sync(self, *, version: int | None = None, **changes: Unpack[Changed]) -> Change:
        return self._link.run(self.retry(version=version, **changes))

    def delete_sync(self, *, version: int | None = None) -> None:
        self._link.run(self.delete(version=version))
