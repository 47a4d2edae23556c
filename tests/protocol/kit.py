"""The protocol test kit: one namespace on a real server, a clock that only tests move.

``task_in`` brings a task into any state by the scripts themselves, ``dump`` is the whole database as
a value, ``audit`` (``audit.py``) recomputes every invariant from such a dump.
"""

import random
from collections.abc import Sequence
from typing import Any

import redis
from tests.protocol.audit import audit, read_dump
from tests.users import of_roles

from tasksched.model import ids
from tasksched.model.outcome import Outcome, error_info
from tasksched.model.states import State
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.store.connect import Gateway
from tasksched.store.protocol import Dispatched, Grant, Store

NAMESPACE = "ts"
BEGIN_MS = 1_764_000_000_000
LEASE_MS = 30_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WORKER = "w1"

# The scripts of recurring tasks, which have tests of their own.
RECURRING = frozenset(
    {
        "fire", "owed", "pause_schedule", "put_schedule", "remove_schedule", "resume_schedule",
        "retime", "trigger",
    }
)  # fmt: skip

DONE = Outcome(kind="SUCCEEDED", result=b"\x01")
BROKEN = Outcome(kind="FAILED", reason="not_retryable", error=error_info("ValueError", "no"))
STOPPED = Outcome(kind="CANCELLED")

# What a script may write although it was repeated or had nothing to do: the time it was asked at,
# finds of strays, the shares of the classes, and the hint which streams may hold something.
BOOKKEEPING = ("clock", "stats", "classes", "unread")


def retry_in(ms: int) -> Outcome:
    return Outcome(kind="FAILED", retry_ms=ms, error=error_info("OSError", "later"))


def lost(retry_ms: int | None = None) -> Outcome:
    reason = "worker_lost" if retry_ms is None else ""
    return Outcome(
        kind="LOST", retry_ms=retry_ms, reason=reason, error=error_info("WorkerLost", "gone")
    )


def spec(route: str = "charge", **fields: Any) -> TaskSpec:
    name, _, version = route.partition("@")
    return TaskSpec(target=HandlerTarget(name, version or None), **fields)


class Kit:
    """One or more shards and everything a test wants to do to them. Shard 0 unless told."""

    def __init__(self, store: Store, url: str) -> None:
        self.store = store
        self.url = url
        self.plain = redis.Redis.from_url(url)
        self.keys = store.keys[0]
        self.audited = True
        self.fences: dict[str, list[int]] = {}
        self._calls: dict[str, int] = {}

    # -- time ------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.store.now_ms

    def leap(self, ms: int) -> None:
        """Time passes and no script runs: longer than a third of a lease, it looks like an outage."""
        self.store.now_ms += ms

    async def wait(self, ms: int) -> None:
        """Time passes in a system that lives: each shard sees a script every five seconds."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.store.now_ms = min(until_ms, self.now_ms + 5_000)
            for shard in range(self.store.shards):
                await self.store.reclaim(shard, ["nobody"])

    # -- verbs -----------------------------------------------------------------------------------

    def new_id(self, shard: int = 0) -> str:
        return ids.mint(shard, self.now_ms)

    async def submit(
        self, asked: TaskSpec | None = None, *, task_id: str = "", mark: str = ""
    ) -> str:
        """Create one task of shard 0; returns its id."""
        task_id = task_id or self.new_id()
        await self.store.submit(0, [(task_id, asked or spec(), mark)])
        return task_id

    async def submit_many(self, count: int, asked: TaskSpec | None = None) -> list[str]:
        made = [self.new_id() for _ in range(count)]
        for first in range(0, count, 200):
            await self.store.submit(
                0, [(task_id, asked or spec(), "") for task_id in made[first : first + 200]]
            )
        return made

    async def announce(self, worker: str = WORKER, *serves: str, ttl_ms: int = 10 * DAY_MS) -> int:
        """By default the worker serves every queue and the routes of the usual tests."""
        usual = ("queue:*", "route:charge", "route:http")
        return await self.store.announce(0, worker, ttl_ms, serves or usual)

    async def dispatch(self, limit: int = 200) -> Dispatched:
        """As a scheduler does it: what has expired goes first."""
        self.expired = (await self.store.expire(0))[0]
        return await self.store.dispatch(0, limit)

    async def take(
        self, slots: int = 128, worker: str = WORKER, *, lease_ms: int = LEASE_MS
    ) -> list[Grant]:
        """The next call of this worker. Every fence it sees must be higher than those before."""
        call = self._calls[worker] = self._calls.get(worker, 0) + 1
        return await self.take_call(call, slots, worker, lease_ms=lease_ms)

    async def take_call(
        self, call: int, slots: int = 128, worker: str = WORKER, *, lease_ms: int = LEASE_MS
    ) -> list[Grant]:
        _, _, grants = await self.store.take(0, worker, call=call, slots=slots, lease_ms=lease_ms)
        for grant in grants:
            seen = self.fences.setdefault(grant.id, [])
            if int(grant.fence) not in seen[-1:]:
                assert int(grant.fence) > max(seen, default=0), f"{grant.id}: {seen}, {grant}"
                seen.append(int(grant.fence))
        return grants

    async def start(self, task_id: str, worker: str = WORKER) -> Grant:
        """Dispatch and take until this task runs."""
        await self.dispatch()
        for grant in await self.take(worker=worker):
            if grant.id == task_id:
                return grant
        raise AssertionError(f"{task_id} did not start: {self.record(task_id)}")

    async def settle(self, grant: Grant | tuple[str, str], outcome: Outcome) -> str:
        task_id, fence = (grant.id, grant.fence) if isinstance(grant, Grant) else grant
        (word,) = await self.store.settle(0, [(task_id, fence, outcome)])
        return word

    async def reap(self, grant: Grant, outcome: Outcome | None = None) -> str:
        (word,) = await self.store.reap(0, [(grant.id, grant.fence, outcome or lost(1_000))])
        return word

    async def raw(self, name: str, values: dict[str, Any], rows: Sequence[Any] = ()) -> Any:
        """A script with arguments of the test's own making."""
        packed = {"clock": self.keys.clock, "now_ms": self.now_ms, **values}
        return await self.store.gateway.run(name, packed, rows)

    # -- states ----------------------------------------------------------------------------------

    async def task_in(self, state: State, worker: str = WORKER, **fields: Any) -> str:
        """A task that got into this state the usual way. A PENDING one is due in an hour."""
        if state == "PENDING":
            return await self.submit(spec(**{"delay_ms": HOUR_MS, **fields}))
        await self.announce(worker, "queue:*", f"route:{fields.get('route', 'charge')}")
        task_id = await self.submit(spec(**fields))
        if self.state(task_id) == "PENDING":
            await self.dispatch()
        match state:
            case "RUNNING":
                await self.start(task_id, worker)
            case "SUCCESS":
                await self.settle(await self.start(task_id, worker), DONE)
            case "FAILED":
                await self.settle(await self.start(task_id, worker), BROKEN)
            case "CANCELLED":
                await self.store.cancel(0, task_id, fields.get("tenant", "default"), None)
        assert state == self.state(task_id), self.record(task_id)
        return task_id

    async def close(self) -> None:
        self.plain.close()
        await self.store.gateway.close()

    # -- looking ---------------------------------------------------------------------------------

    def record(self, task_id: str) -> dict[str, str]:
        found = self.plain.hgetall(self.keys.task(task_id))
        return {k.decode(): v.decode("utf-8", "replace") for k, v in found.items()}

    def state(self, task_id: str) -> str:
        return self.record(task_id).get("state", "")

    def version(self, task_id: str) -> int:
        return int(self.record(task_id).get("version", "1"))

    def fence(self, task_id: str) -> str:
        return self.record(task_id).get("fence", "0")

    def stats(self) -> dict[str, int]:
        return {k.decode(): int(v) for k, v in self.plain.hgetall(self.keys.stats).items()}

    def dump(self, *, without: Sequence[str] = ()) -> dict[str, Any]:
        """Every key and what it holds, but the named keys of the shard."""
        skipped = {f"{self.keys.shard}:{name}" for name in without}
        return {key: value for key, value in read_dump(self.plain).items() if key not in skipped}

    def audit(self) -> list[str]:
        """What is wrong with the whole database. Empty = nothing."""
        found = []
        for keys in self.store.keys:
            found += audit(self.plain, keys, self.now_ms)
        return found


async def open_kit(url: str, *, shards: int = 1) -> Kit:
    gateway = Gateway.open(of_roles(url))
    await gateway.command("PING")
    store = Store(gateway, NAMESPACE, shards, now_ms=BEGIN_MS + random.randrange(1000))
    return Kit(store, url)
