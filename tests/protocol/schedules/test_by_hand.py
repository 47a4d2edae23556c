"""Trigger, backfill, preview: extra occurrences, which move nothing and are in nobody's way."""

import pytest
from tests.protocol.kit import BROKEN
from tests.protocol.schedules.kit import MINUTE_MS, NEVER, REF, SchedulesKit, Work, ms

from tasksched.errors import Invalid
from tasksched.model.schedule import Cron, Delay, Every

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "rule", [Every("60s"), Cron("* * * * *"), Delay("60s")], ids=lambda r: r.kind
)
async def test_a_trigger_moves_nothing(one: SchedulesKit, rule):
    one.at("10:00:00")
    await one.put(rule)
    before = await one.get()
    extra = await one.trigger()
    assert before == await one.get()
    await one.tick()
    assert [extra] == [start.id for start in one.starts]
    assert str(one.now_ms) == one.record(extra)["nominal_ms"]
    await one.advance("10:02:30")
    assert ["10:00:00", "10:01:00", "10:02:00"] == one.started()


async def test_every_trigger_is_an_occurrence_of_its_own(one: SchedulesKit):
    await one.put(Every("60s"))
    assert 5 == len({await one.trigger() for _ in range(5)})
    entries = await one.ledger()
    assert all(entry.by_hand for entry in entries)
    assert {t["occurrence"] for t in one.tasks()} == {
        "x" + one.record(e.task_id)["occurrence"][1:] for e in entries if e.task_id
    }


async def test_a_trigger_whose_reply_was_lost_still_names_its_task(one: SchedulesKit):
    one.doubled = True
    await one.put(Every("60s"))
    extra = await one.trigger()
    assert [extra] == [entry.task_id for entry in await one.ledger()]
    assert 1 == len(one.tasks())


async def test_a_removal_cancels_what_was_made_by_hand_and_waits(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Cron("*/5 * * * *"))
    span = (ms("09:00:00"), ms("09:30:00"))
    made = (await one.recurring.backfill("default", "s", span, dry_run=False, rate=0.1)).task_ids
    await one.tick()
    assert 1 == len(one.starts)
    await one.remove()
    states = [one.state(task_id) for task_id in made]
    assert ["SUCCESS"] + ["CANCELLED"] * (len(made) - 1) == states


async def test_a_redriven_extra_occurrence_is_in_nobodys_way_either(one: SchedulesKit):
    one.at("10:00:30")
    await one.put(Cron("* * * * *"))
    one.handler = lambda _: Work(0, BROKEN)
    span = (ms("10:00:00"), ms("10:00:00"))
    (filled,) = (await one.recurring.backfill("default", "s", span, dry_run=False)).task_ids
    extra = await one.trigger()
    await one.tick()
    one.handler = lambda _: NEVER
    for task_id in (filled, extra):
        await one.store.redrive(0, task_id, "default", None)
    await one.tick()
    assert set() == one.open_ids()
    one.handler = lambda _: Work()
    await one.advance("10:02:30")
    assert 2 == (await one.get()).runs


# -- backfill ------------------------------------------------------------------------------------------


async def test_a_dry_run_counts_and_makes_nothing(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Cron("*/5 * * * *"))
    before = one.dump()
    span = (ms("09:00:00"), ms("10:00:00"))
    done = await one.recurring.backfill("default", "s", span, dry_run=True)
    assert (13, [], True) == (done.count, done.task_ids, done.is_exact)
    assert before == one.dump()


async def test_a_backfill_makes_each_nominal_time_once(one: SchedulesKit):
    """Both ends included; those that the rule made, or an earlier backfill, are left alone."""
    one.at("09:50:00")
    schedule = await one.put(Cron("*/5 * * * *"))
    await one.advance("10:07:00")
    span = (ms("09:00:00"), ms("10:05:00"))
    done = await one.recurring.backfill("default", "s", span, dry_run=False)
    assert (14, 11) == (done.count, len(done.task_ids))
    assert one.occurrence(schedule, ms("09:00:00")) == done.task_ids[0]
    again = await one.recurring.backfill("default", "s", span, dry_run=False)
    assert (14, []) == (again.count, again.task_ids)
    await one.advance("10:09:00")
    assert 14 == len(set(one.times())) == len(one.starts)
    assert 3 == (await one.get()).runs


async def test_a_backfill_is_spread_by_its_rate(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Cron("*/5 * * * *"))
    span = (ms("08:00:00"), ms("09:00:00"))
    await one.recurring.backfill("default", "s", span, dry_run=False, rate=0.5)
    await one.advance("10:00:30")
    starts = [start for start in one.starts if start.nominal_ms < ms("10:00:00")]
    assert [2_000 * n for n in range(13)] == [s.at_ms - ms("10:00:00") for s in starts]
    assert sorted(one.times()) == one.times()


async def test_a_backfill_is_one_range_of_the_ledger(one: SchedulesKit):
    """Ten thousand runs made by hand do not push out what became of the others."""
    one.at("09:54:00")
    await one.put(Cron("*/5 * * * *"))
    await one.advance("10:01:00")
    span = (ms("2026-02-01T00:00:00Z"), ms("2026-02-01T20:00:00Z"))
    await one.recurring.backfill("default", "s", span, dry_run=False)
    *others, filled = await one.ledger()
    assert ["fired", "fired"] == [entry.outcome for entry in others]
    assert ("fired", 241, True, *span) == (
        filled.outcome, filled.count, filled.by_hand, filled.first_ms, filled.last_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "span", "pointer"),
    [
        (Delay("60s"), ("09:00:00", "10:00:00"), "/from"),
        (Every("60s"), ("09:30:00", "09:00:00"), "/to"),
        (Every("60s"), ("09:30:00", "10:00:01"), "/to"),
        (Every("1s", start_at="2026-03-01T00:00:00Z"), ("01:00:00", "04:00:00"), "/to"),
    ],
    ids=["fixed delay", "backwards", "future", "too many"],
)
async def test_what_cannot_be_filled_is_refused(one: SchedulesKit, rule, span, pointer):
    one.at("10:00:00")
    await one.put(rule)
    before = one.dump()
    bounds = (ms(span[0]), ms(span[1]))
    with pytest.raises(Invalid) as caught:
        await one.recurring.backfill("default", "s", bounds, dry_run=False)
    assert pointer == caught.value.problems[0].pointer
    assert before == one.dump()


async def test_a_rate_that_is_none_is_refused(one: SchedulesKit):
    await one.put(Every("60s"))
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(Invalid):
            await one.recurring.backfill("default", "s", (1, 2), dry_run=False, rate=rate)


async def test_a_backfill_of_what_is_just_owed_is_not_doubled_by_the_rule(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    one.is_down = True
    await one.advance("10:01:10")
    await one.recurring.backfill("default", "s", (ms("10:01:00"),) * 2, dry_run=False)
    one.is_down = False
    await one.advance("10:02:10")
    assert ["10:01:10", "10:02:00"] == one.started()
    assert 1 == (await one.get()).runs


async def test_the_preview_begins_with_what_is_owed_next(one: SchedulesKit):
    one.at("10:00:30")
    await one.put(Cron("*/5 * * * *"))
    fires = await one.recurring.next_fires("default", "s", 3)
    assert [ms("10:05:00"), ms("10:10:00"), ms("10:15:00")] == [fire.at_ms for fire in fires]


async def test_an_extra_run_has_the_payload_of_now(one: SchedulesKit):
    large = b"\xda\x08\x00" + b"x" * 2048
    await one.put(Every("60s"), payload=large)
    await one.trigger()
    await one.put(Every("60s"), payload=b"\x02")
    await one.trigger()
    await one.tick()
    assert {large, b"\x02"} == {start.payload for start in one.starts}
    await one.after(MINUTE_MS)
    assert REF == one.starts[-1].ref
