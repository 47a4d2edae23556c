"""Cron expressions: from text to a set of local times.

Owns the grammar of a whole expression: five fields, six with seconds first, seven with the year last,
or an alias. What a field may hold is ``cronfield``'s business. The meaning follows Vixie and Debian
cron where they have one: day-of-month and day-of-week are joined by OR, unless one of them starts with
``*`` (or is ``?``), then by AND; a rule whose minute or hour field starts with ``*`` is a *wildcard*.
Day words are those of Quartz: ``L``, ``L-n``, ``LW``, ``nW``, ``nL``, ``n#k``; ``H`` is Jenkins'.
Invariants: a parsed expression names at least one local time, so what can never fire is refused here;
parsing is bounded by ``LENGTH_MAX`` characters and fourteen year masks. Deliberately not here: zones,
``@reboot``, ``@every`` (an interval), ``TZ=`` (a field of its own), and any wrapping range.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from tasksched.errors import Invalid
from tasksched.model.schedule import cronfield
from tasksched.model.schedule.civil import (
    FRIDAY,
    KINDS,
    MONDAY,
    SATURDAY,
    SUNDAY,
    YEAR_KINDS,
    bits,
    month_mask,
    month_starts,
    span,
    weekday_mask,
)
from tasksched.model.schedule.cronfield import POINTER, DayWord, Field, FieldParser
from tasksched.model.schedule.localtimes import Days, SameEveryDay

LENGTH_MAX: Final = 128

_ALIASES: Final = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
_FIVE: Final = (
    cronfield.MINUTE,
    cronfield.HOUR,
    cronfield.DAY,
    cronfield.MONTH,
    cronfield.WEEKDAY,
)
_SIX: Final = (cronfield.SECOND, *_FIVE)
_SEVEN: Final = (*_SIX, cronfield.YEAR)
_KINDS_BY_COUNT: Final = {5: _FIVE, 6: _SIX, 7: _SEVEN}
_COUNT_HINT: Final = (
    "a cron expression has 5 fields (minute hour day-of-month month day-of-week), "
    "6 with seconds first, or 7 with the year last"
)


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A parsed expression. ``year`` is None where the field is missing or names every year."""

    text: str
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    year: Field | None
    times: SameEveryDay

    @property
    def is_wildcard(self) -> bool:
        """Whether the rule runs with the clock, gap or fold, instead of once per local time."""
        return self.minute.text.startswith("*") or self.hour.text.startswith("*")

    @property
    def is_either_day(self) -> bool:
        """Whether a day may match day-of-month or day-of-week, and need not match both."""
        return _is_either(self.day, self.weekday)


def normal_text(value: object) -> str:
    """The expression with single spaces, in upper case, an alias written out.

    Raises ``Invalid`` at ``/cron`` for what is no text of 1 to 128 ASCII characters.
    """
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise Invalid(f'a cron expression is a string such as "30 2 * * *", not {kind}', POINTER)
    if len(value) > LENGTH_MAX:
        raise Invalid(f"a cron expression has at most {LENGTH_MAX} characters", POINTER)
    odd = next((char for char in value if not " " <= char <= "~" and char != "\t"), None)
    if odd is not None:
        raise Invalid(f"a cron expression is plain ASCII on one line, without {odd!a}", POINTER)
    text = " ".join(value.split()).upper()
    if not text.startswith("@"):
        return text
    if text not in _ALIASES:
        known = " ".join(_ALIASES).lower()
        hint = " (for a fixed rate use interval)" if text.startswith("@EVERY") else ""
        raise Invalid(f"no such alias; there are {known}{hint}", POINTER)
    return _ALIASES[text]


def uses_hash(text: str) -> bool:
    """Whether the normal text has an ``H``, so that its meaning depends on the schedule's id."""
    items = text.replace(" ", ",").split(",")
    return any(item.startswith(cronfield.HASH_LETTERS) for item in items)


def resolve_hash(text: str, seed: str) -> str:
    """Normal text in which each ``H`` has become the values that ``seed``, the schedule's id, chooses.

    Raises ``Invalid`` at ``/cron``. Few texts come out, however many schedules there are.
    """
    return " ".join(parser.resolve(field, seed) for parser, field in _parsers(text))


def parse_cron(text: str) -> CronExpression:
    """The expression in normal text, without ``H``.

    Raises ``Invalid`` at ``/cron``, naming the field, for what breaks the grammar or never fires.
    """
    fields = {parser.kind: parser.parse(field) for parser, field in _parsers(text)}
    second = fields.get(cronfield.SECOND, Field("0", is_star=False, values=frozenset({0})))
    year = fields.get(cronfield.YEAR)
    if year is not None and year.text == "*":
        year = None
    minute, hour, day, month, weekday = (fields[kind] for kind in _FIVE)
    days = _days_of_year(day, month, weekday, year)
    times = SameEveryDay(days, _minutes_of_day(minute, hour), bits(second.values))
    return CronExpression(text, second, minute, hour, day, month, weekday, year, times)


def _parsers(text: str) -> list[tuple[FieldParser, str]]:
    """The fields of an expression, each with its parser. Raises ``Invalid`` for any other number."""
    texts = text.split(" ") if text else []
    if "=" in text:
        raise Invalid("a cron expression holds no TZ=; give the zone as timezone", POINTER)
    if len(texts) not in _KINDS_BY_COUNT:
        raise Invalid(f"{_COUNT_HINT}; this one has {len(texts)}", POINTER)
    kinds = _KINDS_BY_COUNT[len(texts)]
    return [
        (FieldParser(kind, position), field)
        for position, (kind, field) in enumerate(zip(kinds, texts, strict=True), start=1)
    ]


def _minutes_of_day(minute: Field, hour: Field) -> int:
    of_hour = bits(minute.values)
    return sum(of_hour << (60 * value) for value in hour.values)


def _days_of_year(day: Field, month: Field, weekday: Field, year: Field | None) -> Days:
    """The days of each year. Raises ``Invalid`` if no year that counts has one."""

    @cache  # 14 kinds, made when a search first meets them
    def of_kind(kind: int) -> int:
        return _days_of_kind(day, month, weekday, kind)

    years = year.values if year else frozenset[int]()
    kinds = {YEAR_KINDS[number - 1] for number in years} if year else KINDS
    if not any(of_kind(kind) for kind in kinds):
        of_year = f" and year '{year.text}'" if year else ""
        raise Invalid(
            f"this cron expression can never fire: no day matches day-of-month '{day.text}', "
            f"month '{month.text}', day-of-week '{weekday.text}'{of_year} together; "
            "check how many days the month has",
            POINTER,
            field=cronfield.DAY.name,
        )
    if year is None:
        return lambda number: of_kind(YEAR_KINDS[number - 1])
    return lambda number: of_kind(YEAR_KINDS[number - 1]) if number in years else 0


def _is_either(day: Field, weekday: Field) -> bool:
    return not (day.is_star or weekday.is_star)


def _days_of_kind(day: Field, month: Field, weekday: Field, kind: int) -> int:
    by_date = by_weekday = in_months = 0
    dates = bits(day.values) >> 1
    for number in month.values:
        in_month = month_mask(kind, number)
        in_months |= in_month
        # The dates that a month lacks would fall into the next one: its own mask takes them away.
        by_date |= (dates << month_starts(kind)[number - 1]) & in_month
        for word in day.words:
            by_date |= _WORDS[word.kind](word, in_month, kind)
        for word in weekday.words:
            by_weekday |= _WORDS[word.kind](word, in_month, kind)
    for value in weekday.values:
        by_weekday |= weekday_mask(kind, value)
    if _is_either(day, weekday):
        return (by_date | by_weekday) & in_months
    return by_date & by_weekday & in_months


def _last(word: DayWord, month: int, kind: int) -> int:  # noqa: ARG001 - one shape for all words
    """L and L-n: no day at all in a month that is too short."""
    return (1 << (month.bit_length() - 1)) >> word.n & month


def _last_weekday(word: DayWord, month: int, kind: int) -> int:  # noqa: ARG001
    weekdays = month & ~(weekday_mask(kind, SATURDAY) | weekday_mask(kind, SUNDAY))
    return 1 << (weekdays.bit_length() - 1)


def _nearest_weekday(word: DayWord, month: int, kind: int) -> int:
    """nW: never clamped to the last day, and never out of the month."""
    first = (month & -month).bit_length() - 1
    day = 1 << (first + word.n - 1)
    if not day & month:
        return 0
    if day & weekday_mask(kind, SATURDAY):
        friday = day >> 1
        return friday if friday & month else day << 2
    if day & weekday_mask(kind, SUNDAY):
        monday = day << 1
        return monday if monday & month else day >> 2
    return day


def _last_of(word: DayWord, month: int, kind: int) -> int:
    return 1 << ((month & weekday_mask(kind, word.of)).bit_length() - 1)


def _nth_of(word: DayWord, month: int, kind: int) -> int:
    first = (month & -month).bit_length() - 1
    return month & weekday_mask(kind, word.of) & span(first + 7 * (word.n - 1), 7)


_WORDS: Final[dict[str, Callable[[DayWord, int, int], int]]] = {
    "last": _last,
    "last_weekday": _last_weekday,
    "nearest_weekday": _nearest_weekday,
    "last_of": _last_of,
    "nth_of": _nth_of,
}
assert (MONDAY, FRIDAY) == (SUNDAY + 1, SATURDAY - 1), "the days next to a weekend"
