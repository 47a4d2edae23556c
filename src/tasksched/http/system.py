"""The system over HTTP: probes, health, counters, workers, and metrics for Prometheus.

``/livez`` looks at nothing but this process; ``/readyz`` wants an answer from Redis through a script, and
no pending end of the process. ``/health`` and ``/metrics`` answer also while Redis is away, saying so.
Metrics are read at scrape time from the store's counters, so every API process tells the same; labels are
queues, states and routes, so many of each at most, the rest summed up under a name that none can have.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tasksched.commands.admission import Admission
from tasksched.commands.system import Snapshot
from tasksched.errors import TaskschedError
from tasksched.http import render
from tasksched.http.exchange import JSON, Reply
from tasksched.http.guard import BLIND, sees_details
from tasksched.http.refusals import Refusals
from tasksched.http.schema import (
    HealthView,
    RedisView,
    StatsView,
    StatusView,
    WorkerPage,
)
from tasksched.http.schema_audit import HealthStatusView
from tasksched.http.services import VERSION, Call
from tasksched.model.durations import format_duration
from tasksched.model.instants import format_instant

QUEUES_MAX: Final = 200
ROUTES_MAX: Final = 50
OTHER: Final = "_other"  # names begin with a letter or a digit
_METRICS_TYPE = (b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode())
_NO_STORE = (b"cache-control", b"no-store")
_NUMBERS: Final = ("pid", "slots", "running")
_LISTS: Final = ("queues", "routes")


def _json(view: Any, status: int = 200) -> Reply:
    return Reply(status, render.encode(view), [JSON, _NO_STORE])


async def livez(_: Call) -> Reply:
    """This process runs. Nothing else is looked at."""
    return _json(StatusView("ok"))


async def readyz(call: Call) -> Reply:
    """Requests can be served: Redis answers a script, and this process is not about to end."""
    await call.services.system.ready()
    return _json(StatusView("ok"))


async def healthz(call: Call) -> Reply:
    """As /readyz, under the name that older probes ask for."""
    return await readyz(call)


async def health(call: Call) -> Reply:
    """Redis, schedulers, workers, how far behind, and what should be looked after.

    Where keys are needed, all but ``status`` is for those with the scope operate.
    """
    is_trusted = await sees_details(call)
    found = await call.services.system.health()
    redis, admission = found.redis, call.services.admission
    await admission.look()
    warnings = [*found.warnings, *admission.warnings()]
    view = HealthView(
        status="down" if redis is None else "degraded" if warnings else "ok",
        version=VERSION,
        redis=None
        if redis is None
        else RedisView(
            version=redis.version,
            role=redis.role,
            maxmemory_policy=redis.maxmemory_policy,
            maxmemory_bytes=redis.maxmemory_bytes,
            used_memory_bytes=redis.used_memory_bytes,
            memory_budget_bytes=admission.memory.budget,
            memory_budget_ratio=round(admission.memory.ratio, 4),
            accepts=not admission.refuses,
            aof=redis.aof,
        ),
        schedulers=found.schedulers,
        workers=found.workers,
        lag=None if found.lag_ms is None else format_duration(found.lag_ms),
        warnings=warnings,
    )
    status = 503 if redis is None else 200
    return _json(view if is_trusted else HealthStatusView(view.status), status)


async def stats(call: Call) -> Reply:
    """Counters over all tenants: tasks now, moves since ever, and who works."""
    call.query()
    found = await call.services.system.snapshot()
    view = StatsView(
        total=found.counts.total,
        by_status=found.counts.by_status,
        by_queue=found.counts.by_queue,
        moves=found.moves,
        findings=found.findings,
        schedulers=found.schedulers,
        workers=found.workers,
        lag=None if found.lag_ms is None else format_duration(found.lag_ms),
    )
    return _json(view)


async def workers(call: Call) -> Reply:
    """The workers that live, each as it describes itself."""
    call.query()
    found = await call.services.system.workers()
    return _json(WorkerPage([_worker(worker) for worker in found], None))


def _worker(said: Mapping[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = dict(said)
    for name in _NUMBERS:
        if said.get(name, "").isdecimal():
            shown[name] = int(said[name])
    for name in _LISTS:
        if name in said:
            shown[name] = [part for part in said[name].replace(",", " ").split(" ") if part]
    since = said.get("since", "")
    if since.isdecimal() and len(since) < 15:
        shown["since"] = format_instant(int(since))
    return shown


# -- metrics ------------------------------------------------------------------------------------


async def metrics(call: Call) -> Reply:
    """Prometheus' text format, read from the store's counters at this moment."""
    snapshot = None
    if BLIND not in call.scope:
        with contextlib.suppress(TaskschedError):
            snapshot = await call.services.system.snapshot()
    registry = CollectorRegistry(auto_describe=False)
    services = call.services
    await services.admission.look()
    registry.register(_Scrape(snapshot, services.admission, services.refusals))
    return Reply(200, generate_latest(registry), [_METRICS_TYPE, _NO_STORE])


@dataclass(frozen=True, slots=True, eq=False)
class _Scrape(Collector):
    """One scrape: a snapshot as metric families; None while Redis does not answer."""

    snapshot: Snapshot | None
    admission: Admission
    refusals: Refusals

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("tasksched_build", "The running program", value={"version": VERSION})
        up = self.snapshot is not None
        yield GaugeMetricFamily("tasksched_redis_up", "1 while Redis answers", value=float(up))
        yield GaugeMetricFamily(
            "tasksched_memory_budget_ratio",
            "Memory that Redis uses, as a share of its budget; 0 without a budget",
            value=self.admission.memory.ratio,
        )
        refused = CounterMetricFamily(
            "tasksched_refused",
            "Tasks and requests that this process refused, by reason",
            labels=["reason"],
        )
        for reason, number in self.refusals.by_reason.items():
            refused.add_metric([reason], number)
        yield refused
        if self.snapshot is not None:
            yield from _families(self.snapshot)


def _families(snapshot: Snapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("tasksched_workers", "Workers that live", value=float(snapshot.workers))
    yield GaugeMetricFamily(
        "tasksched_schedulers", "Schedulers that live", value=float(snapshot.schedulers)
    )
    yield GaugeMetricFamily(
        "tasksched_lag_seconds",
        "How long the task that waits longest has been due; 0 while none waits",
        value=(snapshot.lag_ms or 0) / 1_000,
    )
    tasks = GaugeMetricFamily(
        "tasksched_tasks", "Tasks now, by queue and state", labels=["queue", "state"]
    )
    for queue, state, number in _summed(snapshot.counts.by_queue):
        tasks.add_metric([queue, state], number)
    yield tasks
    moves = CounterMetricFamily(
        "tasksched_moves", "Moves of tasks into a state, by queue", labels=["queue", "state"]
    )
    for queue, state, number in _summed(snapshot.moves):
        moves.add_metric([queue, state], number)
    yield moves
    findings = CounterMetricFamily(
        "tasksched_findings", "Strays and refused moves that were found", labels=["kind"]
    )
    for kind, number in snapshot.findings.items():
        findings.add_metric([kind], number)
    yield findings
    parked = GaugeMetricFamily(
        "tasksched_parked_streams",
        "Streams that may not be served now, by reason",
        labels=["reason"],
    )
    for reason, number in snapshot.parked.streams.items():
        parked.add_metric([reason], number)
    yield parked
    yield from _limits(snapshot)
    unserved = GaugeMetricFamily(
        "tasksched_tasks_without_worker",
        "Due tasks that no live worker serves, by handler and version",
        labels=["route"],
    )
    for route, number in _most(snapshot.parked.without_worker):
        unserved.add_metric([route], number)
    yield unserved


def _limits(snapshot: Snapshot) -> Iterator[Metric]:
    """What stands aside, and how limited queues are used. No label names a tenant or a key."""
    lanes = GaugeMetricFamily(
        "tasksched_parked_lanes", "Lanes of tenants that stand aside, by reason", labels=["reason"]
    )
    for reason, number in snapshot.parked.lanes.items():
        lanes.add_metric([reason], number)
    yield lanes
    names = {
        "most": "tasksched_queue_permits",
        "in_use": "tasksched_queue_permits_in_use",
        "allotted": "tasksched_queue_permits_allotted",
    }
    texts = {
        "most": "Tasks of a limited queue that may run at a time",
        "in_use": "Tasks of a limited queue that run or are about to",
        "allotted": "Permits of a limited queue that its shards have",
    }
    for field, name in names.items():
        family = GaugeMetricFamily(name, texts[field], labels=["queue"])
        for queue, permits in list(snapshot.permits.items())[:QUEUES_MAX]:
            family.add_metric([queue], getattr(permits, field))
        yield family


def _most(by_route: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """The routes with most tasks, and all others as one."""
    ranked = sorted(by_route.items(), key=lambda pair: (-pair[1], pair[0]))
    rest = sum(number for _, number in ranked[ROUTES_MAX:])
    return [*ranked[:ROUTES_MAX], *([(OTHER, rest)] if rest else [])]


def _summed(by_queue: Mapping[str, Mapping[str, int]]) -> Iterable[tuple[str, str, int]]:
    """(queue, state, number), with the queues beyond QUEUES_MAX as one."""
    total: dict[tuple[str, str], int] = {}
    for n, (queue, states) in enumerate(sorted(by_queue.items())):
        name = queue if n < QUEUES_MAX else OTHER
        for state, number in states.items():
            total[name, state] = total.get((name, state), 0) + number
    return [(queue, state, number) for (queue, state), number in total.items()]
