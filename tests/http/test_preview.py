"""The next times of a rule that is not stored, and what daylight saving does to them."""

import time

import pytest
from tests.http.conftest import assert_problem, pointers
from tests.http.recurring_kit import PATH

from tasksched.model.zones import TZDATA_VERSION

pytestmark = pytest.mark.anyio

PARIS = {"cron": "30 2 * * *", "timezone": "Europe/Paris"}


async def preview(rig, **members):
    answer = await rig.ask("POST", "/preview", members)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_night_that_loses_an_hour(rig):
    found = await preview(rig, **PARIS, after="2026-03-28T00:00:00Z", n=3)

    assert found["description"] == "At 02:30 every day, Europe/Paris"
    assert [found["timezone"], found["tzdata_version"]] == ["Europe/Paris", TZDATA_VERSION]
    assert found["next"] == [
        {"at": "2026-03-28T01:30:00.000Z", "local": "2026-03-28T02:30:00+01:00", "note": None},
        {"at": "2026-03-29T01:00:00.000Z", "local": "2026-03-29T03:00:00+02:00",
         "note": "02:30 does not exist on 29 March 2026: runs at 03:00"},
        {"at": "2026-03-30T00:30:00.000Z", "local": "2026-03-30T02:30:00+02:00", "note": None},
    ]  # fmt: skip


async def test_the_night_that_gains_one(rig):
    once = await preview(rig, **PARIS, after="2026-10-25T00:00:00Z", n=2)
    twice = await preview(rig, **PARIS, after="2026-10-25T00:00:00Z", n=2, on_fold="both")

    assert [one["at"] for one in once["next"]] == [
        "2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z",
    ]  # fmt: skip
    assert once["next"][0]["note"] == "02:30 happens twice on 25 October 2026: first pass only"
    assert [one["at"] for one in twice["next"]] == [
        "2026-10-25T00:30:00.000Z", "2026-10-25T01:30:00.000Z",
    ]  # fmt: skip
    assert twice["next"][1]["note"].endswith("second pass")


async def test_a_gap_may_be_skipped(rig):
    found = await preview(rig, **PARIS, after="2026-03-28T12:00:00Z", n=1, on_gap="skip")

    assert found["next"][0]["at"] == "2026-03-30T00:30:00.000Z"
    assert "no run for it" in found["next"][0]["note"]


@pytest.mark.parametrize(
    ("rule", "first", "sentence"),
    [
        ({"interval": "15m"}, "2026-03-02T10:15:00.000Z", "Every 15 minutes"),
        ({"interval": 60, "start_at": "2026-03-02T09:00:30Z"}, "2026-03-02T10:00:30.000Z",
         "Every minute, from 2026-03-02T09:00:30.000Z"),
        ({"rrule": "FREQ=DAILY;BYHOUR=9"}, "2026-03-03T09:00:00.000Z", "Every day at 09:00, UTC"),
        ({"delay": "5m"}, "2026-03-02T10:05:00.000Z", "5 minutes after each run has ended"),
    ],
)  # fmt: skip
async def test_every_kind_of_rule(rig, rule, first, sentence):
    found = await preview(rig, **rule, after="2026-03-02T10:00:00Z")

    assert found["next"][0]["at"] == first
    assert found["description"] == sentence


async def test_from_now_on_and_ten_unless_said_otherwise(rig, monkeypatch):
    monkeypatch.setattr("tasksched.clock.wall_ms", lambda: 1_772_445_600_000)
    found = await preview(rig, cron="0 * * * *", after=None, n=None)

    assert len(found["next"]) == 10
    assert found["next"][0]["at"] == "2026-03-02T11:00:00.000Z"


async def test_a_local_after_is_of_the_zone(rig):
    found = await preview(rig, **PARIS, after="2026-03-02T02:30:00", n=1)

    assert found["next"][0]["at"] == "2026-03-03T01:30:00.000Z"


async def test_a_rule_that_ends(rig):
    found = await preview(
        rig, cron="@daily", after="2026-03-01T12:00:00Z", end_at="2026-03-03T00:00:00Z"
    )
    over = await preview(rig, cron="@daily", after="2030-01-01T00:00:00Z", end_at="2029-01-01T00:00:00Z")  # fmt: skip

    assert len(found["next"]) == 2
    assert over["next"] == []


@pytest.mark.parametrize(
    "rule", [{"cron": "* * * * *"}, {"rrule": "FREQ=MINUTELY"}, {"interval": 1}, {"cron": "0 0 29 2 *"}],
)  # fmt: skip
@pytest.mark.parametrize(
    "after", ["0001-01-01T00:00:00Z", "2026-10-25T00:00:00Z", "2200-01-01T00:00:00Z"]
)
async def test_a_thousand_are_quick_at_any_time(rig, rule, after):
    began = time.perf_counter()
    found = await preview(rig, **rule, timezone="Europe/Paris", after=after, n=1_000)

    assert time.perf_counter() - began < 3
    assert len(found["next"]) == 1_000 or after.startswith("2200") or "29" in str(rule)


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, [""]), ([], [""]), ({"cron": "x", "timezone": "y", "after": 5, "n": 0, "z": 1},
                                 ["/z", "/cron", "/timezone", "/after", "/n"]),
        *(({"cron": "@daily", "n": n}, ["/n"]) for n in (0, 1_001, -1, 1.5, "5", True, 10**40)),
        ({"cron": "@daily", "target": {}}, ["/target"]),
        ({"cron": "@daily", "interval": 5}, ["/cron", "/interval"]),
        ({"cron": "0 0 31 2 *"}, ["/cron"]), ({"interval": 0.5}, ["/interval"]),
        ({"cron": "@daily", "after": "2011-12-30T12:00:00", "timezone": "Pacific/Apia"}, ["/after"]),
    ],
)  # fmt: skip
async def test_every_wrong_member_is_named(rig, body, wrong):
    answer = await rig.ask("POST", "/preview", body)

    assert sorted(pointers(assert_problem(answer, 422))) == sorted(wrong)


async def test_no_store_is_asked(rig):
    before = await rig.evalshas()
    await preview(rig, **PARIS)

    assert await rig.evalshas() == before
    assert (await rig.ask("GET", PATH)).json()["items"] == []
