"""Limits: permits and tokens that all shards share, each with a home on one shard.

``lua/dispatch.lua`` says what a shard asks for; ``meet`` brings it to the home and tells the answers.
Invariant: what the shards have is never more than the limit. A shard takes less first and says so
later; the home gives first in its own book. So an answer that never arrives leaves permits unused,
until that shard asks again, and never too many.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tasksched.store.protocol import Store
from tasksched.store.replies import Ask
from tasksched.store.scripts import Arg

ROUNDS_MAX = 64
KEY_IDLE_MS = 60_000
"""A shard keeps the permits of a concurrency key for so long after it was told of them, and while they are used."""


class Tell(NamedTuple):
    """What one shard is told of its part of a limit."""

    shard: int
    permits: int
    epoch: int
    contended: int
    short_ms: int


class Limits:
    """The limits of one namespace. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run = store.gateway.run

    def home_of(self, limit: str) -> int:
        digest = hashlib.sha256(limit.encode()).digest()
        return int.from_bytes(digest[:4]) % self._store.shards

    async def meet(self, shard: int, ask: Ask) -> None:
        """Ask for a shard, and tell whoever's part changes. Safe to repeat, by anybody."""
        if ask.limit.startswith("r"):
            await self._meet_rate(shard, ask)
            return
        reporting = 0 if ask.limit.startswith("k/") else self._store.shards
        capacity = int(ask.capacity)
        row = (shard, ask.epoch, ask.permits, ask.want, ask.head_ms)
        is_ready, told = await self.allot(ask.limit, capacity, reporting, [row])
        if not is_ready:
            others = (self._reported(n, ask.limit) for n in self._others(shard))
            rows = [row, *await asyncio.gather(*others)]
            _, told = await self.allot(ask.limit, capacity, reporting, rows)
        await self._tell(ask.limit, reporting, told)

    async def relinquish(self, shard: int, cursor: int = 0) -> int:
        """Gives back what idle concurrency keys have in a shard; where to go on, 0 at the end."""
        values = self._values(shard, cursor=cursor, idle_ms=KEY_IDLE_MS)
        place, *gone = await self._run("relinquish", values)
        for limit, epoch in gone:
            name = limit.decode()
            _, told = await self.allot(name, 0, 0, [(shard, int(epoch), 0, 0, 0)])
            await self._tell(name, 0, [each for each in told if each.shard != shard])
        return int(place)

    def _others(self, shard: int) -> list[int]:
        return [number for number in range(self._store.shards) if number != shard]

    async def _reported(self, shard: int, limit: str) -> tuple[int, int, int, int, int]:
        permits, epoch, _ = await self.report(shard, limit)
        return shard, epoch, permits, 0, 0

    async def _tell(self, limit: str, reporting: int, told: Sequence[Tell]) -> None:
        """Tells, and brings home what is given back on hearing it, until nothing is."""
        waiting = deque(told)
        for _ in range(ROUNDS_MAX):
            if not waiting:
                return
            tell = waiting.popleft()
            permits, epoch = await self.apportion(limit, tell)
            if permits < tell.permits and epoch >= tell.epoch:
                row = (tell.shard, epoch, permits, 0, 0)
                _, more = await self.allot(limit, 0, reporting, [row])
                waiting.extend(each for each in more if each.shard != tell.shard)

    async def _meet_rate(self, shard: int, ask: Ask) -> None:
        given = await self.ration(ask.limit, ask.capacity, ask.want)
        await self.credit(shard, ask.limit, *given)

    # -- scripts --------------------------------------------------------------------------------

    def _values(self, shard: int, **values: Arg) -> dict[str, Arg]:
        return {"clock": self._store.keys[shard].clock, "now_ms": self._store.now_ms, **values}

    async def allot(
        self, limit: str, capacity: int, reporting: int, rows: Sequence[tuple[int, ...]]
    ) -> tuple[bool, list[Tell]]:
        """Rows (shard, epoch, permits, want, head_ms). False: every shard must report first."""
        values = self._values(self.home_of(limit), limit=limit, capacity=capacity, shards=reporting)
        word, *told = await self._run("allot", values, list(rows))
        return word == b"ok", [Tell(*each) for each in told]

    async def apportion(self, limit: str, tell: Tell) -> tuple[int, int]:
        """Permits and epoch that the shard has now."""
        _, permits, epoch, contended, short_ms = tell
        values = self._values(
            tell.shard,
            limit=limit,
            permits=permits,
            epoch=epoch,
            contended=contended,
            short_ms=short_ms,
        )
        reply = await self._run("apportion", values)
        return reply[0], reply[1]

    async def report(self, shard: int, limit: str) -> tuple[int, int, int]:
        """Permits, epoch and those in use of one shard."""
        reply = await self._run("report", self._values(shard, limit=limit))
        return reply[0], reply[1], reply[2]

    async def ration(self, limit: str, rate: float, want: int) -> tuple[int, int, int]:
        """Tokens, ms until which they are good, ms at which there is one more. ``rate``: a second."""
        values = self._values(
            self.home_of(limit), limit=limit, per_kilo=max(round(rate * 1000), 1), want=want
        )
        reply = await self._run("ration", values)
        return reply[0], reply[1], reply[2]

    async def credit(self, shard: int, limit: str, tokens: int, until_ms: int, next_ms: int) -> int:
        """Give a shard tokens of a rate; those it has now."""
        values = self._values(shard, limit=limit, tokens=tokens, until_ms=until_ms, next_ms=next_ms)
        return int(await self._run("credit", values))
