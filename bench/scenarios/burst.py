"""burst: very many tasks of one tenant due in one instant, and what another tenant feels of it.

Over 16 shards, with a scheduler of its own process and readers that only take and settle (four
connections of this one). The quiet tenant's tasks are due every 10 ms, submitted beforehand as the
flood was: once as a tenant of its own, once in the flood's own lanes, where order is by due time
alone (``fifo``), and once without the flood (``alone``). Then the same instant through one worker process.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import uvloop
from bench.measure import Meter, percentiles, us
from bench.processes import NAMESPACE, SCHEDULER, SHARDS, WORKER, stack
from bench.readers import Load, Wanted, merged, ramp_s, reading, sleep_until, until_all_settled
from bench.scenarios import drain
from bench.scenarios.common import HANDLER, Job, spec_of
from bench.servers import Server, running

from tasksched.model import ids
from tasksched.store.connect import Gateway
from tasksched.store.protocol import SUBMIT_MAX, Store

AOF = "everysec"
COUNTS = {"long": 100_000, "short": 2_000}
EXECUTED = {"long": 20_000, "short": 1_000}
DISPATCHED = {"long": 8_000, "short": 1_000}
FLOOD, QUIET = "flood", "quiet"
QUIET_EVERY_MS = 10
SLOWEST = 10_000  # tasks a second: for so long the quiet tenant goes on
WARM_MS = 500  # the quiet tenant is there before the instant, so that no script is compiled in it
LIMIT_S, SLOWEST_TO_END = 120.0, 4_000  # seconds, and tasks a second beyond them
BUDGET = {"last_taken_s": 1.0, "quiet_p99_ms": 250, "executed_s": 1.5}


def _wanted(count: int, seconds: float, quiet_tenant: str, due_ms: int) -> Iterator[Wanted]:
    for after_ms in range(-WARM_MS, int(seconds * 1000), QUIET_EVERY_MS):
        yield QUIET, quiet_tenant, due_ms + after_ms
    for _ in range(count):
        yield FLOOD, FLOOD, due_ms


async def _instant(
    server: Server, meter: Meter, wanted: tuple[int, float, str]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Flood, seconds of the quiet tenant, the tenant it counts as: figures and audit."""
    count, seconds, quiet_tenant = wanted
    load = Load()
    async with reading(server.url, load) as store:
        due_ms = int((time.time() + ramp_s(count)) * 1000)
        await load.submit(store, _wanted(count, seconds, quiet_tenant, due_ms))
        await sleep_until(due_ms - WARM_MS)
        before = meter.read()
        await until_all_settled(load, LIMIT_S + count / SLOWEST_TO_END)
        cost = meter.read() - before
    ended = [at for task_id, _, at in load.started if load.labels[task_id] == FLOOD]
    last_ms = max(ended, default=due_ms + int(seconds * 1000))
    figures: dict[str, Any] = {"quiet_ms": percentiles(load.lateness(QUIET, due_ms, last_ms))}
    if count:
        last_taken_s = (last_ms - due_ms) / 1000
        figures |= {"last_taken_s": last_taken_s, "rate": round(count / max(last_taken_s, 0.001))}
        figures["redis_us"] = us(cost.redis_s, len(load.labels))
    return figures, load.audit(meter.client)


async def _dispatch_us(server: Server, meter: Meter, count: int) -> float:
    """Redis time of handing one task of a flood over, its window opened wide, on one shard."""
    gateway = Gateway.open(server.url)
    store = Store(gateway, NAMESPACE, SHARDS)
    await store.announce(0, "bench", 3_600_000, [f"route:{HANDLER}", "queue:*"])
    await gateway.command("HSET", store.keys[0].window, f"default:normal:{HANDLER}", 2 * count)
    for _ in range(0, count, SUBMIT_MAX):
        rows = [(ids.mint(0, 0), spec_of(FLOOD, 1), "") for _ in range(SUBMIT_MAX)]
        await store.submit(0, rows)
    await asyncio.sleep(0.01)
    before, moved = meter.read(), 0
    while moved < count:
        moved += (await store.dispatch(0)).moved
    cost = meter.read() - before
    await gateway.close()
    return us(cost.redis_s, moved)


def run(job: Job) -> dict[str, Any]:
    count = job.tasks or COUNTS[job.length]
    seconds = 1.0 + count / SLOWEST
    runs = {
        "fair": (count, seconds, QUIET),
        "fifo": (count, seconds, FLOOD),
        "alone": (0, min(seconds, 10.0), QUIET),
    }
    with running(job.server, aof=job.aof or AOF) as server:
        meter, found, audits = Meter(server), {}, []
        for name, wanted in runs.items():
            with stack(server) as made:
                made.start(SCHEDULER)
                made.await_ready()
                found[name], audit = uvloop.run(_instant(server, meter, wanted))
            audits.append(audit)
            meter.client.flushall()
        dispatch_us = uvloop.run(_dispatch_us(server, meter, DISPATCHED[job.length]))
        meter.client.flushall()
        with stack(server) as made:
            made.start(SCHEDULER)
            made.start((*WORKER, "--concurrency", str(drain.CONCURRENCY)))
            made.await_ready()
            executed = drain.measured(server, made, meter, EXECUTED[job.length], ramp_s(20_000))
        audits.append(executed.pop("audit"))
        result = {
            "budget": BUDGET,
            "tasks": count,
            "shards": SHARDS,
            **found,
            "dispatch_us": dispatch_us,
            "executed": executed,
            "audit": merged(audits),
        }
        return job.sealed(result, server)
