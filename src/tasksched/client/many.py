"""Many: hundreds of thousands of prepared calls, sent in pieces that overlap.

While one piece is on its way the next is built, so both this program and the server are busy; a
piece is as small as its transport allows, because building it holds up the event loop. Answers come
back in the order of the calls. What is refused for now (a quota, a rate, memory) is asked for again,
slower and slower, until nothing was accepted for as long as patience lasts. What is wrong with one call does not stop the others: it is told at
the end, together with the handles of those that were created.
"""

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tasksched.client.backend import Backend
from tasksched.client.handler import Call
from tasksched.client.link import Link
from tasksched.client.patience import Patience
from tasksched.client.task import Task
from tasksched.ending import end
from tasksched.errors import Overloaded, RateLimited, TaskschedError
from tasksched.model.task import Created, TaskSpec

R = TypeVar("R")
_LATER = (RateLimited, Overloaded)

Answer = Task[R] | TaskschedError
Calls = Iterable[Call[R]] | AsyncIterable[Call[R]]


class PartlyFailed(TaskschedError):
    """Some of many submits were refused. ``answers``: a handle or an error for each, in order."""

    title = "Some tasks were refused"

    def __init__(self, answers: Sequence[Task[Any] | TaskschedError]) -> None:
        self.answers = answers
        self.errors = [answer for answer in answers if isinstance(answer, TaskschedError)]
        count = f"{len(self.errors)} of {len(answers)}"
        super().__init__(f"{count} tasks were refused; the first: {self.errors[0]}")


async def submit_many(link: Link, calls: Calls[R]) -> list[Task[R]]:
    """Creates a task for each call. Raises PartlyFailed, or Unavailable when nobody answers."""
    backend = await link.backend()
    pieces = (
        _AsyncPieces(aiter(calls), backend)
        if isinstance(calls, AsyncIterable)
        else _Pieces(iter(calls), backend)
    )
    answers: dict[int, list[Answer[R]]] = {}
    patience = Patience(link.settings.patience_ms)

    async def carry() -> None:
        while piece := await pieces.next():
            number = piece.number
            created = await _accepted(backend, piece.specs, patience)
            answers[number] = [
                Task(link, spec.tenant, each) if type(each) is Created else each  # type: ignore[misc]
                for spec, each in zip(piece.specs, created, strict=True)
            ]

    await _all([carry() for _ in range(backend.calls_at_once)])
    found = list(itertools.chain.from_iterable(answers[n] for n in range(len(answers))))
    tasks = [answer for answer in found if isinstance(answer, Task)]
    if len(tasks) < len(found):
        raise PartlyFailed(found)
    return tasks


async def _accepted(
    backend: Backend, specs: Sequence[TaskSpec], patience: Patience
) -> list[Created | TaskschedError]:
    """The answers; a refusal that did nothing stands only where patience ended."""
    answers = list(await backend.submit_many(specs))
    while True:
        refused = {n: each for n, each in enumerate(answers) if isinstance(each, _LATER)}
        if not refused:
            return answers
        try:
            await patience.pause(min(refused.values(), key=_retry_after))
        except TaskschedError:
            return answers
        again = await backend.submit_many([specs[n] for n in refused])
        for n, answer in zip(refused, again, strict=True):
            answers[n] = answer
        if not all(isinstance(answer, _LATER) for answer in again):
            patience.renew()


def _retry_after(refusal: RateLimited | Overloaded) -> float:
    return refusal.retry_after


async def _all(work: Iterable[Any]) -> None:
    """Runs all; the first error ends the others."""
    running = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*running)
    except BaseException:
        await end(running)
        raise


class _Piece(Generic[R]):
    """The specs of one request, and where its answers belong. Falsy when there was nothing left."""

    def __init__(self, number: int, calls: Sequence[Call[R]]) -> None:
        self.number = number
        self.specs: list[TaskSpec] = [call.spec for call in calls]

    def __bool__(self) -> bool:
        return bool(self.specs)


class _Pieces(Generic[R]):
    """Cuts an iterable; its callers take turns without waiting, so no lock is needed."""

    def __init__(self, calls: Iterator[Call[R]], backend: Backend) -> None:
        self._calls = calls
        self._backend = backend
        self._numbers = itertools.count()

    async def next(self) -> _Piece[R]:
        first = next(self._calls, None)
        if first is None:
            return _Piece(-1, ())
        most = _most(first, self._backend)
        return _Piece(next(self._numbers), [first, *itertools.islice(self._calls, most - 1)])


class _AsyncPieces(Generic[R]):
    """As ``_Pieces``; an asynchronous generator must not be asked by two at a time."""

    def __init__(self, calls: AsyncIterator[Call[R]], backend: Backend) -> None:
        self._calls = calls
        self._backend = backend
        self._numbers = itertools.count()
        self._turn = asyncio.Lock()

    async def next(self) -> _Piece[R]:
        async with self._turn:
            found: list[Call[R]] = []
            async for call in self._calls:
                found.append(call)
                if len(found) >= _most(found[0], self._backend):
                    break
            return _Piece(next(self._numbers) if found else -1, found)


def _most(first: Call[Any], backend: Backend) -> int:
    return backend.call_max if first.spec.key is None else backend.keyed_max
