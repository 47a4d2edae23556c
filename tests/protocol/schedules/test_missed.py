"""Missed nominal times: downtime and overload, and what is owed afterwards."""

import pytest
from tests.protocol.kit import BROKEN, HOUR_MS
from tests.protocol.schedules.kit import (
    MINUTE_MS,
    NEVER,
    REF,
    SECOND_MS,
    SchedulesKit,
    Work,
    clock_text,
    ms,
)

from tasksched.model.schedule import Cron, Every, RRule

pytestmark = pytest.mark.anyio


async def test_one_run_for_all_that_were_missed(one: SchedulesKit):
    """fixed-rate-002"""
    one.at("12:39:50")
    await one.put(Every("15s", start_at="2026-03-02T12:40:00Z"))
    await one.advance("12:40:47")
    assert 4 == len(one.starts)
    await one.down_until("12:41:52")
    late = one.starts[4:]
    assert [(ms("12:41:45"), 4)] == [(start.nominal_ms, start.missed) for start in late]
    assert [
        ("coalesced", ms("12:41:00"), ms("12:41:30"), 3),
        ("fired", ms("12:41:45"), ms("12:41:45"), 1),
    ] == (await one.outcomes())[4:]
    assert ms("12:42:00") == await one.next_ms()


async def test_all_of_them_oldest_first(one: SchedulesKit):
    """fixed-rate-002"""
    one.at("12:39:50")
    one.handler = lambda _: Work(1_000)
    await one.put(Every("15s", start_at="2026-03-02T12:40:00Z"), catch_up="all")
    await one.advance("12:40:47")
    await one.down_until("12:41:52")
    await one.advance("12:41:58")
    late = one.starts[4:]
    assert ["12:41:00", "12:41:15", "12:41:30", "12:41:45"] == [
        clock_text(start.nominal_ms - ms("00:00:00")) for start in late
    ]
    assert ["12:41:52", "12:41:53", "12:41:54", "12:41:55"] == one.started()[4:]
    assert [0] * 4 == [start.missed for start in late]


async def test_none_of_them(one: SchedulesKit):
    """fixed-rate-002"""
    one.at("12:39:50")
    await one.put(Every("15s", start_at="2026-03-02T12:40:00Z"), catch_up="none", grace_ms=0)
    await one.advance("12:40:47")
    await one.down_until("12:41:52")
    await one.advance("12:41:59")
    assert 4 == len(one.starts)
    assert ("missed", ms("12:41:00"), ms("12:41:45"), 4) == (await one.outcomes())[-1]
    await one.advance("12:42:00")
    assert 5 == len(one.starts)


@pytest.mark.parametrize(
    ("policy", "runs", "recorded"),
    [
        ({"catch_up": "one"}, 1, ("coalesced", 172_799)),
        ({"catch_up": "all", "limit": 1000}, 1000, ("catch_up_dropped", 171_800)),
        ({"catch_up": "none", "grace_ms": 0}, 0, ("missed", 172_800)),
    ],
    ids=["one", "all", "none"],
)
async def test_two_days_of_seconds_are_no_burst(one: SchedulesKit, policy, runs, recorded):
    """fixed-rate-009: the newest 1000, the others are counted."""
    one.at("2026-03-02T12:00:00.400Z")
    one.handler = lambda _: Work(0)
    await one.put(Every("1s", start_at="2026-03-02T00:00:00Z"), overlap="allow", **policy)
    one.is_down = True
    await one.advance("2026-03-04T12:00:00.500Z")
    one.is_down = False
    await one.fire()
    outcomes = [e for e in await one.outcomes() if e[0] != "fired"]
    assert [recorded] == [(outcome, count) for outcome, _, _, count in outcomes]
    left = [int(raw) for raw in one.plain.lrange(one.keys.catchup(REF), 0, -1)]
    newest = [ms("2026-03-04T12:00:00Z") - n * SECOND_MS for n in range(runs - 1, -1, -1)]
    assert newest == [int(task["nominal_ms"]) for task in one.tasks()] + left
    assert ms("2026-03-04T12:00:01Z") == await one.next_ms()


async def test_more_than_a_hundred_missed_slots_wedge_nothing(one: SchedulesKit):
    """fixed-rate-013"""
    one.at("08:29:00")
    await one.put(Cron("* * * * *"))
    one.at("08:29:30")
    await one.down_until("10:21:10")
    (start,) = one.starts
    assert (ms("10:21:00"), 112) == (start.nominal_ms, start.missed)
    schedule = await one.get()
    assert (ms("10:22:00"), "ACTIVE") == (schedule.next_ms, schedule.status)


async def test_a_deploy_over_noon(one: SchedulesKit):
    """misfire-003: late by three seconds, and merely late: nothing was missed."""
    one.at("11:00:00")
    await one.put(Cron("0 12 * * *"))
    await one.advance("11:59:58")
    await one.down_until("12:00:03")
    (start,) = one.starts
    assert (ms("12:00:00"), ms("12:00:03"), 0) == (start.nominal_ms, start.at_ms, start.missed)
    (entry,) = await one.ledger()
    assert ("fired", 3_000, start.id) == (entry.outcome, entry.lateness_ms, entry.task_id)


@pytest.mark.parametrize(
    ("grace_s", "runs"),
    [(3_600, False), (14_399, False), (14_400, True), (21_600, True), (None, True)],
)
async def test_grace_is_inclusive(one: SchedulesKit, grace_s: int | None, runs: bool):
    """misfire-004, misfire-006, misfire-011"""
    one.store.now_ms = ms("2026-03-02T03:00:00Z")
    grace_ms = None if grace_s is None else grace_s * SECOND_MS
    await one.put(Cron("0 2 * * *"), grace_ms=grace_ms)
    await one.advance("2026-03-03T01:59:00Z")
    await one.down_until("2026-03-03T06:00:00Z")
    slot_ms = ms("2026-03-03T02:00:00Z")
    (entry,) = await one.ledger()
    assert ("fired" if runs else "missed", slot_ms) == (entry.outcome, entry.first_ms)
    assert (14_400_000 if runs else None) == entry.lateness_ms
    assert runs == bool(one.starts)
    assert ms("2026-03-04T02:00:00Z") == await one.next_ms()


@pytest.mark.parametrize("late_ms", [0, 1, 59_999, 60_000, 60_001])
async def test_none_still_runs_what_is_within_its_grace(one: SchedulesKit, late_ms: int):
    one.at("10:00:00")
    await one.put(Every("1h"), catch_up="none", grace_ms=60_000)
    await one.down_until(ms("11:00:00") + late_ms)
    assert (late_ms <= 60_000) == bool(one.starts)


@pytest.mark.parametrize(
    "rule",
    [Every("15s"), Cron("*/2 * * * *"), RRule("FREQ=MINUTELY;INTERVAL=3")],
    ids=lambda r: r.kind,
)
@pytest.mark.parametrize("catch_up", ["one", "all", "none"])
async def test_counts_are_exact(one: SchedulesKit, rule, catch_up: str):
    one.at("10:00:00")
    schedule = await one.put(
        rule, catch_up=catch_up, limit=7, grace_ms=HOUR_MS if catch_up == "none" else None
    )
    await one.down_until("2026-03-04T13:13:07Z")
    await one.after(0)
    nominals = schedule.spec.rule.count(schedule.generation_ms, one.now_ms)
    entries = await one.ledger()
    assert nominals == sum(entry.count for entry in entries)
    assert all(entry.is_exact for entry in entries)


async def test_a_count_that_was_not_finished_is_a_lower_bound(one: SchedulesKit):
    one.at("2026-01-01T00:00:00Z")
    await one.put(RRule("FREQ=MINUTELY", tz="Europe/Berlin"))
    await one.down_until("2026-04-01T00:00:00Z")
    coalesced = (await one.ledger())[0]
    assert ("coalesced", 100_000, False) == (
        coalesced.outcome, coalesced.count, coalesced.is_exact,
    )  # fmt: skip


# -- all: one after another, outside the overlap rule -------------------------------------------------


async def catching_up(kit: SchedulesKit, work_ms: int, **fields) -> None:
    """Five nominal times were missed, 10:01 to 10:05; it is 10:05:30."""
    kit.at("10:00:00")
    kit.handler = lambda _: Work(work_ms)
    await kit.put(Every("60s"), catch_up="all", **fields)
    await kit.down_until("10:05:30")


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
async def test_what_is_caught_up_with_is_outside_of_the_overlap_rule(
    one: SchedulesKit, overlap: str
):
    """It is in the way of no new nominal time, and none is in its way."""
    await catching_up(one, 50 * SECOND_MS, overlap=overlap)
    await one.advance("10:10:00")
    late = [s for s in one.starts if s.nominal_ms <= ms("10:05:00")]
    assert ["10:05:30", "10:06:20", "10:07:10", "10:08:00", "10:08:50"] == [
        clock_text(s.at_ms - ms("00:00:00")) for s in late
    ]
    assert {"fired"} == {outcome for outcome, *_ in await one.outcomes()}
    states = {one.state(s.id) for s in late}
    assert {"SUCCESS"} == states
    assert [ms(f"10:0{n}:00") for n in range(6, 10)] == [
        s.at_ms for s in one.starts if s not in late
    ][:4]


async def test_it_begins_although_an_earlier_run_is_open(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda s: NEVER if s.nominal_ms == ms("10:01:00") else Work()
    await one.put(Every("60s"), catch_up="all")
    await one.advance("10:01:10")
    await one.down_until("10:04:30")
    assert ["10:01:00", *["10:04:30"] * 3] == one.started()


async def test_a_failure_does_not_stop_the_others(one: SchedulesKit):
    await catching_up(one, 0)
    one.handler = lambda _: Work(1_000, BROKEN)
    await one.advance("10:05:59")
    assert 5 == len(one.starts)


async def test_a_pause_stops_it_and_the_resume_goes_on(one: SchedulesKit):
    await catching_up(one, 7 * SECOND_MS)
    await one.advance("10:05:35")
    await one.pause()
    await one.advance("10:20:30")
    assert 1 == len(one.starts)
    await one.resume()
    await one.advance("10:21:20")
    assert [ms("10:00:00") + n * MINUTE_MS for n in (1, 2, 3, 4, 5, 21)] == one.times()


async def test_a_pause_while_its_run_is_open_keeps_the_order(one: SchedulesKit):
    await catching_up(one, 10 * SECOND_MS)
    await one.pause()
    await one.advance("10:05:35")
    await one.resume()
    await one.advance("10:05:59")
    assert ["10:05:30", "10:05:40", "10:05:50"] == one.started()


async def test_more_downtime_before_it_is_done(one: SchedulesKit):
    await catching_up(one, 40 * SECOND_MS)
    await one.down_until("10:08:30")
    one.handler = lambda _: Work()
    await one.advance("10:09:30")
    regular = ms("10:09:00")  # in nobody's way
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(1, 9)] == [
        at_ms for at_ms in one.times() if at_ms != regular
    ]


async def test_a_removal_forgets_the_rest(one: SchedulesKit):
    await catching_up(one, 40 * SECOND_MS)
    await one.remove()
    await one.advance("10:30:00")
    assert 1 == len(one.tasks())


async def test_a_backfilled_time_among_them_does_not_stop_it(one: SchedulesKit):
    """It has its run already; the next of the list is made instead."""
    one.at("10:00:00")
    await one.put(Every("60s"), catch_up="all")
    one.is_down = True
    await one.advance("10:05:30")
    span = (ms("10:02:00"), ms("10:03:00"))
    assert 2 == len((await one.recurring.backfill("default", "s", span, dry_run=False)).task_ids)
    one.is_down = False
    await one.advance("10:05:40")
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(1, 6)] == sorted(one.times())
    assert 3 == (await one.get()).runs


async def test_a_list_that_grows_faster_than_it_is_run_is_bounded(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda _: NEVER
    await one.put(Every("1s"), catch_up="all", limit=1000)
    for _ in range(3):
        await one.down_until(one.now_ms + 400 * SECOND_MS)
    assert 1000 == one.plain.llen(one.keys.catchup(REF))
    assert ("catch_up_dropped", 199) == next(
        (o, n) for o, _, _, n in await one.outcomes() if o == "catch_up_dropped"
    )


# -- nothing is owed for ------------------------------------------------------------------------------


async def test_nothing_is_owed_for_a_pause_over_one_slot(one: SchedulesKit):
    """misfire-002"""
    one.at("2026-03-02T09:59:59.900Z")
    await one.put(Cron("0 * * * *"))
    await one.pause()
    await one.advance("2026-03-02T10:00:00.050Z")
    await one.resume()
    assert ms("11:00:00") == await one.next_ms()
    await one.advance("10:59:00")
    assert [] == one.starts
    assert [] == await one.ledger()


async def test_nothing_is_owed_for_a_weekend_of_pause(one: SchedulesKit):
    """misfire-010"""
    one.store.now_ms = ms("2026-03-06T17:55:00Z")
    await one.put(Cron("*/10 * * * *"))
    await one.advance("2026-03-06T18:00:05Z")
    await one.pause()
    await one.advance("2026-03-09T08:03:00Z")
    await one.resume()
    await one.tick()
    assert 1 == len(one.starts)
    assert ms("2026-03-09T08:10:00Z") == await one.next_ms()


async def test_what_was_owed_before_a_pause_is_settled_by_it(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    one.is_down = True
    await one.advance("10:03:30")
    await one.pause()
    assert [("coalesced", ms("10:01:00"), ms("10:02:00"), 2)] == (await one.outcomes())[:1]
    one.is_down = False
    await one.advance("10:10:00")
    assert [(ms("10:03:00"), 3)] == [(s.nominal_ms, s.missed) for s in one.starts]


async def test_a_laptop_that_sleeps(one: SchedulesKit):
    """clock-001, for a recurring task: one run for the nights that passed, its lateness recorded."""
    one.store.now_ms = ms("2026-03-08T09:00:00Z")
    await one.put(Cron("30 10 * * *"))
    one.leap(ms("2026-03-10T18:57:00Z") - one.now_ms)
    await one.tick()
    (start,) = one.starts
    assert (ms("2026-03-10T10:30:00Z"), 3) == (start.nominal_ms, start.missed)
    assert 8 * HOUR_MS + 27 * MINUTE_MS == (await one.ledger())[-1].lateness_ms


async def test_cancel_does_not_touch_what_is_caught_up_with(one: SchedulesKit):
    one.at("10:00:00")
    one.handler = lambda s: NEVER if s.nominal_ms in {ms("10:01:00"), ms("10:06:00")} else Work(0)
    await one.put(Every("60s"), catch_up="all", overlap="cancel")
    await one.down_until("10:03:30")
    (caught_up,) = one.starts
    await one.advance("10:07:10")
    regular = {s.nominal_ms: one.state(s.id) for s in one.starts if s is not caught_up}
    assert "CANCELLED" == regular[ms("10:06:00")]
    assert ("RUNNING", "SUCCESS") == (one.state(caught_up.id), regular[ms("10:07:00")])
