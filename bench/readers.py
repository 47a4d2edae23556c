"""Readers that only take and settle: what the protocol gives, with no handler and no process behind.

In this process, each with a connection of its own and some of the shards; they sleep until the
shard's ``wake`` channel speaks. Times are the server's own: ``started_ms`` of the grant.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import redis
from bench.processes import NAMESPACE, SHARDS
from bench.scenarios.common import HANDLER, PAYLOAD, audit_records

from tasksched.model import ids
from tasksched.model.outcome import Outcome
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.store.connect import Gateway
from tasksched.store.protocol import BATCH_MAX, SUBMIT_MAX, Store
from tasksched.store.wake import Listener

READERS = 4
LEASE_MS = 60_000
LOOK_S = 0.5
AT_ONCE = 8
OK = Outcome(kind="SUCCEEDED", result=b"\xc0")

Wanted = tuple[str, str, int]  # label, tenant, due_ms; labels are for counting, tenants for lanes


@cache
def _spec(tenant: str, due_ms: int) -> TaskSpec:
    return TaskSpec(target=HandlerTarget(HANDLER), payload=PAYLOAD, tenant=tenant, run_at_ms=due_ms)


@dataclass(slots=True)
class Load:
    """Tasks that wait for their time, by id, and what became of them, in the order of their starts."""

    labels: dict[str, str] = field(default_factory=dict)
    started: list[tuple[str, int, int]] = field(default_factory=list)  # id, due_ms, started_ms
    settled: int = 0

    async def submit(self, store: Store, wanted: Iterable[Wanted], over: int = SHARDS) -> None:
        """One after the other, each on the next of ``over`` shards; eight calls at once."""
        rows: list[list[tuple[str, TaskSpec, str]]] = [[] for _ in range(SHARDS)]
        calls = []
        for number, (label, tenant, due_ms) in enumerate(wanted):
            shard = number % over
            task_id = ids.mint(shard, due_ms)
            self.labels[task_id] = label
            rows[shard].append((task_id, _spec(tenant, due_ms), ""))
            if len(rows[shard]) == SUBMIT_MAX:
                calls.append(store.submit(shard, rows[shard]))
                rows[shard] = []
            if len(calls) == AT_ONCE:
                await asyncio.gather(*calls)
                calls = []
        calls += [store.submit(shard, left) for shard, left in enumerate(rows) if left]
        await asyncio.gather(*calls)

    def lateness(self, label: str, from_ms: int, until_ms: int) -> list[float]:
        """Start less due, ms, of those of this label that were due between."""
        return [
            float(started_ms - due_ms)
            for task_id, due_ms, started_ms in self.started
            if self.labels[task_id] == label and from_ms <= due_ms <= until_ms
        ]

    def shares(self) -> Counter[str]:
        """Labels of the first half of what each shard started: while all have work left."""
        by_shard: dict[int | None, list[str]] = {}
        for task_id, _, _ in self.started:
            by_shard.setdefault(ids.shard_of(task_id, SHARDS), []).append(self.labels[task_id])
        return Counter(
            label for labels in by_shard.values() for label in labels[: len(labels) // 2]
        )

    def audit(self, client: redis.Redis) -> dict[str, int]:
        grants = Counter(task_id for task_id, _, _ in self.started)
        early = sum(started_ms < due_ms for _, due_ms, started_ms in self.started)
        return {**audit_records(client, NAMESPACE, list(self.labels), grants), "early": early}


class Reader:
    """One worker by name, with some of the shards."""

    def __init__(self, url: str, name: str, shards: Sequence[int], load: Load) -> None:
        self.shards = shards
        self._name, self._load = name, load
        self._gateway = Gateway.open(url)
        self._store = Store(self._gateway, NAMESPACE, SHARDS)
        self._calls = Counter[int]()
        self._waiting: set[int] = set()
        self._woken = asyncio.Event()

    async def announce(self) -> None:
        serves = [f"route:{HANDLER}", "queue:*"]
        for shard in self.shards:
            await self._store.announce(shard, self._name, 3_600_000, serves)

    def wake(self, shard: int) -> None:
        self._waiting.add(shard)
        self._woken.set()

    async def run(self) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._woken.wait()
                looking = self._waiting or set(self.shards)
                self._woken.clear()
                self._waiting = set()
                for shard in sorted(looking):
                    if await self._serve(shard):
                        self.wake(shard)
        finally:
            await self._gateway.close()

    async def _serve(self, shard: int) -> bool:
        """Whether the shard may hold more."""
        self._calls[shard] += 1
        _, more, grants = await self._store.take(
            shard, self._name, call=self._calls[shard], slots=BATCH_MAX, lease_ms=LEASE_MS
        )
        if not grants:
            return False
        self._load.started += [(one.id, one.due_ms, one.started_ms) for one in grants]
        words = await self._store.settle(shard, [(one.id, one.fence, OK) for one in grants])
        assert set(words) == {"SUCCESS"}, set(words)
        self._load.settled += len(words)
        return bool(more) or len(grants) == BATCH_MAX


@contextlib.asynccontextmanager
async def reading(url: str, load: Load) -> AsyncIterator[Store]:
    """A store to submit by; meanwhile the readers take whatever is handed over."""
    gateway = Gateway.open(url)
    store = Store(gateway, NAMESPACE, SHARDS)
    readers = [Reader(url, f"reader-{n}", range(n, SHARDS, READERS), load) for n in range(READERS)]
    for reader in readers:
        await reader.announce()

    def hear(shard: int, message: str) -> None:
        if message == "work":
            readers[shard % READERS].wake(shard)

    def missed() -> None:
        for shard in range(SHARDS):
            hear(shard, "work")

    listener = Listener(gateway, [keys.wake for keys in store.keys], hear, missed)
    listener.start()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reader.run()) for reader in readers]
            yield store
            for task in tasks:
                task.cancel()
    finally:
        await listener.stop()
        await gateway.close()


async def until_all_settled(load: Load, seconds: float) -> None:
    """Raises TimeoutError when something never starts or ends."""
    async with asyncio.timeout(seconds):
        while load.settled < len(load.labels):
            await asyncio.sleep(0.01)


def ramp_s(count: int) -> float:
    """Time in which so many tasks are surely submitted before they are due."""
    return 1.5 + count * 80e-6


async def sleep_until(due_ms: int) -> None:
    """Raises RuntimeError when that is past: the tasks were not all there at their instant."""
    spare_s = due_ms / 1000 - time.time()
    if spare_s < 0:
        raise RuntimeError(f"preloading took {-spare_s:.1f} s too long for a clean start")
    await asyncio.sleep(spare_s)


def merged(audits: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """One audit of several runs."""
    total: Counter[str] = Counter()
    for audit in audits:
        total.update(audit)
    return dict(total)
