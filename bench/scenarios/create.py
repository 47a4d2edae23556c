"""create: tasks a second through the Python client, against the plain create script in one run.

Bulk: A B A B …, A = ``App.submit_many`` with the arguments of each call checked and encoded, B = the
plain script with ready bytes, the same library, batches of 200 and two calls in flight; an emptied
server before each. Then one at a time, each awaited before the next. Records are counted after each.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop
from bench.floor.plain import Floor
from bench.measure import Cost, Meter, median, us
from bench.scenarios.common import PAD, PAYLOAD, Job
from bench.servers import pin, running

from tasksched import App, clock
from tasksched.model import ids
from tasksched.store.connect import Gateway
from tasksched.store.protocol import SUBMIT_MAX

AOF = "everysec"
SHAPES = {"long": (10, 30_000, 10_000), "short": (4, 10_000, 1_000)}  # pairs, bulk, singles


class Stretches:
    """Measured stretches by name, each on an emptied server and audited after."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.costs: dict[str, list[tuple[int, Cost]]] = {}
        self.audit = {"tasks": 0, "lost": 0, "doubled": 0}

    async def measure(self, name: str, count: int, work: Callable[[], Awaitable[set[str]]]) -> None:
        before = self._meter.read()
        made = await work()
        self.costs.setdefault(name, []).append((count, self._meter.read() - before))
        records = sum(1 for _ in self._meter.client.scan_iter("*task:*", count=5_000))
        self.audit["tasks"] += count
        self.audit["lost"] += max(count - records, count - len(made), 0)
        self.audit["doubled"] += max(records - count, 0)

    def row(self, name: str) -> dict[str, float]:
        """Medians over the stretches; ``rate`` by the clock on the wall, the rest CPU."""
        costs = self.costs[name]
        return {
            "rate": round(median([count / cost.wall_s for count, cost in costs])),
            "client_us": round(median([us(cost.client_s, count) for count, cost in costs]), 1),
            "redis_us": round(median([us(cost.redis_s, count) for count, cost in costs]), 1),
            "wall_us": round(median([us(cost.wall_s, count) for count, cost in costs]), 1),
        }


async def _bulk(app: App, noop: Any, count: int) -> set[str]:
    later = noop.options(delay="1h")
    made = await app.submit_many(later.call(number, PAD) for number in range(count))
    return {task.id for task in made}


async def _single(noop: Any, count: int) -> set[str]:
    later = noop.options(delay="1h")
    return {(await later.submit(number, PAD)).id for number in range(count)}


async def _plain(floor: Floor, count: int) -> set[str]:
    now_ms = clock.wall_ms()
    made: set[str] = set()
    starts = iter(range(0, count, SUBMIT_MAX))

    async def lane() -> None:
        for start in starts:
            size = min(SUBMIT_MAX, count - start)
            rows = [(ids.mint(0, now_ms), now_ms + 3_600_000, PAYLOAD) for _ in range(size)]
            await floor.create(now_ms, rows)
            made.update(row[0] for row in rows)

    await asyncio.gather(lane(), lane())
    return made


async def _plain_single(floor: Floor, count: int) -> set[str]:
    now_ms = clock.wall_ms()
    made = [ids.mint(0, now_ms) for _ in range(count)]
    for task_id in made:
        await floor.create(now_ms, [(task_id, now_ms + 3_600_000, PAYLOAD)])
    return set(made)


def _app(url: str) -> tuple[App, Any]:
    app = App(url, namespace="bench")

    @app.task
    async def noop(number: int, pad: str) -> None: ...

    return app, noop


async def _work(job: Job, url: str, stretches: Stretches, flush: Callable[[], Any]) -> None:
    app, noop = _app(url)
    gateway = Gateway.open(url)
    floor = Floor(gateway.redis)
    pairs, bulk, single = SHAPES[job.length]
    kinds = (
        ("bulk", bulk, lambda: _bulk(app, noop, bulk)),
        ("plain_bulk", bulk, lambda: _plain(floor, bulk)),
    )
    for _ in range(pairs):
        await _measured(kinds, stretches, floor, flush)
    singles = (
        ("single", single, lambda: _single(noop, single)),
        ("plain_single", single, lambda: _plain_single(floor, single)),
    )
    await _measured(singles, stretches, floor, flush)
    await app.close()
    await gateway.close()


async def _measured(
    kinds: Sequence[tuple[str, int, Callable[[], Awaitable[set[str]]]]],
    stretches: Stretches,
    floor: Floor,
    flush: Callable[[], Any],
) -> None:
    for name, count, work in kinds:
        flush()
        await floor.load()
        await stretches.measure(name, count, work)


def run(job: Job) -> dict[str, Any]:
    with running(job.server, aof=job.aof or AOF) as server:
        if job.pin:
            pin(server)
        meter = Meter(server)
        stretches = Stretches(meter)
        uvloop.run(_work(job, server.url, stretches, meter.client.flushall))
        rows = {name: stretches.row(name) for name in stretches.costs}
        pairs = zip(stretches.costs["bulk"], stretches.costs["plain_bulk"], strict=True)
        shares = [plain.wall_s / bulk.wall_s for (_, bulk), (_, plain) in pairs]
        result = {
            "share_of_plain": round(median(shares), 2),
            "share_min_max": [round(min(shares), 2), round(max(shares), 2)],
            "budget": {"share": 0.6, "single_rate": 7_500},
            **rows,
            "audit": stretches.audit,
        }
        return job.sealed(result, server)
