"""Waiter: tells those who wait for a verdict when it may be there. Best effort by design.

Settling scripts publish the ids they finished on a sharded channel; a listener (``store.wake``)
calls ``heard``. A lost message costs at most LOOK_MS, because waiting ends then and the caller
looks at the record, which is the truth.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tasksched.store.wake import Listener

LOOK_MS = 1_000


class Interest:
    """One caller's interest in one task."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, most_ms: int) -> None:
        """Until the task finished, LOOK_MS passed, or ``most_ms``: whichever is first."""
        try:
            async with asyncio.timeout(min(most_ms, LOOK_MS) / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()


class Waiter:
    """Who waits for which task, in this process. Listens from the first interest on."""

    def __init__(self) -> None:
        self._interests: defaultdict[str, set[Interest]] = defaultdict(set)
        self.listener: Listener | None = None
        self._listening = False

    @contextmanager
    def interest(self, task_id: str) -> Iterator[Interest]:
        if self.listener is not None and not self._listening:
            self.listener.start()
            self._listening = True
        mine = Interest()
        self._interests[task_id].add(mine)
        try:
            yield mine
        finally:
            self._interests[task_id].discard(mine)
            if not self._interests[task_id]:
                del self._interests[task_id]

    def all(self) -> None:
        """What was said is lost: everybody looks."""
        for interests in self._interests.values():
            for interest in interests:
                interest.set()

    async def close(self) -> None:
        if self.listener is not None:
            await self.listener.stop()

    def heard(self, message: str) -> None:
        """A message of a ``finished`` channel: ``id:STATE id:STATE …``."""
        for pair in message.split(" "):
            for interest in self._interests.get(pair.partition(":")[0], ()):
                interest.set()
