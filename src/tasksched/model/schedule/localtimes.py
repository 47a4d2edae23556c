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
from collections.abc import Callable, Iterator
from typing import Final

from tasksched.model.schedule.civil import (
    DAY_S,
    FIRST_DAY,
    FIRST_YEAR,
    LAST_DAY,
    LAST_YEAR,
    YEAR_STARTS,
    members,
)

MINUTES_PER_DAY: Final = 1440
ALL_MINUTES: Final = (1 << MINUTES_PER_DAY) - 1

Days = Callable[[int], int]
"""From a year to the mask of its days that have a member; bit 0 is 1 January."""


class LocalTimes(ABC):
    """A set of local seconds: days x minutes of the day x seconds of the minute."""

    __slots__ = ("_first_second", "_last_second", "_seconds_count", "days", "seconds")

    def __init__(self, days: Days, seconds: int) -> None:
        assert seconds, "a set without seconds has no members"
        self.days = days
        self.seconds = seconds
        self._seconds_count = seconds.bit_count()
        self._first_second = (seconds & -seconds).bit_length() - 1
        self._last_second = seconds.bit_length() - 1

    @abstractmethod
    def minutes(self, day: int) -> int:
        """The minutes of the day number ``day``, if it is one of ``days``."""

    @abstractmethod
    def count_days(self, first: int, last: int, most: int) -> int:
        """The members on the whole days ``first`` to ``last``, or some number of at least ``most``."""

    def ceiling(self, local_s: int) -> int | None:
        """The first member at or after ``local_s``, None if there is none."""
        day, time_s = divmod(local_s, DAY_S)
        found = self._day_from(day)
        if found == day:
            minute, second = divmod(time_s, 60)
            later = self.minutes(day) >> minute
            if later & 1:
                seconds = self.seconds >> second
                if seconds:
                    return local_s + (seconds & -seconds).bit_length() - 1
                later ^= 1
            if later:
                minute += (later & -later).bit_length() - 1
                return day * DAY_S + minute * 60 + self._first_second
            found = self._day_from(day + 1)
        if found is None:
            return None
        minutes = self.minutes(found)
        return found * DAY_S + (minutes & -minutes).bit_length() * 60 - 60 + self._first_second

    def floor(self, local_s: int) -> int | None:
        """The last member at or before ``local_s``, None if there is none."""
        day, time_s = divmod(local_s, DAY_S)
        found = self._day_until(day)
        if found == day:
            minute, second = divmod(time_s, 60)
            minutes = self.minutes(day)
            if minutes >> minute & 1:
                seconds = self.seconds & ((2 << second) - 1)
                if seconds:
                    return day * DAY_S + minute * 60 + seconds.bit_length() - 1
            minutes &= (1 << minute) - 1
            if minutes:
                return day * DAY_S + minutes.bit_length() * 60 - 60 + self._last_second
            found = self._day_until(day - 1)
        if found is None:
            return None
        return found * DAY_S + self.minutes(found).bit_length() * 60 - 60 + self._last_second

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

    def nth(self, from_s: int, n: int) -> int | None:
        """The ``n``-th member at or after ``from_s``, None if there are fewer."""
        # Steps double until they hold it, then halve around it.
        size = DAY_S
        while (found := self.count(from_s, from_s + size, n)) < n:
            from_s, n, size = from_s + size, n - found, size * 2
            if from_s >= (LAST_DAY + 1) * DAY_S:
                return None
        while size > 1:
            half = size // 2
            found = self.count(from_s, from_s + half, n)
            if found >= n:
                size = half
            else:
                from_s, n, size = from_s + half, n - found, size - half
        return from_s

    def _count_before(self, day: int, time_s: int) -> int:
        """The members on ``day`` before the time of day ``time_s``."""
        if not self._has_day(day):
            return 0
        minute, second = divmod(time_s, 60)
        minutes = self.minutes(day)
        found = (minutes & ((1 << minute) - 1)).bit_count() * self._seconds_count
        if minutes >> minute & 1:
            found += (self.seconds & ((1 << second) - 1)).bit_count()
        return found

    def _has_day(self, day: int) -> bool:
        if not FIRST_DAY <= day <= LAST_DAY:
            return False
        year = bisect_right(YEAR_STARTS, day)
        return bool(self.days(year) >> (day - YEAR_STARTS[year - 1]) & 1)

    def _day_from(self, day: int) -> int | None:
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

    def _day_until(self, day: int) -> int | None:
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

    def __init__(self, days: Days, minutes: int, seconds: int) -> None:
        assert minutes, "a set without minutes has no members"
        super().__init__(days, seconds)
        self._minutes = minutes

    def minutes(self, day: int) -> int:  # noqa: ARG002 - every day is like the other
        return self._minutes

    def count_days(self, first: int, last: int, most: int) -> int:
        each = self._minutes.bit_count() * self._seconds_count
        total = 0
        for _, mask in _years(self.days, first, last):
            if total >= most:
                break
            total += mask.bit_count() * each
        return total


class VaryingByDay(LocalTimes):
    """Minutes that depend on the day: every 7 minutes, or the last but one hour of a month."""

    __slots__ = ("_minutes_of",)

    def __init__(self, days: Days, minutes: Callable[[int], int], seconds: int) -> None:
        super().__init__(days, seconds)
        self._minutes_of = minutes

    def minutes(self, day: int) -> int:
        return self._minutes_of(day)

    def count_days(self, first: int, last: int, most: int) -> int:
        total = 0
        for start, mask in _years(self.days, first, last):
            if total >= most:
                break
            minutes = sum(self._minutes_of(start + day).bit_count() for day in members(mask))
            total += minutes * self._seconds_count
        return total


class Ending(LocalTimes):
    """Another set, without its members after the local second ``last_s``."""

    __slots__ = ("_last_s", "_times")

    def __init__(self, times: LocalTimes, last_s: int) -> None:
        super().__init__(times.days, times.seconds)
        self._times = times
        self._last_s = last_s

    def minutes(self, day: int) -> int:
        return self._times.minutes(day)

    def count_days(self, first: int, last: int, most: int) -> int:
        return self._times.count_days(first, last, most)

    def ceiling(self, local_s: int) -> int | None:
        found = self._times.ceiling(local_s)
        return found if found is not None and found <= self._last_s else None

    def floor(self, local_s: int) -> int | None:
        return self._times.floor(min(local_s, self._last_s))

    def count(self, from_s: int, to_s: int, most: int) -> int:
        return self._times.count(from_s, min(to_s, self._last_s + 1), most)


def _years(days: Days, first: int, last: int) -> Iterator[tuple[int, int]]:
    """For each year of the days ``first`` to ``last``: its first day there, and its mask from there."""
    first, last = max(first, FIRST_DAY), min(last, LAST_DAY)
    while first <= last:
        year = bisect_right(YEAR_STARTS, first)
        end = min(YEAR_STARTS[year], last + 1)
        mask = days(year) >> (first - YEAR_STARTS[year - 1]) & ((1 << (end - first)) - 1)
        yield first, mask
        first = end
