"""Civil calendar: days, months, years and weekdays as integers and bit masks.

Owns the arithmetic of the proleptic Gregorian calendar that the schedule engine needs. A *day* is a
count from 1970-01-01; a *local second* is ``day * 86400 + seconds since midnight``, that is, a wall
clock read as if it were UTC. A set of days of one year is an integer whose bit ``n`` is the ``n``-th
day of that year, 1 January being bit 0: intersecting two rules is ``&``, and the next day of a set is
its lowest bit. A year has one of fourteen *kinds* (leap or not, and the weekday of its 1 January),
and every such mask is the same for all years of one kind.
Invariant: years run from ``FIRST_YEAR`` to ``LAST_YEAR``; nothing is ever looked for outside of them,
which is what bounds every search. Deliberately not here: zones, and times of the day.
"""

from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import Final

DAY_S: Final = 86_400
FIRST_YEAR: Final = 1
LAST_YEAR: Final = 2400
"""The calendar repeats after 400 years; a rule that has not fired by then is as good as over."""

SUNDAY, MONDAY, FRIDAY, SATURDAY = 0, 1, 5, 6
WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LONGEST_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
YEAR_BITS: Final = (1 << 366) - 1


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _first_day(year: int) -> int:
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 - 719_162


# YEAR_STARTS[y - 1] is 1 January of year y, and bisect_right(YEAR_STARTS, day) is the year of `day`.
YEAR_STARTS: Final = tuple(_first_day(year) for year in range(FIRST_YEAR, LAST_YEAR + 2))
FIRST_DAY: Final = YEAR_STARTS[0]
LAST_DAY: Final = YEAR_STARTS[-1] - 1
CYCLE_DAYS: Final = 146_097  # 400 years, after which the calendar repeats


def weekday_of(day: int) -> int:
    """0 is Sunday, as in cron. 1970-01-01 was a Thursday."""
    return (day + 4) % 7


# The kind of year y, at index y - 1: weekday of its 1 January, plus 7 in a leap year.
YEAR_KINDS: Final = tuple(
    weekday_of(_first_day(year)) + 7 * is_leap(year) for year in range(FIRST_YEAR, LAST_YEAR + 1)
)
KINDS: Final = range(14)

_MONTH_STARTS: Final = tuple(
    tuple(sum(MONTH_DAYS[:month]) + (leap if month > 1 else 0) for month in range(13))
    for leap in (0, 1)
)


def month_starts(kind: int) -> tuple[int, ...]:
    """Day of the year, from 0, on which each of the twelve months begins; then the year's length."""
    return _MONTH_STARTS[kind >= 7]


def day_of(year: int, month: int, day: int) -> int:
    """The day number of a date that exists."""
    return YEAR_STARTS[year - 1] + month_starts(YEAR_KINDS[year - 1])[month - 1] + day - 1


def date_of(day: int) -> tuple[int, int, int]:
    """Year, month and day of the month of a day number, also a little outside of the calendar."""
    if not FIRST_DAY <= day <= LAST_DAY:
        cycles = (day - FIRST_DAY) // CYCLE_DAYS
        year, month, day = date_of(day - cycles * CYCLE_DAYS)
        return year + 400 * cycles, month, day
    year = bisect_right(YEAR_STARTS, day)
    starts = month_starts(YEAR_KINDS[year - 1])
    of_year = day - YEAR_STARTS[year - 1]
    month = bisect_right(starts, of_year)
    return year, month, of_year - starts[month - 1] + 1


def span(first: int, length: int) -> int:
    """The mask of ``length`` days from day ``first`` of the year on."""
    return ((1 << length) - 1) << first


@cache  # 14 kinds, 12 months
def month_mask(kind: int, month: int) -> int:
    starts = month_starts(kind)
    return span(starts[month - 1], starts[month] - starts[month - 1])


@cache  # 14 kinds, 7 weekdays
def weekday_mask(kind: int, weekday: int) -> int:
    first = (weekday - kind) % 7
    return sum(1 << n for n in range(first, month_starts(kind)[12], 7))


def bits(values: Iterable[int]) -> int:
    """The mask with these bits set."""
    return sum(1 << value for value in set(values))


def members(mask: int) -> list[int]:
    """The set bits of a mask, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
