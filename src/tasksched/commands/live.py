"""Live: what happens to tasks, told while it happens. Best effort in time, exact in content.

``follow`` tells of one task, ``events`` of all of a tenant. Both look at the records themselves, again
after a hint on a channel and at least once a second; a lost hint delays and never loses. Each yields
``Quiet`` whenever it has told all there is, so that whoever listens can do something else.
"""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from tasksched.commands.waiter import LOOK_MS, Waiter
from tasksched.errors import NotFound
from tasksched.model.live import (
    KINDS,
    Followed,
    Gap,
    Happened,
    LineSaid,
    Progressed,
    Quiet,
    StateSeen,
)
from tasksched.model.states import FINAL, State
from tasksched.model.task import Task
from tasksched.store.feed import Feed, Move
from tasksched.store.protocol import Store
from tasksched.store.reads import LINES_MAX, Line, Reads


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose events. None does not care. ``after``: the id of an event, to go on after it."""

    tenant: str
    task_id: str | None = None
    queue: str | None = None
    statuses: tuple[State, ...] = ()
    after: str | None = None


class Live:
    """One per process; ``close`` at the end. Listens from the first follower on."""

    def __init__(self, store: Store, waiter: Waiter) -> None:
        self._reads = Reads(store)
        self._feed = Feed(store)
        self._waiter = waiter

    async def lines(
        self, tenant: str, task_id: str, *, after: str | None = None, limit: int = LINES_MAX
    ) -> list[LineSaid]:
        """What the runs of the task said, oldest first, after the line of this id. Raises NotFound."""
        await self._task(tenant, task_id)
        return [_said(line) for line in await self._reads.lines(task_id, after or "-", limit)]

    async def follow(
        self, tenant: str, task_id: str, after: str | None = None
    ) -> AsyncGenerator[Followed | Quiet, None]:
        """Lines after that of this id, progress and states as they come; ends with a final state.

        Raises NotFound, also when the task is removed meanwhile.
        """
        place = after or "-"
        progress: Progressed | None = None
        state: StateSeen | None = None
        with self._waiter.interest(task_id) as interest:
            while True:
                # The record first: what a run said stands there before its verdict does.
                task = await self._task(tenant, task_id)
                for line in await self._reads.lines(task_id, place):
                    place = line.id
                    yield _said(line)
                if task.progress is not None and progress != (now := Progressed.of(task.progress)):
                    progress = now
                    yield progress
                if state != (seen := _state(task)):
                    state = seen
                    yield state
                if task.status in FINAL:
                    return
                yield Quiet()
                await interest.wait(LOOK_MS)

    async def events(self, query: EventQuery) -> AsyncGenerator[Happened | Gap | Quiet, None]:
        """What becomes of the tenant's tasks, without end. Raises Malformed for ``after``."""
        places = self._feed.places
        place = places.read(query.after) if query.after else await self._feed.now()

        def wanted(move: Move) -> bool:
            return (
                move.tenant == query.tenant
                and query.task_id in {None, move.task_id}
                and query.queue in {None, move.queue}
                and (not query.statuses or KINDS[move.word][1] in query.statuses)
            )

        while True:
            events, place, more = await self._feed.after(place, wanted)
            for event in events:
                yield event
            yield Quiet(id=places.write(place))
            if not more:
                await asyncio.sleep(LOOK_MS / 1000)

    async def close(self) -> None:
        await self._waiter.close()

    async def _task(self, tenant: str, task_id: str) -> Task:
        task = await self._reads.task(task_id, bodies=False)
        if task is None or task.tenant != tenant:
            raise NotFound(f"no task {task_id}", task_id=task_id)
        return task


def _said(line: Line) -> LineSaid:
    return LineSaid(id=line.id, at_ms=line.at_ms, attempt=line.attempt, text=line.text)


def _state(task: Task) -> StateSeen:
    attempt = task.last_attempt.attempt if task.last_attempt else 0
    return StateSeen(status=task.status, attempt=attempt, cancel_requested=task.cancel_requested)
