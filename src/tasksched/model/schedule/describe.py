"""Rules in English: one sentence that says when a rule fires.

Owns ``describe``: "At 02:30 every day, Europe/Paris". A sentence tells the values that were understood,
not the text that was written, so that a mistake shows (``*/27`` is "minutes 0, 27 and 54"). Invariants:
every rule has one, and it is a pure function of the rule. The calendar rules have their words in ``describe_cron`` and ``describe_rrule``.
Deliberately not here: notes on daylight saving (``preview``), other languages.
"""

from typing import Final

from tasksched.model.durations import format_duration
from tasksched.model.instants import format_instant
from tasksched.model.schedule.describe_cron import cron_sentence
from tasksched.model.schedule.describe_rrule import rrule_sentence
from tasksched.model.schedule.fixed import Delay, Every
from tasksched.model.schedule.rule import Rule
from tasksched.model.schedule.rules import Cron, RRule

_UNITS: Final = {"d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond"}


def describe(rule: Rule) -> str:
    """One sentence without a full stop; bounds and zone at its end."""
    match rule:
        case Cron():
            sentence = f"{cron_sentence(rule.parsed)}, {rule.tz}"
        case RRule():
            sentence = f"{rrule_sentence(rule.parsed, rule.completed)}, {rule.tz}"
        case Every():
            length = _length(rule.interval_ms)
            only_one = length.startswith("1 ") and length.count(" ") == 1
            sentence = f"Every {length.removeprefix('1 ') if only_one else length}"
        case Delay():
            sentence = f"{_length(rule.delay_ms)} after each run has ended"
        case _:
            sentence = rule.canonical()
    if rule.start_ms is not None:
        sentence += f", from {format_instant(rule.start_ms)}"
    if rule.end_ms is not None:
        sentence += f", until {format_instant(rule.end_ms)}"
    return sentence


def _length(ms: int) -> str:
    """``15 minutes``, ``1 hour 30 minutes``."""
    parts: list[str] = []
    rest = format_duration(ms)
    while rest:
        unit_and_more = rest.lstrip("0123456789")
        digits = rest.removesuffix(unit_and_more)
        unit = unit_and_more[: 2 if unit_and_more.startswith("ms") else 1]
        rest = unit_and_more.removeprefix(unit)
        parts.append(f"{digits} {_UNITS[unit]}{'' if digits == '1' else 's'}")
    return " ".join(parts)
