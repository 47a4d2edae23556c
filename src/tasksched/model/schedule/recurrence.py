"""Recurrences: the local times that a completed recurrence rule names.

Owns the meaning of RFC 5545's BY... parts, as masks: what limits a day is an ``&``, what an interval
allows (every third week) is a pattern shifted to the year, and ``BYSETPOS`` picks among the days times
minutes of one period. Invariants: the days of a year follow from that year and its neighbours alone,
so a search skips empty years and never expands occurrences one by one; each day in a mask has a time.
Where the RFC and dateutil differ the RFC is followed: ``BYDAY=MO,1TU`` is a union, and a week number
without ``BYDAY`` means one day of that week. Deliberately not here: text (``rrule``), zones (``slots``).
"""

from functools import lru_cache
from math import gcd
from typing import Final

from tasksched.model.schedule.civil import (
    FIRST_YEAR,
    LAST_YEAR,
    YEAR_BITS,
    YEAR_KINDS,
    YEAR_STARTS,
    bits,
    date_of,
    members,
    month_mask,
    month_starts,
    span,
    weekday_mask,
)
from tasksched.model.schedule.localtimes import (
    MINUTES_PER_DAY,
    Days,
    LocalTimes,
    SameEveryDay,
    VaryingByDay,
)
from tasksched.model.schedule.rrule import Recurrence, period_of

_YEARS_KEPT: Final = 512  # all that a search can meet; a common rule meets two or three
_PATTERNS_KEPT: Final = 512
_WEEK: Final = 7


def local_times(rule: Recurrence) -> LocalTimes | None:
    """The set that the completed ``rule`` names; None if there is no time of day, so that it is empty.

    A set that is not None may still be empty, if no day fits: its ``ceiling`` says so.
    """
    minutes, seconds = _minutes_of_day(rule), bits(rule.by_second)
    if not minutes:
        return None
    days = lru_cache(_YEARS_KEPT)(_DayLimits(rule).days)
    if rule.frequency in {"HOURLY", "MINUTELY"}:
        return _sub_daily(rule, days, minutes, seconds)
    if rule.by_position and rule.frequency != "DAILY":
        return _picked(rule, days, minutes, seconds)
    if rule.interval == 1:
        return SameEveryDay(days, minutes, seconds)
    aligned = lru_cache(_YEARS_KEPT)(lambda year: _in_aligned(rule, days, year))
    return SameEveryDay(aligned, minutes, seconds)


def _minutes_of_day(rule: Recurrence) -> int:
    """The minutes of any day, before an interval of hours or minutes thins them out."""
    of_hour = bits(rule.by_minute or range(60))
    if rule.by_position and rule.frequency == "HOURLY":
        of_hour = bits(_pick(members(of_hour), rule.by_position))
    minutes = sum(of_hour << (60 * hour) for hour in rule.by_hour or range(24))
    if rule.by_position and rule.frequency == "DAILY":
        return bits(_pick(members(minutes), rule.by_position))
    if rule.by_position and rule.frequency == "MINUTELY":
        # A minute holds one occurrence, its one second.
        return minutes if {1, -1} & set(rule.by_position) else 0
    return minutes


def _pick(values: list[int], positions: tuple[int, ...]) -> set[int]:
    """The values at the positions: 1 is the first, -1 the last."""
    return {values[index] for index in _indexes(len(values), positions)}


def _indexes(size: int, positions: tuple[int, ...]) -> list[int]:
    indexes = (place - 1 if place > 0 else size + place for place in positions)
    return [index for index in indexes if 0 <= index < size]


def _shift(mask: int, by: int) -> int:
    """The mask moved to later days, or, if ``by`` is negative, cut off at the begin of the year."""
    return mask << by if by >= 0 else mask >> -by


class _DayLimits:
    """The days that BYMONTH, BYWEEKNO, BYYEARDAY, BYMONTHDAY and BYDAY leave of a year."""

    __slots__ = ("_by_kind", "_nth", "_plain", "_rule")

    def __init__(self, rule: Recurrence) -> None:
        self._rule = rule
        self._plain = [weekday for nth, weekday in rule.by_day if nth == 0]
        self._nth = [(nth, weekday) for nth, weekday in rule.by_day if nth]
        self._by_kind: dict[int, int] = {}

    def days(self, year: int) -> int:
        kind = YEAR_KINDS[year - 1]
        mask = self._by_kind.get(kind)
        if mask is None:
            mask = self._by_kind[kind] = self._of_kind(kind)
        return mask & self._in_weeks(year) if self._rule.by_week else mask

    def _of_kind(self, kind: int) -> int:
        rule = self._rule
        starts = month_starts(kind)
        length = starts[12]
        mask = span(0, length)
        if rule.by_month:
            mask &= bits(
                day for month in rule.by_month for day in range(*starts[month - 1 : month + 1])
            )
        if rule.by_year_day:
            mask &= bits(_pick(list(range(length)), rule.by_year_day))
        if rule.by_month_day:
            mask &= bits(
                day
                for month in range(12)
                for day in _pick(list(range(starts[month], starts[month + 1])), rule.by_month_day)
            )
        if rule.by_day:
            mask &= self._weekdays(kind)
        return mask

    def _weekdays(self, kind: int) -> int:
        rule = self._rule
        found = sum(weekday_mask(kind, weekday) for weekday in set(self._plain))
        periods = [span(0, month_starts(kind)[12])]
        if rule.frequency == "MONTHLY" or rule.by_month:
            periods = [month_mask(kind, month) for month in rule.by_month or range(1, 13)]
        for nth, weekday in self._nth:
            for period in periods:
                found |= bits(_pick(members(period & weekday_mask(kind, weekday)), (nth,)))
        return found

    def _in_weeks(self, year: int) -> int:
        """The days whose week is one of BYWEEKNO. Week 1 is the first with four days in the year."""
        start, weeks = self._week_one(year)
        numbers = {n if n > 0 else weeks + 1 + n for n in self._rule.by_week}
        mask = sum(
            _shift(span(0, _WEEK), start + _WEEK * (n - 1)) for n in numbers if 1 <= n <= weeks
        )
        # The first days may be in the last week of the year before, the last in week 1 of the next.
        length = month_starts(YEAR_KINDS[year - 1])[12]
        if year > FIRST_YEAR and start > 0:
            last = self._week_one(year - 1)[1]
            if {last, -1} & set(self._rule.by_week):
                mask |= span(0, start)
        if year < LAST_YEAR:
            next_start, next_weeks = self._week_one(year + 1)
            if next_start < 0 and {1, -next_weeks} & set(self._rule.by_week):
                mask |= span(length + next_start, -next_start)
        return mask & span(0, length)

    def _week_one(self, year: int) -> tuple[int, int]:
        """The day of the year, from -3 to 3, on which its week 1 begins, and its number of weeks."""
        kind = YEAR_KINDS[year - 1]
        length = month_starts(kind)[12]
        start, next_start = (
            (self._rule.week_start - first + 3) % _WEEK - 3 for first in (kind, kind + length)
        )
        return start, (length + next_start - start) // _WEEK


def _aligned(rule: Recurrence, year: int) -> int:
    """The days of the year that lie in every ``interval``-th period from the phase on."""
    interval, phase = rule.interval, rule.phase
    match rule.frequency:
        case "YEARLY":
            return YEAR_BITS if (year - phase) % interval == 0 else 0
        case "MONTHLY":
            kind = YEAR_KINDS[year - 1]
            return sum(
                month_mask(kind, month)
                for month in range(1, 13)
                if (year * 12 + month - 1 - phase) % interval == 0
            )
        case "WEEKLY":
            first = YEAR_STARTS[year - 1]
            week = period_of("WEEKLY", rule.week_start, first)
            into_week = (first + 4 - rule.week_start) % _WEEK
            start = (phase - week) % interval * _WEEK - into_week
            return _repeat(span(0, _WEEK), interval * _WEEK, start, 366)
        case _:
            start = (phase - YEAR_STARTS[year - 1]) % interval
            return _repeat(1, interval, start, 366)


def _in_aligned(rule: Recurrence, days: Days, year: int) -> int:
    """The days of the year that are left and lie in a period that counts."""
    aligned = _aligned(rule, year)
    return days(year) & aligned if aligned else 0


@lru_cache(_PATTERNS_KEPT)
def _pattern(block: int, step: int, length: int) -> int:
    return sum(block << at for at in range(0, length, step))


def _repeat(block: int, step: int, start: int, length: int) -> int:
    """``length`` bits with ``block`` at ``start`` and every ``step`` after it."""
    if start >= length:
        return 0
    return _shift(_pattern(block, step, length + step), start) & ((1 << length) - 1)


def _sub_daily(rule: Recurrence, days: Days, minutes: int, seconds: int) -> LocalTimes | None:
    """Every ``interval`` hours or minutes: which ones depends on the day, in a cycle of days."""
    if rule.interval == 1:
        return SameEveryDay(days, minutes, seconds)
    per_day = 24 if rule.frequency == "HOURLY" else MINUTES_PER_DAY
    size = MINUTES_PER_DAY // per_day  # minutes in a period
    cycle = rule.interval // gcd(rule.interval, per_day)

    def minutes_of(day: int) -> int:
        start = (rule.phase - day * per_day) % rule.interval
        return minutes & _repeat(
            (1 << size) - 1, rule.interval * size, start * size, MINUTES_PER_DAY
        )

    if cycle == 1:
        left = minutes_of(0)
        return SameEveryDay(days, left, seconds) if left else None
    # The days of the cycle on which a period that counts has a minute, repeated to cover a year.
    of_cycle = bits(
        period // per_day % cycle
        for period in range(rule.phase, rule.phase + cycle * per_day, rule.interval)
        if minutes >> (period % per_day * size) & ((1 << size) - 1)
    )
    if not of_cycle:
        return None
    repeated = _repeat(of_cycle, cycle, 0, cycle + 366)

    def meeting(year: int) -> int:
        return days(year) & (repeated >> (YEAR_STARTS[year - 1] % cycle)) & YEAR_BITS

    return VaryingByDay(lru_cache(_YEARS_KEPT)(meeting), minutes_of, seconds)


def _picked(rule: Recurrence, days: Days, minutes: int, seconds: int) -> LocalTimes | None:
    """BYSETPOS over the days times minutes of each year, month or week."""
    of_day = members(minutes)
    if min(abs(place) for place in rule.by_position) > _longest(rule, days) * len(of_day):
        return None

    @lru_cache(_YEARS_KEPT)
    def picked(year: int) -> dict[int, int]:
        """The picked minutes, by day number, of the periods that touch the year."""
        found: dict[int, int] = {}
        for period in _periods(rule, days, year):
            for index in _indexes(len(period) * len(of_day), rule.by_position):
                day, minute = period[index // len(of_day)], of_day[index % len(of_day)]
                found[day] = found.get(day, 0) | 1 << minute
        return found

    @lru_cache(_YEARS_KEPT)
    def days_of(year: int) -> int:
        first, end = YEAR_STARTS[year - 1], YEAR_STARTS[year]
        return bits(day - first for day in picked(year) if first <= day < end)

    if len(of_day) == 1:
        return SameEveryDay(days_of, minutes, seconds)
    return VaryingByDay(days_of, lambda day: picked(date_of(day)[0])[day], seconds)


def _longest(rule: Recurrence, days: Days) -> int:
    """A number of days that no period exceeds: what is beyond it need not be looked for."""
    if rule.frequency == "WEEKLY":
        return len(rule.by_day)
    if rule.frequency == "YEARLY" or rule.by_week:
        return 366
    years = {kind: number for number, kind in enumerate(YEAR_KINDS, start=FIRST_YEAR)}
    return max(
        (days(year) & month_mask(kind, month)).bit_count()
        for kind, year in years.items()
        for month in range(1, 13)
    )


def _periods(rule: Recurrence, days: Days, year: int) -> list[list[int]]:
    """The days, by number, that are left in each counting period of the year; no empty ones.

    A week that two years share is among the periods of both, whole.
    """
    if rule.frequency == "WEEKLY":
        return _weeks(rule, days, year)
    first = YEAR_STARTS[year - 1]
    masks = [left] if (left := _in_aligned(rule, days, year)) else []
    if left and rule.frequency == "MONTHLY":
        masks = [left & month_mask(YEAR_KINDS[year - 1], month) for month in range(1, 13)]
    return [[first + day for day in members(mask)] for mask in masks if mask]


def _weeks(rule: Recurrence, days: Days, year: int) -> list[list[int]]:
    first, end = YEAR_STARTS[year - 1], YEAR_STARTS[year]
    weeks: dict[int, list[int]] = {}
    for near in range(max(year - 1, FIRST_YEAR), min(year + 1, LAST_YEAR) + 1):
        start = YEAR_STARTS[near - 1]
        for day in members(days(near)):
            if first - _WEEK < start + day < end + _WEEK:
                week = period_of("WEEKLY", rule.week_start, start + day)
                weeks.setdefault(week, []).append(start + day)
    return [found for week, found in weeks.items() if (week - rule.phase) % rule.interval == 0]
