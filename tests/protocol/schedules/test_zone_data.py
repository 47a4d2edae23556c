"""Zones change the rules of their clocks: next times are computed anew, and nothing else is touched."""

from typing import Any

import pytest
from tests.protocol.kit import DAY_MS
from tests.protocol.schedules.kit import MINUTE_MS, REF, SchedulesKit, Work, ms

from tasksched.model.schedule import Cron, Delay, Every, RRule
from tasksched.model.zones import TZDATA_VERSION
from tasksched.runtime import ticker
from tasksched.runtime.janitor import Janitor, Retention

pytestmark = pytest.mark.anyio
BERLIN = "Europe/Berlin"


def field(kit: SchedulesKit, name: str, ref: str = REF) -> str | None:
    found = kit.plain.hget(kit.keys.schedule(ref), name)
    return found.decode() if found else None


def computed_with(kit: SchedulesKit, release: str, next_ms: int, ref: str = REF) -> None:
    """As a process with another release of the zone data would have left it."""
    kit.plain.hset(kit.keys.schedule(ref), mapping={"tzdata": release, "next_ms": next_ms})
    kit.plain.zadd(kit.keys.schedules, {ref: next_ms})


@pytest.mark.parametrize(
    ("rule", "depends"),
    [
        (Cron("0 5 * * *", tz=BERLIN), True), (RRule("FREQ=DAILY", tz=BERLIN), True),
        (Cron("0 5 * * *"), False), (Every("24h", tz=BERLIN), False), (Delay("24h"), False),
    ],
    ids=["cron", "rrule", "cron in UTC", "interval", "delay"],
)  # fmt: skip
async def test_the_release_is_kept_where_a_time_depends_on_it(
    one: SchedulesKit, rule: Any, depends
):
    await one.put(rule)
    assert (TZDATA_VERSION if depends else None) == field(one, "tzdata")


@pytest.mark.parametrize("release", ["2020a", "2099z"], ids=["older", "newer"])
async def test_a_time_of_another_release_is_computed_anew(one: SchedulesKit, release: str):
    one.at("10:00:00")
    await one.put(Cron("0 5 * * *", tz=BERLIN))
    await one.put(Cron("0 5 * * *", tz=BERLIN), id="same")
    right_ms = ms("2026-03-03T04:00:00Z")
    computed_with(one, release, right_ms + 3_600_000)
    before = await one.get("same")
    assert 1 == await ticker.retime(one.schedules, 0, one.now_ms)
    schedule = await one.get()
    assert (right_ms, 1, TZDATA_VERSION) == (
        schedule.next_ms, schedule.version, field(one, "tzdata"),
    )  # fmt: skip
    assert before == await one.get("same")
    assert 0 == await ticker.retime(one.schedules, 0, one.now_ms)


async def test_a_plan_from_before_is_stale(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Cron("0 * * * *", tz=BERLIN))
    computed_with(one, "2020a", ms("10:30:00"))
    one.is_down = True
    one.at("10:30:00")
    plan = await one.plan()
    one.at("10:29:00")
    await ticker.retime(one.schedules, 0, one.now_ms)
    one.at("10:31:00")
    assert ["stale"] == await one.schedules.fire(0, plan)
    assert ms("11:00:00") == await one.next_ms()


async def test_what_is_owed_is_fired_first_and_that_computes_anew(one: SchedulesKit):
    one.at("10:00:00")
    await one.put(Cron("0 * * * *", tz=BERLIN))
    computed_with(one, "2020a", ms("10:30:00"))
    one.is_down = True
    await one.advance("10:30:00")
    assert 0 == await ticker.retime(one.schedules, 0, one.now_ms)
    one.is_down = False
    await one.tick()
    assert (ms("11:00:00"), TZDATA_VERSION) == (await one.next_ms(), field(one, "tzdata"))


@pytest.mark.parametrize("state", ["PAUSED", "ENDED"])
async def test_what_owes_nothing_is_left_as_it_is(one: SchedulesKit, state: str):
    await one.put(Cron("* * * * *", tz=BERLIN), max_runs=1)
    await (one.pause() if state == "PAUSED" else one.after(MINUTE_MS))
    one.plain.hset(one.keys.schedule(REF), "tzdata", "2020a")
    await ticker.retime(one.schedules, 0, one.now_ms)
    schedule = await one.get()
    assert (state, None) == (schedule.status, schedule.next_ms)
    assert TZDATA_VERSION == field(one, "tzdata")


async def test_a_resume_is_computed_with_the_release_in_force(one: SchedulesKit):
    await one.put(Cron("0 5 * * *", tz=BERLIN))
    await one.pause()
    one.plain.hset(one.keys.schedule(REF), "tzdata", "2020a")
    await one.resume()
    assert TZDATA_VERSION == field(one, "tzdata")


async def test_the_janitor_looks_at_every_schedule_of_its_shards(one: SchedulesKit):
    one.at("10:00:00")
    for n in range(250):
        await one.put(Cron(f"{n % 60} 5 * * *", tz=BERLIN), id=f"s{n}")
    for n in range(0, 250, 2):
        computed_with(one, "2020a", ms("11:11:11"), f"default:s{n}")
    rules = Retention(
        success_ms=DAY_MS, failed_ms=DAY_MS, count_max=9, bytes_max=1 << 30, key_memory_ms=9,
        id_memory_ms=9,
    )  # fmt: skip
    await Janitor(one.store, rules, look_ms=1000).clean(0)
    scores = one.plain.zrange(one.keys.schedules, 0, -1, withscores=True)
    assert ms("11:11:11") not in {int(score) for _, score in scores}


async def test_a_rule_that_nobody_can_read_blocks_itself_and_no_other(one: SchedulesKit):
    """A zone that a release has dropped, or a syntax of a newer version."""
    one.at("10:00:00")
    one.handler = lambda _: Work()
    for n in range(3):
        await one.put(Every("60s"), id=f"s{n}")
    stored = field(one, "rule", "default:s1") or ""
    for broken in ('{"cron":"0 5 * * *","timezone":"Atlantis/Capital"}', "{", "[]", '{"cron":5}'):
        assert broken != stored
        one.plain.hset(one.keys.schedule("default:s1"), "rule", broken)
        await one.after(MINUTE_MS)
        assert ("BLOCKED", None) == (
            field(one, "status", "default:s1"),
            field(one, "next_ms", "default:s1"),
        )
        assert "it cannot be planned" in (field(one, "reason", "default:s1") or "")
        one.plain.hset(one.keys.schedule("default:s1"), "rule", stored)
        await one.recurring.resume("default", "s1")
    assert 4 == len(one.times("s0")) == len(one.times("s2"))
    await one.after(MINUTE_MS)
    assert 1 == len(one.times("s1"))
