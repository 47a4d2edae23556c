"""Recurrence rules in English.

Owns the words for the parts of RFC 5545: the period with its interval, what limits it, the times of the
day, and where it ends. Invariant: what a rule takes from its start is told once the start is known; of
an unbound rule only what its text says. Deliberately not here: the zone.
"""

from collections.abc import Sequence
from typing import Final

from tasksched.model.instants import format_instant
from tasksched.model.schedule.civil import DAY_S, MONDAY, MONTHS, WEEKDAYS
from tasksched.model.schedule.describe_cron import CLOCKS_MAX, clocks, weekday_spans
from tasksched.model.schedule.localtext import clock, date, listed, listed_spans, ordinal
from tasksched.model.schedule.rrule import Recurrence, RecurrenceText, Until

_NOUNS: Final = {
    "YEARLY": "year",
    "MONTHLY": "month",
    "WEEKLY": "week",
    "DAILY": "day",
    "HOURLY": "hour",
    "MINUTELY": "minute",
}


def rrule_sentence(parsed: RecurrenceText, completed: Recurrence | None) -> str:
    """``Every 2 weeks on Monday and Friday at 09:00, 10 times``."""
    rule = completed or parsed.parts
    noun = _NOUNS[rule.frequency]
    parts = [f"Every {noun}" if rule.interval == 1 else f"Every {rule.interval} {noun}s"]
    parts += _limits(rule)
    parts += _times(rule)
    if rule.by_position:
        places = listed([ordinal(place) for place in rule.by_position])
        parts.append(f"but only the {places} of these in each {noun}")
    sentence = " ".join(parts)
    if parsed.count is not None:
        sentence += ", once" if parsed.count == 1 else f", {parsed.count} times"
    if parsed.until is not None:
        sentence += f", until {_until(parsed.until)}"
    return sentence


def _limits(rule: Recurrence) -> list[str]:
    limits: list[str] = []
    if rule.by_day:
        limits.append(f"on {_weekdays(rule)}")
    if rule.by_month_day:
        limits.append(f"on {_numbered('day', rule.by_month_day, 'of the month')}")
    if rule.by_year_day:
        limits.append(f"on {_numbered('day', rule.by_year_day, 'of the year')}")
    # The first says on which days; each further one narrows that down.
    limits = limits[:1] + [f"if that is {limit}" for limit in limits[1:]]
    if rule.by_week:
        limits.append(f"in {_numbered('week', rule.by_week, 'of the year')}")
    counts_weeks = rule.by_week or (rule.frequency == "WEEKLY" and rule.interval > 1)
    if counts_weeks and rule.week_start != MONDAY:
        limits.append(f"(weeks begin on {WEEKDAYS[rule.week_start]})")
    if rule.by_month:
        limits.append(f"in {listed_spans(rule.by_month, MONTHS, low=1)}")
    return limits


def _numbered(noun: str, numbers: Sequence[int], whole: str) -> str:
    """``days 1 to 5 and the last day of the month``."""
    forward = [n for n in numbers if n > 0]
    texts = [f"the {ordinal(n)} {noun}" for n in sorted(numbers, reverse=True) if n < 0]
    if forward:
        plural = "" if len(forward) == 1 else "s"
        texts.insert(0, f"{noun}{plural} {listed_spans(forward)}")
    return f"{listed(texts)} {whole}"


def _weekdays(rule: Recurrence) -> str:
    texts = []
    plain = [weekday for nth, weekday in rule.by_day if nth == 0]
    if plain:
        texts.append(weekday_spans(plain))
    whole = "month" if rule.frequency == "MONTHLY" or rule.by_month else "year"
    texts += [f"the {ordinal(n)} {WEEKDAYS[day]} of the {whole}" for n, day in rule.by_day if n]
    return listed(texts)


def _times(rule: Recurrence) -> list[str]:
    hours, minutes, seconds = (
        list(part) for part in (rule.by_hour, rule.by_minute, rule.by_second)
    )
    if hours and minutes and len(hours) * len(minutes) * max(len(seconds), 1) <= CLOCKS_MAX:
        return [f"at {clocks(hours, minutes, seconds or [0])}"]
    parts: list[str] = []
    if seconds and seconds != [0]:
        parts.append(f"at second{'' if len(seconds) == 1 else 's'} {listed_spans(seconds)}")
    if minutes:
        parts.append(f"at minute{'' if len(minutes) == 1 else 's'} {listed_spans(minutes)}")
    if hours:
        parts.append(f"in hour{'' if len(hours) == 1 else 's'} {listed_spans(hours)}")
    return parts


def _until(until: Until) -> str:
    if until.is_utc:
        return format_instant(until.at_s * 1000)
    day_s = until.at_s % DAY_S
    text = date(until.at_s)
    return text if day_s == DAY_S - 1 else f"{clock(until.at_s)} on {text}"
