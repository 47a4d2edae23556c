"""Rules: what a schedule's nominal times are, as values with one protocol.

Owns ``Rule`` and the two that follow the calendar of a zone, ``Cron`` and ``RRule``; the two that count
elapsed time are in ``fixed``, the reading of their JSON form in ``parse``. A rule is immutable; equal
rules are equal values with one ``canonical`` text, and what is costly (masks, the slots of a zone, the
answer last given) is compiled once for all rules that differ in their bounds or schedule only.
Invariants: ``next(t)`` > t and ``previous(t)`` < t; both walk the same instants; ``start_ms`` and
``end_ms`` are inclusive; all instants are integer milliseconds since the epoch. A rule that depends on
its schedule (``H``, an interval without start) is bound to it by ``bind`` before it is asked.
Deliberately not here: when something runs (``misfire``, ``jitter``), and any clock.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Self

from tasksched.errors import Invalid
from tasksched.model.instants import Instant, format_instant, parse_bound
from tasksched.model.schedule.civil import DAY_S, FIRST_DAY, LAST_DAY
from tasksched.model.schedule.cron import (
    CronExpression,
    normal_text,
    parse_cron,
    resolve_hash,
    uses_hash,
)
from tasksched.model.schedule.localtimes import Ending, LocalTimes
from tasksched.model.schedule.recurrence import local_times
from tasksched.model.schedule.rrule import POINTER as RRULE_POINTER
from tasksched.model.schedule.rrule import (
    Recurrence,
    RecurrenceText,
    completed,
    parse_rrule,
)
from tasksched.model.schedule.slots import WILDCARD, Seams, Slots
from tasksched.model.schedule.tzif import offset_table
from tasksched.model.zones import check_timezone

OnGap = Literal["next", "skip"]
OnFold = Literal["first", "both"]
RuleKind = Literal["cron", "interval", "delay", "rrule"]

COMPILED_MAX: Final = 4096
"""Distinct rules kept compiled, a few kilobytes each: a million schedules have some hundred."""

COUNT_MAX: Final = 100_000
"""Where counting ends unless the caller says otherwise."""

FLOOR_MS: Final = FIRST_DAY * DAY_S * 1000
CEILING_MS: Final = (LAST_DAY + 1) * DAY_S * 1000 - 1


class Rule(ABC):
    """The nominal times of a schedule. Bounds and times in milliseconds since the epoch."""

    __slots__ = ()

    kind: ClassVar[RuleKind]
    is_counted_exactly: ClassVar[bool] = True
    """Whether ``count`` costs the same for any range, so that a cap is not needed for its sake."""

    tz: str
    start_ms: int | None
    end_ms: int | None

    @abstractmethod
    def next(self, after_ms: int) -> int | None:
        """The first nominal time later than ``after_ms``; None if the rule is over."""

    @abstractmethod
    def previous(self, before_ms: int) -> int | None:
        """The last nominal time earlier than ``before_ms``; None before the first."""

    @abstractmethod
    def count(self, from_ms: int, to_ms: int, cap: int = COUNT_MAX) -> int:
        """The number of nominal times in (from_ms, to_ms], the half-open range that ``next`` walks.

        Never more than ``cap``; an answer of ``cap`` means "at least".
        """

    @abstractmethod
    def bind(self, schedule_id: str, created_ms: int) -> Self:
        """This rule as it is for a schedule: its id feeds ``H``, its creation is the missing start."""

    @abstractmethod
    def canonical(self) -> str:
        """The normal text of the rule, bounds included: equal exactly for equal rules."""

    @abstractmethod
    def fields(self) -> dict[str, str]:
        """The JSON form, as ``parse_rule`` reads it: ``{"cron": ..., "timezone": ..., ...}``."""

    def first(self, created_ms: int) -> int | None:
        """The first nominal time that a schedule created at ``created_ms`` owes.

        ``start_ms`` is inclusive, also if it is the very instant of creation.
        """
        if self.start_ms is not None and self.start_ms >= created_ms:
            return self.next(self.start_ms - 1)
        return self.next(created_ms)

    def between(self, from_ms: int, to_ms: int, limit: int) -> list[int]:
        """The oldest ``limit`` nominal times in (from_ms, to_ms], oldest first."""
        found: list[int] = []
        at_ms = self.next(from_ms)
        while at_ms is not None and at_ms <= to_ms and len(found) < limit:
            found.append(at_ms)
            at_ms = self.next(at_ms)
        return found

    def newest(self, from_ms: int, to_ms: int, limit: int) -> list[int]:
        """The newest ``limit`` nominal times in (from_ms, to_ms], oldest first."""
        found: list[int] = []
        at_ms = self.previous(to_ms + 1)
        while at_ms is not None and at_ms > from_ms and len(found) < limit:
            found.append(at_ms)
            at_ms = self.previous(at_ms)
        return found[::-1]

    def _bounds_text(self) -> str:
        return f"tz={self.tz} start={self.start_ms} end={self.end_ms}"

    def _bounds_fields(self) -> dict[str, str]:
        bounds = {"start_at": self.start_ms, "end_at": self.end_ms}
        texts = {name: format_instant(at) for name, at in bounds.items() if at is not None}
        return {"timezone": self.tz, **texts}


class UnboundError(ValueError):
    """A rule that needs its schedule's start was asked before ``bind``: a bug of the caller."""


class CalendarRule(Rule):
    """What ``Cron`` and ``RRule`` share: slots of a zone, between two bounds."""

    __slots__ = ()

    on_gap: OnGap
    on_fold: OnFold
    _slots: Slots | None
    _floor_ms: int
    _ceiling_ms: int

    @property
    @abstractmethod
    def is_wildcard(self) -> bool:
        """Whether the rule runs with the clock; if so ``on_gap`` and ``on_fold`` change nothing."""

    @property
    def slots(self) -> Slots:
        if self._slots is None:
            raise UnboundError("bind() this rule to its schedule first")
        return self._slots

    def next(self, after_ms: int) -> int | None:
        floor_ms = self._floor_ms
        at_s = self.slots.after((after_ms if after_ms >= floor_ms else floor_ms - 1) // 1000)
        return at_s * 1000 if at_s is not None and at_s * 1000 <= self._ceiling_ms else None

    def previous(self, before_ms: int) -> int | None:
        # Rounded up: a slot within the second that `before_ms` has begun is earlier than it.
        at_s = self.slots.before(-(-min(before_ms, self._ceiling_ms + 1) // 1000))
        return at_s * 1000 if at_s is not None and at_s * 1000 >= self._floor_ms else None

    def count(self, from_ms: int, to_ms: int, cap: int = COUNT_MAX) -> int:
        from_ms, to_ms = max(from_ms, self._floor_ms - 1), min(to_ms, self._ceiling_ms)
        return self.slots.count(from_ms // 1000, to_ms // 1000, cap) if from_ms < to_ms else 0

    def _seam_text(self) -> str:
        return f"on_gap={self.on_gap} on_fold={self.on_fold} {self._bounds_text()}"

    def _seam_fields(self) -> dict[str, str]:
        return {"on_gap": self.on_gap, "on_fold": self.on_fold, **self._bounds_fields()}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron(CalendarRule):
    """A cron expression in a zone: ``Cron("30 2 * * *", tz="Europe/Paris")``.

    ``on_gap``: a local time that the clock jumps over runs at the end of the gap (``next``) or not at
    all (``skip``). ``on_fold``: one that comes twice runs in the first pass (``first``) or in both.
    Raises ``Invalid`` with a pointer to the field of the JSON form.
    """

    kind: ClassVar[RuleKind] = "cron"

    expression: str = field(compare=False)
    text: str  # normal: upper case, aliases written out
    tz: str
    on_gap: OnGap
    on_fold: OnFold
    start_ms: int | None
    end_ms: int | None
    seed: str
    parsed: CronExpression = field(compare=False)
    _slots: Slots | None = field(compare=False)
    _floor_ms: int = field(compare=False)
    _ceiling_ms: int = field(compare=False)

    def __init__(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        on_gap: OnGap = "next",
        on_fold: OnFold = "first",
        start_at: Instant | None = None,
        end_at: Instant | None = None,
    ) -> None:
        text = normal_text(expression)
        start_ms, end_ms = read_bounds(start_at, end_at, tz)
        _fill(
            self,
            expression=" ".join(expression.split()),
            text=text,
            tz=tz,
            on_gap=read_choice(on_gap, ("next", "skip"), "/on_gap"),
            on_fold=read_choice(on_fold, ("first", "both"), "/on_fold"),
            start_ms=start_ms,
            end_ms=end_ms,
            seed="",
            _floor_ms=FLOOR_MS if start_ms is None else start_ms,
            _ceiling_ms=CEILING_MS if end_ms is None else end_ms,
        )
        self._compile()

    def _compile(self) -> None:
        text = resolve_hash(self.text, self.seed) if uses_hash(self.text) else self.text
        parsed, slots = _cron_slots(text, self.tz, self.on_gap, self.on_fold)
        _fill(self, parsed=parsed, _slots=slots)

    @property
    def is_wildcard(self) -> bool:
        return self.parsed.is_wildcard

    def bind(self, schedule_id: str, created_ms: int) -> Self:  # noqa: ARG002 - no anchor is needed
        if not uses_hash(self.text) or self.seed == schedule_id:
            return self
        bound = _copy(self, seed=schedule_id)
        bound._compile()
        return bound

    def canonical(self) -> str:
        seed = f" seed={self.seed}" if self.seed else ""
        return f"cron {self.text}{seed} {self._seam_text()}"

    def fields(self) -> dict[str, str]:
        return {"cron": self.expression, **self._seam_fields()}

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={self.tz!r})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class RRule(CalendarRule):
    """A recurrence rule of RFC 5545 in a zone: ``RRule("FREQ=MONTHLY;BYDAY=-1FR", tz="UTC")``.

    Its start is ``start_at``. Without one it starts with its schedule: the period, weekday and date
    are those of the local day of creation, and the time of day, where the rule names none, is 00:00;
    ``COUNT`` counts from the creation. ``on_gap`` and ``on_fold`` as for ``Cron``.
    Raises ``Invalid`` with a pointer to the field of the JSON form.
    """

    kind: ClassVar[RuleKind] = "rrule"
    is_counted_exactly: ClassVar[bool] = False

    rrule: str
    tz: str
    on_gap: OnGap
    on_fold: OnFold
    start_ms: int | None
    end_ms: int | None
    anchor_ms: int | None
    parsed: RecurrenceText = field(compare=False)
    completed: Recurrence | None = field(compare=False)
    _slots: Slots | None = field(compare=False)
    _floor_ms: int = field(compare=False)
    _ceiling_ms: int = field(compare=False)

    def __init__(
        self,
        rrule: str,
        *,
        tz: str = "UTC",
        on_gap: OnGap = "next",
        on_fold: OnFold = "first",
        start_at: Instant | None = None,
        end_at: Instant | None = None,
    ) -> None:
        parsed = _parsed_rrule(rrule) if isinstance(rrule, str) else parse_rrule(rrule)
        start_ms, end_ms = read_bounds(start_at, end_at, tz)
        ceiling_ms = CEILING_MS if end_ms is None else end_ms
        if parsed.until is not None and parsed.until.is_utc:
            ceiling_ms = min(ceiling_ms, parsed.until.at_s * 1000)
        _fill(
            self,
            rrule=parsed.text,
            tz=tz,
            on_gap=read_choice(on_gap, ("next", "skip"), "/on_gap"),
            on_fold=read_choice(on_fold, ("first", "both"), "/on_fold"),
            start_ms=start_ms,
            end_ms=end_ms,
            anchor_ms=None,
            parsed=parsed,
            completed=None,
            _slots=None,
            _floor_ms=FLOOR_MS,
            _ceiling_ms=ceiling_ms,
        )
        if start_ms is not None:
            self._start(floor_ms=start_ms, is_chosen=True)

    def _start(self, floor_ms: int, *, is_chosen: bool) -> None:
        """Complete the rule from its start: the instant the user chose, or the day of creation."""
        floor_s = -(-floor_ms // 1000)
        local_s = floor_s + offset_table(self.tz).offset(floor_s)
        start_s = local_s if is_chosen else local_s - local_s % DAY_S
        rule = completed(self.parsed.parts, start_s)
        count_from_s = None if self.parsed.count is None else local_s
        until = self.parsed.until
        until_s = None if until is None or until.is_utc else until.at_s
        slots = _rrule_slots(
            rule, (self.parsed.count, count_from_s), until_s, self.tz, _seams(self, self.parsed)
        )
        _fill(self, completed=rule, _slots=slots, _floor_ms=floor_ms)

    @property
    def is_wildcard(self) -> bool:
        return self.parsed.is_wildcard

    def bind(self, schedule_id: str, created_ms: int) -> Self:  # noqa: ARG002 - the id adds nothing
        if self.start_ms is not None or self.anchor_ms == created_ms:
            return self
        bound = _copy(self, anchor_ms=created_ms)
        bound._start(floor_ms=created_ms + 1, is_chosen=False)
        return bound

    def canonical(self) -> str:
        anchor = "" if self.anchor_ms is None else f" anchor={self.anchor_ms}"
        return f"rrule {self.rrule}{anchor} {self._seam_text()}"

    def fields(self) -> dict[str, str]:
        return {"rrule": self.rrule, **self._seam_fields()}

    def __repr__(self) -> str:
        return f"RRule({self.rrule!r}, tz={self.tz!r})"


def read_bounds(
    start_at: Instant | None, end_at: Instant | None, tz: object
) -> tuple[int | None, int | None]:
    """``start_at`` and ``end_at`` in ms; a time without offset is local to ``tz``.

    Raises ``Invalid`` at ``/timezone``, ``/start_at`` or ``/end_at``.
    """
    name = check_timezone(tz, "/timezone")
    start_ms = None if start_at is None else parse_bound(start_at, "/start_at", timezone=name)
    end_ms = None if end_at is None else parse_bound(end_at, "/end_at", timezone=name)
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise Invalid("end_at is earlier than start_at", "/end_at")
    return start_ms, end_ms


def read_choice(value: object, choices: tuple[str, ...], pointer: str) -> str:
    if not isinstance(value, str) or value not in choices:
        raise Invalid("it is one of " + ", ".join(choices), pointer)
    return value


def _seams(rule: CalendarRule, parsed: CronExpression | RecurrenceText) -> Seams:
    if parsed.is_wildcard:
        return WILDCARD
    return Seams(make_up_gaps=rule.on_gap == "next", first_pass_only=rule.on_fold == "first")
