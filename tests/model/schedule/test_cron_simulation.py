"""The cron engine against a walk through real time, near every kind of clock change."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.model.schedule.oracle import Meaning, clock_changes, examples, meanings, simulate

from tasksched.errors import Invalid
from tasksched.model.schedule.rules import Cron
from tasksched.model.zones import zone

SEAMS = st.tuples(
    st.sampled_from(["next", "next", "skip"]), st.sampled_from(["first", "first", "both"])
)


def cron(meaning: Meaning, tz: str, seams: tuple[str, str]) -> Cron:
    text = meaning.text
    if meaning.hours == {12}:
        minute, _, rest = text.split(" ", 2)
        text = f"{minute} 12 {rest}"
    try:
        return Cron(text, tz=tz, on_gap=seams[0], on_fold=seams[1])
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
    for earlier, later in pairwise(times):
        assert (
            rule.next(earlier) == later == rule.next(later - 1) == rule.next((earlier + later) // 2)
        )
        assert rule.previous(later) == earlier == rule.previous(earlier + 1)
        assert rule.count(earlier, later) == 1
    for probe_s in range(from_s, until_s, (until_s - from_s) // 40):
        rule.slots.forget()  # or the answer is only remembered
        later = [at_s for at_s in expected if at_s > probe_s]
        if later:
            assert rule.next(probe_s * 1000) == later[0] * 1000
        earlier = [at_s for at_s in expected if at_s < probe_s]
        if earlier:
            assert rule.previous(probe_s * 1000) == earlier[-1] * 1000
        assert rule.count(from_ms, probe_s * 1000) == sum(at_s <= probe_s for at_s in expected)
    for at_ms in times:
        assert rule.count(at_ms - 1, at_ms) == 1
        assert rule.next(rule.previous(at_ms + 1) - 1) == at_ms


@examples(700)
@given(meanings(), clock_changes(), SEAMS, st.integers(-600, 900))
def test_minutes_agree_with_the_clock_on_the_wall(meaning, change, seams, shift_minutes):
    tz, at_s = change
    assume(offsets_are_whole_minutes(zone(tz), at_s))
    rule = cron(meaning, tz, seams)
    from_s = (at_s // 60 + shift_minutes) * 60 - 12 * 3600
    until_s = from_s + 30 * 3600

    check_story(rule, simulate(meaning, zone(tz), from_s, until_s, seams), from_s, until_s)


@examples(60)
@given(meanings(seconds=True), clock_changes(), SEAMS, st.integers(-3600, 3600))
def test_seconds_agree_with_the_clock_on_the_wall(meaning, change, seams, shift_s):
    tz, at_s = change
    rule = cron(meaning, tz, seams)
    from_s = at_s + shift_s - 3600
    until_s = from_s + 4 * 3600

    expected = simulate(meaning, zone(tz), from_s, until_s, seams)

    assume(len(expected) < 2000)
    check_story(rule, expected, from_s, until_s)


@examples(30)
@given(meanings(), clock_changes(years=(1850, 1975)), SEAMS, st.integers(-3600, 3600))
def test_old_clocks_with_odd_seconds_agree_too(meaning, change, seams, shift_s):
    tz, at_s = change
    rule = cron(meaning, tz, seams)
    from_s = (at_s + shift_s - 2 * 3600) | 1  # odd: the walk then goes by seconds
    until_s = from_s + 5 * 3600

    check_story(rule, simulate(meaning, zone(tz), from_s, until_s, seams), from_s, until_s)


@examples(250)
@given(
    meanings(dense=False),
    st.dates(date(1975, 1, 1), date(2190, 1, 1)),
    st.sampled_from(["UTC", "Europe/Paris", "America/Santiago", "Australia/Lord_Howe"]),
)
def test_sparse_days_agree_with_the_calendar(meaning, start, tz):
    rule = cron(replace(meaning, hours=frozenset({12})), tz, ("next", "first"))
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


def offsets_are_whole_minutes(place: ZoneInfo, at_s: int) -> bool:
    offsets = [
        datetime.fromtimestamp(at_s + shift, UTC).astimezone(place).utcoffset()
        for shift in (-86400, 86400)
    ]
    return at_s % 60 == 0 and all(offset.total_seconds() % 60 == 0 for offset in offsets)
