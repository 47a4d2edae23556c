"""The window: as much is handed over as workers start soon; what waits longer waits in its lane.

The rule (``refill`` in ``lua/take.lua``): a window doubles when a worker ran the stream dry while more was
due and before its entries had waited for a tenth of a second, and halves when they had waited longer.
"""

from collections.abc import Sequence

import pytest
from tests.protocol.kit import DONE, Kit, spec

from tasksched.store.protocol import Grant

pytestmark = pytest.mark.anyio

STREAM = "default:normal:charge"
STEP_MS = 10


def window(kit: Kit) -> int:
    return int(kit.plain.hget(kit.keys.window, STREAM) or 64)


async def flood(kit: Kit, count: int) -> None:
    await kit.announce()
    await kit.submit_many(count, spec(delay_ms=1))
    kit.leap(1)
    await kit.dispatch()


async def end(kit: Kit, grants: Sequence[Grant]) -> None:
    for first in range(0, len(grants), 128):
        rows = [(grant.id, grant.fence, DONE) for grant in grants[first : first + 128]]
        await kit.store.settle(0, rows)


async def take(kit: Kit, slots: int) -> list[Grant]:
    """One look of a worker with so many free slots, in calls of 128."""
    grants: list[Grant] = []
    while slots > len(grants):
        found = await kit.take(min(slots - len(grants), 128))
        grants += found
        if not found:
            break
    return grants


async def test_a_window_that_runs_dry_doubles_to_its_bound(valkey: Kit):
    await flood(valkey, 6_000)
    seen = []
    for _ in range(7):
        await end(valkey, await take(valkey, 2_000))
        seen.append(window(valkey))
        for _ in range(6):
            await valkey.dispatch()
    assert [128, 256, 512, 1024, 1024, 1024, 1024] == seen


async def test_a_window_whose_entries_wait_halves_to_its_bound(kit: Kit):
    """One step for as many as it takes then, so that those who waited before do not count again."""
    await flood(kit, 200)
    waiting: dict[int, int] = {}
    for _ in range(70):
        kit.leap(101)
        await end(kit, await take(kit, 1))
        waiting.setdefault(window(kit), int(kit.plain.xlen(kit.keys.ready(STREAM))))
        await kit.dispatch()
    assert {32: 63, 16: 32, 8: 16, 4: 8} == waiting
    assert 4 == int(kit.plain.xlen(kit.keys.ready(STREAM)))


async def test_it_keeps_what_is_taken_in_time(kit: Kit):
    await flood(kit, 200)
    kit.leap(100)
    await end(kit, await take(kit, 10))
    assert 64 == window(kit)


async def test_workers_that_come_late_and_take_all_do_not_widen_it(kit: Kit):
    """Slots that all become free at once, seldom: a wider window would only wait longer."""
    await flood(kit, 400)
    for _ in range(4):
        kit.leap(3_000)
        await end(kit, await take(kit, 100))
        await kit.dispatch()
    assert 64 == window(kit)


@pytest.mark.parametrize("running", [0, 1])
async def test_it_is_forgotten_when_nothing_waits_for_it(kit: Kit, running: int):
    await flood(kit, 200)
    grants = await take(kit, 100)
    assert 128 == window(kit)
    await kit.dispatch()
    grants += await take(kit, 200)
    await kit.dispatch()
    await end(kit, grants[running:])
    await kit.store.sweep(0, STREAM, "-")
    assert None is kit.plain.hget(kit.keys.window, STREAM)


async def test_the_sweep_leaves_a_window_in_use(kit: Kit):
    await flood(kit, 400)
    await end(kit, await take(kit, 100))
    await kit.dispatch()
    assert kit.plain.sismember(kit.keys.full, STREAM)
    await kit.store.sweep(0, STREAM, "-")
    assert 128 == window(kit)


class Drain:
    """A backlog and workers that start so many a second, looking every ``every_ms``."""

    def __init__(self, kit: Kit, every_ms: int = STEP_MS) -> None:
        self.kit, self.every_ms = kit, every_ms
        self.owed = 0.0
        self.waits: list[tuple[int, int]] = []  # (queued_ms, ms waited in the stream)

    async def run(self, rate: float, for_ms: int) -> int:
        """Returns when it began, by the fake clock."""
        kit, began_ms = self.kit, self.kit.now_ms
        while kit.now_ms < began_ms + for_ms:
            # A slow drain is looked at when there is something to take, as a worker does.
            step_ms = max(self.every_ms, round(1000 / rate))
            kit.leap(step_ms)
            self.owed += rate * step_ms / 1000
            if grants := await take(kit, int(self.owed)):
                self.owed = max(self.owed - len(grants), 0)
                self._note(grants)
                await end(kit, grants)
            while (await kit.store.dispatch(0)).moved:
                pass
        return began_ms

    def _note(self, grants: Sequence[Grant]) -> None:
        pipe = self.kit.plain.pipeline(transaction=False)
        for grant in grants:
            pipe.hget(self.kit.keys.task(grant.id), "queued_ms")
        self.waits += [(int(at), self.kit.now_ms - int(at)) for at in pipe.execute()]


@pytest.mark.parametrize(
    ("rate", "for_ms"),
    [(2, 90_000), (10, 40_000), (30, 20_000), (100, 8_000), (1_000, 3_000), (5_000, 2_000)],
)
async def test_an_entry_waits_no_longer_than_the_rule_says(valkey: Kit, rate: int, for_ms: int):
    """Once the drain is known: the first 64, and what joins them at first, wait as they must."""
    await flood(valkey, rate * for_ms // 1000 + 1_100)
    drain = Drain(valkey)
    known_ms = await drain.run(rate, for_ms) + 100 + 64_000 // rate
    assert len(drain.waits) >= 0.9 * rate * for_ms / 1000
    assert max(waited for _, waited in drain.waits) <= max(66_000 / rate, 200)
    later = [waited for at_ms, waited in drain.waits if at_ms >= known_ms]
    assert len(later) >= 0.4 * len(drain.waits)
    assert max(later) <= max(4_000 / rate, 200) + STEP_MS


async def test_a_drain_that_slows_down_is_followed(valkey: Kit):
    """What was handed over waits for as long as that takes; what is handed over then does not."""
    await flood(valkey, 9_000)
    drain = Drain(valkey, every_ms=100)
    await drain.run(12_000, 500)
    wide = window(valkey)
    assert wide == 1_024
    slow = 100
    slowed_ms = await drain.run(slow, 1_000 * wide // slow + 8_000)
    settled_ms = slowed_ms + 100 + 1_000 * wide // slow
    assert max(waited for _, waited in drain.waits) <= 1_000 * wide / slow + 300
    # Workers that look ten times a second are owed some looks then, and widen it for those.
    assert max(waited for at_ms, waited in drain.waits if at_ms >= settled_ms) <= 500
