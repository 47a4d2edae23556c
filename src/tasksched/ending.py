"""Ending background tasks of an event loop, for sure."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.5


async def end(tasks: Iterable[asyncio.Future[Any]], *, again_s: float = AGAIN_S) -> None:
    """Cancels these and waits until all are done; what they raise is dropped.

    A cancellation that is not heard is said again: the client library connects within
    ``asyncio.wait_for``, which before Python 3.12 loses one that comes in the turn in which its work
    is done (gh-86296), and a task that repeats through every outage would then go on for ever.
    """
    left = set(tasks)
    ended = set[asyncio.Future[Any]]()
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=again_s)
        ended |= done
    await asyncio.gather(*ended, return_exceptions=True)  # or what they raised is called unread
