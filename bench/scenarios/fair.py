"""fair: what a flood of one tenant does to 99 quiet ones, and whether shares are what was promised.

``flood``: one tenant's tasks due in one instant, 99 others with a task now and then: their lateness, and its
ratio to the same without the flood. ``equal``: twenty tenants, all with the same backlog; Jain's index
of what each had when half of a shard's tasks had started (1 = all the same, 1/20 = one had everything). ``weights``: three
tenants of weights 1, 2 and 4. Each beside the same tasks in one tenant's lanes (``fifo``): submitted
tenant after tenant, they start in that order, and that is what fairness costs and buys.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import uvloop
from bench.measure import Meter, percentiles, us
from bench.processes import SCHEDULER, SHARDS, stack
from bench.readers import Load, Wanted, merged, ramp_s, reading, sleep_until, until_all_settled
from bench.scenarios.common import Job
from bench.servers import Server, running

from tasksched.store.records import set_conf

AOF = "everysec"
COUNTS = {"long": 100_000, "short": 4_000}
OVER = {"long": SHARDS, "short": 2}  # shards of the backlogs: a share is a count, not of a handful
FLOOD, QUIET, ONE = "flood", "quiet", "everybody"
QUIET_TENANTS, QUIET_RATE = 99, 3  # tasks a second of each
EQUAL = 20
WEIGHTS = {"w1": 1, "w2": 2, "w4": 4}
SLOWEST = 10_000  # tasks a second: for so long the quiet ones go on
WARM_MS = 500  # the quiet ones are there before the instant, so that no script is compiled in it
LIMIT_S = 120.0


def _flood(count: int, seconds: float, is_fifo: bool, due_ms: int) -> Iterator[Wanted]:
    rng = random.Random(count)
    for _ in range(int(QUIET_TENANTS * QUIET_RATE * (seconds + WARM_MS / 1000))):
        tenant = f"{QUIET}-{rng.randrange(QUIET_TENANTS)}"
        yield (
            QUIET,
            ONE if is_fifo else tenant,
            due_ms + rng.randrange(-WARM_MS, int(seconds * 1000)),
        )
    for _ in range(count):
        yield FLOOD, ONE if is_fifo else FLOOD, due_ms


def _backlogs(count: int, names: list[str], is_fifo: bool, due_ms: int) -> Iterator[Wanted]:
    """Tenant after tenant, each with as much as the others."""
    for name in names:
        for _ in range(count // len(names)):
            yield name, ONE if is_fifo else name, due_ms


async def _drained(
    server: Server, meter: Meter, weights: Mapping[str, int], wanted: Any, over: int
) -> tuple[Load, int, dict[str, Any], dict[str, int]]:
    """``wanted(due_ms)`` through the readers: what started, when it was due, cost and audit."""
    load = Load()
    with stack(server) as made:
        made.start(SCHEDULER)
        made.await_ready()
        async with reading(server.url, load) as store:
            for tenant, weight in weights.items():
                await set_conf(store, f"tenant:{tenant}", f"weight={weight}")
            count = sum(1 for _ in wanted(0))
            due_ms = int((time.time() + ramp_s(count)) * 1000)
            await load.submit(store, wanted(due_ms), over)
            await sleep_until(due_ms - WARM_MS)
            before = meter.read()
            await until_all_settled(load, LIMIT_S)
            cost = meter.read() - before
    audit = load.audit(meter.client)
    meter.client.flushall()
    return load, due_ms, {"redis_us": us(cost.redis_s, len(load.labels))}, audit


def _rate(load: Load, due_ms: int) -> int:
    """Starts a second from the instant to the last of them."""
    last_ms = max(at for _, _, at in load.started)
    return round(len(load.started) * 1000 / max(last_ms - due_ms, 1))


def jain(values: list[int]) -> float:
    """Jain's index: 1 when all are alike, 1/n when one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return round(sum(values) ** 2 / squares, 4) if squares else 0.0


def _quiet(load: Load, due_ms: int) -> dict[str, float]:
    """Lateness, ms, of the quiet ones until the flood was over; of all where there was none."""
    flood = [at for task_id, _, at in load.started if load.labels[task_id] == FLOOD]
    last_due_ms = max(due for _, due, _ in load.started)
    return percentiles(load.lateness(QUIET, due_ms, max(flood, default=last_due_ms)))


class Fair:
    """The runs on one server, and their audits."""

    def __init__(self, server: Server, meter: Meter, count: int, over: int) -> None:
        self._server, self._meter = server, meter
        self._count, self._over = count, over
        self.audits: list[dict[str, int]] = []

    def _run(
        self, weights: Mapping[str, int], wanted: Any, over: int = SHARDS
    ) -> tuple[Load, int, dict[str, Any]]:
        load, due_ms, cost, audit = uvloop.run(
            _drained(self._server, self._meter, weights, wanted, over)
        )
        self.audits.append(audit)
        return load, due_ms, cost

    def flood(self) -> dict[str, Any]:
        seconds = 1.0 + self._count / SLOWEST
        found: dict[str, Any] = {}
        for name, count in (("fair", self._count), ("fifo", self._count), ("alone", 0)):
            load, due_ms, cost = self._run(
                {}, lambda due, n=count, how=name: _flood(n, seconds, how == "fifo", due)
            )
            found[name] = {**_quiet(load, due_ms), **cost}
        for name in ("fair", "fifo"):
            for part in ("p50", "p99"):
                ratio = found[name][part] / max(found["alone"][part], 1.0)
                found[name][f"{part}_times_alone"] = round(ratio, 1)
        return found

    def equal(self) -> dict[str, Any]:
        names = [f"tenant-{n:02}" for n in range(EQUAL)]
        found = {}
        for how in ("fair", "fifo"):
            load, due_ms, cost = self._run(
                {},
                lambda due, how=how: _backlogs(self._count, names, how == "fifo", due),
                self._over,
            )
            shares = load.shares()
            index = jain([shares[name] for name in names])
            found[how] = {"jain": index, "rate": _rate(load, due_ms), **cost}
        return found

    def weights(self) -> dict[str, Any]:
        names, found = list(WEIGHTS), {}
        for how in ("fair", "fifo"):
            load, due_ms, cost = self._run(
                WEIGHTS,
                lambda due, how=how: _backlogs(self._count, names, how == "fifo", due),
                self._over,
            )
            # The heaviest has work left then: a third of all is its, and two sevenths of all started.
            shares = load.shares()
            found[how] = {**_share_errors(shares), "rate": _rate(load, due_ms), **cost}
        return found


def _share_errors(shares: Counter[str]) -> dict[str, float]:
    total, weight = sum(shares.values()), sum(WEIGHTS.values())
    of = {name: shares[name] / total for name in WEIGHTS}
    worst = max(abs(of[name] * weight / WEIGHTS[name] - 1) for name in WEIGHTS)
    return {**{name: round(share, 4) for name, share in of.items()}, "worst_error": round(worst, 4)}


def run(job: Job) -> dict[str, Any]:
    count = job.tasks or COUNTS[job.length]
    with running(job.server, aof=job.aof or AOF) as server:
        fair = Fair(server, Meter(server), count, OVER[job.length])
        result = {
            "tasks": count,
            "shards": SHARDS,
            "flood": fair.flood(),
            "equal": fair.equal(),
            "weights": fair.weights(),
            "weights_within": 0.1,
            "audit": merged(fair.audits),
        }
        return job.sealed(result, server)
