"""Sets of local times: all wall-clock readings that a rule names, whatever the zone.

Owns the search in such a set: the next and the last member, and their number between two. Members
are local seconds (``civil``). A set is a set of days, one mask a year, and for each day a set of
minutes (a mask of 1440 bits) and of seconds (60 bits), so every question is a few shifts, however
dense or sparse the rule is. Invariants: a day in the mask has at least one member; nothing lies
outside the calendar, so a search over a set that is empty from some year on ends after that many
steps. Deliberately not here: what a zone's clock makes of a local time (``slots``).
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import Final

from tasksched.model.schedule.civil import (
    DAY_S,
    FIRST_DAY,
    FIRST_YEAR,
    LAST_DAY,
    LAST_YEAR,
    YEAR_BITS,
    YEAR_KINDS,
    YEAR_STARTS,
)

MINUTES_PER_DAY: Final = 1440
ALL_MINUTES: Final = (1 << MINUTES_PER_DAY) - 1


class LocalTimes(ABC):
    """A set of local seconds: days x minutes of the day x seconds of the minute."""

    __slots__ = ("_first_second", "_last_second", "_seconds", "_seconds_count")

    def __init__(self, seconds: int) -> None:
        assert seconds, "a set without seconds has no members"
        self._seconds = seconds
        self._seconds_count = seconds.bit_count()
        self._first_second = (seconds & -seconds).bit_length() - 1
        self._last_second = seconds.bit_length() - 1

    @abstractmethod
    def days(self, year: int) -> int:
        """The days of the year that have a member; bit 0 is 1 January."""

    @abstractmethod
    def minutes(self, day: int) -> int:
        """The minutes of the day number ``day``, if it is one of ``days``."""

    @abstractmethod
    def count_days(self, first: int, last: int, most: int) -> int:
        """The members on the whole days ``first`` to ``last``, or some number of at least ``most``."""

    def ceiling(self, local_s: int) -> int | None:
        """The first member at or after ``local_s``, None if there is none."""
        day, time_s = divmod(local_s, DAY_S)
        found = self.day_from(day)
        if found is None:
            return None
        if found == day:
            minute, second = divmod(time_s, 60)
            later = self.minutes(day) >> minute
            if later & 1:
                seconds = self._seconds >> second
                if seconds:
                    return local_s + (seconds & -seconds).bit_length() - 1
            later &= ~1
            if later:
                minute += (later & -later).bit_length() - 1
                return day * DAY_S + minute * 60 + self._first_second
            found = self.day_from(day + 1)
            if found is None:
                return None
        minutes = self.minutes(found)
        minute = (minutes & -minutes).bit_length() - 1
        return found * DAY_S + minute * 60 + self._first_second

    def floor(self, local_s: int) -> int | None:
        """The last member at or before ``local_s``, None if there is none."""
        day, time_s = divmod(local_s, DAY_S)
        found = self.day_until(day)
        if found is None:
            return None
        if found == day:
            minute, second = divmod(time_s, 60)
            minutes = self.minutes(day)
            if minutes >> minute & 1:
                seconds = self._seconds & ((2 << second) - 1)
                if seconds:
                    return day * DAY_S + minute * 60 + seconds.bit_length() - 1
            minutes &= (1 << minute) - 1
            if minutes:
                return day * DAY_S + (minutes.bit_length() - 1) * 60 + self._last_second
            found = self.day_until(day - 1)
            if found is None:
                return None
        return found * DAY_S + (self.minutes(found).bit_length() - 1) * 60 + self._last_second

    def count(self, from_s: int, to_s: int, most: int) -> int:
        """The number of members in [from_s, to_s), or some number of at least ``most``."""
        if to_s <= from_s:
            return 0
        first, from_time = divmod(from_s, DAY_S)
        last, to_time = divmod(to_s, DAY_S)
        if first == last:
            return self._count_before(first, to_time) - self._count_before(first, from_time)
        ends = self._count_before(first, DAY_S) - self._count_before(first, from_time)
        ends += self._count_before(last, to_time)
        return ends + self.count_days(first + 1, last - 1, most)

    def _count_before(self, day: int, time_s: int) -> int:
        if self.day_from(day) != day:
            return 0
        minute, second = divmod(time_s, 60)
        minutes = self.minutes(day)
        found = (minutes & ((1 << minute) - 1)).bit_count() * self._seconds_count
        if minutes >> minute & 1:
            found += (self._seconds & ((1 << second) - 1)).bit_count()
        return found

    def day_from(self, day: int) -> int | None:
        """The first day with a member, not before ``day``."""
        day = max(day, FIRST_DAY)
        year = bisect_right(YEAR_STARTS, day)
        if year > LAST_YEAR:
            return None
        mask = self.days(year) >> (day - YEAR_STARTS[year - 1])
        while not mask:
            year += 1
            if year > LAST_YEAR:
                return None
            day = YEAR_STARTS[year - 1]
            mask = self.days(year)
        return day + (mask & -mask).bit_length() - 1

    def day_until(self, day: int) -> int | None:
        """The last day with a member, not after ``day``."""
        day = min(day, LAST_DAY)
        year = bisect_right(YEAR_STARTS, day)
        if year < FIRST_YEAR:
            return None
        mask = self.days(year) & ((2 << (day - YEAR_STARTS[year - 1])) - 1)
        while not mask:
            year -= 1
            if year < FIRST_YEAR:
                return None
            mask = self.days(year)
        return YEAR_STARTS[year - 1] + mask.bit_length() - 1


class SameEveryDay(LocalTimes):
    """The same minutes on every day of the set: any cron expression, most recurrence rules."""

    __slots__ = ("_minutes",)

    def __init__(self, minutes: int, seconds: int) -> None:
        assert minutes, "a set without minutes has no members"
        super().__init__(seconds)
        self._minutes = minutes

    def minutes(self, day: int) -> int:  # noqa: ARG002 - every day is like the other
        return self._minutes

    def count_days(self, first: int, last: int, most: int) -> int:
        each = self._minutes.bit_count() * self._seconds_count
        return each * count_days(self, first, last, most)


class CalendarTimes(SameEveryDay):
    """Days that depend on the kind of the year alone, in all years or in some."""

    __slots__ = ("_by_kind", "_years")

    def __init__(
        self, by_kind: tuple[int, ...], minutes: int, seconds: int, *, years: frozenset[int] | None
    ) -> None:
        super().__init__(minutes, seconds)
        self._by_kind = by_kind
        self._years = years

    def days(self, year: int) -> int:
        if self._years is not None and year not in self._years:
            return 0
        return self._by_kind[YEAR_KINDS[year - 1]]


def count_days(times: LocalTimes, first: int, last: int, most: int) -> int:
    """How many days of the set lie in ``first`` to ``last``, or some number of at least ``most``."""
    total = 0
    first, last = max(first, FIRST_DAY), min(last, LAST_DAY)
    while first <= last and total < most:
        year = bisect_right(YEAR_STARTS, first)
        start = YEAR_STARTS[year - 1]
        mask = times.days(year) >> (first - start) << (first - start)
        if last < YEAR_STARTS[year]:
            mask &= (2 << (last - start)) - 1
        total += (mask & YEAR_BITS).bit_count()
        first = YEAR_STARTS[year]
    return total
