"""Offset tables: where the clock of a zone stands, from the year 1 to the last year of the calendar.

Owns the reading of the compiled zone files of the ``tzdata`` package: their list of clock changes
(RFC 8536) and the rule in their last line for all years after it (a POSIX TZ string). A table is a
sorted list of instants at which the offset from UTC changes, so that a look-up is one bisection and
not a call of ``ZoneInfo``. Invariants: it gives the same offset as ``zoneinfo`` at every instant
(the tests ask both, for every zone); neighbours differ; no two changes are nearer than a day.
Names of the offsets and daylight-saving flags are left out: no rule depends on them.
Deliberately not here: what a change means for a schedule (``slots``).
"""

import re
import struct
from array import array
from bisect import bisect_right
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Final

from tasksched.errors import Invalid
from tasksched.model.schedule.civil import (
    DAY_S,
    FIRST_DAY,
    KINDS,
    LAST_DAY,
    LAST_YEAR,
    YEAR_KINDS,
    YEAR_STARTS,
    month_starts,
)
from tasksched.model.zones import check_timezone

# The table ends with a margin for instants whose local time still lies in the calendar.
EARLIEST_S: Final = (FIRST_DAY - 2) * DAY_S
LATEST_S: Final = (LAST_DAY + 3) * DAY_S
OFFSET_MAX_S: Final = 24 * 3600
"""No zone was ever further from UTC; local mean times reached almost sixteen hours."""

_HEADER = struct.Struct(">4sc15x6l")
_KIND = struct.Struct(">lbb")
_NAME = r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)"
_TIME = r"[+-]?[0-9]{1,3}(?::[0-9]{2}){0,2}"
_FOOTER = re.compile(
    rf"{_NAME}(?P<std>{_TIME})(?:{_NAME}(?P<dst>{_TIME})?,(?P<start>[^,]+),(?P<end>[^,]+))?"
)
_DATE = re.compile(
    rf"(?:M(?P<month>[0-9]+)\.(?P<week>[1-5])\.(?P<weekday>[0-6])|(?P<julian>J?)(?P<day>[0-9]+))"
    rf"(?:/(?P<time>{_TIME}))?"
)


class OffsetTable:
    """The offsets of one zone.

    ``starts[n]`` is the first instant, in seconds since the epoch, of segment ``n``; ``offsets[n]`` is
    what to add there to get local time. The first segment starts at ``EARLIEST_S``; ``starts`` has one
    more entry, ``LATEST_S``, at which the last segment ends.
    """

    __slots__ = ("offsets", "starts")

    def __init__(self, first_offset: int, changes: list[tuple[int, int]]) -> None:
        starts, offsets = [EARLIEST_S], [first_offset]
        for at_s, offset in changes:
            if offset != offsets[-1]:
                starts.append(at_s)
                offsets.append(offset)
        starts.append(LATEST_S)
        assert min(b - a for a, b in pairwise(starts)) >= DAY_S, "clock changes are days apart"
        assert max(map(abs, offsets)) < OFFSET_MAX_S
        self.starts = array("q", starts)
        self.offsets = array("l", offsets)

    def segment(self, at_s: int) -> int:
        """The index of the segment that holds the instant; the outer ones reach without end."""
        return min(max(bisect_right(self.starts, at_s) - 1, 0), len(self.offsets) - 1)

    def offset(self, at_s: int) -> int:
        return self.offsets[self.segment(at_s)]


@cache  # bounded by the number of zone names; about 8 KB each
def offset_table(name: str) -> OffsetTable:
    """The table of the zone ``name``. Raises ``Invalid`` at ``/timezone`` for any other text."""
    parts = check_timezone(name, "/timezone").split("/")
    return read_table(files("tzdata").joinpath("zoneinfo", *parts).read_bytes())


def read_table(data: bytes) -> OffsetTable:
    """A table from the bytes of a TZif file of version 2 or later."""
    magic, version, *counts = _HEADER.unpack_from(data)
    if magic != b"TZif" or version < b"2":
        raise Invalid("the zone data is not a TZif file of version 2 or later", "/timezone")
    # The first block repeats the file for readers of 32-bit times; skip it.
    at = _HEADER.size + _block_size(counts, time_size=4)
    _, _, *counts = _HEADER.unpack_from(data, at)
    at += _HEADER.size
    _, _, _, timecnt, typecnt, _ = counts
    times = struct.unpack_from(f">{timecnt}q", data, at)
    kinds = data[at + 8 * timecnt : at + 9 * timecnt]
    types = [_KIND.unpack_from(data, at + 9 * timecnt + 6 * n) for n in range(typecnt)]
    footer = data[at + _block_size(counts, time_size=8) :].decode("ascii").strip("\n")

    changes = [(time, types[kind][0]) for time, kind in zip(times, kinds, strict=True)]
    # As zoneinfo: before the first change the first standard time holds.
    first = next((offset for offset, is_dst, _ in types if not is_dst), types[0][0])
    changes += _after(footer, changes[-1][0] if changes else EARLIEST_S)
    return OffsetTable(first, [change for change in changes if change[0] > EARLIEST_S + DAY_S])


def _block_size(counts: list[int], time_size: int) -> int:
    isutcnt, isstdcnt, leapcnt, timecnt, typecnt, charcnt = counts
    leaps = leapcnt * (time_size + 4)
    return timecnt * (time_size + 1) + typecnt * _KIND.size + charcnt + leaps + isstdcnt + isutcnt


def _after(footer: str, last_s: int) -> list[tuple[int, int]]:
    """The changes after ``last_s`` that the POSIX TZ string ``footer`` makes in every year."""
    if not footer:
        return []
    found = _FOOTER.fullmatch(footer)
    if found is None:
        raise Invalid(f"the zone data ends in a rule that cannot be read: {footer}", "/timezone")
    if found["start"] is None:
        return []  # the last change in the list holds for ever
    standard = -_seconds(found["std"])
    summer = -_seconds(found["dst"]) if found["dst"] else standard + 3600
    first_year = max(bisect_right(YEAR_STARTS, last_s // DAY_S), 1)
    changes = [
        *((local - standard, summer) for local in _yearly(found["start"], first_year)),
        *((local - summer, standard) for local in _yearly(found["end"], first_year)),
    ]
    return sorted(change for change in changes if last_s < change[0] < LATEST_S - DAY_S)


def _yearly(text: str, first_year: int) -> list[int]:
    """The local second, in each year on, of a date such as ``M3.5.0/2`` (last Sunday of March, 2:00)."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise Invalid(f"the zone data has a date that cannot be read: {text}", "/timezone")
    time_s = _seconds(found["time"]) if found["time"] else 2 * 3600
    day_in_kind = _weekday_in_month if found["month"] else _numbered_day
    days = [day_in_kind(found, kind) for kind in KINDS]
    return [
        (YEAR_STARTS[year - 1] + days[YEAR_KINDS[year - 1]]) * DAY_S + time_s
        for year in range(first_year, LAST_YEAR + 1)
    ]


def _weekday_in_month(found: re.Match[str], kind: int) -> int:
    month, week, weekday = (int(found[name]) for name in ("month", "week", "weekday"))
    starts = month_starts(kind)
    day = starts[month - 1] + (weekday - kind - starts[month - 1]) % 7 + (week - 1) * 7
    return day if day < starts[month] else day - 7  # week 5 means the last one


def _numbered_day(found: re.Match[str], kind: int) -> int:
    day = int(found["day"])
    if not found["julian"]:
        return day
    # J60 is 1 March in every year: 29 February is not counted.
    return day - 1 + (kind >= 7 and day >= 60)


def _seconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")] + [0, 0]
    return sign * (parts[0] * 3600 + parts[1] * 60 + parts[2])
