"""The cron engine against a walk through real time, near every kind of clock change."""

from bisect import bisect_left, bisect_right
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.model.schedule.oracle import Meaning, encounters, examples, meanings, simulate

from tasksched.errors import Invalid
from tasksched.model.instants import parse_instant
from tasksched.model.schedule.rules import Cron
from tasksched.model.zones import zone

SEAMS = st.tuples(
    st.sampled_from(["next", "next", "skip"]), st.sampled_from(["first", "first", "both"])
)


def cron(meaning: Meaning, tz: str, seams: tuple[str, str]) -> Cron:
    try:
        return Cron(meaning.text, tz=tz, on_gap=seams[0], on_fold=seams[1])
    except Invalid as error:
        # The strategy knows no length and no calendar; anything else it makes must be legal.
        if "can never fire" not in error.detail and "at most 128" not in error.detail:
            raise
        reject()


def check_story(rule: Cron, expected: list[int], from_s: int, until_s: int) -> None:
    """next, previous, count and between all tell of the same instants."""
    times = [at_s * 1000 for at_s in expected]
    from_ms, until_ms = from_s * 1000, until_s * 1000

    assert times == rule.between(from_ms, until_ms, 10**6)
    assert times == rule.newest(from_ms, until_ms, 10**6)
    assert len(times) == rule.count(from_ms, until_ms, 10**6)
    every = len(times) // 40 + 1
    for earlier, later in list(pairwise(times))[::every]:
        middle = (earlier + later) // 2
        assert rule.next(earlier) == rule.next(middle) == rule.next(later - 1) == later
        assert rule.previous(later) == rule.previous(earlier + 1) == earlier
        assert rule.count(earlier, later) == rule.count(later - 1, later) == 1
    for probe_s in range(from_s, until_s, (until_s - from_s) // 40):
        rule.slots._known = (0, 0)  # or the answer is only remembered
        at = bisect_right(expected, probe_s)
        if at < len(expected):
            assert rule.next(probe_s * 1000) == times[at]
        before = bisect_left(expected, probe_s)
        if before:
            assert rule.previous(probe_s * 1000) == times[before - 1]
        assert rule.count(from_ms, probe_s * 1000) == at


@examples(250)
@given(encounters(), SEAMS, st.integers(-300, 800))
def test_minutes_agree_with_the_clock_on_the_wall(encounter, seams, shift_minutes):
    meaning, tz, at_s = encounter
    assume(offsets_are_whole_minutes(zone(tz), at_s))
    rule = cron(meaning, tz, seams)
    from_s = (at_s // 60 + shift_minutes) * 60 - 10 * 3600
    until_s = from_s + 20 * 3600

    check_story(rule, simulate(meaning, zone(tz), from_s, until_s, seams), from_s, until_s)


@examples(30)
@given(encounters(seconds=True), SEAMS, st.integers(-3600, 3600))
def test_seconds_agree_with_the_clock_on_the_wall(encounter, seams, shift_s):
    meaning, tz, at_s = encounter
    rule = cron(meaning, tz, seams)
    from_s = at_s + shift_s - 3600
    until_s = from_s + 4 * 3600

    expected = simulate(meaning, zone(tz), from_s, until_s, seams)

    assume(len(expected) < 2000)
    check_story(rule, expected, from_s, until_s)


@examples(15)
@given(encounters(years=(1850, 1975)), SEAMS, st.integers(-3600, 3600))
def test_old_clocks_with_odd_seconds_agree_too(encounter, seams, shift_s):
    meaning, tz, at_s = encounter
    rule = cron(meaning, tz, seams)
    from_s = (at_s + shift_s - 2 * 3600) | 1  # odd: the walk then goes by seconds
    until_s = from_s + 5 * 3600

    check_story(rule, simulate(meaning, zone(tz), from_s, until_s, seams), from_s, until_s)


@examples(150)
@given(
    meanings(dense=False),
    st.dates(date(1975, 1, 1), date(2190, 1, 1)),
    st.sampled_from(["UTC", "Europe/Paris", "America/Santiago", "Australia/Lord_Howe"]),
)
def test_sparse_days_agree_with_the_calendar(meaning, start, tz):
    minute, _, days = meaning.text.split(" ", 2)
    at_noon = replace(meaning, text=f"{minute} 12 {days}", hours=frozenset({12}))
    rule = cron(at_noon, tz, ("next", "first"))
    noon = datetime(start.year, start.month, start.day, 12, tzinfo=zone(tz))

    at_ms = rule.next(int(noon.timestamp()) * 1000 - 1)
    back_ms = rule.previous(int(noon.timestamp()) * 1000)

    # The first run is on the first day that matches, the last one on the last, however far they are.
    for found_ms, step in ((at_ms, 1), (back_ms, -1)):
        day = start if step > 0 else start - timedelta(days=1)
        while not meaning.matches_day(day):
            day += timedelta(days=step)
        minute = min(meaning.minutes) if step > 0 else max(meaning.minutes)
        local = datetime.fromtimestamp(found_ms // 1000, zone(tz))
        assert (local.date(), local.hour, local.minute) == (day, 12, minute)


def test_a_sparse_rule_meets_the_passes_of_a_repeated_hour():
    """A search that goes straight to the next year must not pass over what is an hour away."""
    first, second = (parse_instant(f"2026-10-25T{hour}:30:00Z") for hour in ("00", "01"))
    next_year = parse_instant("2027-10-25T00:30:00Z")
    both = Cron("30 2 25 10 *", tz="Europe/Paris", on_fold="both")
    assert [first, second, next_year] == both.between(first - 1, next_year, 9)
    assert both.newest(first - 1, next_year, 9) == [first, second, next_year]
    once = Cron("0 30 2 25 10 ? 2026", tz="Europe/Paris", on_fold="both")
    assert [first, second] == once.between(0, 2**60, 9) == once.newest(0, 2**60, 9)
    only = Cron("30 2 25 10 *", tz="Europe/Paris")
    for minute in (0, 10, 29, 31, 59):
        in_second_pass = parse_instant(f"2026-10-25T01:{minute:02}:00Z")
        assert only.previous(in_second_pass) == first
        assert only.next(in_second_pass) == next_year


def offsets_are_whole_minutes(place: ZoneInfo, at_s: int) -> bool:
    offsets = [
        datetime.fromtimestamp(at_s + shift, UTC).astimezone(place).utcoffset()
        for shift in (-86400, 86400)
    ]
    return at_s % 60 == 0 and all(offset.total_seconds() % 60 == 0 for offset in offsets)
