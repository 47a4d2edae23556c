"""Once: any number of schedulers, stale plans, kills and replays make one occurrence a nominal time."""

import asyncio

import pytest
from tests.protocol.schedules.kit import MINUTE_MS, REF, SECOND_MS, SchedulesKit, Work, ms

from tasksched.model.schedule import Cron, Delay, Every

pytestmark = pytest.mark.anyio
ZAGREB = "Europe/Zagreb"


async def test_two_schedulers_reach_a_slot_a_second_apart(each: SchedulesKit):
    """duplicate-schedulers-002: the slot is the key, not when it was noticed."""
    each.store.now_ms = ms("2026-03-02T20:00:00Z")
    schedule = await each.put(Cron("0 22 * * *", tz=ZAGREB))
    slot_ms = ms("2026-03-02T21:00:00Z")
    assert slot_ms == schedule.next_ms
    each.is_down = True
    await each.advance(slot_ms)
    first = await each.plan()
    each.leap(1000)
    second = await each.plan()
    assert ["fired"] == await each.schedules.fire(0, first)
    assert ["stale"] == await each.schedules.fire(0, second)
    assert [str(slot_ms)] == [task["nominal_ms"] for task in each.tasks()]


async def test_the_mark_of_a_slot_outlives_the_run(one: SchedulesKit):
    """duplicate-schedulers-006: the run ends after a millisecond, three others look later."""
    one.at("10:00:00")
    one.schedulers = 4
    one.handler = lambda _: Work(1)
    await one.put(Cron("* * * * *"))
    for _ in range(60):
        await one.after(500)
        await one.fire()
        await one.after(59_500)
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(1, 61)] == one.times()


async def test_a_paused_leader_that_wakes_fires_nothing(each: SchedulesKit):
    """duplicate-schedulers-001: its plan is of another next_ms."""
    each.at("10:00:00")
    await each.put(Cron("* * * * *"))
    each.is_down = True
    await each.advance("10:01:00")
    asleep = await each.plan()
    each.is_down = False
    await each.advance("10:03:30")
    before = each.dump()
    assert ["stale"] == await each.schedules.fire(0, asleep)
    assert before == each.dump()
    assert 3 == len(each.starts)


@pytest.mark.parametrize("change", ["edit", "pause", "pause and resume", "remove", "recreate"])
async def test_a_plan_from_before_a_change_is_stale(each: SchedulesKit, change: str):
    each.at("10:00:00")
    await each.put(Every("60s"))
    each.is_down = True
    await each.advance("10:01:00")
    plan = await each.plan()
    match change:
        case "edit":
            await each.put(Every("60s"), payload=b"\x02")
        case "pause":
            await each.pause()
        case "pause and resume":
            await each.pause()
            await each.resume()
        case "remove":
            await each.remove()
        case "recreate":
            await each.remove()
            await each.put(Every("60s"))
    before = each.dump()
    assert ["stale"] == await each.schedules.fire(0, plan)
    assert before == each.dump()


async def test_the_same_row_twice_in_a_batch_fires_once(each: SchedulesKit):
    await each.put(Every("60s"))
    each.is_down = True
    await each.after(MINUTE_MS)
    (row,) = await each.plan()
    assert ["fired", "stale"] == await each.schedules.fire(0, [row, row])
    assert 1 == len(each.tasks())


async def test_a_fire_whose_reply_was_lost_is_stale_the_second_time(each: SchedulesKit):
    for n in range(5):
        await each.put(Every("60s"), id=f"s{n}")
    each.is_down = True
    await each.after(MINUTE_MS)
    plan = await each.plan()
    assert ["fired"] * 5 == await each.schedules.fire(0, plan)
    before = each.dump()
    assert ["stale"] * 5 == await each.schedules.fire(0, plan)
    assert before == each.dump()


async def test_nothing_is_fired_before_its_time(each: SchedulesKit):
    """A plan that was made by a clock that runs ahead."""
    await each.put(Every("60s"))
    each.is_down = True
    await each.after(MINUTE_MS)
    plan = await each.plan()
    each.store.now_ms -= 30_000
    before = each.dump(without=("clock",))
    assert ["stale"] == await each.schedules.fire(0, plan)
    assert before == each.dump(without=("clock",))


@pytest.mark.parametrize("replay", [False, True], ids=["", "each script twice"])
async def test_three_schedulers_and_lost_replies(one: SchedulesKit, replay: bool):
    one.at("10:00:00")
    one.schedulers, one.doubled = 3, replay
    one.handler = lambda s: Work(20 * SECOND_MS)
    await one.put(Every("60s"))
    await one.put(Delay("60s"), id="d")
    await one.put(Cron("* * * * *"), id="c", overlap="queue")
    await one.advance("10:20:00")
    minutes = [ms("10:00:00") + n * MINUTE_MS for n in range(1, 21)]
    assert minutes == one.times() == one.times("c")
    assert [ms("10:01:00") + n * 80_000 for n in range(15)] == one.times("d")


async def test_firing_and_editing_in_the_same_millisecond(one: SchedulesKit):
    """schedule-edit-004: one run for the slot, and it says by which definition it was made."""
    one.at("10:00:00")
    one.is_down = True
    payloads = {1: b"\x01", 2: b"\x02"}
    for n in range(100):
        schedule_id = f"s{n}"
        await one.put(Every("600s"), id=schedule_id, payload=payloads[1])
        one.leap(600_000)
        plan = await one.plan()
        spec = one.spec(Every("600s"), id=schedule_id, payload=payloads[2])
        fire, edit = one.schedules.fire(0, plan), one.recurring.put(spec, version=1)
        await asyncio.gather(*((fire, edit) if n % 2 else (edit, fire)))
        assert 2 == (await one.get(schedule_id)).version
        await one.recurring.pause("default", schedule_id)
    made = one.tasks()
    assert 100 == len({(task["schedule"], task["nominal_ms"]) for task in made}) == len(made)
    for task in made:
        assert payloads[int(task["schedule_version"])].decode("latin1") == task["payload"]


async def test_fifty_identical_puts_at_once(one: SchedulesKit):
    """schedule-edit-010: a crash loop at start-up makes one schedule and one next time."""
    one.at("10:00:00")
    spec = one.spec(Every("2s"))
    words = [changed.word for changed, _ in await asyncio.gather(
        *(one.recurring.put(spec) for _ in range(50))
    )]  # fmt: skip
    assert {"created": 1, "same": 49} == {word: words.count(word) for word in set(words)}
    assert {REF} == {member.decode() for member in one.plain.zrange(one.keys.schedules, 0, -1)}
    await one.advance("10:00:10")
    assert 5 == len(one.starts)


@pytest.mark.parametrize("killed", range(4))
async def test_a_scheduler_killed_at_any_point(one: SchedulesKit, killed: int):
    """Between reading, firing, dispatching and its next look: the next one goes on from there."""
    one.at("10:00:00")
    await one.put(Every("60s"))
    one.is_down = True
    for n in range(1, 6):
        await one.advance(ms("10:00:00") + n * MINUTE_MS)
        plan = await one.plan()
        if killed > 0:
            await one.schedules.fire(0, plan)
        if killed > 1:
            await one.dispatch()
        if killed > 2:
            await one.fire()
        one.is_down = False
        await one.tick()
        one.is_down = True
    assert [ms("10:00:00") + n * MINUTE_MS for n in range(1, 6)] == one.times()
