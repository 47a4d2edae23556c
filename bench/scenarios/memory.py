"""memory: bytes of the server for each pending task with a payload of 100 bytes, and what holds them.

``used_memory`` after less before, by the number of tasks, of 20 tenants over 4 shards; the record
by ``MEMORY USAGE`` of a sample, lanes (the due index) and events likewise; the rest is the main table
above all. With the settings we recommend, and with what a server does when nobody told it anything.
"""

import asyncio
import random
from typing import Any

import redis
from bench.scenarios.common import Job, spec_of
from bench.servers import running

from tasksched import clock
from tasksched.model import ids
from tasksched.store.connect import Gateway
from tasksched.store.protocol import SUBMIT_MAX, Store

COUNTS = {"long": 200_000, "short": 20_000}
TENANTS = 20
SHARDS = 4
SAMPLE = 200
DAY_MS = 24 * 3_600_000


async def _fill(url: str, count: int) -> list[str]:
    """Tasks due within a day from tomorrow, in no order."""
    store = Store(Gateway.open(url), "bench", SHARDS)
    rng, made = random.Random(7), []
    for start in range(0, count, SUBMIT_MAX):
        shard, now_ms = start // SUBMIT_MAX % SHARDS, clock.wall_ms()
        rows = [
            (
                ids.mint(shard, now_ms),
                spec_of(f"tenant-{n % TENANTS}", DAY_MS + rng.randrange(DAY_MS)),
                "",
            )
            for n in range(SUBMIT_MAX)
        ]
        await store.submit(shard, rows)
        made += [row[0] for row in rows]
    await store.gateway.close()
    return made


def _record_bytes(client: redis.Redis, store_keys: Any, made: list[str]) -> float:
    sample = random.Random(11).sample(made, SAMPLE)
    sizes = [client.memory_usage(store_keys(task_id), samples=0) or 0 for task_id in sample]
    return sum(sizes) / len(sizes)


def _held(client: redis.Redis, pattern: str) -> int:
    """Bytes of all keys of that pattern, by a sample of their members."""
    return sum(client.memory_usage(key, samples=50) or 0 for key in client.scan_iter(pattern))


def _measure(job: Job, *, plain: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    count = COUNTS[job.length]
    with running(job.server, aof="no", plain=plain) as server, server.client() as client:
        asyncio.run(_fill(server.url, SUBMIT_MAX * SHARDS))  # what is there once: scripts, buffers
        before = client.info("memory")["used_memory"]
        made = asyncio.run(_fill(server.url, count))
        bytes_all = (client.info("memory")["used_memory"] - before) / count
        store = Store(Gateway(client), "bench", SHARDS)
        key = lambda task_id: store.keys[ids.shard_of(task_id, SHARDS) or 0].task(task_id)  # noqa: E731
        record = _record_bytes(client, key, made)
        lanes = _held(client, "*:due:*") / (count + SUBMIT_MAX * SHARDS)
        events = _held(client, "*:events") / (count + SUBMIT_MAX * SHARDS)
        row = {
            "bytes": round(bytes_all),
            "record": round(record),
            "lanes": round(lanes),
            "events": round(events),
            "rest": round(bytes_all - record - lanes - events),
            "encoding": client.object("encoding", key(made[0])).decode(),
        }
        pending = sum(client.zcard(k) for k in client.scan_iter("*:due:*"))
        missing = sum(1 for task_id in made if not client.exists(key(task_id)))
        lost = max(count + SUBMIT_MAX * SHARDS - pending, missing, 0)
        audit = {"tasks": count, "lost": lost, "doubled": count - len(set(made))}
        return job.sealed({"row": row, "audit": audit}, server), row


def run(job: Job) -> dict[str, Any]:
    """The figure is that of the recommended settings; beside it, that of none."""
    told, row = _measure(job, plain=False)
    untold, defaults = _measure(job, plain=True)
    audit = {name: told["audit"][name] + untold["audit"][name] for name in told["audit"]}
    return {
        **told,
        "bytes_per_task": row["bytes"],
        "budget_bytes": 400,
        "row": row,
        "server_defaults": defaults,
        "audit": audit,
    }
