"""Previews, and what they say of the clock's changes."""

import pytest

from tasksched.model.instants import parse_instant
from tasksched.model.schedule import Cron, Delay, Every, RRule
from tasksched.model.schedule.preview import PREVIEW_MAX, preview

SPRING = parse_instant("2026-03-28T00:00:00Z")
AUTUMN = parse_instant("2026-10-24T00:00:00Z")


def told(rule, after_ms: int, n: int) -> list[tuple[str, str | None]]:
    return [(fire.local, fire.note) for fire in preview(rule, after_ms, n)]


def test_a_gap_is_made_up_for():
    assert told(Cron("30 2 * * *", tz="Europe/Paris"), SPRING, 3) == [
        ("2026-03-28T02:30:00+01:00", None),
        ("2026-03-29T03:00:00+02:00", "02:30 does not exist on 29 March 2026: runs at 03:00"),
        ("2026-03-30T02:30:00+02:00", None),
    ]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("0,30 2 * * *", "02:00 and 02:30 do not exist on 29 March 2026: one run at 03:00"),
        ("0-59/15 2 * * *", "02:00 to 02:45 do not exist on 29 March 2026: one run at 03:00"),
        ("0 2,3 * * *", "02:00 does not exist on 29 March 2026: runs at 03:00"),
    ],
)
def test_what_collapses_is_one_run(text, note):
    notes = [note for _, note in told(Cron(text, tz="Europe/Paris"), SPRING, 9) if note]
    assert notes == [note]


def test_what_is_not_made_up_for_is_told_at_the_run_after_it():
    skip = Cron("30 2 * * *", tz="Europe/Paris", on_gap="skip")
    assert told(skip, SPRING, 2)[1] == (
        "2026-03-30T02:30:00+02:00",
        "02:30 does not exist on 29 March 2026: no run for it",
    )
    wildcard = Cron("*/15 2 * * *", tz="Europe/Paris")
    notes = [note for _, note in told(wildcard, SPRING, 6) if note]
    assert notes == ["02:00 to 02:45 do not exist on 29 March 2026: no run for them"]
    samoa = Cron("0 12 * * *", tz="Pacific/Apia")
    assert told(samoa, parse_instant("2011-12-29T23:00:00Z"), 1) == [
        ("2011-12-31T12:00:00+14:00", "12:00 does not exist on 30 December 2011: no run for it")
    ]


def test_each_pass_of_a_fold_says_which_it_is():
    twice = "02:30 happens twice on 25 October 2026: "
    first = Cron("30 2 * * *", tz="Europe/Paris")
    assert told(first, AUTUMN, 3) == [
        ("2026-10-24T02:30:00+02:00", None),
        ("2026-10-25T02:30:00+02:00", twice + "first pass only"),
        ("2026-10-26T02:30:00+01:00", None),
    ]
    for rule in (
        Cron("30 2 * * *", tz="Europe/Paris", on_fold="both"),
        Cron("30 * * * *", tz="Europe/Paris"),
    ):
        assert [fire for fire in told(rule, AUTUMN, 40) if fire[1]] == [
            ("2026-10-25T02:30:00+02:00", twice + "first pass"),
            ("2026-10-25T02:30:00+01:00", twice + "second pass"),
        ]


def test_a_gap_over_midnight_names_both_days():
    # Pyongyang, 4 May 2018: the clock went from 23:30 to 00:00.
    rule = Cron("45 23 * * *", tz="Asia/Pyongyang")
    assert told(rule, parse_instant("2018-05-03T20:00:00Z"), 1) == [
        ("2018-05-05T00:00:00+09:00", "23:45 does not exist on 4 May 2018: runs at 00:00")
    ]
    skipping = Cron("*/30 * * * *", tz="Pacific/Apia")
    notes = [note for _, note in told(skipping, parse_instant("2011-12-30T09:00:00Z"), 4) if note]
    assert notes == ["00:00 to 23:30 do not exist on 30 December 2011: no run for them"]


def test_rules_without_a_schedule_are_treated_as_created_then():
    assert told(Every("15m"), SPRING, 2) == [
        ("2026-03-28T00:15:00+00:00", None),
        ("2026-03-28T00:30:00+00:00", None),
    ]
    assert told(RRule("FREQ=DAILY;BYHOUR=9", tz="Europe/Paris"), SPRING, 1) == [
        ("2026-03-28T09:00:00+01:00", None)
    ]
    assert told(Delay("90s"), SPRING, 5) == [
        ("2026-03-28T00:01:30+00:00", "later runs count from the end of the run before")
    ]


def test_an_interval_of_days_says_when_its_local_hour_moves():
    rule = Every("1d", tz="America/New_York", start_at="2026-10-31T13:00:00Z")
    assert told(rule, parse_instant("2026-10-31T12:00:00Z"), 3) == [
        ("2026-10-31T09:00:00-04:00", None),
        (
            "2026-11-01T08:00:00-05:00",
            "the clock changed: an interval counts elapsed time, so it moves from 09:00 to 08:00",
        ),
        ("2026-11-02T08:00:00-05:00", None),
    ]


def test_it_ends_with_the_rule_and_with_its_bound():
    rule = Cron("* * * * *", end_at="2026-03-28T00:02:00Z")
    assert len(preview(rule, SPRING, 10)) == 2
    assert len(preview(Cron("* * * * * *"), SPRING, 10**6)) == PREVIEW_MAX


def test_odd_offsets_and_fractions_are_told():
    early = Cron("0 0 1 1 *", tz="Europe/Amsterdam")
    assert (
        told(early, parse_instant("1800-01-01T00:00:00Z"), 1)[0][0]
        == "1801-01-01T00:00:00+00:17:30"
    )
    fine = Every(1.5, start_at="2026-03-28T00:00:00.250Z", tz="Asia/Kathmandu")
    assert told(fine, SPRING, 2)[1][0] == "2026-03-28T05:45:01.750+05:45"
    oldest = Every("1d", start_at="0001-01-01T00:00:00Z", tz="America/New_York")
    assert told(oldest, -(2**60), 1)[0][0] == "0000-12-31T19:03:58-04:56:02"
    west = Cron("0 0 * * *", tz="America/St_Johns")
    assert told(west, SPRING, 1)[0][0] == "2026-03-28T00:00:00-02:30"
