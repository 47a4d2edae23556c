"""Waiter: tells those who wait for a verdict when it may be there. Best effort by design.

Settling scripts publish the ids they finished on a sharded channel; a listener (``store.wake``)
calls ``heard``. A lost message costs at most LOOK_MS, because waiting ends then and the caller
looks at the record, which is the truth.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

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
    """Who waits for which task, in this process."""

    def __init__(self) -> None:
        self._interests: defaultdict[str, set[Interest]] = defaultdict(set)

    @contextmanager
    def interest(self, task_id: str) -> Iterator[Interest]:
        mine = Interest()
        self._interests[task_id].add(mine)
        try:
            yield mine
        finally:
            self._interests[task_id].discard(mine)
            if not self._interests[task_id]:
                del self._interests[task_id]

    @property
    def idle(self) -> bool:
        return not self._interests

    def heard(self, message: str) -> None:
        """A message of a ``finished`` channel: ``id:STATE id:STATE …``."""
        for pair in message.split(" "):
            for interest in self._interests.get(pair.partition(":")[0], ()):
                interest.set()
