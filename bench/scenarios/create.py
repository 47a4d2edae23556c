"""create: tasks a second through the Python client, against the plain create script in one run.

Bulk: A B A B …, A = ``submit_many`` of the client, B = the plain script with the same payload, the
same library, batches of 200 and two calls in flight, an emptied server before each. Then one at a
time, each awaited before the next. The record of every task is counted after each stretch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.floor.plain import Floor
from bench.measure import Cost, Meter, median, us
from bench.scenarios.common import PAYLOAD, Job, spec_of
from bench.servers import running
from tasksched import clock
from tasksched.commands.session import Session, open_session
from tasksched.model import ids
from tasksched.settings import Settings
from tasksched.store.protocol import SUBMIT_MAX

AOF = "everysec"
TENANT = "default"
SHAPES = {"long": (10, 30_000, 10_000), "short": (4, 10_000, 1_000)}  # pairs, bulk, singles
CALL = 5_000  # tasks a user hands to one submit_many


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
            "client_us": median([us(cost.client_s, count) for count, cost in costs]),
            "redis_us": median([us(cost.redis_s, count) for count, cost in costs]),
            "wall_us": median([us(cost.wall_s, count) for count, cost in costs]),
        }


async def _bulk(session: Session, count: int) -> set[str]:
    made: set[str] = set()
    for start in range(0, count, CALL):
        spec = spec_of(TENANT, 3_600_000)
        answers = await session.tasks.submit_many([spec] * min(CALL, count - start))
        made.update(answer.id for answer in answers)  # type: ignore[union-attr]
    return made


async def _single(session: Session, count: int) -> set[str]:
    spec = spec_of(TENANT, 3_600_000)
    return {(await session.tasks.submit(spec)).id for _ in range(count)}


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


async def _work(job: Job, url: str, stretches: Stretches, flush: Callable[[], Any]) -> None:
    session = await open_session(Settings(url=url, namespace="bench"))
    floor = Floor(session.gateway.redis)
    pairs, bulk, single = SHAPES[job.length]
    kinds = (
        ("bulk", bulk, lambda: _bulk(session, bulk)),
        ("plain_bulk", bulk, lambda: _plain(floor, bulk)),
    )
    for _ in range(pairs):
        await _measured(kinds, stretches, floor, flush)
    singles = (
        ("single", single, lambda: _single(session, single)),
        ("plain_single", single, lambda: _plain_single(floor, single)),
    )
    await _measured(singles, stretches, floor, flush)
    await session.close()


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
        meter = Meter(server)
        stretches = Stretches(meter)
        asyncio.run(_work(job, server.url, stretches, meter.client.flushall))
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
