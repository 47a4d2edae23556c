"""Scheduler: keeps the shards moving. Any number may run; two on one shard are merely wasteful.

Each scheduler enlists with an expiry and takes the shards that rendezvous hashing gives it among
those that live; when one dies its shards have new drivers within ENLIST_TTL_MS. Correctness needs
none of this: every script is safe to run twice and by anybody.

A shard's driver dispatches what is due, looks after overdue leases, and sleeps by its own timer
until the earliest due time, until an earlier one arrives (a message on the shard's ``wake``
channel), or until the next safety look. Every shard is looked at at least five times a lease, which
is also the pulse by which the scripts notice an outage (``lua/lib/clock.lua``). Retention and the
sweep of the streams are the janitor's, one shard at a time in rotation.
"""

import asyncio
import hashlib
import os
import random
import secrets
import socket
from collections.abc import Sequence

from tasksched import clock, log
from tasksched.ending import end
from tasksched.errors import TaskschedError, Unavailable
from tasksched.runtime.janitor import Janitor, Retention
from tasksched.runtime.reaper import reap_overdue
from tasksched.runtime.ticker import fire_owed
from tasksched.store.limits import Limits
from tasksched.store.protocol import Dispatched, Store
from tasksched.store.schedules import Schedules
from tasksched.store.wake import Listener

ENLIST_S = 1.5
ENLIST_TTL_MS = 4_000
LEAVE_PATIENCE_MS = 500  # whoever does not hear of it waits for the TTL
HELD_LOOK_MS = 1_000
REST_MS = 5
OUTAGE_REST_S = 0.5

_log = log.get("scheduler")


def shards_of(me: str, members: Sequence[str], shards: int) -> set[int]:
    """The shards that fall to ``me`` by rendezvous hashing: each to its highest bidder."""

    def bid(member: str, shard: int) -> bytes:
        return hashlib.blake2b(f"{member}/{shard}".encode(), digest_size=8).digest()

    others = [member for member in members if member != me]
    return {
        shard
        for shard in range(shards)
        if all(bid(me, shard) > bid(other, shard) for other in others)
    }


class ShardDriver:
    """The loop of one shard."""

    def __init__(self, store: Store, shard: int, *, look_ms: int) -> None:
        self._store = store
        self._shard = shard
        self._look_ms = look_ms
        self._schedules = Schedules(store)
        self._limits = Limits(store)
        self._woken = asyncio.Event()
        self.moved = 0
        self.fired = 0

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Ticks until cancelled; no outage ends it."""
        while True:
            self._woken.clear()
            try:
                wait_ms = await self.tick()
            except Unavailable as error:
                _log.warning("shard.unavailable", shard=self._shard, error=str(error))
                wait_ms = OUTAGE_REST_S * 1000
            except TaskschedError as error:
                _log.error("shard.refused", shard=self._shard, error=str(error))
                wait_ms = HELD_LOOK_MS
            await self._sleep(wait_ms)

    async def tick(self) -> float:
        """Do what is due now; returns the ms after which there may be more."""
        asked = clock.mono()
        done = await self._dispatched()
        self.moved += done.moved
        wait_ms = float(self._look_ms)
        if done.again_ms >= 0:
            # Something is due already: at once, but never in a spin when nothing could be moved.
            due_in_ms = done.again_ms - done.now_ms
            wait_ms = min(wait_ms, due_in_ms if due_in_ms > 0 else 0 if done.moved else REST_MS)
        if 0 <= done.watch_ms <= done.now_ms:
            wait_ms = min(wait_ms, await reap_overdue(self._store, self._shard) or HELD_LOOK_MS)
        elif done.watch_ms > 0:
            wait_ms = min(wait_ms, done.watch_ms - done.now_ms)
        if done.asks or 0 <= done.expiry_ms <= done.now_ms:
            wait_ms = 0
        elif done.expiry_ms > 0:
            wait_ms = min(wait_ms, done.expiry_ms - done.now_ms)
        if 0 <= done.owed_ms <= done.now_ms:
            fired, _ = await fire_owed(self._schedules, self._shard)
            self.fired += fired
            wait_ms = min(wait_ms, 0 if fired else REST_MS)
        elif done.owed_ms > 0:
            wait_ms = min(wait_ms, done.owed_ms - done.now_ms)
        # The server's time was read somewhere within the call: half its length is the best guess.
        return max(wait_ms - (clock.mono() - asked) * 500, 0)

    async def _dispatched(self) -> Dispatched:
        """What expired goes first, so that a dispatch never sees it; limits are asked for at once."""
        done = await self._store.dispatch(self._shard)
        if 0 <= done.expiry_ms <= done.now_ms:
            await self._store.expire(self._shard)
        for ask in done.asks:
            await self._limits.meet(self._shard, ask)
        return done

    async def _sleep(self, wait_ms: float) -> None:
        if wait_ms <= 0 or self._woken.is_set():
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            pass


class Scheduler:
    """Drivers for the shards that are ours at the moment."""

    def __init__(self, store: Store, *, lease_ms: int, retention: Retention) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._store = store
        self._look_ms = lease_ms // 5
        self._drivers: dict[int, ShardDriver] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._left: set[asyncio.Task[None]] = set()
        self._janitor = Janitor(store, retention, look_ms=min(self._look_ms, 2_000))
        self._listener = Listener(
            store.gateway, [keys.wake for keys in store.keys], self._heard, self._wake_all
        )
        self._alive_ms = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Schedules until ``stop`` is set; survives every outage of Redis."""
        self._listener.start()
        janitor = asyncio.create_task(self._janitor.run(self._mine), name="janitor")
        try:
            while not stop.is_set():
                await self._enlist()
                try:
                    async with asyncio.timeout(ENLIST_S * random.uniform(0.9, 1.1)):
                        await stop.wait()
                except TimeoutError:
                    continue
        finally:
            await end([janitor])
            await self._listener.stop()
            await self._leave()

    @property
    def healthy(self) -> bool:
        """Progress, not existence: the last look at the membership was answered in time."""
        return clock.mono_ms() - self._alive_ms < 2 * ENLIST_TTL_MS

    def _mine(self) -> list[int]:
        return sorted(self._drivers)

    async def _enlist(self) -> None:
        key = self._store.global_keys.schedulers
        try:
            members = await self._store.enlist(key, self.name, ENLIST_TTL_MS)
        except TaskschedError as error:
            _log.warning("enlist.failed", error=str(error))
            return
        self._alive_ms = clock.mono_ms()
        self._own(shards_of(self.name, members, self._store.shards))

    def _own(self, wanted: set[int]) -> None:
        for shard in set(self._drivers) - wanted:
            del self._drivers[shard]
            leaving = asyncio.create_task(end([self._tasks.pop(shard)]))
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)
        for shard in wanted - set(self._drivers):
            driver = ShardDriver(self._store, shard, look_ms=self._look_ms)
            self._drivers[shard] = driver
            self._tasks[shard] = asyncio.create_task(driver.run(), name=f"shard-{shard}")

    def _heard(self, shard: int, message: str) -> None:
        if message.startswith("due ") and (driver := self._drivers.get(shard)):
            driver.wake()

    def _wake_all(self) -> None:
        for driver in self._drivers.values():
            driver.wake()

    async def _leave(self) -> None:
        await end([*self._tasks.values(), *self._left])
        try:
            key = self._store.global_keys.schedulers
            await self._store.enlist(key, self.name, 0, patience_ms=LEAVE_PATIENCE_MS)
        except TaskschedError as error:
            _log.info("leave.failed", error=str(error))
