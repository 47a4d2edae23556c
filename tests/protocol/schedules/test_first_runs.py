"""First run, advance, bounds and identity: the nominal times of a schedule, one sentence a test."""

import pytest
from tests.protocol.kit import DONE, retry_in
from tests.protocol.schedules.kit import MINUTE_MS, REF, SECOND_MS, SchedulesKit, Work, ms

from tasksched.errors import Invalid
from tasksched.model.recurring import occurrence_id, plan_runs
from tasksched.model.schedule import Cron, Delay, Every, RRule
from tasksched.model.schedule.jitter import jitter_delay_ms
from tasksched.model.schedule.misfire import MisfirePolicy

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("rule", [Every("60s"), Delay("60s")], ids=["interval", "delay"])
async def test_without_start_at_the_first_run_is_one_interval_after_the_creation(
    each: SchedulesKit, rule
):
    created_ms = each.now_ms
    schedule = await each.put(rule)
    assert created_ms + MINUTE_MS == schedule.next_ms
    await each.advance(created_ms + MINUTE_MS - 1)
    assert [] == each.starts
    await each.after(1)
    assert [created_ms + MINUTE_MS] == [start.at_ms for start in each.starts]


@pytest.mark.parametrize("kind", [Every, Delay], ids=["interval", "delay"])
@pytest.mark.parametrize("start", ["10:00:00", "10:00:30"], ids=["the very instant", "later"])
async def test_with_start_at_the_first_run_is_there_inclusive(each: SchedulesKit, kind, start):
    each.at("10:00:00")
    schedule = await each.put(kind("60s", start_at=f"2026-03-02T{start}Z"))
    assert ms(start) == schedule.next_ms
    await each.advance("10:00:45")
    assert [start] == each.started()


async def test_a_start_that_is_past_anchors_and_owes_nothing(each: SchedulesKit):
    """misfire-001 for intervals: what lies before the creation is not owed."""
    each.at("10:07:30")
    schedule = await each.put(Every("60s", start_at="2026-03-02T10:00:10Z"))
    assert ms("10:08:10") == schedule.next_ms
    await each.advance("10:08:00")
    assert [] == each.starts


async def test_a_fixed_delay_whose_start_is_past_begins_at_once(one: SchedulesKit):
    one.at("10:07:30")
    await one.put(Delay("60s", start_at="2026-03-02T10:00:00Z"))
    await one.advance("10:08:30")
    assert ["10:07:30", "10:08:30"] == one.started()


async def test_a_new_cron_schedule_owes_nothing_of_today(each: SchedulesKit):
    """misfire-001"""
    each.at("11:30:00")
    schedule = await each.put(Cron("1 11 * * *"))
    assert ms("2026-03-03T11:01:00Z") == schedule.next_ms
    await each.advance("23:59:00")
    assert [] == each.starts


async def test_end_at_is_inclusive_and_ends_the_schedule(each: SchedulesKit):
    each.at("10:00:00")
    await each.put(Every("60s", end_at="2026-03-02T10:03:00Z"))
    await each.advance("10:02:59")
    assert "ACTIVE" == (await each.get()).status
    await each.advance("10:10:00")
    assert ["10:01:00", "10:02:00", "10:03:00"] == each.started()
    assert "ENDED" == (await each.get()).status


async def test_end_at_holds_for_a_fixed_delay(each: SchedulesKit):
    each.at("10:00:00")
    await each.put(Delay("60s", end_at="2026-03-02T10:03:00Z"))
    await each.advance("10:10:00")
    assert ["10:01:00", "10:02:00", "10:03:00"] == each.started()
    assert "ENDED" == (await each.get()).status


@pytest.mark.parametrize("rule", [Every("60s"), Delay("60s")], ids=["interval", "delay"])
async def test_max_runs_counts_what_the_rule_made_and_nothing_else(each: SchedulesKit, rule):
    each.at("10:00:00")
    await each.put(rule, max_runs=3)
    await each.trigger()
    await each.advance("10:02:30")
    await each.trigger()
    made = 3 if rule.kind == "delay" else 2  # the one that waits is made already
    assert ("ACTIVE", made) == ((await each.get()).status, (await each.get()).runs)
    await each.advance("10:10:00")
    schedule = await each.get()
    assert ("ENDED", 3) == (schedule.status, schedule.runs)
    assert ["10:00:00", "10:01:00", "10:02:00", "10:02:30", "10:03:00"] == each.started()


async def test_a_skipped_run_does_not_count_for_max_runs(each: SchedulesKit):
    each.at("10:00:00")
    each.handler = lambda _: Work(90 * SECOND_MS)
    await each.put(Every("60s"), max_runs=2)
    await each.advance("10:10:00")
    assert ["10:01:00", "10:03:00"] == each.started()
    outcomes = [outcome for outcome, *_ in await each.outcomes()]
    assert ["fired", "skipped_overlap", "fired"] == outcomes


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "cancel"])
@pytest.mark.parametrize("catch_up", ["one", "all"])
async def test_max_runs_is_never_passed(one: SchedulesKit, overlap, catch_up):
    """Neither by what waits nor by what is caught up with."""
    one.at("10:00:00")
    one.handler = lambda _: Work(95 * SECOND_MS)
    await one.put(Every("60s"), max_runs=4, overlap=overlap, catch_up=catch_up)
    await one.advance("10:02:30")
    await one.down_until("10:06:30")
    await one.advance("11:00:00")
    schedule = await one.get()
    assert ("ENDED", 4, 4) == (schedule.status, schedule.runs, len(one.times()))


async def test_a_fixed_rate_does_not_drift(one: SchedulesKit):
    """fixed-rate-008: late dispatch and run time move no nominal time."""
    one.at("10:00:00")
    one.handler = lambda _: Work(3 * SECOND_MS)
    await one.put(Every("60s", start_at="2026-03-02T10:00:00Z"))
    for late_ms in (0, 200, 900, 350, 501, 77, 899, 640, 300, 12, 800):
        one.is_down = True
        await one.advance(((await one.get()).next_ms or 0) + late_ms)
        one.is_down = False
        await one.tick()
        await one.after(5 * SECOND_MS)
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(11)] == one.times()


async def test_a_long_interval_survives_restarts(one: SchedulesKit):
    """fixed-rate-012: all of it is in Redis; a scheduler that starts anew knows it."""
    one.at("09:00:00")
    await one.put(Every("24h", start_at="2026-03-02T10:00:00Z"))
    for day in (2, 3, 4):
        for hour in (3, 9, 15, 21):
            one.schedules = type(one.schedules)(one.store)
            await one.advance(f"2026-03-0{day}T{hour:02}:00:00Z") if (day, hour) > (2, 9) else None
    assert [ms(f"2026-03-0{day}T10:00:00Z") for day in (2, 3, 4)] == one.times()


async def test_nothing_but_the_interval_moves_its_times_and_never_the_anchor(each: SchedulesKit):
    each.at("10:00:17")
    await each.put(Every("60s"))
    await each.advance("10:01:40")
    await each.trigger()
    await each.put(Every("60s"), payload=b"\x01")
    await each.pause()
    await each.advance("10:03:20")
    await each.resume()
    assert ms("10:04:17") == await each.next_ms()
    schedule = await each.put(Every("90s"), payload=b"\x01")
    assert ms("10:04:47") == schedule.next_ms  # 10:00:17 + 3 * 90 s


async def test_another_interval_keeps_the_anchor(each: SchedulesKit):
    """fixed-rate-001"""
    each.at("09:59:00")
    await each.put(Every("60s", start_at="2026-03-02T10:00:00Z"))
    await each.advance("10:07:30")
    count = len(each.starts)
    schedule = await each.put(Every("300s", start_at="2026-03-02T10:00:00Z"))
    await each.tick()
    assert (ms("10:10:00"), count) == (schedule.next_ms, len(each.starts))


async def test_an_id_is_a_pure_function_of_schedule_generation_and_nominal_time(
    each: SchedulesKit,
):
    each.at("10:00:00")
    rate = await each.put(Every("60s"))
    chain = await each.put(Delay("60s"), id="d")
    rrule = await each.put(RRule("FREQ=MINUTELY;INTERVAL=2"), id="r")
    await each.advance("10:04:30")
    by_ref = {ref: [s.id for s in each.starts if s.ref == ref] for ref in
              (REF, "default:d", "default:r")}  # fmt: skip
    expected = [each.occurrence(rate, ms("10:00:00") + n * MINUTE_MS) for n in range(1, 5)]
    assert expected == by_ref[REF]
    assert [each.occurrence(chain, f"n{n}") for n in range(1, 5)] == by_ref["default:d"]
    assert [each.occurrence(rrule, at) for at in each.times("r")] == by_ref["default:r"]
    assert 2 == len(by_ref["default:r"])


async def test_the_generation_outlives_edits_and_not_a_removal(each: SchedulesKit):
    each.at("10:00:00")
    first = await each.put(Every("60s"))
    await each.advance("10:01:30")
    assert first.generation_ms == (await each.put(Every("30s"))).generation_ms
    await each.remove()
    again = await each.put(Every("60s"))
    assert each.now_ms == again.generation_ms
    assert occurrence_id(REF, first.generation_ms, "1", 0) != occurrence_id(
        REF, again.generation_ms, "1", 0
    )


async def test_an_occurrence_has_the_template_and_says_who_made_it(each: SchedulesKit):
    large = b"\xda\x08\x00" + b"x" * 2048
    schedule = await each.put(
        Every("60s"), payload=large, queue="mail", priority="high", lease_ms=7_000, tags=("a",)
    )
    await each.after(MINUTE_MS)
    (start,) = each.starts
    record = each.record(start.id)
    assert large == start.payload
    assert ("mail:high:default:charge", "7000", REF) == tuple(
        record[name] for name in ("lane", "lease_ms", "schedule")
    )
    assert ("1", str(schedule.next_ms)) == (record["schedule_version"], record["nominal_ms"])
    assert '"tags":["a"]' in record["options"]


@pytest.mark.parametrize("jitter_ms", [1, 30_000, 60_000, 3_600_000])
async def test_jitter_is_below_jitter_and_never_past_the_next_nominal_time(
    one: SchedulesKit, jitter_ms: int
):
    one.at("10:00:00")
    await one.put(Every("60s"), jitter_ms=jitter_ms, overlap="allow")
    await one.advance("10:30:00")
    assert 28 < len(one.starts) <= 30
    for start in one.starts:
        late_ms = start.at_ms - start.nominal_ms
        assert 0 <= late_ms < min(jitter_ms, MINUTE_MS)
        bounds = {"jitter_ms": jitter_ms, "next_ms": start.nominal_ms + MINUTE_MS}
        assert jitter_delay_ms(REF, start.nominal_ms, **bounds) == late_ms
    assert jitter_ms < 1000 or len({s.at_ms - s.nominal_ms for s in one.starts}) > 20


async def test_the_jitter_of_a_chain_is_below_jitter_and_spreads(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Delay("60s"), jitter_ms=30_000)
    await one.advance("11:00:00")
    late = [start.at_ms - start.nominal_ms for start in one.starts]
    assert all(0 <= each_ms < 30_000 for each_ms in late)
    assert len(set(late)) > 20
    after = [b.nominal_ms - a.at_ms for a, b in zip(one.starts, one.starts[1:], strict=False)]
    assert {MINUTE_MS} == set(after)


def test_a_plan_is_a_pure_function():
    rule = Cron("*/5 * * * *").bind(REF, 0)
    asked = {"next_ms": ms("10:00:00"), "now_ms": ms("12:00:00"), "jitter_ms": 9_000}
    plans = {repr(plan_runs(REF, rule, MisfirePolicy(), **asked)) for _ in range(3)}
    assert 1 == len(plans)


async def test_a_rule_that_never_fires_is_refused_at_the_creation(one: SchedulesKit):
    one.at("10:00:00")
    with pytest.raises(Invalid):
        await one.put(Every("60s", end_at="2026-03-02T10:00:30Z"))
    assert {} == {k: v for k, v in one.dump().items() if ":clock" not in k}


async def test_a_retry_is_a_part_of_its_occurrence(each: SchedulesKit):
    each.at("10:00:00")
    each.handler = lambda s: Work(1000, retry_in(5_000) if s.attempt < 3 else DONE)
    await each.put(Every("60s"))
    await each.advance("10:01:30")
    assert [1, 2, 3] == [start.attempt for start in each.starts]
    assert 1 == len({start.id for start in each.starts})


async def test_the_timer_that_wakes_a_millisecond_early_fires_nothing(one: SchedulesKit):
    """clock-006"""
    one.at("10:00:00")
    await one.put(Cron("* * * * *"))
    for n in range(1, 61):
        at_ms = ms("10:00:00") + n * MINUTE_MS
        await one.advance(at_ms - 1)
        assert n - 1 == len(one.starts)
        await one.advance(at_ms)
    assert 60 == len(set(one.times())) == len(one.starts)


async def test_a_scheduler_host_with_a_wrong_clock_changes_nothing(one: SchedulesKit):
    """clock-002, clock-004: times are the server's; one that steps back goes on from the highest seen."""
    one.at("10:00:00")
    await one.put(Cron("* * * * *"))
    await one.advance("10:03:30")
    one.store.now_ms -= 7_200_000
    await one.tick()
    assert ms("10:04:00") == await one.next_ms()
    one.at("10:03:31")
    await one.advance("10:06:00")
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(1, 7)] == one.times()
