"""life: what a whole life (submit, dispatch, take, settle) costs the server, stage by stage.

Store level, one shard, batches of 200 and 128, 20 tenants, payloads of 100 bytes; each round is
followed by the same round of plain scripts. ``direct`` is a task that is due at once while a worker
lives: submit hands it over itself, and there is no dispatch.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from bench.floor.plain import Floor
from bench.measure import Cost, Meter, median, us
from bench.scenarios.common import HANDLER, PAYLOAD, Job, audit_records, spec_of
from bench.servers import pin, running

from tasksched import clock
from tasksched.model import ids
from tasksched.model.outcome import Outcome
from tasksched.store.connect import Gateway
from tasksched.store.protocol import BATCH_MAX, SUBMIT_MAX, Store

AOF = "no"
TENANTS = 20
ROUND = 4_000
ROUNDS = {"long": 12, "short": 3}
WORKER = "bench"
STAGES = ("submit", "dispatch", "take", "settle")
DIRECT = ("submit", "take", "settle")
OK = Outcome(kind="SUCCEEDED", result=b"\xc0")

Stage = Callable[[], Awaitable[Any]]


class Lives:
    """One namespace, walked through by hand; remembers who was granted how often."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._granted: list[tuple[str, str, Outcome]] = []
        self._call = 0
        self.grants: Counter[str] = Counter()
        self.submitted: list[str] = []

    async def announce(self, window: int) -> None:
        await self._store.announce(0, WORKER, 3_600_000, [f"route:{HANDLER}", "queue:*"])
        stream = f"default:normal:{HANDLER}"
        await self._store.gateway.command("HSET", self._store.keys[0].window, stream, window)

    async def submit(self, delay_ms: int) -> None:
        now_ms = clock.wall_ms()
        for start in range(0, ROUND, SUBMIT_MAX):
            rows = [
                (ids.mint(0, now_ms), spec_of(f"tenant-{n % TENANTS}", delay_ms), "")
                for n in range(start, start + SUBMIT_MAX)
            ]
            await self._store.submit(0, rows)
            self.submitted += [row[0] for row in rows]

    async def dispatch(self) -> None:
        moved = 0
        while moved < ROUND:
            moved += (await self._store.dispatch(0)).moved

    async def take(self) -> None:
        self._granted = []
        while len(self._granted) < ROUND:
            self._call += 1
            _, _, grants = await self._store.take(
                0, WORKER, call=self._call, slots=BATCH_MAX, lease_ms=30_000
            )
            self._granted += [(grant.id, grant.fence, OK) for grant in grants]
        self.grants.update(task_id for task_id, _, _ in self._granted)

    async def settle(self) -> None:
        for start in range(0, ROUND, BATCH_MAX):
            words = await self._store.settle(0, self._granted[start : start + BATCH_MAX])
            assert set(words) == {"SUCCESS"}, set(words)


async def floor_round(floor: Floor, measured: Callable[[str, Stage], Awaitable[None]]) -> None:
    now_ms, taken = clock.wall_ms(), []

    async def create() -> None:
        for _ in range(0, ROUND, SUBMIT_MAX):
            rows = [(ids.mint(0, now_ms), now_ms, PAYLOAD) for _ in range(SUBMIT_MAX)]
            await floor.create(now_ms, rows)

    async def dispatch() -> None:
        while await floor.dispatch(now_ms, SUBMIT_MAX):
            pass

    async def take() -> None:
        while grants := await floor.take(now_ms, BATCH_MAX):
            taken.extend((grant[0], grant[1]) for grant in grants)

    async def settle() -> None:
        for start in range(0, ROUND, BATCH_MAX):
            await floor.settle(now_ms, taken[start : start + BATCH_MAX])

    for name, stage in zip(STAGES, (create, dispatch, take, settle), strict=True):
        await measured(name, stage)


class Book:
    """Costs by kind of life and stage, one a round."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._costs: dict[tuple[str, str], list[Cost]] = {}

    async def measured(self, kind: str, name: str, stage: Stage) -> None:
        before = self._meter.read()
        await stage()
        self._costs.setdefault((kind, name), []).append(self._meter.read() - before)

    def table(self, kind: str, stages: tuple[str, ...]) -> dict[str, dict[str, float]]:
        """Medians over the rounds, the first of which warms up and does not count."""
        rows = {}
        for name in stages:
            costs = self._costs[kind, name][1:]
            rows[name] = {
                "cpu_us": us(median([cost.redis_s for cost in costs]), ROUND),
                "script_us": us(median([cost.script_s for cost in costs]), ROUND),
                "client_us": us(median([cost.client_s for cost in costs]), ROUND),
            }
        return rows


async def _walk(job: Job, url: str, book: Book) -> Lives:
    gateway = Gateway.open(url)
    lives, floor = Lives(Store(gateway, "bench", 1)), Floor(gateway.redis)
    await lives.announce(2 * ROUND)
    await floor.load()
    for _ in range(ROUNDS[job.length] + 1):
        await book.measured("life", "submit", lambda: lives.submit(1))
        await asyncio.sleep(0.005)
        for name in STAGES[1:]:
            await book.measured("life", name, getattr(lives, name))
        await floor_round(floor, lambda name, stage: book.measured("floor", name, stage))
        await book.measured("direct", "submit", lambda: lives.submit(0))
        for name in DIRECT[1:]:
            await book.measured("direct", name, getattr(lives, name))
    await gateway.close()
    return lives


def run(job: Job) -> dict[str, Any]:
    with running(job.server, aof=job.aof or AOF) as server:
        if job.pin:
            pin(server)
        meter = Meter(server)
        book = Book(meter)
        lives = uvloop.run(_walk(job, server.url, book))
        audit = audit_records(meter.client, "bench", lives.submitted, lives.grants)
        life, floor = book.table("life", STAGES), book.table("floor", STAGES)
        result = {
            "life_us": _total(life),
            "floor_us": _total(floor),
            "direct_us": _total(direct := book.table("direct", DIRECT)),
            "budget_us": 40,
            "rounds": ROUNDS[job.length],
            "tasks_per_round": ROUND,
            "stages": life,
            "floor": floor,
            "direct": direct,
            "audit": audit,
        }
        return job.sealed(result, server)


def _total(table: dict[str, dict[str, float]]) -> float:
    return round(sum(row["cpu_us"] for row in table.values()), 1)
