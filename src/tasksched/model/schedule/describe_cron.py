"""Cron expressions in English.

Owns the words for times of day, for dates and for weekdays. Few times are told as clocks ("At 02:30 and
14:30"), many as a pattern ("Every 15 minutes from 09:00 to 17:45"). Invariant: a pattern is only named
where it is exact, so "every 7 minutes" is never said of ``*/7``, which limps at the full hour; two
expressions with one sentence name the same local times.
Deliberately not here: the zone, and anything about what a clock change does.
"""

from collections.abc import Iterable
from typing import Final

from tasksched.model.schedule.civil import MONTHS, WEEKDAYS
from tasksched.model.schedule.cron import CronExpression
from tasksched.model.schedule.cronfield import DayWord, Field
from tasksched.model.schedule.localtext import clock, listed, listed_spans, ordinal

CLOCKS_MAX: Final = 6
"""So many times of a day are told one by one."""

_HOURS: Final = frozenset(range(24))
_SIXTY: Final = frozenset(range(60))
_MONDAY_FIRST: Final = (*WEEKDAYS[1:], WEEKDAYS[0])


def cron_sentence(parsed: CronExpression) -> str:
    """``At 02:30 every day``, ``Every 15 minutes on Monday to Friday in March``."""
    hours, minutes, seconds = (
        sorted(field.values) for field in (parsed.hour, parsed.minute, parsed.second)
    )
    days = _days(parsed)
    if len(hours) * len(minutes) * len(seconds) <= CLOCKS_MAX:
        return f"At {clocks(hours, minutes, seconds)} {days or 'every day'}"
    sentence = f"{_pattern(frozenset(hours), frozenset(minutes), frozenset(seconds))} {days}"
    return sentence[0].upper() + sentence[1:].rstrip()


def clocks(hours: list[int], minutes: list[int], seconds: list[int]) -> str:
    """``02:30 and 14:30``."""
    return listed(
        [
            clock(hour * 3600 + minute * 60 + second)
            for hour in hours
            for minute in minutes
            for second in seconds
        ]
    )


def _pattern(hours: frozenset[int], minutes: frozenset[int], seconds: frozenset[int]) -> str:
    step = _step(hours, _HOURS)
    if len(minutes) == 1 and seconds == {0}:
        if step:
            return f"every {step} hours from {clock(min(minutes) * 60)}"
        if hours != _HOURS and _is_run(hours):
            return f"every hour {_in_hours(hours, minutes, seconds, step)}"
        if minutes == {0} and hours == _HOURS:
            return "every hour, on the hour"
    parts: list[str] = []
    if seconds != {0}:
        parts.append(_each("second", seconds, "minute"))
    if minutes != _SIXTY or not parts:
        parts.append(_each("minute", minutes, "hour"))
    if hours != _HOURS:
        parts.append(_in_hours(hours, minutes, seconds, step))
    return " ".join(parts)


def _each(noun: str, values: frozenset[int], whole: str) -> str:
    """``every minute``, ``every 15 minutes``, ``at minute 5 of every hour``."""
    if values == _SIXTY:
        return f"every {noun}"
    step = _step(values, _SIXTY)
    if step:
        return f"every {step} {noun}s"
    plural = "" if len(values) == 1 else "s"
    return f"at {noun}{plural} {listed_spans(values)} of every {whole}"


def _step(values: frozenset[int], every: frozenset[int]) -> int:
    """n, if the values are every n-th from 0 on and n divides the whole; else 0."""
    step = min(values - {0}, default=0)
    is_even = step > 1 and len(every) % step == 0
    return step if is_even and values == frozenset(range(0, len(every), step)) else 0


def _in_hours(
    hours: frozenset[int], minutes: frozenset[int], seconds: frozenset[int], step: int
) -> str:
    if step:
        return f"in every {ordinal(step)} hour from 00:00"
    if _is_run(hours):
        begins = min(hours) * 3600 + min(minutes) * 60 + min(seconds)
        ends = max(hours) * 3600 + max(minutes) * 60 + max(seconds)
        return f"from {clock(begins)} to {clock(ends)}"
    plural = "" if len(hours) == 1 else "s"
    return f"in hour{plural} {listed_spans(hours)}"


def _is_run(hours: frozenset[int]) -> bool:
    return len(hours) == max(hours) - min(hours) + 1


def _days(parsed: CronExpression) -> str:
    """``on Monday to Friday in March``; empty for every day."""
    by_date, by_weekday = _dates(parsed.day), _weekdays(parsed.weekday)
    months = parsed.month.values
    is_every_month = len(months) == 12
    parts: list[str] = []
    if by_date and by_weekday and parsed.is_either_day:
        parts.append(f"on {by_date} of the month or on {by_weekday}")
    elif by_date and by_weekday:
        parts.append(f"on {by_date} of the month if that is {by_weekday}")
    elif by_date and not parsed.is_either_day:
        of = "every month" if is_every_month else listed_spans(months, MONTHS, low=1)
        is_every_month = True  # as it is told
        parts.append(f"on {by_date} of {of}")
    elif by_weekday and not parsed.is_either_day:
        parts.append(f"on {by_weekday}")
    if not is_every_month:
        parts.append(f"in {listed_spans(months, MONTHS, low=1)}")
    if parsed.year is not None:
        parts.append(f"in {listed_spans(parsed.year.values)}")
    return " ".join(parts)


def _dates(field: Field) -> str:
    """The days of the month; empty for all of them."""
    if len(field.values) == 31:
        return ""
    texts = [_word(word) for word in field.words]
    if field.values:
        plural = "" if len(field.values) == 1 else "s"
        texts.insert(0, f"day{plural} {listed_spans(field.values)}")
    return listed(texts)


def _weekdays(field: Field) -> str:
    if len(field.values) == 7:
        return ""
    texts = [_word(word) for word in field.words]
    if field.values:
        texts.insert(0, weekday_spans(field.values))
    return listed(texts)


def weekday_spans(values: Iterable[int]) -> str:
    """Weekdays counted from Monday, so that a weekend is one span: ``Friday to Sunday``."""
    return listed_spans([(value - 1) % 7 for value in values], _MONDAY_FIRST)


def _word(word: DayWord) -> str:
    match word.kind:
        case "last":
            return f"the {ordinal(-1 - word.n)} day"
        case "last_weekday":
            return "the last working day"
        case "nearest_weekday":
            return f"the working day nearest to day {word.n}"
        case "last_of":
            return f"the last {WEEKDAYS[word.of]} of the month"
        case "nth_of":
            return f"the {ordinal(word.n)} {WEEKDAYS[word.of]} of the month"
