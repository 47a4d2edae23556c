"""What a cron expression may be, and what the refusal of another one says."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.schedule.oracle import examples

from tasksched.errors import Invalid
from tasksched.model.instants import format_instant, parse_instant
from tasksched.model.schedule import Cron, require_first

NOW_MS = parse_instant("2026-01-01T00:00:00Z")


def days(text: str, n: int = 4, after_ms: int = NOW_MS) -> list[str]:
    return [format_instant(at)[:10] for at in Cron(text).between(after_ms, 2**60, n)]


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@ANNUALLY", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("  0\t9 *  * mon ", "0 9 * * MON"),
        ("00 09 * * Mon", "0 9 * * 1"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 1-7/2", "0 0 * * 0,1,3,5"),
        ("0 0 * * FRI-SUN", "0 0 * * 5,6,0"),
        ("0 0 * * SUN-TUE", "0 0 * * 0-2"),
        ("0 0 * * SUN-SUN", "0 0 * * 0"),
        ("0 0 * * 0-SUN", "0 0 * * 0"),
        ("0 0 * * SUN-7", "0 0 * * *"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * 7/2", "0 0 * * 0"),
        ("0 0 * * 1/3", "0 0 * * 1,4"),
        ("0 0 * * fril", "0 0 * * 5L"),
        ("0 0 * * 7L", "0 0 * * SUNL"),
        ("0 0 * * 7#1", "0 0 * * 0#1"),
        ("0 0 L-0 * *", "0 0 L * *"),
        ("*/90 * * * *", "0 * * * *"),
        ("0 0 9 * * 1", "0 9 * * 1"),
        ("0 0 9 * * 1 *", "0 9 * * 1"),
    ],
)
def test_spellings_of_the_same_thing(text, same_as):
    first, second = Cron(text), Cron(same_as)
    assert first.between(NOW_MS, 2**60, 50) == second.between(NOW_MS, 2**60, 50)


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("0 0 L-31 * *", "day-of-month", "L-n takes 0 to 30"),
        ("0 0 32W * *", "day-of-month", "it takes 1 to 31"),
        ("0 0 L-3W * *", "day-of-month", "it takes 1 to 31"),
        ("0 0 * * L", "day-of-week", "write 5L or FRIL"),
        ("0 0 * * L5", "day-of-week", "write 5L or FRIL"),
        ("0 0 * * 1-5#2", "day-of-week", "it takes 0 to 7"),
        ("0 0 ?,1 * *", "day-of-month", "? stands alone"),
        ("0 0 ?/2 * *", "day-of-month", "it takes 1 to 31"),
        ("? * * * *", "minute", "write *"),
        ("*/x * * * *", "minute", "as in */5"),
        ("5/ * * * *", "minute", "as in */5"),
        ("* * * * MO", "day-of-week", "SUN to SAT"),
        ("0 JAN * * *", "hour", "it takes 0 to 23"),
        ("0 0 * * 7-3", "day-of-week", "write 0-3"),
        ("0 0 * DEC-JAN *", "month", "write DEC,JAN"),
        ("0 0 12 1 1 ? 1969", "year", "it takes 1970 to 2200"),
        ("0 0 12 1 1 ? H", "year", "any field but the year"),
        ("R * * * *", "minute", "there is no R"),
        ("H(0-5 * * * *", "minute", "H may stand as"),
        ("H/0 * * * *", "minute", "a step is a whole number"),
        ("0 0 * * H(0-8)", "day-of-week", "it takes 0 to 7"),
    ],
)
def test_a_refusal_names_the_field_and_helps(text, field, hint):
    with pytest.raises(Invalid) as caught:
        Cron(text)
    assert caught.value.extra["field"] == field
    assert hint in caught.value.detail
    assert field in caught.value.detail
    assert caught.value.problems[0].pointer == "/cron"


@pytest.mark.parametrize(
    "value", [None, 5, True, b"* * * * *", ["* * * * *"], "* " * 65, "0\n0 * * *"]
)
def test_what_is_no_line_of_text_is_refused(value):
    with pytest.raises(Invalid):
        Cron(value)


def test_day_words_stay_in_their_month():
    assert ["2026-08-03", "2026-09-01"] == days(
        "0 0 1W * *", 2, parse_instant("2026-07-15T00:00:00Z")
    )
    # 31 January 2026 is a Saturday, 31 May a Sunday; no clamp to the 30th.
    assert ["2026-01-30", "2026-03-31", "2026-05-29", "2026-07-31"] == days("0 0 31W * *")
    assert ["2026-01-30", "2026-02-27", "2026-03-31", "2026-04-30"] == days("0 0 LW * *")
    assert ["2026-01-01", "2026-03-01", "2026-05-01", "2026-07-01"] == days(
        "0 0 L-30 * *", 4, NOW_MS - 1
    )


def test_the_years_bound_a_rule():
    rule = Cron("0 0 12 1 1 ? 2027-2028")
    assert ["2027-01-01", "2028-01-01"] == days("0 0 12 1 1 ? 2027-2028", 9)
    assert rule.next(parse_instant("2028-01-01T12:00:00Z")) is None
    assert rule.previous(parse_instant("2027-01-01T12:00:00Z")) is None
    assert ["2200-01-01"] == days("0 0 0 1 1 ? 2200", 9)


def test_the_search_is_bounded_by_the_calendar():
    rule = Cron("0 0 29 2 *")
    assert format_instant(rule.next(parse_instant("2199-12-31T00:00:00Z"))).startswith("2204-02-29")
    assert rule.next(2**62) is None
    assert rule.previous(-(2**62)) is None
    assert format_instant(rule.next(-(2**62))).startswith("0004-02-29")
    assert format_instant(rule.previous(2**62)).startswith("2400-02-29")


@pytest.mark.parametrize("text", ["30 2 29 3 */7", "*/5 2 29 3 */7"])
def test_what_the_clock_always_jumps_over_never_fires(text):
    """29 March on a Sunday is the day on which the hour from 2 to 3 is missing in Berlin."""
    rule = Cron(text, tz="Europe/Berlin", on_gap="skip")
    with pytest.raises(Invalid) as caught:
        require_first(rule, NOW_MS)
    assert caught.value.problems[0].pointer == "/cron"
    assert require_first(Cron("30 2 29 3 */7", tz="Europe/Berlin"), NOW_MS)


def test_hash_is_a_function_of_the_schedule_alone():
    rule = Cron("H H(0-7) * * *", tz="Europe/Paris")
    first, again, other = (rule.bind(name, 0) for name in ("a", "a", "b"))

    assert first == again != other
    assert first.bind("a", 99) is first
    assert first.canonical() == (
        "cron H H(0-7) * * * seed=a on_gap=next on_fold=first tz=Europe/Paris start=None end=None"
    )
    assert (first.parsed.minute.text, first.parsed.hour.text) == ("3", "5")  # for ever
    hours = [next(iter(rule.bind(str(n), 0).parsed.hour.values)) for n in range(800)]
    assert all(60 < hours.count(hour) < 140 for hour in range(8))  # spread evenly


def test_hash_with_a_step_covers_the_field():
    for n in range(50):
        values = sorted(Cron("H/15 * * * *").bind(str(n), 0).parsed.minute.values)
        assert len(values) == 4
        assert [b - a for a, b in pairwise(values)] == [15, 15, 15]


@examples(200)
@given(st.text(alphabet="0123456789*/-,LWHR#?@()JANMONSUFRI =\t", max_size=40))
def test_no_text_raises_anything_but_invalid(text):
    try:
        rule = Cron(text)
    except Invalid:
        return
    at_ms = rule.next(NOW_MS)
    assert at_ms is None or at_ms > NOW_MS
