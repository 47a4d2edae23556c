"""Batcher: group commit. While one call is in flight the next collects; no timer waits.

A single awaited item goes out at once; under load a call carries what came meanwhile. Order within
a batch is the order of arrival. Cancelling a caller does not cancel the call: others share it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Coalesces ``ask(item)`` into ``call(items)``, at most ``most`` items and one call at a time."""

    def __init__(
        self, call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], *, most: int
    ) -> None:
        self._call = call
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        """The answer to this item; raises what the call that carried it raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._carry(batch)
        finally:
            self._running = None

    async def _carry(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._call([item for item, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
