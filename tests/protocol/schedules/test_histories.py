"""Random histories: whatever happens in whatever order, each nominal time has exactly one outcome.

Schedulers die, plans are fired late, scripts are sent twice, people pause, edit, trigger, cancel and
redrive. After every step the whole database is audited; at the end the ledger is compared with the
nominal times that a few lines of arithmetic say were owed.
"""

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protocol.kit import BROKEN, DONE, STOPPED, retry_in
from tests.protocol.schedules.kit import REF, SchedulesKit, Start, Work, open_schedules_kit
from tests.servers import ServerProcess

from tasksched.errors import Conflict
from tasksched.model.schedule import Delay, Every
from tasksched.store.schedules import Firing

SECONDS = st.sampled_from((1, 20, 60, 61, 150, 400))
STEPS = st.one_of(
    st.tuples(st.just("advance"), SECONDS),
    st.tuples(st.just("advance"), SECONDS),
    st.tuples(st.just("down"), SECONDS),
    st.tuples(st.just("plan"), st.just(0)),
    st.tuples(st.just("fire late"), st.just(0)),
    st.tuples(st.just("fire and die"), SECONDS),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("resume"), st.just(0)),
    st.tuples(st.just("edit"), st.integers(0, 15)),
    st.tuples(st.just("put again"), st.just(0)),
    st.tuples(st.just("trigger"), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("redrive"), st.integers(0, 5)),
    st.tuples(st.just("settle again"), st.just(0)),
)
HISTORIES = st.lists(STEPS, min_size=4, max_size=14)
OVERLAPS = ("skip", "queue", "allow", "cancel")
POLICIES = ({}, {"catch_up": "all", "limit": 3}, {"catch_up": "none", "grace_ms": 65_000}, {"catch_up": "all"})  # fmt: skip
INTERVALS = (60, 45, 100)


def work_of(start: Start) -> Work:
    """Some length and some end, the same for the same attempt."""
    n = hashlib.sha256(f"{start.nominal_ms}/{start.attempt}".encode()).digest()
    outcome = (DONE, DONE, BROKEN, STOPPED, retry_in(25_000))[n[0] % 5]
    return Work((0, 1_000, 59_000, 130_000)[n[1] % 4], outcome)


class History:
    """One schedule, and what the contract says it owes."""

    def __init__(self, kit: SchedulesKit) -> None:
        self.kit = kit
        self.plans: list[Firing] = []
        self.settled: list[tuple[Any, Any]] = []
        self.fields: dict[str, Any] = {}
        self.rule: Any = None

    async def create(self, rule: Any, **fields: Any) -> None:
        self.rule, self.fields = rule, fields
        schedule = await self.kit.put(rule, **fields)
        self.anchor_ms = self.since_ms = schedule.generation_ms
        self.owed: list[int] = []
        self.is_paused = False

    def _until_now(self) -> None:
        """What was owed since the last change of the rule, up to and with this instant."""
        if not self.is_paused and isinstance(self.rule, Every):
            step_ms = self.rule.interval_ms
            first = (self.since_ms - self.anchor_ms) // step_ms + 1
            last = (self.kit.now_ms - self.anchor_ms) // step_ms
            self.owed += [self.anchor_ms + k * step_ms for k in range(first, last + 1)]
        self.since_ms = self.kit.now_ms

    async def step(self, name: str, n: int) -> None:
        kit = self.kit
        match name:
            case "advance":
                await kit.after(n * 1000)
            case "down":
                await kit.down_until(kit.now_ms + n * 1000)
            case "plan":
                kit.is_down = True
                await kit.after(61_000)
                self.plans = await kit.plan()
                kit.is_down = False
            case "fire late":
                if self.plans:
                    await kit.schedules.fire(0, self.plans)
            case "fire and die":
                kit.is_down = True
                await kit.after(n * 1000)
                await kit.fire()
                kit.is_down = False
            case "pause" | "resume":
                await self._turn(name)
            case "edit":
                await self._edit(n)
            case "put again":
                assert (
                    "same" == (await kit.recurring.put(kit.spec(self.rule, **self.fields)))[0].word
                )
            case "trigger":
                await kit.trigger()
            case "cancel" | "redrive":
                await self._by_hand(name, n)
            case "settle again":
                for run in kit.settled[-3:]:
                    await kit.settle(*run)

    async def _turn(self, name: str) -> None:
        try:
            await getattr(self.kit, name)()
        except Conflict:
            return
        if self.is_paused != (name == "pause"):
            self._until_now()
            self.is_paused = name == "pause"

    async def _edit(self, n: int) -> None:
        raise NotImplementedError

    async def _by_hand(self, name: str, n: int) -> None:
        states = {"PENDING", "QUEUED", "RUNNING"} if name == "cancel" else {"FAILED", "CANCELLED"}
        ids = sorted(key.decode().rsplit(":", 1)[1] for key in self.kit.plain.scan_iter("*:task:*"))
        found = [task_id for task_id in ids if self.kit.state(task_id) in states]
        if found:
            verb = getattr(self.kit.store, name)
            await verb(0, found[n % len(found)], "default", None)


class Rate(History):
    async def _edit(self, n: int) -> None:
        before = self.rule
        self.rule = Every(f"{INTERVALS[n % 3]}s")
        self.fields = {"overlap": OVERLAPS[n % 4], "payload": bytes([n]), **POLICIES[n // 4]}
        after, self.rule = self.rule, before
        self._until_now()
        self.rule = after
        await self.kit.put(self.rule, **self.fields)

    async def check_the_ledger(self) -> None:
        await self.kit.tick()
        self._until_now()
        entries = [entry for entry in await self.kit.ledger() if not entry.by_hand]
        assert len(entries) < 100, "the ledger may have been cut"
        held = self.kit.plain.hget(self.kit.keys.schedule(REF), "held")
        waiting = [int(raw) for raw in self.kit.plain.lrange(self.kit.keys.catchup(REF), 0, -1)]
        waiting += [int(held.split()[0])] if held else []
        fired = [entry.first_ms for entry in entries if entry.outcome == "fired"]
        assert len(set(fired + waiting)) == len(fired + waiting)
        assert set(fired + waiting) <= set(self.owed)
        assert len(self.owed) == len(set(self.owed))
        told = sum(entry.count for entry in entries) + len(waiting)
        assert len(self.owed) == told, (self.owed, entries, waiting)
        for entry in entries:
            inside = [at_ms for at_ms in self.owed if entry.first_ms <= at_ms <= entry.last_ms]
            assert {entry.first_ms, entry.last_ms} <= set(inside)
            assert entry.count <= len(inside)
        assert len(fired) == (await self.kit.get()).runs
        assert (
            len(fired) == len({t["nominal_ms"] for t in self.rule_made()}) == len(self.rule_made())
        )

    def rule_made(self) -> list[dict[str, str]]:
        return [task for task in self.kit.tasks() if "by_hand" not in task]


class Chain(History):
    async def _edit(self, n: int) -> None:
        self.rule = Delay(f"{INTERVALS[n % 3]}s")
        self.fields = {"payload": bytes([n]), "after": ("terminal", "success")[n % 2]}
        await self.kit.put(self.rule, **self.fields)

    async def check_the_chain(self) -> None:
        """Neither forked nor stopped: the links are numbered without a gap, and there is a next."""
        kit = self.kit
        kit.handler = lambda _: Work()
        await kit.after(400_000)  # what runs ends, and may block it
        if (await kit.get()).status != "ACTIVE":
            await kit.resume()
        count = self.links()
        await kit.after(400_000)
        assert self.links() > count
        assert list(range(1, self.links() + 1)) == self.numbers()
        schedule = await kit.get()
        assert self.links() == schedule.runs
        entries = [e for e in await kit.ledger() if not e.by_hand]
        assert {"fired"} == {entry.outcome for entry in entries}
        assert self.links() == len(entries) == len({entry.task_id for entry in entries})

    def numbers(self) -> list[int]:
        tasks = [task for task in self.kit.tasks() if "by_hand" not in task]
        return sorted(int(task["occurrence"][1:]) for task in tasks)

    def links(self) -> int:
        return len(self.numbers())


def run(server: ServerProcess, play: Any) -> None:
    """A history on an empty database, audited at its end."""

    async def whole() -> None:
        server.flush()
        kit = await open_schedules_kit(server.url)
        kit.handler = work_of
        try:
            await play(kit)
            assert [] == kit.audit()
        finally:
            await kit.close()

    _loop(whole())


def _loop(whole: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner() as runner:
        runner.run(whole)


SETTINGS = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("schedulers", [1, 3])
@SETTINGS
@given(
    history=HISTORIES,
    policies=st.tuples(st.sampled_from(OVERLAPS), st.sampled_from(POLICIES)),
    doubled=st.booleans(),
)
def test_each_nominal_time_has_one_outcome(
    valkey_server: ServerProcess, schedulers, history, policies, doubled
):
    async def play(kit: SchedulesKit) -> None:
        kit.schedulers, kit.doubled = schedulers, doubled
        rate = Rate(kit)
        await rate.create(Every("60s"), overlap=policies[0], **policies[1])
        for name, n in history:
            await rate.step(name, n)
            assert [] == kit.audit(), (name, n)
        await rate.check_the_ledger()

    run(valkey_server, play)


@pytest.mark.parametrize("schedulers", [1, 3])
@SETTINGS
@given(history=HISTORIES, after=st.sampled_from(("terminal", "success")), doubled=st.booleans())
def test_a_chain_neither_forks_nor_stops(
    valkey_server: ServerProcess, schedulers, history, after, doubled
):
    async def play(kit: SchedulesKit) -> None:
        kit.schedulers, kit.doubled = schedulers, doubled
        chain = Chain(kit)
        await chain.create(Delay("60s"), after=after)
        for name, n in history:
            await chain.step(name, n)
            assert [] == kit.audit(), (name, n)
        await chain.check_the_chain()

    run(valkey_server, play)
