"""drain: no-op tasks a second through one worker process, everything included.

A scheduler and a worker idle; tasks preloaded by the client become due at one instant. From then
until the last verdict: records, leases, fences, attempts and events as in production. Each run is
written to a file by the handler, each record is looked at afterwards.
"""

import asyncio
import time
from collections import Counter
from typing import Any

import redis
from bench.handlers import read_runs
from bench.measure import Meter, us
from bench.processes import NAMESPACE, SCHEDULER, SHARDS, WORKER, Stack, stack
from bench.producer import producing
from bench.scenarios.common import PAD, Job, audit_records, wait_until
from bench.servers import Server, running

from bench import peers
from tasksched.store.keys import ShardKeys

AOF = "everysec"
COUNTS = {"long": 100_000, "short": 5_000}
RAMP_S = {"long": 12.0, "short": 3.0}  # time to preload before everything is due
LIMIT_S = 50.0
CONCURRENCY = 100
CALL = 5_000


async def _preload(server: Server, count: int, due_ms: int) -> list[str]:
    made: list[str] = []
    async with producing(server) as producer:
        for start in range(0, count, CALL):
            numbers = range(start, min(start + CALL, count))
            made += await producer.submit([(n, PAD) for n in numbers], [due_ms] * len(numbers))
    return made


def _finished(client: redis.Redis) -> int:
    done = [ShardKeys.of(NAMESPACE, n).done("default") for n in range(SHARDS)]
    pipe = client.pipeline(transaction=False)
    for key in done:
        pipe.zcard(key)
    return sum(pipe.execute())


def measured(
    server: Server, made: Stack, meter: Meter, count: int, ramp_s: float
) -> dict[str, Any]:
    """So many no-op tasks through the stack's one worker, from the instant they are due on."""
    due_ms = int((time.time() + ramp_s) * 1000)
    task_ids = asyncio.run(_preload(server, count, due_ms))
    spare_s = due_ms / 1000 - time.time()
    if spare_s < 0:
        raise RuntimeError(f"preloading took {-spare_s:.1f} s too long for a clean start")
    time.sleep(max(spare_s - 0.05, 0))
    cpu_before, before = {role.name: role.cpu_s for role in made.roles}, meter.read()
    wait_until(
        "every task has its verdict", lambda: _finished(meter.client) >= count, LIMIT_S, 0.05
    )
    cost = meter.read() - before
    spent = {role.name: role.cpu_s - cpu_before[role.name] for role in made.roles}
    runs = read_runs(made.runs)
    last_ms = _last_verdict_ms(meter.client)
    by_id = {task_ids[number]: n for number, n in Counter(n for n, _ in runs).items()}
    return {
        "rate": round(count / ((last_ms - due_ms) / 1000)),
        "tasks": count,
        "seconds": round((last_ms - due_ms) / 1000, 2),
        "worker_us": us(spent["worker"], count),
        "scheduler_us": us(spent["scheduler"], count),
        "redis_us": us(cost.redis_s, count),
        "script_calls": round(cost.calls / count, 3),
        "audit": {**audit_records(meter.client, NAMESPACE, task_ids, by_id), "runs": len(runs)},
    }


def _last_verdict_ms(client: redis.Redis) -> int:
    tops = [
        client.zrange(ShardKeys.of(NAMESPACE, n).done("default"), -1, -1, withscores=True)
        for n in range(SHARDS)
    ]
    return int(max(top[0][1] for top in tops if top))


def run(job: Job) -> dict[str, Any]:
    with running(job.server, aof=job.aof or AOF) as server:
        meter = Meter(server)
        with stack(server) as made:
            made.start(SCHEDULER)
            made.start((*WORKER, "--concurrency", str(CONCURRENCY)))
            made.await_ready()
            ours = measured(server, made, meter, COUNTS[job.length], RAMP_S[job.length])
        result = {"target_rate": 30_000, "concurrency": CONCURRENCY, **ours}
        if job.peer:
            meter.client.flushall()
            result["peer"] = peers.drain(job.peer, server, COUNTS[job.length])
            result["times_peer"] = round(ours["rate"] / result["peer"]["rate"], 2)
        return job.sealed(result, server)
