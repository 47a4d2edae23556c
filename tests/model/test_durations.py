"""How long."""

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.model.durations import (
    DAY_MS,
    TEN_YEARS_MS,
    TEXT_MAX,
    format_duration,
    parse_duration,
)

MANY = settings(deadline=None, max_examples=100)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        # seconds as a number
        pytest.param(0, 0, id="time-input-007 zero"),
        pytest.param(600, 600_000, id="time-input-004 a relative delay is real time"),
        (1.5, 1500),
        (0.1, 100),
        (1.001, 1001),
        (-0.0, 0),
        (0.0004, 0),
        (0.0025, 2),
        (315_619_200, TEN_YEARS_MS),
        # timedelta
        (timedelta(hours=1), 3_600_000),
        (timedelta(seconds=1 / 3), 333),
        (timedelta(0), 0),
        # units
        ("1d2h", 93_600_000),
        ("90s", 90_000),
        ("100ms", 100),
        ("1m", 60_000),
        ("1ms", 1),
        ("1m1s1ms", 61_001),
        ("1.5h", 5_400_000),
        ("1d1.5h", 91_800_000),
        ("0.0025s", 2),
        ("0s", 0),
        ("0d0h", 0),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("007s", 7_000),
        ("90m", 5_400_000),
        # ISO 8601
        ("PT1H30M", 5_400_000),
        ("P1W", 604_800_000),
        ("P1DT2H", 93_600_000),
        ("P1W2D", 777_600_000),
        ("PT1M", 60_000),
        ("PT0.5S", 500),
        ("PT0,5S", 500),
        ("PT0S", 0),
        ("P0D", 0),
        ("PT36H", 129_600_000),
    ],
)
def test_each_spelling_is_read_to_the_millisecond(value, ms):
    actual = parse_duration(value, "/delay")

    assert actual == ms
    assert int is type(actual)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("60", "no unit"),
        ("1.5", "no unit"),
        ("-1", "no unit"),
        (True, "boolean"),
        (False, "boolean"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (float("-inf"), "finite"),
        pytest.param(-1, "not negative", id="time-input-007 negative"),
        (-0.0001, "not negative"),
        (timedelta(seconds=-1), "not negative"),
        ("-1s", "no sign"),
        ("+1s", "no sign"),
        ("-PT1H", "no sign"),
        ("2m1h", "units fall"),
        ("1s1m", "units fall"),
        ("1h2m1h", "units fall"),
        ("1h1h", "twice"),
        ("1ms1ms", "twice"),
        ("1.5h1m", "only the last unit"),
        ("PT1.5H1M", "only the last unit"),
        ("", "not empty"),
        ("P1Y", "no fixed length"),
        ("P1M", "no fixed length"),
        ("P1Y2M3DT4H", "no fixed length"),
        ("P", "ISO 8601"),
        ("PT", "ISO 8601"),
        ("P1DT", "ISO 8601"),
        ("P1H", "ISO 8601"),
        ("PT1D", "ISO 8601"),
        ("PT1M1H", "ISO 8601"),
        ("PT1H1H", "ISO 8601"),
        ("pt1h", "1h30m"),
        ("1H", "1h30m"),
        ("1 h", "1h30m"),
        (" 1h", "1h30m"),
        ("1h\n", "1h30m"),
        ("1h 30m", "1h30m"),
        (".5h", "1h30m"),
        ("1.h", "1h30m"),
        ("1,5h", "1h30m"),
        ("1e3s", "1h30m"),
        ("1y", "1h30m"),
        ("5min", "1h30m"),
        ("soon", "1h30m"),
        ("h", "1h30m"),
        ("infs", "1h30m"),
        ("\u0661\u0662s", "1h30m"),
        ("\u00b2h", "1h30m"),
        ("\ud800", "1h30m"),
        ("1" * TEXT_MAX + "s", "at most 64 characters"),
        (None, "null"),
        (b"1s", "bytes"),
        ([1], "list"),
        ({}, "dict"),
        (1 + 2j, "complex"),
        pytest.param(10**15, "at most 3653d", id="time-input-002 delay 1e15"),
        pytest.param(10**18, "at most 3653d", id="time-input-002 delay 1e18"),
        pytest.param(1e308, "at most 3653d", id="time-input-002 delay 1e308"),
        pytest.param(10**400, "at most 3653d", id="ten to the 400"),
        pytest.param(10**5000, "at most 3653d", id="too long to be printed"),
        (timedelta.max, "at most 3653d"),
        ("9" * 60 + "w", "at most 3653d"),
        ("P521W7D", "at most 3653d"),
    ],
)
def test_anything_else_is_refused_with_the_rule(value, rule):
    with pytest.raises(Invalid, match=rule) as caught:
        parse_duration(value, "/delay")

    assert caught.value.problems[0].pointer == "/delay"


def test_both_bounds_are_inclusive_and_named():
    bounds = {"least_ms": 1_000, "most_ms": 60_000}
    assert parse_duration("1s", **bounds) == 1_000
    assert parse_duration("1m", **bounds) == 60_000

    with pytest.raises(Invalid, match="at least 1s"):
        parse_duration("999ms", **bounds)
    with pytest.raises(Invalid, match="at most 1m"):
        parse_duration("1m1ms", **bounds)


def test_ten_calendar_years_fit_whatever_their_leap_days():
    assert parse_duration(timedelta(days=3653)) == TEN_YEARS_MS


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (1_500, "1s500ms"),
        (90_000, "1m30s"),
        (5_400_000, "1h30m"),
        (7 * DAY_MS, "7d"),
        (14 * DAY_MS, "14d"),
        (DAY_MS + 1, "1d1ms"),
        (TEN_YEARS_MS, "3653d"),
    ],
)
def test_the_canonical_text_is_one(ms, text):
    assert format_duration(ms) == text


@given(st.integers(0, TEN_YEARS_MS))
@MANY
def test_the_canonical_text_reads_back_to_the_same_number(ms):
    assert parse_duration(format_duration(ms)) == ms


@given(st.integers(0, TEN_YEARS_MS // 1000 * 1000))
@MANY
def test_number_text_and_timedelta_of_one_length_agree(ms):
    assert parse_duration(ms / 1000) == ms
    assert parse_duration(f"{ms // 1000}.{ms % 1000:03}s") == ms
    assert parse_duration(f"PT{ms // 1000}.{ms % 1000:03}S") == ms
    assert parse_duration(timedelta(milliseconds=ms)) == ms


@given(st.one_of(st.text(), st.text("0123456789.,PTwdhms+- "), st.integers(), st.floats()))
@MANY
@example("9" * TEXT_MAX)
@example(5e-324)
def test_no_text_or_number_raises_anything_but_invalid(value):
    try:
        ms = parse_duration(value)
    except Invalid as error:
        error.detail.encode("ascii")
    else:
        assert 0 <= ms <= TEN_YEARS_MS
