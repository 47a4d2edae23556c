"""Recurrence rules: the RFC's own examples, dateutil where it is a witness, and the clock's seams."""

import re
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.model.schedule.oracle import clock_changes, examples

from tasksched.errors import Invalid
from tasksched.model.instants import format_instant, parse_instant
from tasksched.model.schedule import Cron, RRule, require_first

NEW_YORK = "America/New_York"
EPOCH = datetime(1970, 1, 1)


def local_days(text: str, start: str, n: int, tz: str = "UTC") -> list[str]:
    rule = RRule(text, tz=tz, start_at=start)
    return [format_instant(at)[:10] for at in rule.between(-(2**60), 2**60, n)]


@pytest.mark.parametrize(
    ("text", "days"),
    [
        # RFC 5545, 3.8.5.3: DTSTART 1997-09-02 09:00 New York, unless the example has another.
        ("FREQ=DAILY;COUNT=3", "1997-09-02 1997-09-03 1997-09-04"),
        ("FREQ=DAILY;INTERVAL=10;COUNT=5", "1997-09-02 1997-09-12 1997-09-22 1997-10-02 1997-10-12"),
        ("FREQ=WEEKLY;COUNT=3", "1997-09-02 1997-09-09 1997-09-16"),
        ("FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,TH;COUNT=4", "1997-09-02 1997-09-04 1997-09-16 1997-09-18"),
        ("FREQ=MONTHLY;COUNT=3;BYDAY=1FR", "1997-09-05 1997-10-03 1997-11-07"),
        ("FREQ=MONTHLY;INTERVAL=2;COUNT=4;BYDAY=1SU,-1SU", "1997-09-07 1997-09-28 1997-11-02 1997-11-30"),
        ("FREQ=MONTHLY;COUNT=3;BYDAY=-2MO", "1997-09-22 1997-10-20 1997-11-17"),
        ("FREQ=MONTHLY;BYMONTHDAY=-3;COUNT=3", "1997-09-28 1997-10-29 1997-11-28"),
        ("FREQ=MONTHLY;COUNT=4;BYMONTHDAY=1,-1", "1997-09-30 1997-10-01 1997-10-31 1997-11-01"),
        ("FREQ=MONTHLY;INTERVAL=18;COUNT=3;BYMONTHDAY=10,11", "1997-09-10 1997-09-11 1999-03-10"),
        ("FREQ=YEARLY;INTERVAL=3;COUNT=4;BYYEARDAY=1,100,200", "2000-01-01 2000-04-09 2000-07-18 2003-01-01"),
        ("FREQ=YEARLY;BYDAY=20MO;COUNT=2", "1998-05-18 1999-05-17"),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO;COUNT=3", "1998-05-11 1999-05-17 2000-05-15"),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=TH;COUNT=3", "1998-03-05 1998-03-12 1998-03-19"),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13;COUNT=4", "1998-02-13 1998-03-13 1998-11-13 1999-08-13"),
        ("FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13;COUNT=2", "1997-09-13 1997-10-11"),
        ("FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8;COUNT=2", "1997-11-04 2001-11-06"),
        ("FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3", "1997-09-04 1997-10-07 1997-11-06"),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2;COUNT=3", "1997-09-29 1997-10-30 1997-11-27"),
        ("RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;COUNT=2;", "2000-02-29 2004-02-29"),
        # The union of the list, and one day of a week: where dateutil reads the RFC otherwise.
        ("FREQ=MONTHLY;BYDAY=MO,1TU;COUNT=3", "1997-09-02 1997-09-08 1997-09-15"),
        ("FREQ=YEARLY;BYWEEKNO=20;COUNT=2", "1998-05-12 1999-05-18"),
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO;COUNT=2", "1997-12-29 1999-01-04"),
        ("FREQ=YEARLY;BYWEEKNO=53;COUNT=2;BYDAY=FR", "1999-01-01 2004-12-31"),
        ("FREQ=YEARLY;BYWEEKNO=-1;COUNT=2;BYDAY=SU", "1997-12-28 1999-01-03"),
    ],
)  # fmt: skip
def test_examples(text, days):
    found = local_days(text, "1997-09-02T09:00:00", days.count(" ") + 1, NEW_YORK)
    assert days.split() == found


def test_week_start_matters():
    """RFC 5545: the treatment of weeks makes INTERVAL=2 mean other days."""
    monday = local_days(
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", "1997-08-05T09:00:00Z", 9
    )
    sunday = local_days(
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", "1997-08-05T09:00:00Z", 9
    )
    assert ["1997-08-05", "1997-08-10", "1997-08-19", "1997-08-24"] == monday
    assert ["1997-08-05", "1997-08-17", "1997-08-19", "1997-08-31"] == sunday


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    """Rules whose meaning dateutil shares."""
    frequency = draw(
        st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"])
    )
    parts = [f"FREQ={frequency}"]

    def numbers(low: int, high: int, *, signed: bool = False, most: int = 3) -> str:
        found = draw(st.lists(st.integers(low, high), min_size=1, max_size=most))
        return ",".join(str(n * (draw(st.sampled_from([1, -1])) if signed else 1)) for n in found)

    if draw(st.booleans()):
        parts.append(f"INTERVAL={draw(st.integers(1, 40))}")
    if draw(st.booleans()):
        parts.append(f"BYMONTH={numbers(1, 12)}")
    if frequency != "WEEKLY" and draw(st.integers(0, 3)) == 0:
        parts.append(f"BYMONTHDAY={numbers(1, 31, signed=True)}")
    if frequency not in {"MONTHLY", "WEEKLY", "DAILY"} and draw(st.integers(0, 4)) == 0:
        parts.append(f"BYYEARDAY={numbers(1, 366, signed=True, most=12)}")
    with_weeks = frequency == "YEARLY" and draw(st.integers(0, 3)) == 0
    if with_weeks:
        parts.append(f"BYWEEKNO={numbers(1, 53, most=6)}")
    if with_weeks or draw(st.booleans()):
        names = draw(
            st.lists(
                st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"]),
                min_size=1,
                max_size=3,
                unique=True,
            )
        )
        if frequency in {"MONTHLY", "YEARLY"} and not with_weeks and draw(st.booleans()):
            nth = draw(st.sampled_from([1, 2, 3, 4, 5, -1, -2, -5]))
            names = [f"{nth}{name}" for name in names]
        parts.append("BYDAY=" + ",".join(names))
    if draw(st.booleans()):
        parts.append(f"BYHOUR={numbers(0, 23)}")
    if draw(st.booleans()):
        parts.append(f"BYMINUTE={numbers(0, 59)}")
    if draw(st.integers(0, 4)) == 0:
        parts.append(f"BYSECOND={draw(st.integers(0, 59))}")
    if draw(st.integers(0, 4)) == 0 and any(part.startswith("BY") for part in parts):
        parts.append(f"BYSETPOS={numbers(1, 6, signed=True)}")
    if draw(st.integers(0, 3)) == 0:
        parts.append("WKST=SU")
    if draw(st.integers(0, 3)) == 0:
        parts.append(f"COUNT={draw(st.integers(1, 30))}")
    return ";".join(parts)  # fmt: skip


def test_new_years_day_may_be_in_the_last_week_of_the_year_before():
    """Where weeks begin on Sunday, the first of 2010 has four days from the 3rd of January on."""
    rule = RRule(
        "FREQ=YEARLY;BYWEEKNO=52;BYDAY=FR;WKST=SU", start_at=datetime(2009, 12, 20, tzinfo=UTC)
    )
    found = rule.between(ms(datetime(2009, 12, 20)), ms(datetime(2010, 12, 31)), 9)
    assert [ms(datetime(2010, 1, 1)), ms(datetime(2010, 12, 31))] == found


@examples(200)
@given(rule_texts(), st.datetimes(datetime(1995, 1, 1), datetime(2035, 1, 1)))
def test_dateutil_agrees_in_utc(text, start):
    start = start.replace(microsecond=0)
    # Its first week begins with the start, so positions in that week are others.
    skipped = timedelta(days=8 if "WEEKLY" in text and "BYSETPOS" in text else 0)
    assume(not (skipped and "COUNT" in text))
    # It takes the length of this year for that of the last one when it numbers the week that new
    # year's day is in: 2010-01-01 is in week 52 of 2009 where weeks begin on Sunday, and it says 53.
    assume(not re.search(r"BYWEEKNO=[^;]*(?<![-\d])5[23]\b", text))
    try:
        rule = RRule(text, start_at=start.replace(tzinfo=UTC))
    except Invalid as error:
        if "can never fire" not in error.detail:
            raise
        reject()  # dateutil would walk to the year 9999
    days = {"MINUTELY": 40, "HOURLY": 400}.get(rule.parsed.parts.frequency, 4000)
    found = rule.between(ms(start + skipped) - 1, ms(start + timedelta(days=days)), 40)

    assume(found)
    # It looks at UNTIL only once it has found something, so it is asked for no more than is there.
    walk = (ms(at) for at in rrulestr(text, dtstart=start) if at >= start + skipped)
    expected = list(islice(walk, len(found)))

    assert expected == found
    assert rule.count(found[0], found[-1]) == len(found) - 1
    assert rule.newest(found[0] - 1, found[-1], 99) == found


def ms(naive: datetime) -> int:
    return (naive - EPOCH) // timedelta(milliseconds=1)


@examples(60)
@given(
    clock_changes(),
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["next", "skip"]),
    st.sampled_from(["first", "both"]),
)
def test_a_daily_rule_meets_the_clock_as_cron_does(change, hour, minute, on_gap, on_fold):
    tz, at_s = change
    start_ms = (at_s - 5 * 86400) * 1000
    seams = {"tz": tz, "on_gap": on_gap, "on_fold": on_fold}
    daily = RRule(f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute}", **seams).bind("s", start_ms)
    hourly = RRule(f"FREQ=HOURLY;BYMINUTE={minute}", **seams).bind("s", start_ms)
    all_hours = ",".join(map(str, range(24)))
    fixed = RRule(f"FREQ=HOURLY;BYHOUR={all_hours};BYMINUTE={minute}", **seams).bind("s", start_ms)
    for rule, text in (
        (daily, f"{minute} {hour} * * *"),
        (hourly, f"{minute} * * * *"),
        (fixed, f"{minute} 0-23 * * *"),
    ):
        same = Cron(text, **seams)
        until_ms = start_ms + 10 * 86_400_000
        assert same.between(start_ms, until_ms, 500) == rule.between(start_ms, until_ms, 500)
        assert same.is_wildcard == rule.is_wildcard


def test_without_a_start_the_day_of_creation_is_the_start():
    created_ms = parse_instant("2026-03-04T15:16:17.123Z")  # a Wednesday
    cases = {
        "FREQ=DAILY": "2026-03-05T00:00:00.000Z",
        "FREQ=DAILY;BYHOUR=18": "2026-03-04T18:00:00.000Z",
        "FREQ=WEEKLY;BYHOUR=9": "2026-03-11T09:00:00.000Z",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO": "2026-03-16T00:00:00.000Z",
        "FREQ=MONTHLY;BYHOUR=9;BYMINUTE=30": "2026-04-04T09:30:00.000Z",
        "FREQ=HOURLY": "2026-03-04T16:00:00.000Z",
        "FREQ=HOURLY;INTERVAL=5": "2026-03-04T20:00:00.000Z",
        "FREQ=MINUTELY;INTERVAL=7": "2026-03-04T15:17:00.000Z",
    }
    for text, expected in cases.items():
        assert (text, expected) == (
            text,
            format_instant(RRule(text).bind("s", created_ms).first(created_ms)),
        )


def test_count_counts_from_the_creation():
    created_ms = parse_instant("2026-03-04T15:16:17Z")
    rule = RRule("FREQ=HOURLY;COUNT=3").bind("s", created_ms)
    assert [parse_instant(f"2026-03-04T{hour}:00:00Z") for hour in (16, 17, 18)] == rule.between(
        created_ms, 2**60, 9
    )
    assert rule.count(0, 2**60) == 3
    assert rule.previous(2**60) == parse_instant("2026-03-04T18:00:00Z")


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("20260308", "2026-03-08T03:00:00.000Z"),  # all of that day, in New York
        ("20260307T220000", "2026-03-08T03:00:00.000Z"),
        ("20260307T215959", "2026-03-07T03:00:00.000Z"),
        ("20260308T030000Z", "2026-03-08T03:00:00.000Z"),
        ("20260308T025959Z", "2026-03-07T03:00:00.000Z"),
    ],
)
def test_until_is_inclusive(until, last):
    rule = RRule(f"FREQ=DAILY;BYHOUR=22;UNTIL={until}", tz=NEW_YORK, start_at="2026-03-01T00:00:00")
    if until == "20260308":
        last = "2026-03-09T02:00:00.000Z"  # 22:00 on the 8th; the clock has changed that morning
    assert format_instant(rule.previous(2**60)) == last
    assert rule.next(parse_instant(last)) is None


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY", "FREQ=FORTNIGHTLY", "BYDAY=MO", "", "FREQ", "FREQ=", "FREQ=DAILY;;",
        "FREQ=DAILY;FREQ=DAILY", "FREQ=DAILY;COUNT=0", "FREQ=DAILY;COUNT=1001", "FREQ=DAILY;COUNT=x",
        "FREQ=DAILY;INTERVAL=0", "FREQ=DAILY;INTERVAL=10081", "FREQ=DAILY;INTERVAL=-1",
        "FREQ=DAILY;COUNT=1;UNTIL=20260101", "FREQ=DAILY;UNTIL=2026", "FREQ=DAILY;UNTIL=20260230",
        "FREQ=DAILY;UNTIL=20260101T250000", "FREQ=DAILY;UNTIL=99990101", "FREQ=DAILY;UNTIL=24001299",
        "DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "FREQ=DAILY;DTSTART=20260101", "FREQ=DAILY;EXDATE=20260101",
        "FREQ=DAILY;BYEASTER=0", "FREQ=DAILY;BYHOUR=24", "FREQ=DAILY;BYMINUTE=60", "FREQ=DAILY;BYSECOND=60",
        "FREQ=DAILY;BYMONTH=13", "FREQ=DAILY;BYMONTH=-1", "FREQ=DAILY;BYMONTHDAY=0", "FREQ=DAILY;BYMONTHDAY=32",
        "FREQ=DAILY;BYDAY=XX", "FREQ=DAILY;BYDAY=1MO", "FREQ=MONTHLY;BYDAY=6MO", "FREQ=MONTHLY;BYDAY=0MO",
        "FREQ=YEARLY;BYDAY=54MO", "FREQ=YEARLY;BYDAY=+MO", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=1MO",
        "FREQ=MONTHLY;BYWEEKNO=20", "FREQ=DAILY;BYYEARDAY=1", "FREQ=WEEKLY;BYMONTHDAY=1", "FREQ=DAILY;WKST=X",
        "FREQ=DAILY;BYSETPOS=1", "FREQ=MONTHLY;BYDAY=MO;BYSECOND=1,2;BYSETPOS=1", "FREQ=DAILY;BYHOUR=\u0663",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=WEEKLY;BYDAY=MO;BYSETPOS=2", "FREQ=MINUTELY;BYSETPOS=2;BYHOUR=1",
        "FREQ=MONTHLY;BYMONTH=4,6;BYMONTHDAY=31", "FREQ=DAILY;BYHOUR=9;BYSETPOS=5", "FREQ=DAILY;" + "X" * 300,
    ],
)  # fmt: skip
def test_what_is_refused(text):
    with pytest.raises(Invalid) as caught:
        RRule(text)
    assert caught.value.problems[0].pointer == "/rrule"


@pytest.mark.parametrize("value", [None, 5, ["FREQ=DAILY"], b"FREQ=DAILY"])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(Invalid):
        RRule(value)


def test_an_interval_that_meets_none_of_its_times_is_refused_once_its_start_is_known():
    rule = RRule("FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3", start_at="2026-01-01T03:30:00Z")
    assert require_first(rule, 0) == parse_instant("2026-01-01T03:30:00Z")
    with pytest.raises(Invalid):
        RRule("FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3", start_at="2026-01-01T04:00:00Z")


def test_a_start_at_the_begin_of_time_is_one():
    rule = RRule("FREQ=YEARLY", start_at="0001-01-01T00:00:00Z", tz=NEW_YORK)
    assert format_instant(rule.first(-(2**60))) == "0001-01-01T04:56:02.000Z"


def test_count_that_ends_at_the_epoch_ends_there():
    rule = RRule("FREQ=DAILY;COUNT=1", start_at="1970-01-01T00:00:00Z")
    assert rule.between(-(2**60), 2**60, 9) == [0]


def test_a_start_with_milliseconds_begins_with_the_next_second():
    rule = RRule("FREQ=MINUTELY", start_at="2026-01-01T03:30:15.250Z")
    assert rule.first(0) == parse_instant("2026-01-01T03:30:16Z")
    assert rule.next(rule.first(0)) == parse_instant("2026-01-01T03:31:16Z")
