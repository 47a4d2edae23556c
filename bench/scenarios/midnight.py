"""midnight: many cron schedules that come due at the same minute, fired by one process.

Store level on a fake clock: each schedule gets a daily rule (a few hundred distinct ones, all due at
the same instant in their own zones), the clock is put to that instant, and the firing loop of a
scheduler runs over all shards until nothing is owed. Then the same again by a second scheduler, which
must find nothing. ``bytes_per_schedule`` is used_memory before anything has fired.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

import uvloop
from bench.measure import Meter, us
from bench.scenarios.common import PAYLOAD, Job
from bench.servers import running

from tasksched.commands.recurring import Recurring
from tasksched.model.recurring import ScheduleSpec
from tasksched.model.schedule import Cron
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.runtime.ticker import fire_owed
from tasksched.store.connect import Gateway
from tasksched.store.protocol import Store

AOF = "no"
SCHEDULES = {"long": 100_000, "short": 2_000}
SHARDS = 16
AT_ONCE = 64
BEGIN_MS = 1_773_100_800_000  # 2026-03-10T00:00:00Z
DUE_MS = BEGIN_MS + 12 * 3_600_000
ZONES = ("UTC", "Africa/Abidjan", "Europe/London", "Atlantic/Reykjavik")  # all at +00:00 that day


def spec_of(number: int) -> ScheduleSpec:
    """One of four zones times sixty-odd spellings of the same minute."""
    days = f"1-{28 + number % 4}"
    rule = Cron(f"0 12 {days} * *", tz=ZONES[number % len(ZONES)])
    template = TaskSpec(target=HandlerTarget("noop"), payload=PAYLOAD)
    return ScheduleSpec(id=f"s{number}", template=template, rule=rule)


async def in_parallel(work: list[Awaitable[Any]]) -> None:
    for start in range(0, len(work), AT_ONCE):
        await asyncio.gather(*work[start : start + AT_ONCE])


async def fire_all(recurring: Recurring) -> int:
    """The firing loops of a scheduler, one a shard, until nothing is owed; how many fired."""

    async def drive(shard: int) -> int:
        fired, more = 0, True
        while more:
            count, more = await fire_owed(recurring.schedules, shard)
            fired += count
        return fired

    return sum(await asyncio.gather(*(drive(shard) for shard in range(SHARDS))))


async def _midnight(job: Job, url: str, meter: Meter) -> dict[str, Any]:
    gateway = Gateway.open(url)
    store = Store(gateway, "bench", SHARDS, now_ms=BEGIN_MS)
    recurring = Recurring(store)
    count = SCHEDULES[job.length]
    empty = meter.client.info("memory")["used_memory"]
    for start in range(0, count, 10_000):
        numbers = range(start, min(start + 10_000, count))
        await in_parallel([recurring.put(spec_of(number)) for number in numbers])
    full = meter.client.info("memory")["used_memory"]

    store.now_ms = DUE_MS
    before = meter.read()
    fired = await fire_all(recurring)
    cost = meter.read() - before
    again = await fire_all(recurring)
    made = sum(
        int(meter.client.zcard(keys.due("default:normal:default:noop"))) for keys in store.keys
    )
    await gateway.close()
    return {
        "rate": round(fired / cost.wall_s),
        "redis_us": us(cost.redis_s, fired),
        "script_us": us(cost.script_s, fired),
        "client_us": us(cost.client_s, fired),
        "script_calls": cost.calls,
        "bytes_per_schedule": round((full - empty) / count),
        "budget_rate": 20_000,
        "audit": {"tasks": count, "lost": count - made, "doubled": max(fired - count, 0) + again},
    }


def run(job: Job) -> dict[str, Any]:
    with running(job.server, aof=job.aof or AOF) as server:
        result = uvloop.run(_midnight(job, server.url, Meter(server)))
        return job.sealed(result, server)
