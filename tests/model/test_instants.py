"""When."""

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.model.instants import (
    EARLIEST_MS,
    HORIZON_MS,
    format_instant,
    parse_bound,
    parse_instant,
)
from tasksched.model.zones import ZONE_NAMES, zone

MANY = settings(deadline=None, max_examples=100)
YEAR_9999_MS = 253_402_300_799_999
PLACES = st.sampled_from(sorted(ZONE_NAMES)).map(zone)


@pytest.mark.parametrize(
    ("value", "utc"),
    [
        pytest.param("2026-03-08T09:00:00Z", "2026-03-08T09:00:00.000Z", id="time-input-008 Z"),
        pytest.param(
            "2026-03-08T09:00:00+05:45", "2026-03-08T03:15:00.000Z", id="time-input-008 offset"
        ),
        pytest.param("2026-03-08 09:00:00Z", "2026-03-08T09:00:00.000Z", id="time-input-008 space"),
        pytest.param(
            "2026-03-08T09:00:00-00:00", "2026-03-08T09:00:00.000Z", id="time-input-008 -00:00"
        ),
        ("2026-03-08t09:00:00z", "2026-03-08T09:00:00.000Z"),
        ("2026-03-08T00:30:00+23:59", "2026-03-07T00:31:00.000Z"),
        ("2026-03-08T09:00:00.5Z", "2026-03-08T09:00:00.500Z"),
        ("2026-03-08T09:00:00.1239Z", "2026-03-08T09:00:00.123Z"),
        ("2026-03-08T09:00:00.999999999Z", "2026-03-08T09:00:00.999Z"),
        ("1969-12-31T23:59:59.9999Z", "1969-12-31T23:59:59.999Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000Z"),
        pytest.param(
            "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z", id="time-input-007 the epoch"
        ),
        pytest.param(
            "1969-12-31T23:59:59Z", "1969-12-31T23:59:59.000Z", id="time-input-007 before it"
        ),
        pytest.param(
            "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z", id="time-input-007 year 1"
        ),
        pytest.param(
            "2099-01-01T00:00:00Z", "2099-01-01T00:00:00.000Z", id="time-input-002 year 2099"
        ),
        ("2200-01-01T00:00:00Z", "2200-01-01T00:00:00.000Z"),
        (datetime(2026, 3, 8, 9, tzinfo=UTC), "2026-03-08T09:00:00.000Z"),
        (datetime(2026, 3, 8, 9, 0, 0, 1999, UTC), "2026-03-08T09:00:00.001Z"),
        (
            datetime(2026, 3, 8, 9, tzinfo=timezone(timedelta(hours=5, minutes=45))),
            "2026-03-08T03:15:00.000Z",
        ),
        (
            datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York")),
            "2026-11-01T05:30:00.000Z",
        ),
        (
            datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=1),
            "2026-11-01T06:30:00.000Z",
        ),
    ],
)
def test_a_time_with_an_offset_is_one_moment(value, utc):
    assert format_instant(parse_instant(value, "/run_at")) == utc


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        pytest.param(
            "2026-03-08T09:00:00", "add Z or an offset, or give timezone", id="time-input-008 local"
        ),
        pytest.param(1772445600, "epoch numbers", id="time-input-009 seconds"),
        pytest.param(1772445600000, "epoch numbers", id="time-input-009 milliseconds"),
        pytest.param(1772445600000000, "epoch numbers", id="time-input-009 microseconds"),
        pytest.param(999999999, "epoch numbers", id="time-input-009 year 2001"),
        pytest.param(10000000000, "epoch numbers", id="time-input-009 year 2286"),
        pytest.param(
            "9999-12-31T23:59:59Z",
            "horizon 2200-01-01T00:00:00.000Z",
            id="time-input-002 year 9999",
        ),
        pytest.param("10000-01-01T00:00:00Z", "years 0001 to 2200", id="time-input-002 year 10000"),
        ("2200-01-01T00:00:00.001Z", "horizon"),
        ("2199-12-31T23:30:00-01:00", "horizon"),
        (datetime.max.replace(tzinfo=UTC), "horizon"),
        ("0001-01-01T00:00:00+00:01", "begin at 0001-01-01T00:00:00.000Z"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "begin at"),
        ("0000-01-01T00:00:00Z", "no such date"),
        (1.5, "epoch numbers"),
        (float("nan"), "epoch numbers"),
        ("1772445600", "epoch numbers"),
        ("-1.5", "epoch numbers"),
        (datetime(2026, 3, 8, 9), "add Z"),
        ("2026-02-29T00:00:00Z", "no such date"),
        ("2026-13-01T00:00:00Z", "no such date"),
        ("2026-00-01T00:00:00Z", "no such date"),
        ("2026-03-08T24:00:00Z", "no such date"),
        ("2026-03-08T09:60:00Z", "no such date"),
        ("2026-03-08T09:00:61Z", "no such date"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2026-03-08T09:00:00+24:00", "at most 23:59"),
        ("2026-03-08T09:00:00+05:60", "at most 23:59"),
        ("2026-W10-7T09:00:00Z", "RFC 3339"),
        ("2026-067T09:00:00Z", "RFC 3339"),
        ("20260308T090000Z", "RFC 3339"),
        ("2026-03-08", "RFC 3339"),
        ("2026-03-08T09:00Z", "RFC 3339"),
        ("2026-03-08T09:00:00.Z", "RFC 3339"),
        ("2026-03-08T09:00:00,5Z", "RFC 3339"),
        ("2026-03-08T09:00:00.1234567890Z", "RFC 3339"),
        ("2026-03-08T09:00:00+0545", "RFC 3339"),
        ("2026-03-08T09:00:00+05", "RFC 3339"),
        ("2026-03-08T09:00:00 Z", "RFC 3339"),
        ("2026-03-08  09:00:00Z", "RFC 3339"),
        (" 2026-03-08T09:00:00Z", "RFC 3339"),
        ("2026-03-08T09:00:00Z\n", "RFC 3339"),
        ("2026-03-08T09:00:00\u221205:00", "RFC 3339"),
        ("\u0662\u0660\u0662\u0666-03-08T09:00:00Z", "RFC 3339"),
        ("2026-03-08T09:00:00[UTC]", "RFC 3339"),
        ("tomorrow", "RFC 3339"),
        ("", "RFC 3339"),
        ("\ud800", "RFC 3339"),
        (None, "null"),
        (True, "bool"),
        (b"2026-03-08T09:00:00Z", "bytes"),
        (date(2026, 3, 8), "date"),
        ([], "list"),
    ],
)
def test_anything_else_is_refused_with_the_rule(value, rule):
    with pytest.raises(Invalid, match=rule) as caught:
        parse_instant(value, "/run_at")

    assert caught.value.problems[0].pointer == "/run_at"


@pytest.mark.parametrize(
    ("local", "name", "utc"),
    [
        pytest.param(
            "2026-03-08T02:30:00",
            "America/New_York",
            "2026-03-08T07:00:00.000Z",
            id="time-input-003 in a gap: its end",
        ),
        pytest.param(
            "2026-11-01T01:30:00",
            "America/New_York",
            "2026-11-01T05:30:00.000Z",
            id="time-input-003 repeated: the first pass",
        ),
        ("2026-07-01 12:00:00.250", "Europe/Berlin", "2026-07-01T10:00:00.250Z"),
        ("2026-10-04T02:29:59", "Australia/Lord_Howe", "2026-10-03T15:30:00.000Z"),
        ("2026-03-29T02:59:59", "Antarctica/Troll", "2026-03-29T01:00:00.000Z"),
        ("2010-01-01T12:00:00", "America/Danmarkshavn", "2010-01-01T12:00:00.000Z"),
        ("0001-01-01T00:00:00", "America/New_York", "0001-01-01T04:56:02.000Z"),
        ("1969-09-30T12:00:00", "Pacific/Kwajalein", "1969-09-30T01:00:00.000Z"),
        (datetime(2026, 11, 1, 1, 30), "America/New_York", "2026-11-01T05:30:00.000Z"),
        (datetime(2026, 11, 1, 1, 30, fold=1), "America/New_York", "2026-11-01T06:30:00.000Z"),
    ],
)
def test_a_local_time_with_a_timezone_is_one_moment(local, name, utc):
    assert format_instant(parse_instant(local, timezone=name)) == utc


@pytest.mark.parametrize(
    ("local", "name"),
    [
        pytest.param("2011-12-30T12:00:00", "Pacific/Apia", id="time-input-003 Samoa"),
        ("1993-08-21T12:00:00", "Pacific/Kwajalein"),
        ("1994-12-31T12:00:00", "Pacific/Kiritimati"),
    ],
)
def test_a_local_day_that_was_left_out_is_refused(local, name):
    with pytest.raises(Invalid, match=f"does not exist in {name}"):
        parse_instant(local, timezone=name)


def test_a_gap_of_three_hours_is_bridged():
    """Casey went from +08 to +11 in October 2020, the largest jump that is still bridged."""
    at_ms = parse_instant("2020-10-04T01:00:00", timezone="Antarctica/Casey")

    assert format_instant(at_ms) == "2020-10-03T16:01:00.000Z"


@pytest.mark.parametrize(
    "value", ["2026-03-08T09:00:00Z", "2026-03-08T09:00:00+01:00", datetime(2026, 3, 8, tzinfo=UTC)]
)
def test_an_offset_and_a_timezone_together_are_refused(value):
    with pytest.raises(Invalid, match="drop one"):
        parse_instant(value, "/run_at", timezone="Europe/Berlin")


def test_a_bad_timezone_is_named_at_its_own_pointer():
    for parse in (parse_instant, parse_bound):
        with pytest.raises(Invalid) as caught:
            parse("2026-03-08T09:00:00", "/run_at", timezone="europe/berlin")

        assert caught.value.problems[0].pointer == "/timezone"


def test_a_bound_of_a_rule_may_have_its_own_offset():
    assert parse_bound("1970-01-01T01:00:00+01:00", timezone="America/New_York") == 0
    assert parse_bound("1970-01-01T01:00:00", timezone="Africa/Lagos") == 0


@pytest.mark.parametrize("error", [ValueError, TypeError, OverflowError])
def test_a_datetime_that_cannot_tell_its_offset_is_refused(error):
    class Broken(tzinfo):
        def utcoffset(self, _):
            raise error

    with pytest.raises(Invalid, match="offset"):
        parse_instant(datetime(2026, 3, 8, tzinfo=Broken()))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (EARLIEST_MS, "0001-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (HORIZON_MS, "2200-01-01T00:00:00.000Z"),
        pytest.param(YEAR_9999_MS, "9999-12-31T23:59:59.999Z", id="time-input-001 last ms"),
    ],
)
def test_the_text_is_always_utc_with_milliseconds(ms, text):
    assert format_instant(ms) == text


@given(st.integers(EARLIEST_MS, HORIZON_MS))
@MANY
def test_the_text_reads_back_to_the_same_number(ms):
    assert parse_instant(format_instant(ms)) == ms


@given(st.integers(EARLIEST_MS, YEAR_9999_MS))
@MANY
def test_every_moment_of_the_calendar_has_a_text_of_one_length(ms):
    assert len(format_instant(ms)) == 24


@given(st.datetimes(max_value=datetime(2199, 12, 30), timezones=PLACES))
@MANY
def test_a_datetime_and_its_text_are_one_moment(value):
    offset = value.utcoffset()
    if offset % timedelta(minutes=1):
        return  # RFC 3339 has no seconds in an offset

    assert outcome(value) == outcome(value.isoformat())


def outcome(value):
    try:
        return parse_instant(value)
    except Invalid as error:
        return error.detail


@given(
    st.one_of(
        st.text(),
        st.text("0123456789-:.TZ+ "),
        st.builds(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{}".format,
            st.integers(0, 2201),
            *[st.integers(0, most) for most in (13, 32, 25, 61, 61)],
            st.sampled_from(["", "Z", ".5Z", "+14:00", "-23:59", "+24:00", "+99:99"]),
        ),
        st.integers(),
        st.floats(),
    ),
    st.one_of(st.none(), st.text(), st.sampled_from(["UTC", "Pacific/Apia", "Antarctica/Troll"])),
)
@MANY
@example("9" * 5000, None)
@example(10**5000, None)
def test_no_text_or_number_raises_anything_but_invalid(value, name):
    try:
        ms = parse_instant(value, timezone=name)
    except Invalid as error:
        error.detail.encode("ascii")
    else:
        assert EARLIEST_MS <= ms <= HORIZON_MS
