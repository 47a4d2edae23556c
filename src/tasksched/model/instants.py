"""Instants: when, in integer milliseconds since the epoch.

Owns the reading of one moment from text or a ``datetime`` and the one text in which it is given back.
Invariants: a parsed instant lies between the year 1 and the horizon 2200; ``parse_instant`` of
``format_instant`` is the same number; no input raises anything but ``Invalid``. Text is RFC 3339, in
which seconds and an offset are required; what is finer than a millisecond is cut off.
A leap second (``:60``) is refused, since neither the epoch count nor Redis has a number for it.
Deliberately not here: epoch numbers, whose unit would have to be guessed, and any judgement of the
past: a due time long gone is a valid instant.
"""

import re
from datetime import datetime, timedelta
from typing import Final

from tasksched.errors import Invalid
from tasksched.model.durations import format_duration
from tasksched.model.zones import Gap, Once, Twice, check_timezone, resolve_local, zone

Instant = datetime | str
"""What users may write: an aware ``datetime`` or RFC 3339 text; local with a ``timezone`` beside it."""

EARLIEST_MS: Final = -62_135_596_800_000  # 0001-01-01T00:00:00Z, where datetime begins
HORIZON_MS: Final = 7_258_118_400_000  # 2200-01-01T00:00:00Z, itself still accepted
TIMEZONE_POINTER: Final = "/timezone"
LARGEST_GAP_MS: Final = 3 * 3_600_000
"""A larger jump of the clock is no daylight saving: the local times in it were abolished."""

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - differences of naive UTC times are exact
_MS: Final = timedelta(milliseconds=1)

_RFC_3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]{1,9}))?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
_EXAMPLE: Final = '"2026-03-08T09:00:00Z"'


def parse_instant(value: object, pointer: str = "", *, timezone: str | None = None) -> int:
    """The moment ``value``, ms since the epoch; negative before 1970.

    ``value`` is RFC 3339 text or an aware ``datetime``; or a local time, if ``timezone`` (an IANA
    name) is given: one inside a daylight-saving gap is the first instant after the gap, one that
    exists twice is the first pass (a ``datetime`` with ``fold=1``: the second), one that a larger
    jump abolished is refused. An offset and a ``timezone`` together are refused: they may disagree.
    Raises ``Invalid`` at ``pointer``, or at ``/timezone`` for the name.
    """
    if timezone is not None:
        timezone = check_timezone(timezone, TIMEZONE_POINTER)
    naive, offset = _read(value, pointer)
    if offset is not None and timezone is not None:
        raise Invalid("an offset and a timezone are both given; drop one of them", pointer)
    return _settle(naive, offset, timezone, pointer)


def parse_bound(value: object, pointer: str = "", *, timezone: str) -> int:
    """As ``parse_instant``, for a time beside a rule that has its own ``timezone``, as ``start_at``.

    The zone belongs to the rule, so a time with an offset is welcome and means what it says.
    """
    timezone = check_timezone(timezone, TIMEZONE_POINTER)
    naive, offset = _read(value, pointer)
    return _settle(naive, offset, timezone, pointer)


def format_instant(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, always: ``"2026-03-08T09:00:00.000Z"``.

    For ``ms`` of the years 1 to 9999; ``OverflowError`` beyond, which is a bug of the caller.
    """
    return (_EPOCH + ms * _MS).isoformat(timespec="milliseconds") + "Z"


def _read(value: object, pointer: str) -> tuple[datetime, timedelta | None]:
    """The wall-clock time and its offset from UTC, None where ``value`` is local."""
    if isinstance(value, datetime):
        return _read_datetime(value, pointer)
    if isinstance(value, str):
        return _read_text(value, pointer)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise Invalid(f"epoch numbers are not accepted; give RFC 3339 such as {_EXAMPLE}", pointer)
    kind = "null" if value is None else type(value).__name__
    raise Invalid(f"a time is not {kind}; give RFC 3339 such as {_EXAMPLE}", pointer)


def _read_datetime(value: datetime, pointer: str) -> tuple[datetime, timedelta | None]:
    try:
        # A plain datetime, whatever subclass came: their arithmetic is their own.
        return datetime.combine(value.date(), value.time()), value.utcoffset()
    except (ValueError, TypeError, OverflowError) as error:
        # pandas.NaT is a datetime that has no fields, and a foreign tzinfo may answer nonsense.
        raise Invalid("this datetime does not tell its offset", pointer) from error


def _read_text(text: str, pointer: str) -> tuple[datetime, timedelta | None]:
    found = _RFC_3339.fullmatch(text)
    if found is None:
        if _NUMBER.fullmatch(text):
            raise Invalid(
                f"epoch numbers are not accepted; give RFC 3339 such as {_EXAMPLE}", pointer
            )
        raise Invalid(
            f"not an RFC 3339 time such as {_EXAMPLE}, of the years 0001 to 2200", pointer
        )
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    if second == 60:
        raise Invalid("a leap second (:60) is not accepted; give :59 or the next minute", pointer)
    microsecond = int((found[7] or "")[:6].ljust(6, "0"))
    try:
        naive = datetime(year, month, day, hour, minute, second, microsecond)  # noqa: DTZ001
    except ValueError as error:
        raise Invalid(f"no such date or time: {error}", pointer) from error
    return naive, _read_offset(found[8], pointer)


def _read_offset(text: str | None, pointer: str) -> timedelta | None:
    if text is None:
        return None
    if text in "Zz":
        return timedelta(0)
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 23 or minutes > 59:
        raise Invalid("an offset is at most 23:59", pointer)
    size = timedelta(hours=hours, minutes=minutes)
    return -size if text[0] == "-" else size


def _settle(naive: datetime, offset: timedelta | None, timezone: str | None, pointer: str) -> int:
    if offset is not None:
        ms = (naive - _EPOCH - offset) // _MS
    elif timezone is not None:
        ms = _local_ms(naive, timezone, pointer)
    else:
        raise Invalid("a local time is no moment: add Z or an offset, or give timezone", pointer)
    if ms < EARLIEST_MS:
        raise Invalid(f"times begin at {format_instant(EARLIEST_MS)}", pointer)
    if ms > HORIZON_MS:
        raise Invalid(f"times end at the horizon {format_instant(HORIZON_MS)}", pointer)
    return ms


def _local_ms(naive: datetime, timezone: str, pointer: str) -> int:
    match resolve_local(naive, zone(timezone)):
        case Once(at_ms):
            return at_ms
        case Twice(first_ms, second_ms):
            return second_ms if naive.fold else first_ms
        case Gap(end_ms, size_ms) if size_ms <= LARGEST_GAP_MS:
            return end_ms
        case Gap(end_ms, size_ms):
            raise Invalid(
                f"this local time does not exist in {timezone}: its clock jumped ahead by "
                f"{format_duration(size_ms)} at {format_instant(end_ms)}",
                pointer,
            )
