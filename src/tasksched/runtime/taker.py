"""Taker: asks the shards for as many tasks as its worker has free slots.

Flagged shards are asked in turn, one call per shard at a time. Each call has a number of its own: one
whose reply was lost is repeated under the same number and answered with the same grants, so no grant
goes astray. A flag is a hint (a message on the shard's ``wake`` channel, more than a call could
carry); one look per second at one shard, by our own timer, repairs a lost one. Invariant: the slots
that calls in flight may fill are reserved until they are answered. No outage ends it.
"""

import asyncio
from typing import Protocol

from tasksched import clock, log
from tasksched.ending import end
from tasksched.errors import TaskschedError, Unavailable
from tasksched.store.connect import Unannounced
from tasksched.store.protocol import BATCH_MAX, Grant, Store

TAKES_MAX = 4  # calls in flight, over different shards
TAKE_FIRST = 16  # slots asked for on a mere hint; doubled as long as a shard has more
LOOK_S = 1.0
REST_S = 0.05
OUTAGE_REST_S = 0.5
REFUSED_REST_S = 2.0

_log = log.get("taker")


class Host(Protocol):
    """The worker, as its taker sees it."""

    @property
    def name(self) -> str: ...

    def free(self) -> int:
        """Slots that could be filled now; 0 while nothing should be taken."""

    def begin(self, shard: int, grants: list[Grant], since: float) -> None:
        """Run these. Their leases began at ``since`` (monotonic) at the earliest."""

    async def announce(self, shard: int) -> None:
        """Tell the shard what the worker serves."""


class Taker:
    """Call ``fill_soon`` whenever a slot has become free."""

    def __init__(self, store: Store, host: Host, *, slots: int, lease_ms: int) -> None:
        self._store = store
        self._host = host
        self._slots = slots
        self._lease_ms = lease_ms
        self._flagged: dict[int, None] = {}  # shards that may have work, the next to ask first
        self._takes: dict[int, asyncio.Task[None]] = {}
        self._reserved = 0
        self._calls = [0] * store.shards
        self._want = [TAKE_FIRST] * store.shards
        self._filling = False
        self._stopped = False
        self._closed = False
        self._looks = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._looking = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """No new calls. Those in flight may still be answered."""
        self._stopped = True
        self._looking.cancel()

    @property
    def is_still(self) -> bool:
        return not self._takes

    async def close(self, patience_s: float) -> None:
        """Ends the calls in flight, after waiting a little for what they were granted."""
        self._closed = True
        if takes := list(self._takes.values()):
            _, late = await asyncio.wait(takes, timeout=patience_s)
            await end(late)

    def flag(self, shard: int) -> None:
        self._flagged[shard] = None
        self.fill_soon()

    def flag_all(self) -> None:
        self._flagged = dict.fromkeys([*self._flagged, *range(self._store.shards)])
        self.fill_soon()

    def fill_soon(self) -> None:
        """Many slots that become free in one turn of the loop are one call."""
        if self._flagged and not self._filling:
            self._filling = True
            self._loop.call_soon(self._fill)

    def _look(self) -> None:
        self._looks = (self._looks + 1) % self._store.shards
        self.flag(self._looks)
        self._looking = self._loop.call_later(LOOK_S, self._look)

    def _fill(self) -> None:
        self._filling = False
        while not self._stopped and len(self._takes) < TAKES_MAX:
            shard = next((each for each in self._flagged if each not in self._takes), None)
            if shard is None:
                return
            # Beside a call in flight another is worth its price for a good batch only: many small
            # ones would stay small, each asking for what the one before has freed.
            least = min(self._want[shard], max(1, self._slots // 2)) if self._takes else 1
            free = self._host.free() - self._reserved
            if free < least:
                return
            del self._flagged[shard]
            asked = min(free, self._want[shard])
            self._reserved += asked
            self._takes[shard] = self._loop.create_task(self._take(shard, asked))

    async def _take(self, shard: int, asked: int) -> None:
        self._calls[shard] += 1
        since = clock.mono()
        more, grants = True, list[Grant]()
        try:
            more, grants = await self._granted(shard, asked)
        finally:
            self._reserved -= asked
            del self._takes[shard]
        self._host.begin(shard, grants, since)
        self._want[shard] = min(self._want[shard] * 2, BATCH_MAX) if more and grants else TAKE_FIRST
        if more and grants:
            self._flagged[shard] = None
        elif more:  # nothing may start just now: no spinning
            self._loop.call_later(REST_S, self.flag, shard)
        self.fill_soon()

    async def _granted(self, shard: int, asked: int) -> tuple[bool, list[Grant]]:
        """The answer to the current call of this shard, however often it has to be asked."""
        while not self._closed:
            try:
                _, more, grants = await self._store.take(
                    shard,
                    self._host.name,
                    call=self._calls[shard],
                    slots=asked,
                    lease_ms=self._lease_ms,
                )
                return more, grants
            except Unannounced:
                if self._stopped:  # a worker that stops announces itself no more
                    break
                await self._host.announce(shard)
            except Unavailable as error:
                _log.warning("take.unavailable", shard=shard, error=str(error))
                await asyncio.sleep(OUTAGE_REST_S)
            except TaskschedError as error:
                _log.error("take.refused", shard=shard, error=str(error))
                await asyncio.sleep(REFUSED_REST_S)
                break
        return True, []
