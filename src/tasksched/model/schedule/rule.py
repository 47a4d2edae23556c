"""The protocol of all rules: what a schedule's nominal times are.

Owns ``Rule`` and what every rule does with its bounds. A rule is an immutable value; equal rules have
one ``canonical`` text. Invariants: ``next(t)`` > t and ``previous(t)`` < t, both walk the same instants,
and both end in bounded time; ``start_ms`` and ``end_ms`` are inclusive; all instants are integer
milliseconds since the epoch. A rule that depends on its schedule (``H``, an interval without a start)
is bound to it by ``bind`` before it is asked.
Deliberately not here: when something runs (``misfire``, ``jitter``), and any clock.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Literal, Self, TypeVar

from tasksched.errors import Invalid
from tasksched.model.instants import format_instant, parse_bound
from tasksched.model.schedule.civil import DAY_S, FIRST_DAY, LAST_DAY
from tasksched.model.zones import check_timezone

RuleKind = Literal["cron", "interval", "delay", "rrule"]
Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=str)

COUNT_MAX: Final = 100_000
"""Where counting ends unless the caller says otherwise."""

FLOOR_MS: Final = FIRST_DAY * DAY_S * 1000
CEILING_MS: Final = (LAST_DAY + 1) * DAY_S * 1000 - 1
"""The calendar's own bounds: no nominal time lies outside of them."""


class UnboundError(ValueError):
    """A rule that needs its schedule's start was asked before ``bind``: a bug of the caller."""


class Rule(ABC):
    """The nominal times of a schedule. Bounds and times in milliseconds since the epoch."""

    __slots__ = ()

    kind: ClassVar[RuleKind]
    is_counted_exactly: ClassVar[bool] = True
    """Whether ``count`` costs about the same for any range, so that it needs no cap."""

    tz: str
    start_ms: int | None
    end_ms: int | None

    @abstractmethod
    def next(self, after_ms: int) -> int | None:
        """The first nominal time later than ``after_ms``; None if the rule is over."""

    @abstractmethod
    def previous(self, before_ms: int) -> int | None:
        """The last nominal time earlier than ``before_ms``; None if there is none."""

    @abstractmethod
    def count(self, from_ms: int, to_ms: int, cap: int = COUNT_MAX) -> int:
        """The number of nominal times in (from_ms, to_ms], the half-open range that ``next`` walks.

        Never more than ``cap``; an answer of ``cap`` means "at least".
        """

    @property
    def is_bound(self) -> bool:
        """Whether the rule can be asked: nothing it depends on is left to ``bind``."""
        return True

    @abstractmethod
    def bind(self, schedule_id: str, created_ms: int) -> Self:
        """This rule as it is for a schedule: its id feeds ``H``, its creation is a missing start."""

    @abstractmethod
    def canonical(self) -> str:
        """The normal text of the rule, bounds and binding included: equal exactly for equal rules."""

    @abstractmethod
    def fields(self) -> dict[str, str]:
        """The JSON form, as ``parse_rule`` reads it: ``{"cron": ..., "timezone": ..., ...}``."""

    def first(self, created_ms: int) -> int | None:
        """The first nominal time that a schedule created at ``created_ms`` owes.

        ``start_ms`` is inclusive, even if it is the very instant of creation.
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


def read_bounds(start_at: object, end_at: object, tz: object) -> tuple[int | None, int | None]:
    """``start_at`` and ``end_at`` in ms; a time without an offset is local to ``tz``.

    Raises ``Invalid`` at ``/timezone``, ``/start_at`` or ``/end_at``.
    """
    name = check_timezone(tz, "/timezone")
    start_ms = None if start_at is None else parse_bound(start_at, "/start_at", timezone=name)
    end_ms = None if end_at is None else parse_bound(end_at, "/end_at", timezone=name)
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise Invalid("end_at is earlier than start_at", "/end_at")
    return start_ms, end_ms


def read_choice(value: object, choices: tuple[Choice, ...], pointer: str) -> Choice:
    """``value`` as one of ``choices``. Raises ``Invalid`` at ``pointer``."""
    for choice in choices:
        if value == choice:
            return choice
    raise Invalid("it is one of " + ", ".join(choices), pointer)


def fill(rule: Rule, **values: object) -> None:
    """Set fields of a frozen rule that is being made."""
    for name, value in values.items():
        object.__setattr__(rule, name, value)


def changed(rule: Value, **values: object) -> Value:
    """A copy of a frozen rule with other values, past its constructor, which reads users' text."""
    copy = object.__new__(type(rule))
    for name in type(rule).__slots__:  # type: ignore[attr-defined]
        object.__setattr__(copy, name, values.get(name, getattr(rule, name)))
    return copy
