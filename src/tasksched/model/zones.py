"""Time zones: which exist, and what a local time means in one.

Owns the access to zone data. Invariant: every answer comes from the installed ``tzdata`` package, so
two hosts with the same packages agree on every instant, whatever their system's copy, their
``TZPATH``, or the ``ZoneInfo`` objects other code has cached. Zones are therefore loaded from the
package's own files and kept in a cache of this module; such objects cannot be pickled.
Names are exact and case-sensitive, as IANA spells them, old aliases included.
Deliberately not here: the daylight-saving rules of recurring tasks, which map many local times at once.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from tasksched.errors import Invalid

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - local times are naive by nature here
_DATA: Final = files("tzdata")

# The first line of the package's source form is "# version 2026f".
TZDATA_VERSION: Final = _DATA.joinpath("zoneinfo", "tzdata.zi").read_text("ascii").split(None, 3)[2]
"""The IANA release in force, such as ``"2026f"``. When it changes, next times are recomputed."""

# Files of the data that are no place: a stand-in for "not configured yet", and what systems add.
_NO_ZONES: Final = {"Factory", "localtime", "posixrules"}

ZONE_NAMES: Final = frozenset(_DATA.joinpath("zones").read_text("ascii").split()) - _NO_ZONES
"""Every name that ``check_timezone`` accepts."""

_BY_FOLDED: Final = {name.casefold(): name for name in sorted(ZONE_NAMES)}


@dataclass(frozen=True, slots=True)
class Once:
    """The local time exists once, at ``at_ms``."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Twice:
    """The clock was set back over the local time: it exists at both instants, first < second."""

    first_ms: int
    second_ms: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The clock was set forward over the local time: it does not exist.

    ``end_ms`` is the first instant after the gap, ``size_ms`` how far the clock jumped.
    """

    end_ms: int
    size_ms: int


LocalTime = Once | Twice | Gap


def check_timezone(value: object, pointer: str = "") -> str:
    """An IANA name of the shipped data, exactly spelled: ``"Europe/Berlin"``, ``"UTC"``, ``"EST5EDT"``.

    Only a name in ``ZONE_NAMES`` ever becomes a path. Raises ``Invalid`` at ``pointer``.
    """
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise Invalid(f"a timezone is a string, not {kind}", pointer)
    if value in ZONE_NAMES:
        return value
    near = _BY_FOLDED.get(value.strip().casefold())
    hint = f'did you mean "{near}"?' if near else 'names look like "Europe/Berlin" or "UTC"'
    raise Invalid(f"not an IANA time zone of release {TZDATA_VERSION}; {hint}", pointer)


@cache  # bounded by ZONE_NAMES: a refused name raises and is not kept
def zone(name: str) -> ZoneInfo:
    """The zone called ``name``; the same object every time. Raises ``Invalid`` as ``check_timezone``."""
    parts = check_timezone(name).split("/")
    with _DATA.joinpath("zoneinfo", *parts).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def resolve_local(naive: datetime, place: tzinfo) -> LocalTime:
    """What the wall-clock time ``naive`` means in ``place``: once, twice or in a gap.

    ``naive`` is read to the millisecond; its ``fold`` is ignored. By PEP 495 the offsets for the two
    values of ``fold`` differ only around a change of the clock. Then both candidates are checked in
    the other direction, from the instant, since ``ZoneInfo`` sees a second pass that was not where the
    rule for the future takes over from the recorded past (America/Nuuk, 2023-10-28T23:30).
    """
    local = naive.replace(tzinfo=place, fold=0)
    before_ms, after_ms = _offset_ms(local), _offset_ms(local.replace(fold=1))
    local_ms = (naive.replace(fold=0) - _EPOCH) // timedelta(milliseconds=1)
    if before_ms == after_ms:
        return Once(local_ms - before_ms)
    match [
        local_ms - offset_ms
        for offset_ms in (before_ms, after_ms)
        if _offset_at(place, (local_ms - offset_ms) // 1000) == offset_ms
    ]:
        case [at_ms]:
            return Once(at_ms)
        case [first_ms, second_ms]:
            return Twice(first_ms, second_ms)
    end_s = _change_s(place, (local_ms - after_ms) // 1000, (local_ms - before_ms) // 1000)
    return Gap(end_s * 1000, after_ms - before_ms)


def _change_s(place: tzinfo, early_s: int, late_s: int) -> int:
    """The first second in (early, late] with another offset than ``early_s``; changes fall on seconds."""
    before = _offset_at(place, early_s)
    while late_s - early_s > 1:
        middle_s = (early_s + late_s) // 2
        if _offset_at(place, middle_s) == before:
            early_s = middle_s
        else:
            late_s = middle_s
    return late_s


def _offset_at(place: tzinfo, at_s: int) -> int:
    utc = _EPOCH.replace(tzinfo=UTC) + timedelta(seconds=at_s)
    return _offset_ms(utc.astimezone(place))


def _offset_ms(aware: datetime) -> int:
    offset = aware.utcoffset()
    assert offset is not None, "a zone knows its offset at any time"
    return offset // timedelta(milliseconds=1)
