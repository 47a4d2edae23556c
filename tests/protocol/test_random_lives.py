"""Random verbs against a model of a few lines: states, versions and attempts agree after each step.

The model knows what each verb does to one task, and nothing about streams, lanes or windows; the
audit looks after those. Where the protocol is free (which of many due tasks starts), the model
checks that what happened was allowed.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
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
from tests.protocol.kit import (
    BROKEN,
    DAY_MS,
    DONE,
    LEASE_MS,
    STOPPED,
    Kit,
    lost,
    open_kit,
    retry_in,
    spec,
)
from tests.servers import ServerProcess

from tasksched.model.outcome import Outcome
from tasksched.store.protocol import Beat, Edit

T = TypeVar("T")
ROUTES = ("charge", "refund")
PICKS = st.integers(0, 99)
# What is asked for: route, queue, priority, delay, time until it expires, how many.
ASKED = st.tuples(
    st.sampled_from(ROUTES),
    st.sampled_from(("a", "b")),
    st.sampled_from(("high", "low")),
    st.sampled_from((0, 0, 1, 5_000)),
    st.sampled_from((None, None, 3_000, 20_000)),
    st.integers(1, 3),
)
ENDED = ("FAILED", "CANCELLED")
OUTCOMES = (DONE, BROKEN, retry_in(0), retry_in(5_000), STOPPED)


@dataclass
class Modelled:
    """What the contract says about one task."""

    route: str
    due_ms: int
    expires_ms: int | None
    state: str = "PENDING"
    version: int = 1
    starts: int = 0
    attempts: int = 0
    life: int = 1
    fence: str = ""
    lease_ms: int = 0
    cancelled: bool = False

    def to(self, state: str) -> None:
        self.state = state
        self.version += 1

    def end(self, outcome: Outcome, now_ms: int) -> None:
        if outcome.kind == "SUCCEEDED":
            self.to("SUCCESS")
        elif self.cancelled or outcome.kind == "CANCELLED":
            self.to("CANCELLED")
        elif outcome.retry_ms is None:
            self.to("FAILED")
        else:
            self.due_ms = now_ms + outcome.retry_ms
            self.to("PENDING")

    @property
    def refusal(self) -> str:
        """What a verb answers that this state does not allow."""
        return "missing" if self.state == "GONE" else "state"

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms and not self.starts


class Lives(RuleBasedStateMachine):
    """One shard, two routes, two workers; the class is given its server by the test."""

    runner: asyncio.Runner
    server: ServerProcess
    kit: Kit

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.kit._calls.clear()
        self.kit.fences.clear()
        self.model: dict[str, Modelled] = {}
        self.live_ms = dict.fromkeys(ROUTES, 0)

    def picked(self, pick: int, *usual: str) -> str:
        """A task of one of these states where there is one; every fifth time any task at all."""
        fit = [task_id for task_id, task in self.model.items() if task.state in usual]
        candidates = fit if fit and pick % 5 else list(self.model)
        return candidates[pick // 5 % len(candidates)]

    def run(self, call: Awaitable[T]) -> T:
        async def wait() -> T:
            return await call

        return self.runner.run(wait())

    @property
    def now(self) -> int:
        return self.kit.now_ms

    # -- time and workers ------------------------------------------------------------------------

    @initialize(many=st.lists(ASKED, min_size=2, max_size=6))
    def begin(self, many: list[tuple[Any, ...]]) -> None:
        """Hypothesis leaves whole rules out of some runs: there must be work without any of them."""
        self.announce("charge", DAY_MS)
        for asked in many:
            self.submit(asked)

    @rule(ms=st.sampled_from((1, 999, 5_000, 9_000, 11_000, LEASE_MS)), away=st.booleans())
    def time_passes(self, ms: int, away: bool) -> None:
        """With the server away, or in a system that lives."""
        if away:
            self.kit.leap(ms)
        else:
            self.run(self.kit.wait(ms))

    @rule(route=st.sampled_from(ROUTES), ttl_ms=st.sampled_from((20_000, DAY_MS)))
    def announce(self, route: str, ttl_ms: int) -> None:
        self.run(self.kit.announce(f"w-{route}", "queue:*", f"route:{route}", ttl_ms=ttl_ms))
        self.live_ms[route] = max(self.live_ms[route], self.now + ttl_ms)

    def is_live(self, task: Modelled) -> bool:
        return self.live_ms[task.route] > self.now

    # -- producers -------------------------------------------------------------------------------

    @rule(asked=ASKED)
    def submit(self, asked: tuple[Any, ...]) -> None:
        route, queue, priority, delay_ms, expires, count = asked
        expires_ms = None if expires is None else self.now + expires
        wanted = spec(
            route,
            queue=queue,
            priority=priority,
            delay_ms=delay_ms,
            expires_at_ms=expires_ms,
            payload=b"x" * (1_500 if priority == "high" else 1),
        )
        made = [self.kit.new_id() for _ in range(count)]
        rows = [(task_id, wanted, "") for task_id in made]
        assert {} == self.run(self.kit.store.submit(0, rows))[1]
        for task_id in made:
            task = self.model[task_id] = Modelled(route, self.now + delay_ms, expires_ms)
            if self.kit.state(task_id) == "QUEUED":
                assert task.due_ms <= self.now
                assert self.is_live(task)
                task.to("QUEUED")
        before = self.kit.dump(without=["clock"])
        words = self.run(self.kit.store.submit(0, rows))[1]
        assert dict.fromkeys(range(count), "exists") == words
        assert before == self.kit.dump(without=["clock"])

    @precondition(lambda self: self.model)
    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        task_id = self.picked(pick, "PENDING", "QUEUED", "RUNNING")
        task = self.model[task_id]
        changed = self.run(self.kit.store.cancel(0, task_id, "default", None))
        match task.state:
            case "PENDING" | "QUEUED":
                assert "cancelled" == changed.word
                task.to("CANCELLED")
            case "RUNNING":
                assert "requested" == changed.word
                task.version += not task.cancelled
                task.cancelled = True
            case "CANCELLED":
                assert "cancelled" == changed.word
            case state:
                assert ("missing" if state == "GONE" else "finished") == changed.word

    @precondition(lambda self: self.model)
    @rule(
        pick=PICKS,
        change=st.sampled_from(
            (Edit(due="+0"), Edit(due="+7000"), Edit(payload=b"e"), Edit(payload=b"e" * 2_000),
             Edit(expires_never=True), Edit(lease_ms=3_000))
        ),
        moved=st.booleans(),
    )  # fmt: skip
    def edit(self, pick: int, change: Edit, moved: bool) -> None:
        task_id = self.picked(pick, "PENDING", "QUEUED")
        task = self.model[task_id]
        if moved:
            change = Edit(due=change.due, lane=f"c:normal:default:{task.route}")
        changed = self.run(self.kit.store.edit(0, task_id, "default", task.version, change))
        if task.state not in {"PENDING", "QUEUED"}:
            assert task.refusal == changed.word
            return
        assert ("edited", "PENDING") == changed[:2]
        task.to("PENDING")
        if change.due:
            task.due_ms = self.now + int(change.due)
        if change.expires_never:
            task.expires_ms = None

    @precondition(lambda self: self.model)
    @rule(pick=PICKS)
    def run_now(self, pick: int) -> None:
        task_id = self.picked(pick, "PENDING", "QUEUED")
        task = self.model[task_id]
        changed = self.run(self.kit.store.run_now(0, task_id, "default", None))
        if task.state in {"PENDING", "QUEUED"}:
            assert "edited" == changed.word
            task.due_ms = min(task.due_ms, self.now)
            task.to("PENDING")
        else:
            assert task.refusal == changed.word

    @precondition(lambda self: self.model)
    @rule(pick=PICKS)
    def redrive(self, pick: int) -> None:
        task_id = self.picked(pick, *ENDED)
        task = self.model[task_id]
        changed = self.run(self.kit.store.redrive(0, task_id, "default", None))
        if task.state not in {"FAILED", "CANCELLED"}:
            assert task.refusal == changed.word
            return
        assert "redriven" == changed.word
        task.to("PENDING")
        task.due_ms, task.expires_ms, task.cancelled = self.now, None, False
        task.attempts, task.life = 0, task.life + 1

    # -- schedulers ------------------------------------------------------------------------------

    @rule()
    def dispatch_all(self) -> None:
        """Until nothing is left to do now: then every due task of a live route is in a stream."""
        for _ in range(50):
            done = self.run(self.kit.dispatch(7))
            if not done.moved and not self.kit.expired and done.again_ms != done.now_ms:
                break
        else:
            raise AssertionError("the dispatcher never rests")
        for task in self.model.values():
            if task.state in {"PENDING", "QUEUED"} and task.expired(self.now):
                task.to("FAILED")
            elif task.state == "PENDING" and task.due_ms <= self.now and self.is_live(task):
                task.to("QUEUED")

    @rule(limit=st.integers(1, 5))
    def look_after_the_overdue(self, limit: int) -> None:
        _, overdue = self.run(self.kit.store.overdue(0, limit))
        for run in overdue:
            task = self.model[run.id]
            assert task.state == run.state
            if run.state == "RUNNING":
                self.reap(run.id)
            else:
                (word,) = self.run(self.kit.store.reclaim(0, [run.id]))
                assert ("waits" if self.is_live(task) else "PENDING") == word
                if word == "PENDING":
                    task.to("PENDING")

    @precondition(lambda self: self.model)
    @rule(pick=PICKS, retry_ms=st.sampled_from((None, 0, 4_000)))
    def reap_one(self, pick: int, retry_ms: int | None) -> None:
        self.reap(self.picked(pick, "RUNNING"), retry_ms)

    def reap(self, task_id: str, retry_ms: int | None = 0) -> None:
        task = self.model[task_id]
        (word,) = self.run(self.kit.store.reap(0, [(task_id, task.fence, lost(retry_ms))]))
        if task.state != "RUNNING":
            return  # stale, or answered again: the invariant sees that nothing changed
        hold_ms = int(self.kit.plain.hget(self.kit.keys.clock, "hold_ms") or 0)
        if task.lease_ms > self.now or hold_ms > self.now:
            assert "alive" == word
        else:
            task.end(lost(retry_ms), self.now)
            assert task.state == word

    @rule(stream=st.sampled_from(("a:high:charge", "b:low:refund", "c:normal:charge")))
    def sweep(self, stream: str) -> None:
        swept = self.run(self.kit.store.sweep(0, stream, "-", 50))
        assert (0, 0) == (swept.removed, swept.watched)

    @rule(age_ms=st.sampled_from((0, 10_000)))
    def prune(self, age_ms: int) -> None:
        """What leaves is known to the model only as gone."""
        removed, _ = self.run(
            self.kit.store.prune(
                0, "default", done_ms=age_ms, dead_ms=age_ms, count_max=1_000, bytes_max=1 << 40,
                keyed_ms=DAY_MS, unkeyed_ms=DAY_MS, limit=100,
            )
        )  # fmt: skip
        gone = [t for t in self.model if not self.kit.record(t)]
        gone = [t for t in gone if self.model[t].state != "GONE"]
        assert removed == len(gone)
        for task_id in gone:
            assert self.model[task_id].state in {"SUCCESS", "FAILED", "CANCELLED"}
            self.model[task_id].state = "GONE"

    # -- workers ---------------------------------------------------------------------------------

    @rule(
        route=st.sampled_from(ROUTES),
        slots=st.integers(1, 6),
        ends=st.lists(st.sampled_from((None, *OUTCOMES)), min_size=6, max_size=6),
    )
    def work(self, route: str, slots: int, ends: list[Outcome | None]) -> None:
        """Announce, dispatch and take; some of the runs end at once."""
        if self.live_ms[route] <= self.now:
            self.announce(route, DAY_MS)
        self.dispatch_all()
        for task_id, outcome in zip(self.take(route, slots), ends, strict=False):
            if outcome is not None:
                self.end(task_id, outcome)

    @rule(route=st.sampled_from(ROUTES), slots=st.integers(1, 6))
    def take_some(self, route: str, slots: int) -> None:
        self.take(route, slots)

    def take(self, route: str, slots: int) -> list[str]:
        worker = f"w-{route}"
        until_ms = self.kit.plain.hget(self.kit.keys.worker(worker), "until_ms")
        if until_ms is None or int(until_ms) <= self.now:
            return []
        ready = {
            task_id
            for task_id, task in self.model.items()
            if task.state == "QUEUED" and task.route == route and not task.expired(self.now)
        }
        grants = self.run(self.kit.take(slots, worker))
        started = {grant.id for grant in grants}
        assert started <= ready
        assert min(slots, len(ready)) == len(started)
        for grant in grants:
            task = self.model[grant.id]
            assert task.due_ms <= self.now
            task.starts, task.attempts = task.starts + 1, task.attempts + 1
            assert (task.starts, task.attempts) == (grant.attempt, grant.attempts)
            task.fence = grant.fence
            task.lease_ms = self.now + (grant.lease_ms or LEASE_MS)
            task.to("RUNNING")
        again = self.run(self.kit.take_call(self.kit._calls[worker], slots, worker))
        assert grants == again
        for task_id, task in self.model.items():  # it may have met expired ones on its way
            met = task.state == "QUEUED" and task.expired(self.now)
            if met and self.kit.state(task_id) == "PENDING":
                task.to("PENDING")  # handed back, until a scheduler sees that it has expired
        return [grant.id for grant in grants]

    @precondition(lambda self: self.model)
    @rule(pick=PICKS, outcome=st.sampled_from(OUTCOMES), again=st.booleans())
    def settle(self, pick: int, outcome: Outcome, again: bool) -> None:
        task_id = self.picked(pick, "RUNNING")
        word = self.end(task_id, outcome)
        if again:
            after = self.kit.dump(without=["clock"])
            assert word == self.end(task_id, outcome)
            assert after == self.kit.dump(without=["clock"])

    def end(self, task_id: str, outcome: Outcome) -> str:
        task = self.model[task_id]
        running = task.state == "RUNNING"
        word = self.run(self.kit.settle((task_id, task.fence), outcome))
        if running:
            task.end(outcome, self.now)
            assert task.state == word
        else:
            assert word in {"stale", "conflict", task.state}
        return word

    @precondition(lambda self: self.model)
    @rule(pick=PICKS)
    def report_by_an_older_fence(self, pick: int) -> None:
        task_id = self.picked(pick, "RUNNING")
        for fence in self.kit.fences.get(task_id, [])[:-1]:
            assert "stale" == self.run(self.kit.settle((task_id, str(fence)), DONE))
            beat = [Beat(task_id, str(fence), LEASE_MS)]
            assert ["stale"] == self.run(self.kit.store.heartbeat(0, beat))
            assert ["stale"] == self.run(self.kit.store.release(0, [(task_id, str(fence))]))

    @precondition(lambda self: self.model)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        task_id = self.picked(pick, "RUNNING")
        task = self.model[task_id]
        (word,) = self.run(self.kit.store.release(0, [(task_id, task.fence)]))
        if task.state == "RUNNING":
            task.attempts -= 1
            task.to("CANCELLED" if task.cancelled else "PENDING")
            assert task.state == word

    @precondition(lambda self: self.model)
    @rule(pick=PICKS)
    def heartbeat(self, pick: int) -> None:
        task_id = self.picked(pick, "RUNNING")
        task = self.model[task_id]
        beat = [Beat(task_id, task.fence or "0", LEASE_MS)]
        (word,) = self.run(self.kit.store.heartbeat(0, beat))
        if task.state != "RUNNING":
            assert "stale" == word
            return
        assert ("cancel" if task.cancelled else "ok") == word
        task.lease_ms = self.now + LEASE_MS

    # -- always ----------------------------------------------------------------------------------

    @invariant()
    def records_agree_with_the_model(self) -> None:
        for task_id, task in self.model.items():
            record = self.kit.record(task_id)
            if task.state == "GONE":
                assert {} == record
                continue
            attempts = int(record.get("attempt", 0)) - int(record.get("uncounted", 0))
            assert (task.state, task.version, task.due_ms, task.life) == (
                record["state"],
                int(record.get("version", 1)),
                int(record["due_ms"]),
                int(record.get("life", 1)),
            ), (task_id, record)
            assert task.attempts == attempts, (task_id, record)

    @invariant()
    def the_audit_finds_nothing(self) -> None:
        assert [] == self.kit.audit()


@pytest.mark.timeout(600)  # a failure takes its time to become small
def test_random_lives_agree_with_the_model(valkey_server: ServerProcess):
    with asyncio.Runner() as runner:
        kit = runner.run(open_kit(valkey_server.url))
        bound: Any = type(
            "Bound", (Lives,), {"runner": runner, "server": valkey_server, "kit": kit}
        )
        try:
            run_state_machine_as_test(
                bound,
                settings=settings(
                    max_examples=50,
                    stateful_step_count=40,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(kit.close())
