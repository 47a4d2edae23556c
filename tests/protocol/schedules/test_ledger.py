"""The ledger: what became of each nominal time, packed."""

import pytest
from tests.protocol.kit import DAY_MS
from tests.protocol.schedules.kit import MINUTE_MS, NEVER, REF, SchedulesKit, Work, ms

from tasksched.model.schedule import Cron, Delay, Every

pytestmark = pytest.mark.anyio


async def test_a_run_is_told_with_its_task_and_its_lateness(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    await one.advance("10:01:00")
    await one.down_until("10:02:07")
    first, second = await one.ledger()
    assert ((ms("10:01:00"), 0), (ms("10:02:00"), 7_000)) == (
        (first.first_ms, first.lateness_ms), (second.first_ms, second.lateness_ms),
    )  # fmt: skip
    assert [start.id for start in one.starts] == [first.task_id, second.task_id]


async def test_a_run_of_a_chain_is_told_with_its_task(one: SchedulesKit):
    await one.put(Delay("60s"))
    await one.after(3 * MINUTE_MS)
    entries = await one.ledger()
    assert [start.id for start in one.starts] == [entry.task_id for entry in entries][:3]
    assert {0} == {entry.lateness_ms for entry in entries}


async def test_runs_that_waited_are_late_by_their_wait(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda _: Work(90_000)
    await one.put(Every("60s"), overlap="queue")
    await one.advance("10:02:30")
    assert [0, 30_000] == [entry.lateness_ms for entry in await one.ledger()]


async def test_neighbours_with_the_same_outcome_are_one_range(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda _: NEVER
    await one.put(Every("60s"))
    await one.advance("10:30:00")
    assert [
        ("fired", ms("10:01:00"), ms("10:01:00"), 1),
        ("skipped_overlap", ms("10:02:00"), ms("10:30:00"), 29),
    ] == await one.outcomes()
    assert 2 == one.plain.llen(one.keys.ledger(REF))


async def test_runs_are_never_merged(one: SchedulesKit):
    await one.put(Every("60s"))
    await one.after(5 * MINUTE_MS)
    assert [1] * 5 == [count for *_, count in await one.outcomes()]


async def test_a_range_is_in_order_whatever_came_last(one: SchedulesKit):
    """What waited longest is let go last."""
    one.at("10:00:00")
    one.handler = lambda _: NEVER
    await one.put(Every("60s"), overlap="queue")
    await one.advance("10:05:10")
    await one.put(Every("60s"), overlap="skip")
    assert ("skipped_overlap", ms("10:02:00"), ms("10:05:00"), 4) == (await one.outcomes())[-1]


async def test_the_last_hundred_entries(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("1s"))
    await one.advance("10:02:10")
    entries = await one.ledger()
    assert (100, ms("10:02:10")) == (len(entries), entries[-1].last_ms)


async def test_of_the_last_seven_days(one: SchedulesKit):
    one.at("2026-03-02T10:00:00Z")
    await one.put(Cron("0 0 * * *"))
    await one.after(12 * DAY_MS)
    entries = await one.ledger()
    assert 7 == len(entries)
    assert one.now_ms - entries[0].first_ms < 7 * DAY_MS


async def test_a_bound_stays_a_bound_when_ranges_are_merged(one: SchedulesKit):
    """``+`` says at least so many; so says every range it becomes a part of."""
    await one.put(Every("60s"))
    at_ms = (await one.next_ms()) or 0
    one.store.now_ms = at_ms + 10 * MINUTE_MS
    for n, exact in enumerate((1, 0, 1)):
        first = at_ms + n * MINUTE_MS
        row = (REF, 1, first, first + MINUTE_MS, first, "", f"missed:{first}:{first}:5:{exact}")
        assert [b"fired"] == await one.raw("fire", {"tzdata": ""}, [row])
    (entry,) = await one.ledger()
    assert (15, False) == (entry.count, entry.is_exact)
    assert (at_ms, at_ms + 2 * MINUTE_MS) == (entry.first_ms, entry.last_ms)


async def test_every_policy_leaves_no_silence(one: SchedulesKit):
    """Under all of them together: down, overlapping, paused; each nominal time has one outcome."""
    for n, overlap in enumerate(("skip", "queue", "allow", "cancel")):
        for m, catch_up in enumerate(("one", "none", "all")):
            one.at("10:00:00") if (n, m) == (0, 0) else None
            grace_ms = 90_000 if catch_up == "none" else None
            await one.put(
                Every("60s"), id=f"s{n}{m}", overlap=overlap, catch_up=catch_up, limit=3,
                grace_ms=grace_ms,
            )  # fmt: skip
    one.handler = lambda s: Work(s.nominal_ms // 1000 % 5 * 37_000)
    await one.advance("10:07:30")
    await one.down_until("10:15:30")
    await one.advance("10:20:30")
    for n in range(4):
        for m in range(3):
            ref = f"default:s{n}{m}"
            waiting = one.plain.hexists(one.keys.schedule(ref), "held")
            waiting += one.plain.llen(one.keys.catchup(ref))
            told = sum(count for *_, count in await one.outcomes(f"s{n}{m}"))
            assert 20 == told + waiting, ref
