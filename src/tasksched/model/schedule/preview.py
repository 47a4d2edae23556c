"""Previews: the next times of a rule, as a person reads them, with what daylight saving does to them.

Owns ``preview`` and the wording of its notes. A note stands at the run that it explains: the one that
makes up for a gap, each pass of a fold, and, where a gap swallowed something, the first run after it.
Invariants: the instants are those of ``Rule.next``; a note says what the rule really does (a wildcard
rule makes up for nothing and runs in both passes). Deliberately not here: any clock; ``after_ms`` is
given, and a rule that is not bound yet is treated as created then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tasksched.model.schedule.civil import DAY_S
from tasksched.model.schedule.fixed import Delay, Every
from tasksched.model.schedule.localtext import clock, date, listed, local_iso
from tasksched.model.schedule.rule import Rule
from tasksched.model.schedule.rules import CalendarRule
from tasksched.model.schedule.slots import Slots
from tasksched.model.schedule.tzif import OffsetTable, offset_table

PREVIEW_MAX: Final = 1_000
_NAMED_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Fire:
    """One time of a rule: the instant, its local time in RFC 3339, and what is odd about it."""

    at_ms: int
    local: str
    note: str | None = None


def preview(rule: Rule, after_ms: int, n: int) -> list[Fire]:
    """The next ``n`` nominal times after ``after_ms``, fewer if the rule ends; at most ``PREVIEW_MAX``.

    A fixed delay has one: what follows depends on when that run ends.
    """
    if not rule.is_bound:
        rule = rule.bind("", after_ms)
    table = offset_table(rule.tz)
    fires: list[Fire] = []
    before_ms, at_ms = after_ms, rule.next(after_ms)
    while at_ms is not None and len(fires) < min(n, PREVIEW_MAX):
        notes = _notes(rule, table, before_ms, at_ms)
        fires.append(Fire(at_ms, local_iso(at_ms, table), "; ".join(notes) or None))
        if isinstance(rule, Delay):
            break
        before_ms, at_ms = at_ms, rule.next(at_ms)
    return fires


def _notes(rule: Rule, table: OffsetTable, before_ms: int, at_ms: int) -> list[str]:
    if isinstance(rule, CalendarRule):
        before_s, at_s = before_ms // 1000, at_ms // 1000
        slots = rule.slots
        return [*_gaps(slots, table, before_s, at_s), *_folds(slots, table, at_s)]
    if isinstance(rule, Delay):
        return ["later runs count from the end of the run before"]
    if isinstance(rule, Every) and rule.interval_ms % (DAY_S * 1000) == 0:
        return list(_shifted(table, before_ms // 1000, at_ms // 1000, rule.interval_ms))
    return []


def _shifted(table: OffsetTable, before_s: int, at_s: int, interval_ms: int) -> Iterator[str]:
    """Whole days are elapsed time, so a clock change moves their time of day."""
    before, now = before_s + table.offset(before_s), at_s + table.offset(at_s)
    if (now - before) % DAY_S and (at_s - before_s) * 1000 == interval_ms:
        yield (
            f"the clock changed: an interval counts elapsed time, so it moves from {clock(before)} "
            f"to {clock(now)}"
        )


def _gaps(slots: Slots, table: OffsetTable, before_s: int, at_s: int) -> Iterator[str]:
    """What becomes of the local times that the clock jumped over since the run before."""
    for segment in range(table.segment(before_s) + 1, table.segment(at_s) + 1):
        start = table.starts[segment]
        gap_from, gap_to = (start + table.offsets[segment - 1], start + table.offsets[segment])
        members = slots.members(gap_from, gap_to)
        if not members:
            continue
        if slots.makes_up(segment):
            # Its own slot at the gap's end, whether or not that is a local time of the rule, too.
            run = "runs" if len(members) == 1 else "one run"
            yield f"{_missing(members)}: {run} at {clock(gap_to)}"
        else:
            yield f"{_missing(members)}: no run for {'it' if len(members) == 1 else 'them'}"


def _missing(members: tuple[int, ...]) -> str:
    """``02:30 does not exist on 29 March 2026``; the members are the first, maybe one, and the last."""
    first, last = members[0], members[-1]
    if len(members) == 1:
        return f"{clock(first)} does not exist on {date(first)}"
    if first // DAY_S != last // DAY_S:
        return f"{clock(first)} on {date(first)} to {clock(last)} on {date(last)} do not exist"
    between = listed([clock(first), clock(last)])
    if len(members) > _NAMED_MAX:
        between = f"{clock(first)} to {clock(last)}"
    return f"{between} do not exist on {date(first)}"


def _folds(slots: Slots, table: OffsetTable, at_s: int) -> Iterator[str]:
    """Which pass of a repeated stretch of local time a run is in."""
    segment = table.segment(at_s)
    local = at_s + table.offsets[segment]
    for seam, is_second in ((segment, True), (segment + 1, False)):
        if not 0 < seam < len(table.offsets):
            continue
        start = table.starts[seam]
        if start + table.offsets[seam] <= local < start + table.offsets[seam - 1]:
            only = " only" if slots.leaves_out(seam) else ""
            which = "second pass" if is_second else f"first pass{only}"
            yield f"{clock(local)} happens twice on {date(local)}: {which}"
