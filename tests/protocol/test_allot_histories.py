"""Any history of a limit, its messages lost, doubled and reordered: never more permits than there are.

The shards and the home are the real scripts; the machine plays whoever carries what they say. A start
takes a permit where its shard has one free; an end gives it back where others wait.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeVar

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
from tests.protocol.kit import Kit, open_kit
from tests.servers import ServerProcess

from tasksched.store.limits import Limits, Tell

T = TypeVar("T")
SHARDS = 3
LIMIT = "t/x"
ROUNDS_MAX = 20
PICKS = st.integers(0, 99)
NUMBERS = st.integers(0, SHARDS - 1)


class Said(NamedTuple):
    """A row on its way to the home."""

    shard: int
    epoch: int
    permits: int
    want: int
    head_ms: int


class Histories(RuleBasedStateMachine):
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.kit: Kit = self.run(open_kit(self.url, shards=SHARDS))
        self.kit.plain.flushall()
        self.limits = Limits(self.kit.store)
        self.capacity = 1
        self.said: list[Said] = []
        self.told: list[Tell] = []
        self.most = self.capacity

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    def use(self, shard: int, by: int) -> None:
        self.kit.plain.hincrby(self.kit.store.keys[shard].counts, LIMIT, by)

    def shown(self, shard: int) -> tuple[int, int, int]:
        """Permits, epoch and those in use; nothing is noted down by looking."""
        keys = self.kit.store.keys[shard]
        permits, epoch = (self.kit.plain.hget(keys.allot, LIMIT) or b"0 0").split()[:2]
        return int(permits), int(epoch), int(self.kit.plain.hget(keys.counts, LIMIT) or 0)

    def bring(self, rows: list[Said]) -> None:
        _, told = self.run(self.limits.allot(LIMIT, self.capacity, SHARDS, rows))
        self.told += told

    @initialize(
        capacity=st.integers(1, 3),
        used=st.one_of(
            st.just([0] * SHARDS), st.lists(st.integers(0, 1), min_size=SHARDS, max_size=SHARDS)
        ),
    )
    def begin(self, capacity: int, used: list[int]) -> None:
        """The limit comes while tasks run, perhaps."""
        self.capacity = capacity
        for shard, number in enumerate(used):
            self.use(shard, number)
        self.most = max(capacity, sum(used))

    @rule(shard=NUMBERS, want=st.integers(0, 4), late_ms=st.integers(0, 50))
    def ask(self, shard: int, want: int, late_ms: int) -> None:
        permits, epoch, _ = self.run(self.limits.report(shard, LIMIT))
        self.said.append(Said(shard, epoch, permits, want, self.kit.now_ms - late_ms))

    @rule()
    def everybody_reports(self) -> None:
        rows = []
        for shard in range(SHARDS):
            permits, epoch, _ = self.run(self.limits.report(shard, LIMIT))
            rows.append(Said(shard, epoch, permits, 0, 0))
        self.bring(rows)

    @precondition(lambda self: self.said)
    @rule(pick=PICKS, again=st.booleans())
    def hear_at_home(self, pick: int, again: bool) -> None:
        at = pick % len(self.said)
        self.bring([self.said[at] if again else self.said.pop(at)])

    @precondition(lambda self: self.told)
    @rule(pick=PICKS, again=st.booleans())
    def hear_at_a_shard(self, pick: int, again: bool) -> None:
        at = pick % len(self.told)
        tell = self.told[at] if again else self.told.pop(at)
        permits, epoch = self.run(self.limits.apportion(LIMIT, tell))
        if permits < tell.permits and epoch == tell.epoch:
            self.said.append(Said(tell.shard, epoch, permits, 0, 0))

    @precondition(lambda self: self.said or self.told)
    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        found: list[Any] = self.said if pick % 2 and self.said else self.told or self.said
        found.pop(pick % len(found))

    @rule(shard=NUMBERS, waits=st.booleans())
    def have_waiters(self, shard: int, waits: bool) -> None:
        """A lane is parked for the limit, or none: then what is not used goes back at once."""
        key = self.kit.store.keys[shard].blocked(LIMIT)
        if waits:
            self.kit.plain.sadd(key, "default:normal:x:charge")
        else:
            self.kit.plain.delete(key)

    @rule(shard=NUMBERS)
    def start(self, shard: int) -> None:
        permits, _, used = self.shown(shard)
        if used < permits:
            self.use(shard, 1)

    @rule(shard=NUMBERS)
    def end(self, shard: int) -> None:
        if self.shown(shard)[2]:
            self.use(shard, -1)

    @rule(shard=NUMBERS)
    def give_back(self, shard: int) -> None:
        """What the shard does not use: as it does when it hears, or knows, that others wait."""
        permits, epoch, _ = self.run(self.limits.report(shard, LIMIT))
        left, _ = self.run(self.limits.apportion(LIMIT, Tell(shard, permits, epoch, 1, 0)))
        self.said.append(Said(shard, epoch, left, 0, 0))

    @rule()
    def hear_all(self) -> None:
        """As it mostly is: everything arrives, in order."""
        for _ in range(ROUNDS_MAX):
            if self.said:
                self.hear_at_home(0, again=False)
            elif self.told:
                self.hear_at_a_shard(0, again=False)

    @rule(ms=st.sampled_from((1, 20, 1_000, 31_000)))
    def wait(self, ms: int) -> None:
        self.kit.store.now_ms += ms

    @invariant()
    def there_are_never_too_many(self) -> None:
        """What is in use counts where the shard was not told of the limit yet."""
        shown = [self.shown(shard) for shard in range(SHARDS)]
        assert sum(max(permits, used) for permits, _, used in shown) <= self.most, shown

    def teardown(self) -> None:
        self.run(self.kit.close())
        self.loop.close()


def test_never_more_permits_than_there_are(valkey_server: ServerProcess):
    Histories.url = valkey_server.url
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
