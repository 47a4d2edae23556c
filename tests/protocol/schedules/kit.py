"""The kit for recurring tasks: schedulers and a worker on a clock that only tests move.

``advance`` goes from event to event: what runs ends first, then what is owed is fired, what is due is
dispatched and started. The handler is scripted (how long, how it ends, whether its worker dies). With
``doubled`` every script is sent twice with the same arguments, as after a lost reply; with
``schedulers`` several plan the same state before any of them fires.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.protocol.kit import BEGIN_MS, DONE, NAMESPACE, STOPPED, Kit, lost, spec
from tests.protocol.schedules.audit import audit_schedules
from tests.users import of_roles

from tasksched.commands.recurring import Recurring
from tasksched.model.instants import parse_instant
from tasksched.model.outcome import Outcome
from tasksched.model.recurring import LedgerEntry, Schedule, ScheduleSpec, occurrence_id
from tasksched.model.schedule import Rule
from tasksched.model.schedule.misfire import MisfirePolicy
from tasksched.model.task import TaskSpec
from tasksched.runtime.ticker import fire_owed
from tasksched.store.connect import Gateway
from tasksched.store.protocol import Beat, Changed, Grant, Store
from tasksched.store.schedules import Firing, firing_of

SECOND_MS, MINUTE_MS = 1_000, 60_000
LEASE_MS = 100 * 24 * 3_600_000
REF = "default:s"
# Their second answer differs: somebody was first, and it was the same call.
NOT_COMPARED = {"fire", "dispatch", "owed", "reclaim"}


def ms(text: str) -> int:
    """``"10:00:30"`` is on 2 March 2026; else an instant with an offset."""
    return parse_instant(text if "T" in text else f"2026-03-02T{text}Z", "")


class Work(NamedTuple):
    """What the handler does in one attempt. ``crash``: its worker is gone and never reports."""

    ms: int = 0
    outcome: Outcome = DONE
    crash: bool = False


class Start(NamedTuple):
    """One attempt that began."""

    id: str
    ref: str
    nominal_ms: int
    at_ms: int
    attempt: int
    missed: int
    version: int
    payload: bytes | None


class Running(NamedTuple):
    start: Start
    grant: Grant
    work: Work

    @property
    def end_ms(self) -> int:
        return self.start.at_ms + self.work.ms


NEVER = Work(ms=10**15)
Handler = Callable[[Start], Work]


class SchedulesKit(Kit):
    """One shard, some schedulers, a worker that takes everything."""

    def __init__(self, store: Store, url: str) -> None:
        super().__init__(store, url)
        self.doubled = False
        self._send = store.gateway.run
        store.gateway.run = self._run  # type: ignore[method-assign]
        self.recurring = Recurring(store)
        self.schedules = self.recurring.schedules
        self.handler: Handler = lambda _: Work()
        self.starts: list[Start] = []
        self.running: list[Running] = []
        self.settled: list[tuple[Grant, Outcome]] = []
        self.schedulers = 1
        self.is_down = False
        self.lease_ms = LEASE_MS
        self.beat_ms = 0
        self._announced = False

    async def _run(
        self, name: str, values: Mapping[str, Any], rows: Sequence[Any] = (), **options: Any
    ) -> Any:
        first = await self._send(name, values, rows, **options)
        if self.doubled:
            again = await self._send(name, values, rows, **options)
            if name == "take":
                first[1] = again[1]  # whether there may be more: a replay does not look
            assert name in NOT_COMPARED or first == again, (name, first, again)
        return first

    # -- definitions -----------------------------------------------------------------------------

    def spec(self, rule: Rule, *, id: str = "s", **fields: Any) -> ScheduleSpec:  # noqa: A002
        template = {
            name: fields.pop(name)
            for name in ("payload", "queue", "priority", "retry", "lease_ms", "tags", "timeout_ms")
            if name in fields
        }
        misfire = {
            name: fields.pop(name) for name in ("catch_up", "limit", "grace_ms") if name in fields
        }
        made: TaskSpec = spec(**template)
        return ScheduleSpec(
            id=id, template=made, rule=rule, misfire=MisfirePolicy(**misfire), **fields
        )

    async def put(self, rule: Rule, *, id: str = "s", **fields: Any) -> Schedule:  # noqa: A002
        """Create it, or replace what is stored under that id."""
        before = await self.schedules.get(f"default:{id}")
        version = before.version if before else None
        _, schedule = await self.recurring.put(self.spec(rule, id=id, **fields), version=version)
        return schedule

    async def get(self, id: str = "s") -> Schedule:  # noqa: A002
        return await self.recurring.get("default", id)

    async def pause(self, **fields: Any) -> Changed:
        return await self.recurring.pause("default", "s", **fields)

    async def resume(self, **fields: Any) -> Changed:
        return await self.recurring.resume("default", "s", **fields)

    async def remove(self, **fields: Any) -> Changed:
        return await self.recurring.remove("default", "s", **fields)

    async def trigger(self) -> str:
        return await self.recurring.trigger("default", "s")

    async def ledger(self, id: str = "s") -> list[LedgerEntry]:  # noqa: A002
        """Oldest first."""
        return (await self.recurring.ledger("default", id))[::-1]

    async def outcomes(self, id: str = "s") -> list[tuple[str, int, int, int]]:  # noqa: A002
        return [(e.outcome, e.first_ms, e.last_ms, e.count) for e in await self.ledger(id)]

    async def next_ms(self) -> int | None:
        return (await self.get()).next_ms

    def occurrence(self, schedule: Schedule, what: int | str) -> str:
        return occurrence_id(schedule.spec.ref, schedule.generation_ms, str(what), 0)

    def open_ids(self, ref: str = REF) -> set[str]:
        return {task_id.decode() for task_id in self.plain.smembers(self.keys.open(ref))}

    # -- time ------------------------------------------------------------------------------------

    def at(self, text: str) -> None:
        """It is this time now; nothing happened on the way."""
        self.store.now_ms = ms(text)

    async def advance(self, to: int | str) -> None:
        """Everything until that instant happens, in order, and at it."""
        to_ms = ms(to) if isinstance(to, str) else to
        while True:
            event_ms = await self.tick()
            if event_ms is None or event_ms > to_ms:
                break
            self.store.now_ms = event_ms
        if self.now_ms < to_ms:
            self.store.now_ms = to_ms
            await self.tick()

    async def after(self, span_ms: int) -> None:
        await self.advance(self.now_ms + span_ms)

    async def down_until(self, to: int | str) -> None:
        """No scheduler until then; what runs goes on."""
        self.is_down = True
        await self.advance(to)
        self.is_down = False
        await self.tick()

    async def tick(self) -> int | None:
        """All that happens at this instant; when there is something to do again."""
        busy = True
        while busy:
            busy = await self.end_runs()
            if not self.is_down:
                busy |= await self.fire()
                busy |= await self.start_due()
            busy |= await self.obey()
        return await self._next_event()

    async def _next_event(self) -> int | None:
        times = [run.end_ms for run in self.running if not run.work.crash]
        if self.beat_ms and self.running:
            times.append(self.now_ms + self.beat_ms)
        if not self.is_down:
            done = await self.store.dispatch(0)
            times += [at for at in (done.again_ms, done.owed_ms) if at >= 0]
        return min((at for at in times if at > self.now_ms), default=None)

    # -- schedulers ------------------------------------------------------------------------------

    async def plan(self) -> list[Firing]:
        """What a scheduler means to do now. To be fired later it goes stale."""
        now_ms, owed, _ = await self.schedules.owed(0)
        return [firing_of(one, now_ms) for one in owed]

    async def fire(self) -> bool:
        if self.schedulers == 1:
            return (await fire_owed(self.schedules, 0))[0] > 0
        plans = [await self.plan() for _ in range(self.schedulers)]
        words = [await self.schedules.fire(0, plan) for plan in plans if plan]
        assert sum(one.count("fired") for one in words) <= len(plans[0])
        return any("fired" in one for one in words)

    # -- the worker ------------------------------------------------------------------------------

    async def start_due(self) -> bool:
        if not self._announced:
            self._announced = True
            await self.announce(ttl_ms=1000 * 24 * 3_600_000)
        moved = (await self.store.dispatch(0)).moved
        grants = await self.take(lease_ms=self.lease_ms)
        for grant in grants:
            self._begin(grant)
        return bool(moved or grants)

    def _begin(self, grant: Grant) -> None:
        record = self.record(grant.id)
        start = Start(
            grant.id, record.get("schedule", ""), int(record.get("nominal_ms", 0)), self.now_ms,
            grant.attempt, int(record.get("missed", 0)), int(record.get("schedule_version", 0)),
            grant.payload,
        )  # fmt: skip
        assert grant.due_ms <= self.now_ms, "never early"
        self.starts.append(start)
        self.running.append(Running(start, grant, self.handler(start)))

    async def end_runs(self) -> bool:
        over = [r for r in self.running if r.end_ms <= self.now_ms and not r.work.crash]
        for run in over:
            self.running.remove(run)
            await self.settle(run.grant, run.work.outcome)
            self.settled.append((run.grant, run.work.outcome))
        return bool(over)

    async def obey(self) -> bool:
        """Heartbeats: who is asked to stop stops; whose lease has ended is found."""
        alive = [run for run in self.running if not run.work.crash]
        beats = [Beat(run.grant.id, run.grant.fence, self.lease_ms) for run in alive]
        words = await self.store.heartbeat(0, beats) if beats else []
        changed = False
        for run, word in zip(alive, words, strict=True):
            if word == "cancel":
                self.running.remove(run)
                await self.settle(run.grant, STOPPED)
                changed = True
        return changed | await self._reap()

    async def _reap(self) -> bool:
        gone = [run for run in self.running if run.work.crash]
        if not gone:
            return False
        _, overdue = await self.store.overdue(0)
        ids = {one.id for one in overdue}
        for run in gone:
            if run.grant.id in ids:
                final = run.work.outcome.retry_ms is None
                words = await self.reap(run.grant, lost(None if final else 0))
                if words in {"PENDING", "FAILED", "CANCELLED"}:
                    self.running.remove(run)
                    return True
        return False

    # -- looking ---------------------------------------------------------------------------------

    def times(self, id: str = "s") -> list[int]:  # noqa: A002
        """Nominal times of the first attempts, in the order of their starts."""
        return [s.nominal_ms for s in self.starts if s.ref == f"default:{id}" and s.attempt == 1]

    def started(self) -> list[str]:
        """When first attempts began, as ``10:00:30``."""
        day_ms = ms("00:00:00")
        return [clock_text(s.at_ms - day_ms) for s in self.starts if s.attempt == 1]

    def tasks(self) -> list[dict[str, str]]:
        keys = self.plain.keys(self.keys.task("*").replace("{", r"\{"))
        return [self.record(key.decode().rsplit(":", 1)[1]) for key in keys]

    def audit(self) -> list[str]:
        return super().audit() + audit_schedules(self.plain, self.keys)


def clock_text(at_ms: int) -> str:
    seconds = at_ms // 1000
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


async def open_schedules_kit(url: str) -> SchedulesKit:
    gateway = Gateway.open(of_roles(url))
    await gateway.command("PING")
    now_ms = BEGIN_MS + random.randrange(1000)
    return SchedulesKit(Store(gateway, NAMESPACE, 1, now_ms=now_ms), url)
