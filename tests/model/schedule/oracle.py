"""A second, slow opinion on cron: it walks real time second by second and looks at the wall clock.

It shares nothing with the engine: expressions come as text and meaning side by side from the strategy
below, so there is no parser here; days are judged one ``date`` at a time; and the only thing asked of a
zone is what ``ZoneInfo`` says the local time is.
"""

import calendar
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import settings
from hypothesis import strategies as st

from tasksched.model.schedule.tzif import offset_table
from tasksched.model.zones import ZONE_NAMES, zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
THREE_HOURS = timedelta(hours=3)

SCALE = 20 if os.environ.get("TASKSCHED_EXPLORE") else 1  # `make chaos` searches longer


def examples(count: int) -> settings:
    return settings(max_examples=count * SCALE, deadline=None)


@dataclass(frozen=True, repr=False)
class Meaning:
    """An expression and what it should mean."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    matches_day: Callable[[date], bool]
    is_wildcard: bool

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(f"<{self.text}>")


def simulate(
    meaning: Meaning, place: ZoneInfo, from_s: int, until_s: int, seams: tuple[str, str]
) -> list[int]:
    """The runs in (from_s, until_s], by walking the clock. ``seams``: on_gap and on_fold."""
    on_gap, on_fold = seams
    step = 60 if meaning.seconds == {0} and from_s % 60 == 0 else 1
    found: list[int] = []
    previous: datetime | None = None
    repeats_until: datetime | None = None
    days: dict[date, bool] = {}

    def matches(wall: datetime) -> bool:
        day = wall.date()
        if day not in days:
            days[day] = meaning.matches_day(day)
        return (
            days[day]
            and wall.hour in meaning.hours
            and wall.minute in meaning.minutes
            and wall.second in meaning.seconds
        )

    # Start early: a repetition that is under way at `from_s` began up to three hours before.
    for at_s in range(from_s - 4 * 3600, until_s + 1, step):
        wall = datetime.fromtimestamp(at_s, place).replace(tzinfo=None, fold=0)
        runs = matches(wall)
        if previous is not None:
            jump = wall - previous - timedelta(seconds=step)
            if jump and not meaning.is_wildcard and abs(jump) <= THREE_HOURS:
                if jump > timedelta(0) and on_gap == "next":
                    missing = previous + timedelta(seconds=step)
                    while missing < wall:
                        runs = runs or matches(missing)
                        missing += timedelta(seconds=step)
                if jump < timedelta(0) and on_fold == "first":
                    repeats_until = previous + timedelta(seconds=step)
        if repeats_until is not None and wall < repeats_until:
            runs = False
        else:
            repeats_until = None
        previous = wall
        if runs and at_s > from_s:
            found.append(at_s)
    return found


WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
Item = tuple[str, frozenset[int]]


@st.composite
def items(draw: st.DrawFn, low: int, high: int, names: tuple[str, ...] = ()) -> Item:
    """One item of a list: its text and its values."""
    kind = draw(st.sampled_from(["value", "value", "range", "range/step", "value/step", "*/step"]))
    step = draw(st.integers(1, (high - low) // 2 + 1))
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))

    def spell(value: int) -> str:
        if names and draw(st.booleans()):
            name = names[value - low]
            return draw(st.sampled_from([name, name.lower(), name.title()]))
        return draw(st.sampled_from([str(value), f"{value:02}"]))

    match kind:
        case "value":
            return spell(first), frozenset({first})
        case "range":
            return f"{spell(first)}-{spell(last)}", frozenset(range(first, last + 1))
        case "range/step":
            return f"{spell(first)}-{spell(last)}/{step}", frozenset(range(first, last + 1, step))
        case "value/step":
            return f"{spell(first)}/{step}", frozenset(range(first, high + 1, step))
        case _:
            return f"*/{step}", frozenset(range(low, high + 1, step))


@st.composite
def fields(
    draw: st.DrawFn, low: int, high: int, names: tuple[str, ...] = (), stars: int = 1
) -> Item:
    if draw(st.integers(0, 3)) < stars:
        return "*", frozenset(range(low, high + 1))
    drawn = draw(st.lists(items(low, high, names), min_size=1, max_size=3))
    return ",".join(text for text, _ in drawn), frozenset().union(*(values for _, values in drawn))


def cron_weekday(day: date) -> int:
    return day.isoweekday() % 7


def last_of_month(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def is_nearest_weekday(day: date, n: int) -> bool:
    """nW, in the words of the rule: the weekday nearest to the n-th, in the same month."""
    if n > last_of_month(day):
        return False
    wanted = day.replace(day=n)
    # The tie-break never matters: Saturday goes to Friday, Sunday to Monday, unless a month ends.
    for distance in (0, -1, 1, 2, -2):
        near = wanted + timedelta(days=distance)
        reachable = abs(distance) < 2 or not _has_nearer(wanted)
        if reachable and near.month == wanted.month and near.weekday() < 5:
            return near == day
    return False


def _has_nearer(wanted: date) -> bool:
    return any(
        near.month == wanted.month and near.weekday() < 5
        for near in (wanted + timedelta(days=distance) for distance in (-1, 0, 1))
    )


DayWord = tuple[str, Callable[[date], bool]]


@st.composite
def date_words(draw: st.DrawFn) -> DayWord:
    n = draw(st.integers(1, 31))
    return draw(
        st.sampled_from(
            [
                ("L", lambda day: day.day == last_of_month(day)),
                (f"L-{n - 1}", lambda day: day.day == last_of_month(day) - (n - 1)),
                ("lw", lambda day: day.weekday() < 5 and not any(
                    (day + timedelta(days=more)).weekday() < 5
                    for more in range(1, last_of_month(day) - day.day + 1)
                )),
                (f"{n}W", lambda day: is_nearest_weekday(day, n)),
            ]
        )
    )  # fmt: skip


@st.composite
def weekday_words(draw: st.DrawFn) -> DayWord:
    weekday, n = draw(st.integers(0, 7)), draw(st.integers(1, 5))
    spelled = draw(st.sampled_from([str(weekday), WEEKDAY_NAMES[weekday % 7]]))
    return draw(
        st.sampled_from(
            [
                (f"{spelled}L", lambda day: cron_weekday(day) == weekday % 7
                 and day.day + 7 > last_of_month(day)),
                (f"{spelled}#{n}", lambda day: cron_weekday(day) == weekday % 7
                 and 7 * (n - 1) < day.day <= 7 * n),
            ]
        )
    )  # fmt: skip


@st.composite
def day_fields(draw: st.DrawFn, plain: st.SearchStrategy[Item], words: st.SearchStrategy[DayWord],
               value_of: Callable[[date], int]) -> DayWord:  # fmt: skip
    kind = draw(st.sampled_from(["*", "*", "?", "plain", "plain", "words", "both"]))
    if kind in {"*", "?"}:
        return kind, lambda _: True
    texts, tests = [], []
    if kind in {"plain", "both"}:
        text, values = draw(plain)
        texts.append(text)
        tests.append(lambda day: value_of(day) in values)
    if kind in {"words", "both"}:
        for text, test in draw(st.lists(words, min_size=1, max_size=2)):
            texts.append(text)
            tests.append(test)
    return ",".join(texts), lambda day: any(test(day) for test in tests)


@st.composite
def meanings(
    draw: st.DrawFn, *, seconds: bool = False, dense: bool = True, near_hour: int | None = None
) -> Meaning:
    """Random expressions of five or six fields.

    ``dense``: any month, and often any day, so that something happens in a few hours; ``near_hour``:
    often at one of the hours around this one.
    """
    minute = draw(fields(0, 59))
    hour = draw(fields(0, 23))
    if near_hour is not None and draw(st.booleans()):
        hours = draw(st.lists(st.integers(near_hour - 1, near_hour + 1), min_size=1, max_size=3))
        hour = (
            ",".join(str(value % 24) for value in hours),
            frozenset(value % 24 for value in hours),
        )
    second = draw(fields(0, 59)) if seconds else ("", frozenset({0}))
    day = draw(day_fields(fields(1, 31, stars=0), date_words(), lambda day: day.day))
    weekday = draw(day_fields(fields(0, 6, WEEKDAY_NAMES, stars=0), weekday_words(), cron_weekday))
    month = ("*", frozenset(range(1, 13))) if dense else draw(fields(1, 12, MONTH_NAMES))
    if dense and draw(st.booleans()):
        day = weekday = ("*", lambda _: True)
    is_and = day[0].startswith(("*", "?")) or weekday[0].startswith(("*", "?"))

    def matches_day(at: date) -> bool:
        both = (day[1](at), weekday[1](at))
        return at.month in month[1] and (all(both) if is_and else any(both))

    texts = [second[0]] if seconds else []
    texts += [minute[0], hour[0], day[0], month[0], weekday[0]]
    is_wildcard = minute[0].startswith("*") or hour[0].startswith("*")
    return Meaning(" ".join(texts), second[1], minute[1], hour[1], matches_day, is_wildcard)


@st.composite
def clock_changes(draw: st.DrawFn, *, years: tuple[int, int] = (1975, 2100)) -> tuple[str, int]:
    """A zone and the instant of one of its clock changes; any instant for a zone that has none."""
    name = draw(st.sampled_from(sorted(ZONE_NAMES)))
    first, last = (
        int((datetime(year, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()) for year in years
    )
    changes = [at_s for at_s in offset_table(name).starts if first <= at_s < last]
    return name, draw(st.sampled_from(changes) if changes else st.integers(first, last))


@st.composite
def encounters(
    draw: st.DrawFn, *, seconds: bool = False, years: tuple[int, int] = (1975, 2100)
) -> tuple[Meaning, str, int]:
    """An expression, a zone and one of its clock changes, likely to have to do with each other."""
    name, at_s = draw(clock_changes(years=years))
    local = datetime.fromtimestamp(at_s, zone(name))
    return draw(meanings(seconds=seconds, near_hour=local.hour)), name, at_s
