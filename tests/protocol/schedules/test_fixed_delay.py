"""Fixed delay: a chain in which the verdict on the head makes the next, once, and nothing else does."""

import pytest
from tests.protocol.kit import BROKEN, DONE, LEASE_MS, STOPPED, retry_in
from tests.protocol.schedules.kit import (
    MINUTE_MS,
    NEVER,
    SchedulesKit,
    Start,
    Work,
    clock_text,
    ms,
)

from tasksched.model.outcome import Outcome
from tasksched.model.schedule import Delay, Every

pytestmark = pytest.mark.anyio
AT_TEN = "2026-03-02T10:00:00Z"


def due(kit: SchedulesKit, task_id: str) -> str:
    return clock_text(int(kit.record(task_id)["due_ms"]) - ms("00:00:00"))


async def head(kit: SchedulesKit) -> str:
    found = (await kit.get()).head
    assert found is not None
    return found


def scripted(*works: Work):
    """The handler that does these, one attempt after the other, and then succeeds at once."""
    left = list(works)
    return lambda _: left.pop(0) if left else Work()


async def test_a_final_failure_does_not_break_the_chain(each: SchedulesKit):
    """fixed-delay-001"""
    each.at("09:59:59")
    each.handler = scripted(Work(3_000, retry_in(5_000)), Work(3_000, BROKEN), NEVER)
    await each.put(Delay("30s", start_at=AT_TEN))
    await each.advance("10:00:11")
    assert ["10:00:00", "10:00:08"] == [clock_text(s.at_ms - ms("00:00:00")) for s in each.starts]
    assert "FAILED" == each.state(each.starts[0].id)
    assert "10:00:41" == due(each, await head(each))


async def test_the_delay_counts_from_the_end_of_the_final_attempt(each: SchedulesKit):
    """fixed-delay-004"""
    each.at("09:59:59")
    each.handler = scripted(
        Work(12_000), Work(8_000, retry_in(5_000)), Work(2_000, retry_in(5_000)), Work(2_000), NEVER
    )
    await each.put(Delay("30s", start_at=AT_TEN))
    await each.advance("10:02:00")
    starts = [clock_text(s.at_ms - ms("00:00:00")) for s in each.starts]
    assert ["10:00:00", "10:00:42", "10:00:55", "10:01:02", "10:01:34"] == starts
    assert 3 == len({s.id for s in each.starts})


async def test_a_worker_that_dies_does_not_break_the_chain(one: SchedulesKit):
    """fixed-delay-003: lease 20 s, last heartbeat at the start; the second attempt works 4 s."""
    one.at("09:59:59")
    one.lease_ms, one.beat_ms = 20_000, 5_000
    one.handler = scripted(Work(crash=True, outcome=retry_in(0)), Work(4_000), NEVER)
    await one.put(Delay("30s", start_at=AT_TEN))
    await one.advance("10:01:30")
    first, second, third = one.starts
    assert first.id == second.id != third.id
    assert ms("10:00:20") <= second.at_ms <= ms("10:00:30")
    assert second.at_ms + 34_000 == third.at_ms
    assert (1, 2) == (first.attempt, second.attempt)


async def test_the_verdict_makes_the_successor_in_the_same_script(each: SchedulesKit):
    each.at("10:00:00")
    each.handler = lambda _: NEVER
    schedule = await each.put(Delay("60s"))
    await each.advance("10:01:00")
    (run,) = each.running
    each.leap(5_000)
    assert {run.start.id} == each.open_ids()
    await each.settle(run.grant, DONE)
    assert {each.occurrence(schedule, "n2")} == each.open_ids()
    assert "10:02:05" == due(each, await head(each))


@pytest.mark.parametrize("outcome", [DONE, BROKEN, STOPPED], ids=lambda o: o.kind)
async def test_a_verdict_reported_twice_makes_one_successor(each: SchedulesKit, outcome: Outcome):
    each.handler = lambda _: NEVER
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    (run,) = each.running
    first = await each.settle(run.grant, outcome)
    before = each.dump()
    assert first == await each.settle(run.grant, outcome)
    other = DONE if outcome.kind != "SUCCEEDED" else BROKEN
    assert "conflict" == await each.settle(run.grant, other)
    assert before == each.dump()
    assert 2 == len(each.tasks())


async def test_the_same_verdict_twice_in_one_batch_makes_one_successor(each: SchedulesKit):
    each.handler = lambda _: NEVER
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    (run,) = each.running
    row = (run.grant.id, run.grant.fence, DONE)
    assert ["SUCCESS", "SUCCESS"] == await each.store.settle(0, [row, row])
    assert 2 == len(each.tasks())


async def test_a_stale_fence_makes_no_successor(each: SchedulesKit):
    each.handler = lambda _: Work(crash=True)
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    (run,) = each.running
    await each.store.release(0, [(run.grant.id, run.grant.fence)])
    each.running.clear()
    await each.tick()
    before = each.dump()
    assert "stale" == await each.settle(run.grant, DONE)
    assert before == each.dump()
    assert 1 == len(each.tasks())


async def test_a_release_stays_inside_the_occurrence(each: SchedulesKit):
    each.handler = lambda _: NEVER
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    (run,) = each.running
    assert ["PENDING"] == await each.store.release(0, [(run.grant.id, run.grant.fence)])
    assert 1 == len(each.tasks()) == len(each.open_ids())


async def test_cancelling_the_waiting_head_makes_a_successor(each: SchedulesKit):
    each.at("10:00:00")
    schedule = await each.put(Delay("60s"))
    await each.advance("10:01:10")
    await each.store.cancel(0, await head(each), "default", None)
    assert {each.occurrence(schedule, "n3")} == each.open_ids()
    assert "10:02:10" == due(each, await head(each))


# -- after: success ----------------------------------------------------------------------------------


async def blocked(kit: SchedulesKit, outcome: Outcome = BROKEN) -> Start:
    """A schedule whose first occurrence ended so; returns its start."""
    kit.handler = scripted(Work(1_000, outcome))
    await kit.put(Delay("60s"), after="success")
    await kit.after(MINUTE_MS + 2_000)
    return kit.starts[0]


@pytest.mark.parametrize("outcome", [BROKEN, STOPPED], ids=["FAILED", "CANCELLED"])
async def test_after_success_blocks_with_the_reason(each: SchedulesKit, outcome: Outcome):
    start = await blocked(each, outcome)
    schedule = await each.get()
    assert ("BLOCKED", None) == (schedule.status, schedule.next_ms)
    assert f"occurrence {start.id} is {each.state(start.id)}" == schedule.reason
    await each.after(10 * MINUTE_MS)
    assert 1 == len(each.tasks())


async def test_a_retry_does_not_block(each: SchedulesKit):
    each.handler = scripted(Work(1_000, retry_in(2_000)), Work(1_000))
    await each.put(Delay("60s"), after="success")
    await each.after(3 * MINUTE_MS)
    assert "ACTIVE" == (await each.get()).status
    assert 3 == len(each.starts)


async def test_redriving_to_success_unblocks_and_goes_on(each: SchedulesKit):
    start = await blocked(each)
    await each.store.redrive(0, start.id, "default", None)
    assert "BLOCKED" == (await each.get()).status
    await each.tick()
    schedule = await each.get()
    assert ("ACTIVE", None) == (schedule.status, schedule.reason)
    await each.after(MINUTE_MS)
    assert [1, 2, 1] == [s.attempt for s in each.starts]


async def test_redriving_to_another_failure_stays_blocked(each: SchedulesKit):
    start = await blocked(each)
    each.handler = lambda _: Work(0, BROKEN)
    await each.store.redrive(0, start.id, "default", None)
    await each.tick()
    assert "BLOCKED" == (await each.get()).status
    assert set() == each.open_ids()


async def test_resuming_unblocks(each: SchedulesKit):
    await blocked(each)
    assert "resumed" == (await each.resume()).word
    schedule = await each.get()
    assert ("ACTIVE", None, each.now_ms + MINUTE_MS) == (
        schedule.status, schedule.reason, schedule.next_ms,
    )  # fmt: skip
    await each.after(2 * MINUTE_MS)
    assert 3 == len(each.starts)


async def test_a_head_redriven_after_the_resume_does_not_fork_the_chain(each: SchedulesKit):
    """The chain hangs on one of them: what was owed beside the head is owed no more."""
    start = await blocked(each)
    await each.resume()
    await each.store.redrive(0, start.id, "default", None)
    assert None is (await each.get()).next_ms
    await each.tick()
    await each.after(5 * MINUTE_MS)
    assert 1 == len(each.open_ids())
    assert [1, 2, 1, 1, 1, 1, 1] == [s.attempt for s in each.starts]


async def test_an_occurrence_redriven_after_it_had_a_successor_makes_none(each: SchedulesKit):
    each.handler = scripted(Work(1_000, BROKEN))
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS + 2_000)
    await each.store.redrive(0, each.starts[0].id, "default", None)
    assert 2 == len(each.open_ids())
    await each.tick()
    assert 1 == len(each.open_ids())
    assert 2 == len(each.tasks())


async def test_pausing_a_blocked_schedule_and_redriving_holds_the_successor(each: SchedulesKit):
    start = await blocked(each)
    assert "PAUSED" == (await each.pause()).state
    await each.store.redrive(0, start.id, "default", None)
    await each.tick()
    await each.after(10 * MINUTE_MS)
    assert 2 == len(each.tasks()) == len(each.starts)
    await each.resume()
    await each.tick()
    assert 3 == len(each.starts)


async def test_a_failure_during_a_pause_does_not_end_the_pause(each: SchedulesKit):
    """Redriven to success the schedule is still paused: who paused it decides."""
    each.handler = scripted(Work(30_000, BROKEN))
    await each.put(Delay("60s"), after="success")
    await each.after(MINUTE_MS)
    await each.pause()
    await each.after(MINUTE_MS)
    schedule = await each.get()
    assert "PAUSED" == schedule.status
    assert "FAILED" in (schedule.reason or "")
    await each.store.redrive(0, each.starts[0].id, "default", None)
    await each.tick()
    assert "PAUSED" == (await each.get()).status
    await each.after(10 * MINUTE_MS)
    assert 2 == len(each.starts)


# -- pause, edit, removal ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "expected"), [("10:01:30", "10:02:00"), ("10:05:00", "10:05:00")],
    ids=["before it is due", "after"],
)  # fmt: skip
async def test_a_pause_holds_the_waiting_head(each: SchedulesKit, until: str, expected: str):
    each.at("10:00:00")
    await each.put(Delay("60s"))
    await each.advance("10:01:10")
    waiting = await head(each)
    await each.pause()
    await each.advance(until)
    assert 1 == len(each.starts)
    await each.resume()
    assert expected == due(each, waiting)
    await each.advance(expected)
    assert [waiting] == [s.id for s in each.starts[1:]]


@pytest.mark.parametrize(
    ("until", "expected"), [("10:00:30", "10:01:00"), ("10:05:00", "10:05:00")],
    ids=["before it is due", "after"],
)  # fmt: skip
async def test_a_pause_holds_the_first_of_a_chain_alike(
    each: SchedulesKit, until: str, expected: str
):
    each.at("10:00:00")
    await each.put(Delay("60s"))
    await each.advance("10:00:10")
    await each.pause()
    await each.advance(until)
    await each.resume()
    await each.advance("10:05:30")
    assert expected == each.started()[0]


async def test_a_head_that_is_dispatched_is_held_too(each: SchedulesKit):
    each.at("10:00:00")
    await each.put(Delay("60s"))
    await each.advance("10:01:10")
    waiting = await head(each)
    each.is_down = True
    await each.advance("10:02:00")
    await each.dispatch()
    assert "QUEUED" == each.state(waiting)
    await each.pause()
    assert "PENDING" == each.state(waiting)
    assert [] == await each.take()


async def test_a_head_that_finishes_during_a_pause_makes_a_held_successor(each: SchedulesKit):
    each.at("10:00:00")
    each.handler = scripted(Work(30_000))
    await each.put(Delay("60s"))
    await each.advance("10:01:10")
    await each.pause()
    await each.advance("10:20:00")
    assert 1 == len(each.starts)
    waiting = await head(each)
    assert str(ms("10:02:30")) == each.record(waiting)["held_due_ms"]
    await each.resume()
    assert "10:20:00" == due(each, waiting)
    assert "held_due_ms" not in each.record(waiting)


async def test_the_last_run_of_a_chain_can_be_held_as_well(each: SchedulesKit):
    """The chain ends with the verdict on its last run, not with the making of it."""
    each.at("10:00:00")
    each.handler = scripted(Work(30_000))
    await each.put(Delay("60s"), max_runs=2)
    await each.advance("10:01:10")
    await each.pause()
    await each.advance("10:10:00")
    assert "resumed" == (await each.resume()).word
    await each.advance("10:20:00")
    assert ["10:01:00", "10:10:00"] == each.started()
    assert "ENDED" == (await each.get()).status


async def test_an_edit_of_the_template_rewrites_the_waiting_head(each: SchedulesKit):
    await each.put(Delay("60s"), payload=b"\x01")
    await each.after(MINUTE_MS)
    waiting = await head(each)
    large = b"\xda\x08\x00" + b"y" * 2048
    for payload in (b"\x02", large, b"\x03"):
        await each.put(Delay("60s"), payload=payload, queue="mail", tags=("t",), lease_ms=5_000)
    await each.after(MINUTE_MS)
    start = each.starts[-1]
    assert (waiting, b"\x03", 4) == (start.id, start.payload, start.version)
    record = each.record(start.id)
    assert "mail:normal:default:charge" == record["lane"]
    assert "5000" == record["lease_ms"]
    assert "body" not in record


async def test_an_edit_does_not_move_the_waiting_head(each: SchedulesKit):
    each.at("10:00:00")
    await each.put(Delay("60s"))
    await each.advance("10:01:10")
    before = due(each, await head(each))
    await each.put(Delay("10s"))
    assert before == due(each, await head(each))
    await each.advance("10:02:15")
    assert ["10:01:00", "10:02:00", "10:02:10"] == each.started()


async def test_an_edit_of_a_paused_chain_leaves_its_head_held(each: SchedulesKit):
    each.at("10:00:00")
    await each.put(Delay("60s"))
    await each.advance("10:01:10")
    await each.pause()
    await each.put(Delay("60s"), payload=b"\x02")
    await each.advance("10:30:00")
    assert 1 == len(each.starts)
    await each.resume()
    await each.tick()
    assert b"\x02" == each.starts[-1].payload


async def test_an_edit_does_not_fire_a_chain_whose_start_is_past(each: SchedulesKit):
    """It began at its start; another max_runs lets it go on a delay later, not at once."""
    each.at("10:00:00")
    await each.put(Delay("60s", start_at=AT_TEN), max_runs=1)
    await each.advance("10:05:00")
    assert "ENDED" == (await each.get()).status
    schedule = await each.put(Delay("60s", start_at=AT_TEN), max_runs=2)
    assert ("ACTIVE", ms("10:06:00")) == (schedule.status, schedule.next_ms)


async def test_a_removal_cancels_the_waiting_head(each: SchedulesKit):
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    waiting = await head(each)
    assert "removed" == (await each.remove()).word
    assert "CANCELLED" == each.state(waiting)
    await each.after(10 * MINUTE_MS)
    assert 2 == len(each.tasks())


async def test_a_removal_lets_the_running_head_finish_without_successor(each: SchedulesKit):
    each.handler = lambda _: Work(30_000)
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    await each.remove()
    await each.after(10 * MINUTE_MS)
    assert ["SUCCESS"] == [task["state"] for task in each.tasks()]


async def test_a_removed_and_recreated_chain_does_not_follow_the_old_head(each: SchedulesKit):
    each.handler = scripted(Work(90_000))
    await each.put(Delay("60s"))
    await each.after(MINUTE_MS)
    await each.remove()
    await each.put(Delay("600s"))
    await each.after(2 * MINUTE_MS)
    assert set() == each.open_ids()
    await each.after(9 * MINUTE_MS)
    assert 2 == len(each.starts)


async def test_a_triggered_occurrence_makes_no_successor(each: SchedulesKit):
    await each.put(Delay("600s"))
    for _ in range(3):
        await each.trigger()
    await each.tick()
    assert 3 == len(each.starts) == len(each.tasks())
    assert set() == each.open_ids()
    failed = await each.trigger()
    each.handler = lambda _: Work(0, BROKEN)
    await each.tick()
    await each.store.redrive(0, failed, "default", None)
    assert set() == each.open_ids()
    await each.tick()
    assert 4 == len(each.tasks())


async def test_runs_of_a_chain_never_overlap(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda s: Work((s.nominal_ms // 1000 % 7) * 30_000)
    await one.put(Delay("1s"))
    await one.advance("11:00:00")
    assert 1 == len(one.open_ids())
    for a, b in zip(one.starts, one.starts[1:], strict=False):
        assert a.at_ms + one.handler(a).ms + 1_000 == b.at_ms


async def test_the_last_attempt_lost_with_its_worker_goes_on_too(one: SchedulesKit):
    one.lease_ms, one.beat_ms = LEASE_MS, 5_000
    one.handler = scripted(Work(crash=True, outcome=BROKEN))
    await one.put(Delay("60s"))
    await one.after(3 * MINUTE_MS)
    first = one.starts[0]
    assert ("FAILED", "worker_lost") == (one.state(first.id), one.record(first.id)["reason"])
    assert first.at_ms + LEASE_MS + MINUTE_MS <= one.starts[1].at_ms


async def test_a_chain_that_becomes_a_rate_and_a_chain_again(each: SchedulesKit):
    """What the old kind had decided on and not begun gets no run; nothing is held for ever."""
    each.at("10:00:00")
    await each.put(Delay("60s"))
    await each.advance("10:01:10")
    await each.pause()
    waiting = await head(each)
    await each.put(Every("60s"))
    assert "CANCELLED" == each.state(waiting)
    await each.resume()
    await each.advance("10:03:30")
    assert ["10:01:00", "10:02:00", "10:03:00"] == each.started()
    await each.put(Delay("30s"))
    await each.advance("10:04:30")
    assert ["10:04:00", "10:04:30"] == each.started()[3:]


async def test_a_blocked_chain_that_becomes_a_rate_fires(one: SchedulesKit):
    """What blocked it was its chain."""
    await blocked(one)
    schedule = await one.put(Every("60s"))
    assert ("ACTIVE", None) == (schedule.status, schedule.reason)
    await one.after(MINUTE_MS)
    assert 2 == len(one.starts)
