"""Recurrence rules (RFC 5545 RRULE): from text to a set of local times.

Owns the grammar of ``FREQ=MONTHLY;BYDAY=-1FR`` and its completion from a start: what the text leaves
out (the weekday, the date, the time of day) is taken from the start, as the RFC says. ``recurrence``
turns a completed rule into days and minutes.
Invariants: parsing is bounded by ``LENGTH_MAX`` and ``INTERVAL_MAX``; a rule that parses keeps to the
RFC's table of which parts go with which frequency; two rules that mean the same from now on have
the same ``Recurrence``, whatever their start, so they share one compiled set.
Deliberately not here: ``SECONDLY``; ``DTSTART``, ``EXDATE`` and ``RDATE`` (``start_at`` is the start);
zones, which only the ``UNTIL`` of the caller needs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn, cast

from tasksched.errors import Invalid
from tasksched.model.schedule.civil import DAY_S, LAST_YEAR, date_of, day_of, weekday_of

POINTER: Final = "/rrule"
LENGTH_MAX: Final = 256
INTERVAL_MAX: Final = 10_080  # a week of minutes
COUNT_MAX: Final = 1_000

Frequency = Literal["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]
FREQUENCIES: Final = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")
WEEKDAY_NAMES: Final = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")

# The parts that take a list of numbers: lowest and highest size, and whether -n counts from the end.
_LISTS: Final = {
    "BYMONTH": (1, 12, False),
    "BYWEEKNO": (1, 53, True),
    "BYYEARDAY": (1, 366, True),
    "BYMONTHDAY": (1, 31, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}
_ORDER: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", *_LISTS, "BYDAY", "WKST")
# RFC 5545, 3.3.10: a part that may not stand beside a frequency.
_FORBIDDEN: Final = {
    "BYWEEKNO": {"MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"},
    "BYYEARDAY": {"MONTHLY", "WEEKLY", "DAILY"},
    "BYMONTHDAY": {"WEEKLY"},
}
_ELSEWHERE: Final = {
    "DTSTART": "give the start as start_at",
    "TZID": "give the zone as timezone",
    "EXDATE": "exceptions are not supported",
    "RDATE": "extra dates are not supported",
    "EXRULE": "exceptions are not supported",
    "BYEASTER": "it is no part of RFC 5545",
}
_UNTIL = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:T([0-9]{2})([0-9]{2})([0-9]{2})(Z?))?")


@dataclass(frozen=True, slots=True)
class Until:
    """The inclusive end: a local second, or, if ``is_utc``, a second since the epoch."""

    at_s: int
    is_utc: bool


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The parts of a rule. An empty tuple is a part that is not given.

    ``by_day`` holds (n, weekday) pairs: n is 0 for every such day, Sunday is 0. ``phase`` says which
    periods count: those whose index since 1970, minus ``phase``, is a multiple of ``interval``.
    """

    frequency: Frequency
    interval: int = 1
    by_month: tuple[int, ...] = ()
    by_week: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_day: tuple[tuple[int, int], ...] = ()
    by_hour: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_second: tuple[int, ...] = ()
    by_position: tuple[int, ...] = ()
    week_start: int = 1
    phase: int = 0


@dataclass(frozen=True, slots=True)
class RecurrenceText:
    """A parsed text, before a start is known. ``text`` is its normal form."""

    text: str
    parts: Recurrence
    count: int | None
    until: Until | None

    @property
    def is_wildcard(self) -> bool:
        """Whether the rule runs with the clock, gap or fold, instead of once per local time."""
        return self.parts.frequency in {"HOURLY", "MINUTELY"} and not self.parts.by_hour


def parse_rrule(value: object) -> RecurrenceText:
    """A rule as text, with or without ``RRULE:`` before it. Raises ``Invalid`` at ``/rrule``."""
    given = _split(value)
    frequency = given["FREQ"]
    if frequency == "SECONDLY":
        _refuse("FREQ=SECONDLY is not supported", "use interval for a fixed rate")
    if frequency not in FREQUENCIES:
        _refuse(f"FREQ={frequency} is not known", "it is one of " + " ".join(FREQUENCIES))
    for part, frequencies in _FORBIDDEN.items():
        if part in given and frequency in frequencies:
            _refuse(f"{part} does not go with FREQ={frequency}", "RFC 5545, section 3.3.10")
    if "COUNT" in given and "UNTIL" in given:
        _refuse("COUNT and UNTIL are both given", "drop one of them")
    if "BYSETPOS" in given and not any(
        part.startswith("BY") and part != "BYSETPOS" for part in given
    ):
        _refuse("BYSETPOS stands alone", "it picks from what another BY... part names")
    lists = {part: _numbers(part, given[part]) if part in given else () for part in _LISTS}
    if lists["BYSETPOS"] and len(lists["BYSECOND"]) > 1:
        _refuse("BYSETPOS does not go with several seconds here", "give one BYSECOND")
    parts = Recurrence(
        frequency=cast("Frequency", frequency),
        interval=_number("INTERVAL", given.get("INTERVAL", "1"), 1, INTERVAL_MAX),
        by_month=lists["BYMONTH"],
        by_week=lists["BYWEEKNO"],
        by_year_day=lists["BYYEARDAY"],
        by_month_day=lists["BYMONTHDAY"],
        by_day=_weekdays(given),
        by_hour=lists["BYHOUR"],
        by_minute=lists["BYMINUTE"],
        by_second=lists["BYSECOND"],
        by_position=lists["BYSETPOS"],
        week_start=_week_start(given.get("WKST", "MO")),
    )
    count = _number("COUNT", given["COUNT"], 1, COUNT_MAX) if "COUNT" in given else None
    until = _until(given["UNTIL"]) if "UNTIL" in given else None
    text = ";".join(f"{part}={given[part]}" for part in _ORDER if part in given)
    return RecurrenceText(text, parts, count, until)


def _refuse(problem: str, hint: str) -> NoReturn:
    raise Invalid(f"{problem}; {hint}", POINTER)


def _split(value: object) -> Mapping[str, str]:
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        _refuse(f"a recurrence rule is not {kind}", 'give a string such as "FREQ=DAILY;BYHOUR=9"')
    if len(value) > LENGTH_MAX:
        _refuse("the recurrence rule is too long", f"it has at most {LENGTH_MAX} characters")
    if not value.isascii():
        _refuse("the recurrence rule is not plain ASCII", "write FREQ=DAILY and the like")
    text = value.strip(" ").upper().removeprefix("RRULE:").removesuffix(";")
    given: dict[str, str] = {}
    for item in text.split(";"):
        part, equals, content = item.partition("=")
        if part.partition(":")[0] in _ELSEWHERE:
            _refuse(f"{part} does not belong here", _ELSEWHERE[part.partition(":")[0]])
        if part not in _ORDER or not equals or not content:
            _refuse(f"'{item}' is no part of a recurrence rule", "parts are " + " ".join(_ORDER))
        if part in given:
            _refuse(f"{part} is there twice", "give it once, with a list of values")
        given[part] = content
    if "FREQ" not in given:
        _refuse("FREQ is missing", "start with FREQ=DAILY or the like")
    return given


def _number(part: str, text: str, low: int, high: int) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        hint = " (max_runs bounds a schedule, too)" if part == "COUNT" else ""
        _refuse(f"{part}={text} is out of range", f"it is a number from {low} to {high}{hint}")
    return int(text)


def _numbers(part: str, text: str) -> tuple[int, ...]:
    low, high, signed = _LISTS[part]
    found = set()
    for item in text.split(","):
        digits = item[1:] if signed and item[:1] in {"-", "+"} else item
        size = _number(part, digits, low, high)
        found.add(-size if item.startswith("-") else size)
    return tuple(sorted(found))


def _weekdays(given: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    if "BYDAY" not in given:
        return ()
    found = set()
    for item in given["BYDAY"].split(","):
        match = re.fullmatch(r"([+-]?)([0-9]{0,2})([A-Z]{2})", item)
        if match is None or match[3] not in WEEKDAY_NAMES or (match[1] and not match[2]):
            _refuse(f"BYDAY has '{item}'", "write MO, or 2MO and -1FR in a month or year")
        nth = 0
        if match[2]:
            most = 5 if given["FREQ"] == "MONTHLY" or "BYMONTH" in given else 53
            nth = _number("BYDAY", match[2], 1, most) * (-1 if match[1] == "-" else 1)
            if given["FREQ"] not in {"MONTHLY", "YEARLY"} or "BYWEEKNO" in given:
                _refuse(
                    f"BYDAY has '{item}'", "a number goes with MONTHLY, or YEARLY without weeks"
                )
        found.add((nth, WEEKDAY_NAMES.index(match[3])))
    return tuple(sorted(found))


def _week_start(text: str) -> int:
    if text not in WEEKDAY_NAMES:
        _refuse(f"WKST={text} is no weekday", "it is one of " + " ".join(WEEKDAY_NAMES))
    return WEEKDAY_NAMES.index(text)


def _until(text: str) -> Until:
    """An instant (``Z``), a local time, or a date, which includes all of that day."""
    found = _UNTIL.fullmatch(text)
    if found is None:
        _refuse(f"UNTIL={text} cannot be read", "write 20261231T235959Z, without Z, or 20261231")
    year, month, day, *time = (int(part or 0) for part in found.groups()[:6])
    try:
        is_date = 1 <= year <= LAST_YEAR and 1 <= month <= 12 and day >= 1
        at = day_of(year, month, day) if is_date else 0
        is_date = is_date and date_of(at) == (year, month, day)
    except IndexError:
        is_date = False
    hour, minute, second = time
    if not is_date or hour > 23 or minute > 59 or second > 59:
        _refuse(f"UNTIL={text} is no date or time", "check its digits")
    if found[4] is None:
        return Until(at * DAY_S + DAY_S - 1, is_utc=False)
    return Until(at * DAY_S + hour * 3600 + minute * 60 + second, is_utc=bool(found[7]))


def completed(parts: Recurrence, start_s: int) -> Recurrence:
    """``parts`` with what the local second ``start_s``, the start of the rule, adds to them.

    RFC 5545: "Information, not contained in the rule, necessary to determine the various recurrence
    instance start time and dates are derived from the Start Time". So ``FREQ=WEEKLY`` is on the
    weekday of the start, and ``FREQ=YEARLY;BYWEEKNO=20`` on that weekday, not on all seven.
    """
    day, time_s = divmod(start_s, DAY_S)
    _, month, month_day = date_of(day)
    frequency = parts.frequency
    added: dict[str, Any] = {}
    if not (parts.by_day or parts.by_month_day or parts.by_year_day):
        if frequency == "WEEKLY" or parts.by_week:
            added["by_day"] = ((0, weekday_of(day)),)
        elif frequency in {"MONTHLY", "YEARLY"}:
            added["by_month_day"] = (month_day,)
            if frequency == "YEARLY" and not parts.by_month:
                added["by_month"] = (month,)
    if not parts.by_hour and frequency not in {"HOURLY", "MINUTELY"}:
        added["by_hour"] = (time_s // 3600,)
    if not parts.by_minute and frequency != "MINUTELY":
        added["by_minute"] = (time_s // 60 % 60,)
    if not parts.by_second:
        added["by_second"] = (time_s % 60,)
    if parts.interval > 1:
        added["phase"] = period_of(frequency, parts.week_start, day, time_s) % parts.interval
    return replace(parts, **added)


def period_of(frequency: Frequency, week_start: int, day: int, time_s: int = 0) -> int:
    """The index of the period of ``frequency`` that holds a local time; neighbours differ by one."""
    match frequency:
        case "YEARLY":
            return date_of(day)[0]
        case "MONTHLY":
            year, month, _ = date_of(day)
            return year * 12 + month - 1
        case "WEEKLY":
            return (day - (week_start - weekday_of(0))) // 7
        case "DAILY":
            return day
        case "HOURLY":
            return day * 24 + time_s // 3600
        case "MINUTELY":
            return day * 1440 + time_s // 60
