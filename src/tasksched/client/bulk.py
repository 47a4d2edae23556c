"""Bulk: dead letters and operations on many tasks, as a program sees them: ``app.dead``, ``app.operations``.

::

    async for task in app.dead.list(queue="billing"): ...
    for group in await app.dead.groups(): print(group.count, group.type, group.message)
    operation = await app.dead.redrive(fingerprint=group.fingerprint, rate=50)
    await operation.wait()

Without any filter everything would match: that takes ``all=True``. Every coroutine has a twin ``…_sync``.
"""

import asyncio
from builtins import list as List  # noqa: N812 - a method here is called list
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypedDict, Unpack

from tasksched import clock
from tasksched.client.backend import PAGE_MAX
from tasksched.client.changes import Changed, changes_of
from tasksched.client.link import Link
from tasksched.client.task import Task
from tasksched.commands.dead_letters import GROUPS_MAX, Group
from tasksched.commands.operations import Request
from tasksched.errors import Invalid
from tasksched.model import operation as model
from tasksched.model.durations import Duration, format_duration, parse_duration
from tasksched.model.filters import DEAD_FIELDS, GROUP_FIELDS, TASK_FIELDS, filter_of
from tasksched.model.instants import Instant
from tasksched.model.names import Priority
from tasksched.model.operation import (
    DEAD_KINDS,
    RATE_USUAL,
    Count,
    Kind,
    OperationState,
    check_rate,
)
from tasksched.model.states import State

LOOK_S: Final = 0.1
LOOK_MAX_S: Final = 2.0
GROUPS_USUAL: Final = 50


class GroupFilter(TypedDict, total=False):
    """Which failures. ``handler`` may end with ``*``."""

    queue: str | None
    handler: str | None
    reason: str | None
    fingerprint: str | None


class DeadFilter(GroupFilter, total=False):
    """Which dead letters. Bounds in time are inclusive."""

    tag: str | None
    finished_from: Instant | None
    finished_to: Instant | None


class TaskFilter(TypedDict, total=False):
    """Which tasks. Bounds in time are inclusive."""

    status: State | Sequence[State] | None
    queue: str | None
    priority: Priority | None
    handler: str | None
    tag: str | None
    due_from: Instant | None
    due_to: Instant | None


class Operation:
    """A handle on an operation. ``record`` is what was last heard of it."""

    __slots__ = ("_link", "record")

    def __init__(self, link: Link, record: model.Operation) -> None:
        self._link = link
        self.record = record

    def __repr__(self) -> str:
        record = self.record
        return f"<Operation {record.id} {record.kind} {record.state} {record.done} done>"

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def status(self) -> OperationState:
        return self.record.state

    @property
    def done(self) -> int:
        return self.record.done

    @property
    def skipped(self) -> int:
        """Met, and left alone because their state forbade it by then."""
        return self.record.skipped

    @property
    def expected(self) -> Count:
        """How many matched when it began."""
        return self.record.expected

    async def refresh(self) -> model.Operation:
        """How far it is now. Raises NotFound a day after its end."""
        backend = await self._link.backend()
        self.record = await backend.bulk.operation(self.record.tenant, self.id)
        return self.record

    async def wait(self, timeout: Duration | None = None) -> model.Operation:
        """The record once it has ended, which may be STOPPED or FAILED. Raises TimeoutError."""
        timeout_ms = None if timeout is None else parse_duration(timeout, "/timeout")
        began_ms, pause_s = clock.mono_ms(), LOOK_S
        while self.record.state == "RUNNING":
            passed_ms = clock.mono_ms() - began_ms
            if timeout_ms is not None and passed_ms >= timeout_ms:
                waited = format_duration(timeout_ms)
                raise TimeoutError(f"operation {self.id} has done {self.done} after {waited}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_MAX_S)
            await self.refresh()
        return self.record

    async def stop(self) -> model.Operation:
        """Nothing more is done. Raises Conflict where it has ended."""
        backend = await self._link.backend()
        self.record = await backend.bulk.stop(self.record.tenant, self.id)
        return self.record

    def refresh_sync(self) -> model.Operation:
        return self._link.run(self.refresh())

    def wait_sync(self, timeout: Duration | None = None) -> model.Operation:
        return self._link.run(self.wait(timeout))

    def stop_sync(self) -> model.Operation:
        return self._link.run(self.stop())


class _Many:
    """Begins operations, and counts what they would be for."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def _request(self, kind: Kind, words: Any, rate: int, *, is_all: bool) -> Request:
        known = DEAD_FIELDS if kind in DEAD_KINDS else TASK_FIELDS
        asked = filter_of(words, known)
        if not asked.named and not is_all:
            raise Invalid("an empty filter means everything: say all=True", "/all")
        return Request(
            kind=kind, tenant=self._link.tenant, filter=asked, rate=check_rate(rate, "/rate")
        )

    async def _start(self, request: Request) -> Operation:
        backend = await self._link.backend()
        return Operation(self._link, await backend.bulk.start(request))

    async def _count(self, kind: Kind, words: Any) -> Count:
        backend = await self._link.backend()
        request = self._request(kind, words, RATE_USUAL, is_all=True)
        return await backend.bulk.count(request)


class DeadLetters(_Many):
    """The FAILED tasks of the app's tenant."""

    async def list(
        self, *, limit: int | None = None, **asked: Unpack[DeadFilter]
    ) -> AsyncIterator[Task[Any]]:
        """Those that match, the newest first; their records come without payload."""
        wanted, cursor, left = filter_of(asked, DEAD_FIELDS), None, limit
        while left is None or left > 0:
            size = PAGE_MAX if left is None else min(left, PAGE_MAX)
            backend = (await self._link.backend()).bulk
            page = await backend.dead_page(self._link.tenant, wanted, cursor, size)
            for record in page.items:
                found = Task.known(self._link, record.tenant, record.id)
                found.heard(record)
                yield found
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def groups(
        self, *, limit: int = GROUPS_USUAL, **asked: Unpack[GroupFilter]
    ) -> List[Group]:
        """Failures of the same kind, the most frequent first."""
        wanted, cursor = filter_of(asked, GROUP_FIELDS), None
        found: List[Group] = []
        while len(found) < limit:
            backend = (await self._link.backend()).bulk
            size = min(limit - len(found), GROUPS_MAX)
            page = await backend.dead_groups(self._link.tenant, wanted, cursor, size)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def count(self, **asked: Unpack[DeadFilter]) -> Count:
        """How many match; nothing is changed."""
        return await self._count("redrive", asked)

    async def redrive(
        self,
        *,
        rate: int = RATE_USUAL,
        all: bool = False,  # noqa: A002 - the word of the API
        **asked: Unpack[DeadFilter],
    ) -> Operation:
        """Gives those that match a new life, so many a second. Raises Invalid."""
        return await self._start(self._request("redrive", asked, rate, is_all=all))

    async def purge(
        self,
        *,
        rate: int = RATE_USUAL,
        all: bool = False,  # noqa: A002 - the word of the API
        **asked: Unpack[DeadFilter],
    ) -> Operation:
        """Removes those that match. Raises Invalid."""
        return await self._start(self._request("purge", asked, rate, is_all=all))

    def list_sync(
        self, *, limit: int | None = None, **asked: Unpack[DeadFilter]
    ) -> List[Task[Any]]:
        """As ``list``, all at once."""

        async def collect() -> List[Task[Any]]:
            return [task async for task in self.list(limit=limit, **asked)]

        return self._link.run(collect())

    def groups_sync(
        self, *, limit: int = GROUPS_USUAL, **asked: Unpack[GroupFilter]
    ) -> List[Group]:
        return self._link.run(self.groups(limit=limit, **asked))

    def count_sync(self, **asked: Unpack[DeadFilter]) -> Count:
        return self._link.run(self.count(**asked))

    def redrive_sync(self, **asked: Any) -> Operation:
        return self._link.run(self.redrive(**asked))

    def purge_sync(self, **asked: Any) -> Operation:
        return self._link.run(self.purge(**asked))


class Operations(_Many):
    """One verb for many tasks of the app's tenant, and how far those verbs have got."""

    async def cancel(
        self,
        *,
        rate: int = RATE_USUAL,
        all: bool = False,  # noqa: A002 - the word of the API
        **asked: Unpack[TaskFilter],
    ) -> Operation:
        """Cancels those that match: at once where they wait, by request where they run."""
        return await self._start(self._request("cancel", asked, rate, is_all=all))

    async def edit(
        self,
        changes: Changed,
        /,
        *,
        rate: int = RATE_USUAL,
        all: bool = False,  # noqa: A002 - the word of the API
        **asked: Unpack[TaskFilter],
    ) -> Operation:
        """Changes those that match and wait: ``edit({"delay": "2h"}, queue="reports")``."""
        request = self._request("edit", asked, rate, is_all=all)
        return await self._start(
            Request(
                kind="edit",
                tenant=request.tenant,
                filter=request.filter,
                rate=request.rate,
                changes=changes_of(changes),
            )
        )

    async def delete(
        self,
        *,
        rate: int = RATE_USUAL,
        all: bool = False,  # noqa: A002 - the word of the API
        **asked: Unpack[TaskFilter],
    ) -> Operation:
        """Removes those that match and do not run; those that wait are cancelled first."""
        return await self._start(self._request("delete", asked, rate, is_all=all))

    async def count(self, kind: Kind, /, **asked: Unpack[TaskFilter]) -> Count:
        """How many tasks ``cancel``, ``edit`` or ``delete`` would be for; nothing is changed."""
        return await self._count(kind, asked)

    async def list(self, *, limit: int = PAGE_MAX) -> List[Operation]:
        """The newest first; those that ended are kept for a day."""
        backend = (await self._link.backend()).bulk
        page = await backend.operations(self._link.tenant, None, min(limit, PAGE_MAX))
        return [Operation(self._link, record) for record in page.items]

    async def get(self, operation_id: str) -> Operation:
        """Raises NotFound."""
        backend = (await self._link.backend()).bulk
        return Operation(self._link, await backend.operation(self._link.tenant, operation_id))

    def cancel_sync(self, **asked: Any) -> Operation:
        return self._link.run(self.cancel(**asked))

    def edit_sync(self, changes: Changed, /, **asked: Any) -> Operation:
        return self._link.run(self.edit(changes, **asked))

    def delete_sync(self, **asked: Any) -> Operation:
        return self._link.run(self.delete(**asked))

    def list_sync(self, *, limit: int = PAGE_MAX) -> List[Operation]:
        return self._link.run(self.list(limit=limit))

    def get_sync(self, operation_id: str) -> Operation:
        return self._link.run(self.get(operation_id))


class Managing:
    """What an app offers about many tasks at once."""

    _link: Link

    @property
    def dead(self) -> DeadLetters:
        """The failed tasks: lists, groups, redrive, purge."""
        return DeadLetters(self._link)

    @property
    def operations(self) -> Operations:
        """Cancel, edit or delete many tasks; what goes on."""
        return Operations(self._link)
