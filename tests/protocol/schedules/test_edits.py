"""Pause, resume and edit: what is owed before, and what never is because of them."""

import asyncio

import pytest
from tests.protocol.schedules.kit import MINUTE_MS, NEVER, REF, SchedulesKit, Work, ms

from tasksched.errors import Invalid
from tasksched.model.schedule import Cron, Delay, Every

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("rules", "ran", "edited", "expected"),
    [
        (("0 1 * * *", "0 2 * * *"), "2026-03-02T01:00:00Z", "2026-03-02T15:00:00Z",
         "2026-03-03T02:00:00Z"),
        (("0 21 * * tue,fri", "0 23 * * wed,sun"), "2026-03-03T21:00:00Z", "2026-03-06T02:10:00Z",
         "2026-03-08T23:00:00Z"),
        (("30 11 * * 5", "0 11 * * 5"), None, "2018-01-04T23:49:00Z", "2018-01-05T11:00:00Z"),
    ],
    ids=["schedule-edit-001", "schedule-edit-002", "schedule-edit-009"],
)  # fmt: skip
async def test_an_edit_never_fires_by_itself(one: SchedulesKit, rules, ran, edited, expected):
    created_ms = ms(ran or "2018-01-04T00:00:00Z") - 86_400_000
    one.store.now_ms = created_ms + 3_600_000
    await one.put(Cron(rules[0]))
    await one.advance(edited)
    count = len(one.starts)
    assert (1 if ran else 0) == count
    schedule = await one.put(Cron(rules[1]))
    await one.advance(ms(expected) - 1)
    assert (ms(expected), count) == (schedule.next_ms, len(one.starts))


async def test_a_template_edit_moves_nothing(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    await one.advance("10:01:30")
    schedule = await one.put(Every("60s"), payload=b"\x02", priority="high")
    assert ms("10:02:00") == schedule.next_ms
    await one.advance("10:02:00")
    assert (b"\x02", 2) == (one.starts[-1].payload, one.starts[-1].version)


async def test_an_edit_first_settles_what_is_overdue(one: SchedulesKit):
    """Under the old definition: its times, its template, its version."""
    one.at("10:00:00")
    await one.put(Every("60s"), payload=b"\x01")
    one.is_down = True
    await one.advance("10:03:30")
    await one.put(Every("45s"), payload=b"\x02")
    assert [("coalesced", 2), ("fired", 1)] == [(o, n) for o, _, _, n in await one.outcomes()]
    one.is_down = False
    await one.advance("10:03:45")
    late, new = one.starts
    assert (ms("10:03:00"), b"\x01", 1) == (late.nominal_ms, late.payload, late.version)
    assert (ms("10:03:45"), b"\x02", 2) == (new.nominal_ms, new.payload, new.version)


async def test_an_edit_that_was_planned_before_a_firing_does_not_fire_it_again(one: SchedulesKit):
    """The next time it read was fired meanwhile: it asks again instead of turning it back."""
    one.at("10:00:00")
    before = await one.put(Every("60s"))
    await one.advance("10:01:30")
    changed = await one.schedules.put_schedule(
        one.spec(Every("60s"), payload=b"\x02"), expected=1, created_ms=one.now_ms,
        next_ms=before.next_ms, fingerprint="f",
    )  # fmt: skip
    assert "owed" == changed.word
    await one.advance("10:05:30")
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(1, 6)] == one.times()


async def test_a_resume_that_was_planned_before_an_edit_is_refused(one: SchedulesKit):
    """Its next time belongs to another rule."""
    await one.put(Every("60s"))
    await one.pause()
    await one.put(Every("600s"))
    changed = await one.schedules.resume_schedule(REF, 2, next_ms=one.now_ms + 60_000)
    assert "version" == changed.word
    await one.resume()
    assert 0 == ((await one.next_ms() or 0) - (await one.get()).generation_ms) % 600_000


async def test_a_resume_that_took_too_long_asks_again(one: SchedulesKit):
    await one.put(Every("60s"))
    await one.pause()
    assert "late" == (await one.schedules.resume_schedule(REF, None, next_ms=one.now_ms)).word
    assert "PAUSED" == (await one.get()).status


async def test_an_edit_of_a_paused_schedule_leaves_it_paused(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    await one.pause()
    schedule = await one.put(Every("90s"))
    assert ("PAUSED", None) == (schedule.status, schedule.next_ms)
    await one.advance("10:10:00")
    assert [] == one.starts
    await one.resume()
    assert ms("10:10:30") == await one.next_ms()


async def test_raising_max_runs_lets_an_ended_schedule_go_on(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"), max_runs=1)
    await one.advance("10:05:10")
    assert "ENDED" == (await one.get()).status
    schedule = await one.put(Every("60s"), max_runs=2)
    assert ("ACTIVE", ms("10:06:00")) == (schedule.status, schedule.next_ms)
    await one.advance("10:10:00")
    assert ["10:01:00", "10:06:00"] == one.started()


async def test_lowering_max_runs_ends_it(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    await one.advance("10:03:10")
    assert "ENDED" == (await one.put(Every("60s"), max_runs=3)).status
    await one.advance("10:10:00")
    assert 3 == len(one.starts)


async def test_a_template_edit_of_a_schedule_that_is_over_leaves_it_so(one: SchedulesKit):
    one.at("10:00:00")
    rule = Every("60s", end_at="2026-03-02T10:01:00Z")
    await one.put(rule)
    await one.advance("10:05:00")
    assert "ENDED" == (await one.put(rule, payload=b"\x02")).status


async def test_a_new_rule_that_never_fires_is_refused(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Every("60s"))
    before = one.dump(without=("clock",))
    with pytest.raises(Invalid):
        await one.put(Every("60s", end_at="2026-03-02T09:00:00Z"))
    assert before == one.dump(without=("clock",))


async def test_a_large_payload_comes_and_goes(one: SchedulesKit):
    large = b"\xda\x08\x00" + b"x" * 2048
    await one.put(Every("60s"), payload=large)
    assert large == (await one.get()).spec.template.payload
    await one.put(Every("60s"), payload=b"\x01")
    assert not one.plain.exists(one.keys.schedule_body(REF))
    await one.after(MINUTE_MS)
    assert b"\x01" == one.starts[0].payload


async def test_a_definition_is_read_as_it_was_put(one: SchedulesKit):
    spec = one.spec(
        Cron("0 5 * * *", tz="Europe/Berlin", on_gap="skip"), payload=b"\x01", queue="q",
        priority="low", tags=("a", "b"), lease_ms=7_000, timeout_ms=9_000, overlap="queue",
        catch_up="all", limit=7, grace_ms=60_000, jitter_ms=5_000, max_runs=9, owner="app",
    )  # fmt: skip
    _, schedule = await one.recurring.put(spec)
    bound = spec.rule.bind(REF, schedule.generation_ms)
    assert bound.canonical() == schedule.spec.rule.canonical()
    for name in ("template", "overlap", "after", "misfire", "jitter_ms", "max_runs", "owner"):
        assert getattr(spec, name) == getattr(schedule.spec, name)


async def test_two_edits_of_one_version_are_one(one: SchedulesKit):
    await one.put(Every("60s"))
    specs = [one.spec(Every("60s"), payload=bytes([n])) for n in range(10)]
    done = await asyncio.gather(
        *(one.recurring.put(spec, version=1) for spec in specs), return_exceptions=True
    )
    assert 9 == sum(isinstance(one, Exception) for one in done)
    assert 2 == (await one.get()).version


async def test_pause_and_resume_again_and_again_drift_nothing(one: SchedulesKit):
    one.at("10:00:07")
    await one.put(Every("60s"))
    for _ in range(20):
        await one.after(7_000)
        await one.pause()
        await one.after(13_000)
        await one.resume()
    await one.after(MINUTE_MS)
    assert {7_000} == {at_ms % MINUTE_MS for at_ms in one.times()}


async def test_a_running_occurrence_goes_on_over_a_pause_an_edit_and_a_resume(one: SchedulesKit):
    one.handler = lambda _: Work(10 * MINUTE_MS) if len(one.starts) == 1 else NEVER
    await one.put(Every("60s"))
    await one.after(MINUTE_MS)
    await one.pause()
    await one.put(Every("60s"), payload=b"\x02")
    await one.resume()
    await one.after(15 * MINUTE_MS)
    assert "SUCCESS" == one.state(one.starts[0].id)
    assert 2 == len(one.starts)


@pytest.mark.parametrize(
    "rule", [Cron("* * * * *"), Every("60s"), Delay("60s")], ids=lambda r: r.kind
)
async def test_what_is_removed_leaves_nothing(one: SchedulesKit, rule):
    await one.put(rule, payload=b"\xda\x08\x00" + b"x" * 2048)
    await one.after(MINUTE_MS)
    await one.trigger()
    await one.remove()
    left = [key for key in one.dump() if REF in key and ":stub:" not in key]
    assert [] == left
    await one.after(10 * MINUTE_MS)
    assert {"SUCCESS", "CANCELLED"} >= {task["state"] for task in one.tasks()}


async def test_more_open_occurrences_than_one_call_cancels(one: SchedulesKit):
    one.is_down = True
    await one.put(Every("60s"))
    for first in range(0, 600, 100):
        rows = [(str(n), n, "+999999") for n in range(first, first + 100)]
        await one.schedules.trigger(REF, rows)
    assert "removed" == (await one.remove()).word
    assert {"CANCELLED"} == {task["state"] for task in one.tasks()}
    assert 600 == len(one.tasks())
