"""Threads that run synchronous handlers, as many as the worker has slots; and ``Here``, for a cell.

Daemons, unlike those of ``concurrent.futures``, whose threads are joined when the interpreter ends:
one handler that hangs would keep the whole process from ending. Whatever a function raises comes
back as a value: an exception such as StopIteration cannot pass through a future, and nothing that a
handler raises may end a thread.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# What a function returned, and None; or None and what it raised.
Ended = tuple[Any, BaseException | None]
_Job = tuple[contextvars.Context, Callable[[], Any], asyncio.Future[Ended]]


class Threads:
    """At most ``most`` threads; each is made when it is first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> "asyncio.Future[Ended]":
        """Calls ``function`` in a thread, in a copy of the caller's context."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name="handler", daemon=True).start()
        self._jobs.put((contextvars.copy_context(), function, future))
        return future

    def close(self) -> None:
        """Idle threads end; busy ones when their function does."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while job := self._jobs.get():
            context, function, future = job
            ended: Ended
            try:
                ended = context.run(function), None
            except BaseException as error:  # noqa: BLE001 - a handler's error is a value here
                ended = None, error
            with self._lock:
                self._idle += 1
            try:
                future.get_loop().call_soon_threadsafe(_resolve, future, ended)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del job, context, function, future, ended


class Here:
    """Calls synchronous handlers where they are: nothing is awaited, so no loop has to run."""

    async def run(self, function: Callable[[], Any]) -> Ended:
        try:
            return contextvars.copy_context().run(function), None
        except BaseException as error:  # noqa: BLE001 - a handler's error is a value here
            return None, error


def without_loop(asked: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits for a loop."""
    try:
        asked.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("it waits for an event loop, and none runs here")


def _resolve(future: "asyncio.Future[Ended]", ended: Ended) -> None:
    if not future.done():
        future.set_result(ended)
