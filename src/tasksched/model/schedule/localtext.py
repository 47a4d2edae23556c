"""Local times as text: what a person reads on the wall.

Owns the spellings that previews and sentences share. Invariant: pure functions of numbers, without
``datetime``, so they hold for every instant of the calendar and for offsets of odd seconds.
Deliberately not here: input, and instants in UTC (``instants``).
"""

from collections.abc import Iterable, Sequence

from tasksched.model.schedule.civil import DAY_S, MONTHS, date_of
from tasksched.model.schedule.tzif import OffsetTable


def clock(local_s: int) -> str:
    """The time of day: ``02:30``, or ``02:30:15`` where there are seconds."""
    minutes, second = divmod(local_s % DAY_S, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{second:02}" if second else text


def date(local_s: int) -> str:
    """The date: ``29 March 2026``."""
    year, month, day = date_of(local_s // DAY_S)
    return f"{day} {MONTHS[month - 1]} {year}"


def local_iso(at_ms: int, table: OffsetTable) -> str:
    """RFC 3339 with the zone's offset: ``2026-03-29T03:00:00+02:00``; milliseconds if there are any."""
    at_s, ms = divmod(at_ms, 1000)
    offset = table.offset(at_s)
    day, time_s = divmod(at_s + offset, DAY_S)
    year, month, day_of_month = date_of(day)
    hour, minute = divmod(time_s // 60, 60)
    text = f"{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{time_s % 60:02}"
    fraction = f".{ms:03}" if ms else ""
    return text + fraction + _offset(offset)


def _offset(offset_s: int) -> str:
    sign = "-" if offset_s < 0 else "+"
    minutes, second = divmod(abs(offset_s), 60)
    text = f"{sign}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{second:02}" if second else text


def listed(texts: Sequence[str], joint: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {joint} {texts[-1]}"


def spans(values: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of neighbours: 1, 2, 3, 5 are (1, 3) and (5, 5)."""
    found: list[tuple[int, int]] = []
    for value in sorted(values):
        if found and value == found[-1][1] + 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found


def listed_spans(values: Iterable[int], names: Sequence[str] | None = None, low: int = 0) -> str:
    """Values as text, three or more neighbours as a span: ``1 to 5 and 8``, ``Monday to Friday``.

    ``names[0]`` is the name of the value ``low``.
    """
    texts: list[str] = []
    for first, last in spans(values):
        ends = [str(value) if names is None else names[value - low] for value in (first, last)]
        if last - first >= 2:
            texts.append(f"{ends[0]} to {ends[1]}")
        else:
            texts += dict.fromkeys(ends)
    return listed(texts)


def ordinal(n: int) -> str:
    """``first`` to ``fifth``, ``last``, ``second last``, then ``6th`` and ``6th last``."""
    words = ("first", "second", "third", "fourth", "fifth")
    if n == -1:
        return "last"
    size = abs(n)
    ending = (
        "th" if size % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(size % 10, "th")
    )
    text = words[size - 1] if size <= len(words) else f"{size}{ending}"
    return text if n > 0 else f"{text} last"
