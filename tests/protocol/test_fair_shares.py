"""Random tenants, weights, pauses, limits and rates against a model that counts.

The model knows the rules as a person reads them: who may start, how many at once, how much in any
stretch of time, and that two tenants who always had work waiting got the same service for their
weight, but for a turn each. It knows nothing about turns, lanes or permits of shards.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.protocol.kit import DAY_MS, DONE, WORKER, Kit, open_kit, spec
from tests.servers import ServerProcess

from tasksched.store.limits import Limits
from tasksched.store.protocol import Grant

T = TypeVar("T")
SHARDS = 2
QUANTUM = 8  # tasks of a turn at weight 1; a turn is the same service for any weight
STEP_MS = 50
TENANTS = ("a", "b", "c", "d")
QUEUES = ("mail", "loans")
# weight, tasks at once, tasks a second; 0 = no such rule
RULES = st.tuples(
    st.sampled_from((0.5, 1, 2, 5)), st.sampled_from((0, 0, 0, 1, 3)), st.sampled_from((0, 0, 20))
)


@dataclass
class Tenant:
    """What the contract says about one tenant."""

    weight: float = 1.0
    running: int = 0
    rate: int = 0
    paused: bool = False
    version: int = 0
    waiting: int = 0
    held: int = 0  # dispatched or running
    ceiling: int = 0  # as many as may be held; a lower limit takes nobody's permit away
    rated: list[int] = field(default_factory=list)  # when tasks went on since the rate is in force

    @property
    def text(self) -> str:
        words = [f"weight={self.weight}"]
        words += ["paused"] if self.paused else []
        words += [f"running={self.running}"] if self.running else []
        words += [f"rate={self.rate}"] if self.rate else []
        return " ".join(words)

    @property
    def is_free(self) -> bool:
        return not (self.paused or self.running or self.rate)

    def went_on(self, count: int, now_ms: int) -> None:
        self.waiting -= count
        self.held += count
        self.rated += [now_ms] * count
        if self.running:
            assert self.held <= self.ceiling, (self, count)
        if self.rate:
            self._rate_holds()

    def ended(self) -> None:
        self.held -= 1
        self.ceiling = max(self.running, min(self.ceiling, self.held))

    def _rate_holds(self) -> None:
        """A bucket of a second, and what shards leased up to a second before."""
        for n, first_ms in enumerate(self.rated):
            count = len(self.rated) - n
            allowed = self.rate * (self.rated[-1] - first_ms) / 1000 + 2 * self.rate
            assert count <= allowed, (self.rate, self.rated)


class Race:
    """Service that each free tenant had while all of these had work waiting, queue by queue."""

    def __init__(self) -> None:
        self.had: dict[tuple[str, str], float] = {}

    def leave(self, one: str) -> None:
        for pair in [pair for pair in self.had if one in pair]:
            del self.had[pair]

    def goes_on(self, one: str, other: str, ahead: float) -> None:
        """``ahead``: what ``one`` had more than ``other`` in this step, for its weight."""
        total = self.had.get((one, other), 0.0) + ahead
        self.had[one, other] = total
        assert abs(total) <= 2 * QUANTUM, (one, other, total)


class Fair(RuleBasedStateMachine):
    """Two shards, two queues, one worker; the class is given its server by the test."""

    runner: asyncio.Runner
    server: ServerProcess
    kit: Kit

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.limits = Limits(self.kit.store)
        self.tenants = {name: Tenant() for name in TENANTS}
        self.queues = dict.fromkeys(QUEUES, False)  # paused?
        self.versions = dict.fromkeys(QUEUES, 0)
        self.races: dict[tuple[int, str], Race] = {}
        self.places: dict[str, tuple[int, str, str]] = {}  # task → shard, queue, tenant
        self.dispatched: set[str] = set()
        self.running: list[tuple[int, Grant]] = []
        self.started: set[str] = set()
        self.calls = 0

    def run(self, call: Awaitable[T]) -> T:
        async def wait() -> T:
            return await call

        return self.runner.run(wait())

    # -- what people do ----------------------------------------------------------------------------

    @initialize(asked=st.lists(RULES, min_size=len(TENANTS), max_size=len(TENANTS)))
    def begin(self, asked: list[tuple[float, int, int]]) -> None:
        """Hypothesis leaves whole rules out of some runs: there must be work without any of them."""
        for shard in range(SHARDS):
            self.run(self.kit.store.announce(shard, WORKER, DAY_MS, ["route:charge", "queue:*"]))
        for name, rules in zip(TENANTS, asked, strict=True):
            self.set_rules(name, rules)
            self.submit(name, 0, "mail", 40)

    @rule(
        tenant=st.sampled_from(TENANTS),
        shard=st.integers(0, SHARDS - 1),
        queue=st.sampled_from(QUEUES),
        count=st.integers(1, 40),
    )
    def submit(self, tenant: str, shard: int, queue: str, count: int) -> None:
        """Due in a moment, so that all go through the dispatcher."""
        made = [self.kit.new_id(shard) for _ in range(count)]
        asked = spec(tenant=tenant, queue=queue, delay_ms=1)
        rows = [(task_id, asked, "") for task_id in made]
        assert {} == self.run(self.kit.store.submit(shard, rows))[1]
        self.places.update(dict.fromkeys(made, (shard, queue, tenant)))
        self.tenants[tenant].waiting += count

    @rule(tenant=st.sampled_from(TENANTS), rules=RULES)
    def set_rules(self, tenant: str, rules: tuple[float, int, int]) -> None:
        one = self.tenants[tenant]
        had = (one.weight, one.running, one.rate)
        if had == rules and one.version:
            return
        if one.rate != rules[2]:
            one.rated = []
        one.weight, one.running, one.rate = rules
        one.ceiling = max(one.running, one.held)
        self.tell(tenant)

    @rule(tenant=st.sampled_from(TENANTS))
    def pause_or_go_on(self, tenant: str) -> None:
        self.tenants[tenant].paused = not self.tenants[tenant].paused
        self.tell(tenant)

    @rule(queue=st.sampled_from(QUEUES))
    def pause_queue(self, queue: str) -> None:
        self.queues[queue] = not self.queues[queue]
        self.versions[queue] += 1
        word = "paused" if self.queues[queue] else " "
        self.configure(f"queue:{queue}", f"{self.versions[queue]} {word}")
        self.races.clear()

    def tell(self, tenant: str) -> None:
        one = self.tenants[tenant]
        one.version += 1
        self.configure(f"tenant:{tenant}", f"{one.version} {one.text}")
        for race in self.races.values():
            race.leave(tenant)

    def configure(self, name: str, text: str) -> None:
        for shard in range(SHARDS):
            self.run(self.kit.store.configure(shard, [(name, text)]))

    # -- what the system does ----------------------------------------------------------------------

    @rule(shard=st.integers(0, SHARDS - 1), slots=st.sampled_from((1, 4, 16, 64)))
    def work(self, shard: int, slots: int) -> None:
        self.kit.store.now_ms += STEP_MS
        self.dispatch(shard)
        self.calls += 1
        _, _, grants = self.run(
            self.kit.store.take(shard, WORKER, call=self.calls, slots=slots, lease_ms=DAY_MS)
        )
        for grant in grants:
            _, queue, tenant = self.places[grant.id]
            assert not self.tenants[tenant].paused, grant
            assert not self.queues[queue], grant
            assert grant.id not in self.started
            self.started.add(grant.id)
        self.running += [(shard, grant) for grant in grants]
        self.hand_back(shard)

    def dispatch(self, shard: int) -> None:
        before = self.waiting_by_lane(shard)
        done = self.run(self.kit.store.dispatch(shard))
        for ask in done.asks:
            self.run(self.limits.meet(shard, ask))
        after = self.waiting_by_lane(shard)
        served = {lane: before[lane] - after.get(lane, 0) for lane in before}
        assert sum(served.values()) == done.moved
        for (_, tenant), count in served.items():
            assert not (count and self.tenants[tenant].paused), tenant
            self.tenants[tenant].went_on(count, self.kit.now_ms)
        for queue in QUEUES:
            self.compare(self.races.setdefault((shard, queue), Race()), queue, served, after)

    def compare(
        self,
        race: Race,
        queue: str,
        served: dict[tuple[str, str], int],
        after: dict[tuple[str, str], int],
    ) -> None:
        racing = []
        for name, tenant in self.tenants.items():
            if (
                tenant.is_free
                and after.get((queue, name))
                and served.get((queue, name)) is not None
            ):
                racing.append(name)
            else:
                race.leave(name)
        for one, other in combinations(racing, 2):
            of = [served[queue, name] / self.tenants[name].weight for name in (one, other)]
            race.goes_on(one, other, of[0] - of[1])

    def waiting_by_lane(self, shard: int) -> dict[tuple[str, str], int]:
        """PENDING tasks of each queue and tenant, as the lanes hold them."""
        keys, plain = self.kit.store.keys[shard], self.kit.plain
        lanes = [(queue, tenant) for queue in QUEUES for tenant in TENANTS]
        pipe = plain.pipeline(transaction=False)
        for queue, tenant in lanes:
            pipe.zcard(keys.due(f"{queue}:normal:{tenant}:charge"))
        return {lane: count for lane, count in zip(lanes, pipe.execute(), strict=True) if count}

    def hand_back(self, shard: int) -> None:
        """What ``take`` found paused waits again: the model hears of it by counting."""
        waits: dict[str, int] = dict.fromkeys(TENANTS, 0)
        for each in range(SHARDS):
            for (_, tenant), count in self.waiting_by_lane(each).items():
                waits[tenant] += count
        for name, one in self.tenants.items():
            for _ in range(waits[name] - one.waiting):
                assert one.paused or any(self.queues.values()), name
                one.waiting += 1
                one.ended()

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 64))
    def end(self, count: int) -> None:
        ending, self.running = self.running[:count], self.running[count:]
        for shard in range(SHARDS):
            rows = [(grant.id, grant.fence, DONE) for at, grant in ending if at == shard]
            if rows:
                assert {"SUCCESS"} == set(self.run(self.kit.store.settle(shard, rows)))
        for _, grant in ending:
            self.tenants[grant.tenant].ended()

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        for name, tenant in self.tenants.items():
            held = 0
            for keys in self.kit.store.keys:
                held += int(self.kit.plain.hget(keys.counts, f"t/{name}") or 0)
            assert held == tenant.held, name

    def teardown(self) -> None:
        """Once nothing is paused every task starts, under its limits, and the audit is clean."""
        for name in TENANTS:
            if self.tenants[name].paused:
                self.pause_or_go_on(name)
        for queue in QUEUES:
            if self.queues[queue]:
                self.pause_queue(queue)
        for n in range(4_000):
            if len(self.started) == len(self.places) and not self.running:
                break
            self.work(n % SHARDS, 64)
            if self.running:
                self.end(64)
        assert set(self.places) == self.started
        assert [] == self.kit.audit()


@pytest.mark.timeout(600)  # a failure takes its time to become small
def test_random_shares_agree_with_the_model(valkey_server: ServerProcess):
    with asyncio.Runner() as runner:
        kit = runner.run(open_kit(valkey_server.url, shards=SHARDS))
        bound: Any = type("Bound", (Fair,), {"runner": runner, "server": valkey_server, "kit": kit})
        try:
            run_state_machine_as_test(
                bound,
                settings=settings(
                    max_examples=20,
                    stateful_step_count=30,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(kit.close())
