"""Durations: how long, in integer milliseconds.

Owns the spellings of a length of time (a number of seconds, a ``timedelta``, ``"1d2h"``, ISO 8601)
and the one spelling in which it is given back. Invariants: a parsed duration is an ``int`` within its
bounds; ``parse_duration(format_duration(ms))`` is ``ms``; no input raises anything but ``Invalid``.
Milliseconds are the resolution: anything finer is rounded to the nearest one, ties to the even.
Deliberately not here: months and years, which have no fixed length, and a number in a string
(``"60"``), whose unit the reader would have to guess.
"""

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from tasksched.errors import Invalid

Duration = timedelta | float | str
"""What users may write: a ``timedelta``, a number of seconds, or a text such as ``"1h30m"``."""

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS

TEN_YEARS_MS: Final = 3_653 * DAY_MS
"""Ten calendar years with as many leap days as they can hold."""

TEXT_MAX: Final = 64

# In falling order. The output has no weeks: "14d" is how people name a retention, and 1w = 7d exactly.
_UNITS: Final = {
    "w": WEEK_MS,
    "d": DAY_MS,
    "h": HOUR_MS,
    "m": MINUTE_MS,
    "s": SECOND_MS,
    "ms": 1,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[wdhms])")
_BARE_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")

# ISO 8601 allows a comma as well as a point, and weeks beside days since its part 2.
_ISO_NUMBER = r"([0-9]+(?:[.,][0-9]+)?)"
_ISO = re.compile(
    rf"P(?:{_ISO_NUMBER}W)?(?:{_ISO_NUMBER}D)?"
    rf"(?:T(?=[0-9])(?:{_ISO_NUMBER}H)?(?:{_ISO_NUMBER}M)?(?:{_ISO_NUMBER}S)?)?"
)
_ISO_UNITS: Final = ("w", "d", "h", "m", "s")
_ISO_CALENDAR = re.compile(r"P[0-9.,]*(?:[0-9]Y|[0-9]M)")

_HINT = 'a number of seconds, a text such as "1h30m" (w d h m s ms), or ISO 8601 such as "PT1H30M"'


def parse_duration(
    value: object, pointer: str = "", *, least_ms: int = 0, most_ms: int = TEN_YEARS_MS
) -> int:
    """``value`` in milliseconds, from ``least_ms`` to ``most_ms``, both inclusive.

    Accepts a finite number of seconds; a ``timedelta``; units w d h m s ms in falling order, each at
    most once, a decimal in the last one only (``"1d2h"``, ``"1.5h"``, ``"100ms"``); ISO 8601 without
    years and months (``"P1W"``, ``"P1DT2H"``). Raises ``Invalid`` at ``pointer``, naming the rule.
    """
    exact_ms = _exact_ms(value, pointer)
    if exact_ms < 0:
        raise Invalid("a duration is not negative", pointer)
    ms = round(exact_ms)
    if ms < least_ms:
        raise Invalid(f"a duration of at least {format_duration(least_ms)} is needed here", pointer)
    if ms > most_ms:
        raise Invalid(f"a duration of at most {format_duration(most_ms)} is allowed here", pointer)
    return ms


def format_duration(ms: int) -> str:
    """The canonical text of a duration of ``ms`` >= 0: ``"1h30m"``, ``"1s500ms"``, ``"0s"``.

    Units d h m s ms, falling, none of them zero, each below the next larger one.
    """
    assert ms >= 0, ms
    parts: list[str] = []
    for unit, unit_ms in _UNITS.items():
        if unit != "w":
            count, ms = divmod(ms, unit_ms)
            parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def _exact_ms(value: object, pointer: str) -> int | Fraction:
    if isinstance(value, bool):
        raise Invalid(f"a duration is not a boolean; give {_HINT}", pointer)
    if isinstance(value, int | float):
        return _number_s(value, pointer) * SECOND_MS
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1), 1000)
    if isinstance(value, str):
        return _text_ms(value, pointer)
    kind = "null" if value is None else type(value).__name__
    raise Invalid(f"a duration is not {kind}; give {_HINT}", pointer)


def _number_s(value: float, pointer: str) -> int | Fraction:
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise Invalid("a duration is finite", pointer)
    # The decimal that was written: 0.1 is 100 ms and not a binary hair more, as in "0.1s".
    return Fraction(float.__repr__(value))


def _text_ms(text: str, pointer: str) -> int | Fraction:
    if not text:
        raise Invalid(f"a duration is not empty; give {_HINT}", pointer)
    if len(text) > TEXT_MAX:
        raise Invalid(f"a duration has at most {TEXT_MAX} characters", pointer)
    if _BARE_NUMBER.fullmatch(text):
        raise Invalid(
            'a number in a string has no unit; give the number itself for seconds, or "60s"',
            pointer,
        )
    if text.startswith(("-", "+")):
        raise Invalid("a duration has no sign", pointer)
    if text.startswith("P"):
        return _iso_ms(text, pointer)
    return _units_ms(text, pointer)


def _iso_ms(text: str, pointer: str) -> int | Fraction:
    found = _ISO.fullmatch(text)
    if found is None and _ISO_CALENDAR.match(text):
        raise Invalid("years and months have no fixed length; give weeks or days", pointer)
    parts = [
        (number.replace(",", "."), unit)
        for number, unit in zip(found.groups() if found else (), _ISO_UNITS, strict=False)
        if number
    ]
    if not parts:
        raise Invalid(f"not an ISO 8601 duration; give {_HINT}", pointer)
    return _sum_ms(parts, pointer)


def _units_ms(text: str, pointer: str) -> int | Fraction:
    parts: list[tuple[str, str]] = []
    order = list(_UNITS)
    at, lowest = 0, -1
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            raise Invalid(f"not a duration; give {_HINT}", pointer)
        number, unit = found.groups()
        rank = order.index(unit)
        if rank == lowest:
            raise Invalid(f"the unit {unit} is there twice", pointer)
        if rank < lowest:
            raise Invalid(f"units fall, w d h m s ms, but {unit} follows a smaller one", pointer)
        parts.append((number, unit))
        at, lowest = found.end(), rank
    return _sum_ms(parts, pointer)


def _sum_ms(parts: list[tuple[str, str]], pointer: str) -> int | Fraction:
    if any("." in number for number, _ in parts[:-1]):
        raise Invalid('only the last unit may have a decimal: "1d1.5h", not "1.5d1h"', pointer)
    # Fractions are exact and slow; most texts have no decimal.
    return sum((int(n) if n.isdigit() else Fraction(n)) * _UNITS[unit] for n, unit in parts)
