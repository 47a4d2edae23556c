"""Overlap: what becomes of a nominal time that comes while an occurrence is not finished."""

import pytest
from tests.protocol.kit import BROKEN, DONE, STOPPED, retry_in
from tests.protocol.schedules.kit import (
    MINUTE_MS,
    NEVER,
    SECOND_MS,
    SchedulesKit,
    Work,
    clock_text,
    ms,
)

from tasksched.errors import Invalid
from tasksched.model.schedule import Cron, Delay, Every

pytestmark = pytest.mark.anyio


async def minutely(kit: SchedulesKit, overlap: str, work_ms: int, **fields) -> None:
    kit.at("09:59:30")
    kit.handler = lambda _: Work(work_ms)
    await kit.put(Cron("* * * * *"), overlap=overlap, **fields)


def minutes(times: list[int]) -> list[str]:
    return [clock_text(at_ms - ms("00:00:00"))[:5] for at_ms in times]


async def test_skip(each: SchedulesKit):
    """overlap-004"""
    await minutely(each, "skip", 150 * SECOND_MS)
    await each.advance("10:06:30")
    assert ["10:00:00", "10:03:00", "10:06:00"] == each.started()
    assert [
        ("fired", ms("10:00:00"), ms("10:00:00"), 1),
        ("skipped_overlap", ms("10:01:00"), ms("10:02:00"), 2),
        ("fired", ms("10:03:00"), ms("10:03:00"), 1),
        ("skipped_overlap", ms("10:04:00"), ms("10:05:00"), 2),
        ("fired", ms("10:06:00"), ms("10:06:00"), 1),
    ] == await each.outcomes()


async def test_queue_keeps_the_first_that_came(each: SchedulesKit):
    """overlap-004: a verdict and a nominal time in the same instant: the verdict first."""
    await minutely(each, "queue", 150 * SECOND_MS)
    await each.advance("10:06:30")
    assert ["10:00:00", "10:02:30", "10:05:00"] == each.started()
    assert ["10:00", "10:01", "10:03"] == minutes(each.times())
    skipped = [first for outcome, first, *_ in await each.outcomes() if outcome != "fired"]
    assert ["10:02", "10:04", "10:06"] == minutes(skipped)
    assert (
        f"{ms('10:05:00')} 0" == each.plain.hget(each.keys.schedule("default:s"), "held").decode()
    )


async def test_allow(each: SchedulesKit):
    """overlap-004"""
    await minutely(each, "allow", 150 * SECOND_MS)
    most = 0
    for minute in range(7):
        await each.advance(f"10:0{minute}:01")
        most = max(most, len(each.running))
    assert [f"10:0{n}:00" for n in range(7)] == each.started()
    assert 3 == most


async def test_cancel_asks_the_running_one_to_stop_and_then_runs(each: SchedulesKit):
    """overlap-004"""
    await minutely(each, "cancel", 150 * SECOND_MS)
    await each.advance("10:06:30")
    assert [f"10:0{n}:00" for n in range(7)] == each.started()
    states = [each.state(start.id) for start in each.starts]
    assert ["CANCELLED"] * 6 + ["RUNNING"] == states


async def test_cancel_waits_for_one_that_does_not_stop(each: SchedulesKit):
    """And of the nominal times that come meanwhile the newest runs; the others are recorded."""
    await minutely(each, "cancel", 0)
    each.handler = lambda _: Work(crash=True)  # it hears nothing
    each.lease_ms = 10**10
    await each.advance("10:03:30")
    (run,) = each.running
    assert "1" == each.record(run.start.id)["cancel_requested"]
    version = each.version(run.start.id)
    await each.advance("10:04:30")
    assert version == each.version(run.start.id)  # asked once
    each.running.clear()
    each.handler = lambda _: NEVER
    assert "CANCELLED" == await each.settle(run.grant, BROKEN)
    await each.tick()
    assert ["10:00", "10:04"] == minutes(each.times())
    assert ("skipped_overlap", ms("10:01:00"), ms("10:03:00"), 3) in await each.outcomes()


async def test_cancel_cancels_a_waiting_one_at_once(each: SchedulesKit):
    await minutely(each, "cancel", 0)
    each.handler = lambda _: Work(0, retry_in(10 * MINUTE_MS))
    await each.advance("10:00:30")
    (first,) = each.starts
    each.handler = lambda _: Work()
    await each.advance("10:01:00")
    assert "CANCELLED" == each.state(first.id)
    assert ["10:00:00", "10:01:00"] == each.started()


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_one_that_waits_for_a_retry_is_not_finished(each: SchedulesKit, overlap: str):
    await minutely(each, overlap, 0)
    each.handler = lambda s: Work(0, retry_in(90 * SECOND_MS) if s.attempt == 1 else DONE)
    await each.advance("10:01:15")
    assert 1 == len(each.starts)
    await each.advance("10:01:45")
    assert (2 if overlap == "skip" else 3) == len(each.starts)


@pytest.mark.parametrize("outcome", [DONE, BROKEN, STOPPED], ids=lambda o: o.kind)
async def test_any_verdict_lets_the_next_one_run(each: SchedulesKit, outcome):
    await minutely(each, "queue", 0)
    each.handler = lambda _: Work(90 * SECOND_MS, outcome)
    await each.advance("10:01:30")
    assert ["10:00:00", "10:01:30"] == each.started()


async def test_a_crashed_run_does_not_block_for_ever(one: SchedulesKit):
    """overlap-003: one attempt, lease 30 s, last heartbeat 10:00:00."""
    await minutely(one, "skip", 0)
    one.lease_ms, one.beat_ms = 30_000, 5_000
    one.handler = lambda s: Work(crash=s.nominal_ms == ms("10:00:00"), outcome=BROKEN)
    await one.advance("10:00:35")
    assert "FAILED" == one.state(one.starts[0].id)
    await one.advance("10:01:00")
    assert ["10:00:00", "10:01:00"] == one.started()


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
async def test_what_was_made_by_hand_is_in_nobodys_way(each: SchedulesKit, overlap: str):
    await minutely(each, overlap, 0)
    each.handler = lambda _: NEVER
    extra = await each.trigger()
    await each.tick()
    each.handler = lambda _: Work()
    await each.advance("10:02:30")
    assert ["10:00", "10:01", "10:02"] == minutes(each.times()[1:])
    assert "RUNNING" == each.state(extra)


async def test_a_redriven_one_is_not_finished_again(each: SchedulesKit):
    await minutely(each, "skip", 0)
    each.handler = lambda _: Work(0, BROKEN)
    await each.advance("10:00:30")
    each.handler = lambda _: NEVER
    await each.store.redrive(0, each.starts[0].id, "default", None)
    await each.advance("10:02:30")
    assert 2 == len(each.starts)
    assert ("skipped_overlap", ms("10:01:00"), ms("10:02:00"), 2) in await each.outcomes()


async def test_a_pause_keeps_what_waits_and_the_resume_runs_it(each: SchedulesKit):
    await minutely(each, "queue", 90 * SECOND_MS)
    await each.advance("10:01:10")
    await each.pause()
    await each.advance("10:10:30")
    assert ["10:00:00"] == each.started()
    await each.resume()
    await each.advance("10:10:40")
    assert ["10:00:00", "10:10:30"] == each.started()
    assert ["10:00", "10:01"] == minutes(each.times())


async def test_a_removal_forgets_what_waits(each: SchedulesKit):
    await minutely(each, "queue", 90 * SECOND_MS)
    await each.advance("10:01:10")
    await each.remove()
    await each.advance("10:10:00")
    assert 1 == len(each.tasks())


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_a_policy_that_keeps_none_lets_go_what_waits_and_says_so(
    each: SchedulesKit, overlap: str
):
    await minutely(each, "queue", 10 * MINUTE_MS)
    await each.advance("10:02:10")
    await each.put(Cron("* * * * *"), overlap=overlap)
    assert ("skipped_overlap", ms("10:01:00"), ms("10:02:00"), 2) == (await each.outcomes())[-1]


async def test_the_last_one_that_waits_still_runs_after_the_end(each: SchedulesKit):
    each.at("09:59:30")
    each.handler = lambda _: Work(90 * SECOND_MS)
    await each.put(Cron("* * * * *", end_at="2026-03-02T10:01:00Z"), overlap="queue")
    await each.advance("10:01:10")
    assert "ACTIVE" == (await each.get()).status
    await each.advance("10:05:00")
    assert ["10:00:00", "10:01:30"] == each.started()
    assert "ENDED" == (await each.get()).status


async def test_what_is_late_carries_its_count_through_the_wait(each: SchedulesKit):
    await minutely(each, "queue", 5 * MINUTE_MS)
    await each.advance("10:00:10")
    await each.down_until("10:03:10")
    await each.advance("10:05:10")
    assert (ms("10:03:00"), 3) == (each.starts[-1].nominal_ms, each.starts[-1].missed)


async def test_many_open_ones_are_all_asked_to_stop(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda _: NEVER
    await one.put(Every("1s"), overlap="allow")
    await one.advance("10:01:50")
    assert 110 == len(one.open_ids())
    await one.put(Every("1s"), overlap="cancel")
    await one.advance("10:01:55")
    assert 1 == len(one.open_ids())


async def test_a_fixed_delay_has_no_overlap_policy():
    for overlap in ("queue", "allow", "cancel"):
        with pytest.raises(Invalid, match="cannot overlap"):
            SchedulesKit.spec(None, Delay("60s"), overlap=overlap)  # type: ignore[arg-type]
