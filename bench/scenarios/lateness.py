"""lateness: start minus due of tasks on a fixed plan, whatever the system does meanwhile.

Open loop: due times are drawn beforehand (a fixed seed, uniform in each tenth of a second), tasks
are submitted a second ahead, ten times a second. ``record``: started_ms less due_ms of the record,
both of Redis' clock. ``handler``: the clock of the same host in the handler's first line, finer,
and it includes the way into the function. A start before its due time is a failure.
"""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import redis
from bench.handlers import read_runs
from bench.measure import Meter, percentiles, us
from bench.processes import NAMESPACE, SCHEDULER, WORKER, Stack, stack
from bench.producer import producing
from bench.scenarios.common import PAD, Job, audit_records, wait_until
from bench.servers import Server, running

from tasksched.model import ids
from tasksched.store.keys import ShardKeys

AOF = "everysec"
RATES = (100, 1_000)
SECONDS = {"long": 20, "short": 4}
SLICE_S, AHEAD_S = 0.1, 1.0
WARM_S = 1.0  # at the start of each rate, not counted


class Plan:
    """What is due when, and what became of it."""

    def __init__(self, rate: int, seconds: float, first: int) -> None:
        rng = random.Random(rate)
        self.rate = rate
        self.slices: list[list[float]] = []
        for n in range(int(seconds / SLICE_S)):
            self.slices.append(
                sorted((n + rng.random()) * SLICE_S for _ in range(round(rate * SLICE_S)))
            )
        self.first = first
        self.due_ms: list[int] = []
        self.task_ids: list[str] = []


async def _produce(server: Server, plan: Plan) -> None:
    async with producing(server) as producer:
        start_s = time.time() + AHEAD_S + SLICE_S
        for n, offsets in enumerate(plan.slices):
            await asyncio.sleep(max(start_s + n * SLICE_S - AHEAD_S - time.time(), 0))
            due = [int((start_s + offset) * 1000) for offset in offsets]
            number = plan.first + len(plan.task_ids)
            calls = [(number + place, PAD) for place in range(len(due))]
            plan.task_ids += await producer.submit(calls, due)
            plan.due_ms += due


def _records(client: redis.Redis, plan: Plan) -> list[tuple[int, int]]:
    pipe = client.pipeline(transaction=False)
    for task_id in plan.task_ids:
        keys = ShardKeys.of(NAMESPACE, ids.shard_of(task_id, ids.SHARDS_MAX) or 0)
        pipe.hmget(keys.task(task_id), "due_ms", "started_ms")
    return [(int(due), int(started or 0)) for due, started in pipe.execute()]


def _one_rate(server: Server, made: Stack, meter: Meter, plan: Plan) -> dict[str, Any]:
    before = meter.read()
    asyncio.run(_produce(server, plan))
    count = len(plan.task_ids)

    def ran() -> bool:
        return made.runs.exists() and made.runs.stat().st_size >= 12 * (plan.first + count)

    wait_until("every task ran", ran, 15.0)
    time.sleep(0.3)
    cost = meter.read() - before
    warm = int(plan.rate * WARM_S)
    late = [started - due for due, started in _records(meter.client, plan)]
    runs = [run for run in read_runs(made.runs) if plan.first <= run[0] < plan.first + count]
    fine = [at_ns / 1e6 - plan.due_ms[n - plan.first] for n, at_ns in runs]
    by_id = {plan.task_ids[n - plan.first]: c for n, c in Counter(n for n, _ in runs).items()}
    audit = audit_records(meter.client, NAMESPACE, plan.task_ids, by_id)
    audit["early"] = sum(x < 0 for x in late) + sum(x < 0 for x in fine)
    measured = [x for x, (n, _) in zip(fine, runs, strict=True) if n >= plan.first + warm]
    return {
        "record_ms": percentiles([float(x) for x in late[warm:]], 0),
        "handler_ms": percentiles(measured),
        "redis_us": us(cost.redis_s, count),
        "audit": audit,
    }


def run(job: Job) -> dict[str, Any]:
    with running(job.server, aof=job.aof or AOF) as server, stack(server) as made:
        meter = Meter(server)
        made.start(SCHEDULER)
        made.start(WORKER)
        made.await_ready()
        rows, first = {}, 0
        for rate in RATES:
            plan = Plan(rate, SECONDS[job.length] + WARM_S, first)
            rows[f"at_{rate}"] = _one_rate(server, made, meter, plan)
            first += len(plan.task_ids)
        audits = [row.pop("audit") for row in rows.values()]
        audit = {name: sum(each[name] for each in audits) for name in audits[0]}
        budget = {"p50": 3, "p99": 10, "aim_p99": 2}
        result = {"budget_ms": budget, "seconds": SECONDS[job.length], **rows, "audit": audit}
        return job.sealed(result, server)
