"""The rules that follow the calendar of a zone: ``Cron`` and ``RRule``.

Owns their Python constructors and what makes them cheap. What is costly (masks, the seams of a zone,
the answer last given) is compiled once for all rules that differ only in their bounds or their schedule
and is kept in a bounded cache, so a million schedules of some hundred rules cost some hundred
compilations, and one search for each slot. Invariants as for every ``Rule``; besides, text is checked
when a rule is made: a rule that exists names at least one local time.
Deliberately not here: the rules that count elapsed time (``fixed``), the JSON form (``parse``).
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal, Self

from tasksched.errors import Invalid
from tasksched.model.instants import Instant
from tasksched.model.schedule.civil import DAY_S, FIRST_DAY
from tasksched.model.schedule.cron import (
    CronExpression,
    normal_text,
    parse_cron,
    resolve_hash,
    uses_hash,
)
from tasksched.model.schedule.localtimes import Ending, LocalTimes
from tasksched.model.schedule.recurrence import local_times
from tasksched.model.schedule.rrule import (
    POINTER,
    Recurrence,
    RecurrenceText,
    completed,
    parse_rrule,
)
from tasksched.model.schedule.rule import (
    CEILING_MS,
    COUNT_MAX,
    FLOOR_MS,
    Rule,
    RuleKind,
    UnboundError,
    changed,
    fill,
    read_bounds,
    read_choice,
)
from tasksched.model.schedule.slots import WILDCARD, Seams, Slots
from tasksched.model.schedule.tzif import offset_table

OnGap = Literal["next", "skip"]
OnFold = Literal["first", "both"]
GAPS: Final[tuple[OnGap, ...]] = ("next", "skip")
FOLDS: Final[tuple[OnFold, ...]] = ("first", "both")

COMPILED_MAX: Final = 4096
"""Rules kept compiled, a few kilobytes each."""


class CalendarRule(Rule):
    """What ``Cron`` and ``RRule`` share: the slots of a zone, between two bounds."""

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
        """The instants without the bounds, in seconds. Raises ``UnboundError``."""
        if self._slots is None:
            raise UnboundError("bind() this rule to its schedule first")
        return self._slots

    def next(self, after_ms: int) -> int | None:
        floor_ms = self._floor_ms
        at_s = self.slots.after((after_ms if after_ms >= floor_ms else floor_ms - 1) // 1000)
        return at_s * 1000 if at_s is not None and at_s * 1000 <= self._ceiling_ms else None

    def previous(self, before_ms: int) -> int | None:
        # Rounded up: the slot at the begin of the second in which `before_ms` lies is earlier.
        at_s = self.slots.before(-(-min(before_ms, self._ceiling_ms + 1) // 1000))
        return at_s * 1000 if at_s is not None and at_s * 1000 >= self._floor_ms else None

    def count(self, from_ms: int, to_ms: int, cap: int = COUNT_MAX) -> int:
        from_ms, to_ms = max(from_ms, self._floor_ms - 1), min(to_ms, self._ceiling_ms)
        return self.slots.count(from_ms // 1000, to_ms // 1000, cap) if from_ms < to_ms else 0

    def _seams_text(self) -> str:
        return f"on_gap={self.on_gap} on_fold={self.on_fold} {self._bounds_text()}"

    def _seams_fields(self) -> dict[str, str]:
        return {"on_gap": self.on_gap, "on_fold": self.on_fold, **self._bounds_fields()}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron(CalendarRule):
    """A cron expression in a zone: ``Cron("30 2 * * *", tz="Europe/Paris")``.

    ``on_gap``: a local time that the clock jumps over runs at the end of the gap (``next``) or not at
    all (``skip``). ``on_fold``: one that comes twice runs in the first pass (``first``) or in ``both``.
    Raises ``Invalid`` with a pointer to the field of the JSON form.
    """

    kind: ClassVar[RuleKind] = "cron"

    expression: str = field(compare=False)
    text: str  # the normal one: upper case, aliases written out
    tz: str
    on_gap: OnGap
    on_fold: OnFold
    start_ms: int | None
    end_ms: int | None
    seed: str
    parsed: CronExpression = field(compare=False)
    _slots: Slots = field(compare=False)
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
        on_gap = read_choice(on_gap, GAPS, "/on_gap")
        on_fold = read_choice(on_fold, FOLDS, "/on_fold")
        parsed, slots = _cron_slots(_without_hash(text, seed=""), tz, on_gap, on_fold)
        fill(
            self,
            expression=" ".join(expression.split()),
            text=text,
            tz=tz,
            on_gap=on_gap,
            on_fold=on_fold,
            start_ms=start_ms,
            end_ms=end_ms,
            seed="",
            parsed=parsed,
            _slots=slots,
            _floor_ms=FLOOR_MS if start_ms is None else start_ms,
            _ceiling_ms=CEILING_MS if end_ms is None else end_ms,
        )

    @property
    def is_wildcard(self) -> bool:
        return self.parsed.is_wildcard

    def bind(self, schedule_id: str, created_ms: int) -> Self:  # noqa: ARG002 - it has no anchor
        if not uses_hash(self.text) or self.seed == schedule_id:
            return self
        text = _without_hash(self.text, schedule_id)
        parsed, slots = _cron_slots(text, self.tz, self.on_gap, self.on_fold)
        return changed(self, seed=schedule_id, parsed=parsed, _slots=slots)

    def canonical(self) -> str:
        seed = f" seed={self.seed}" if self.seed else ""
        return f"cron {self.text}{seed} {self._seams_text()}"

    def fields(self) -> dict[str, str]:
        return {"cron": self.expression, **self._seams_fields()}

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={self.tz!r})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class RRule(CalendarRule):
    """A recurrence rule of RFC 5545 in a zone: ``RRule("FREQ=MONTHLY;BYDAY=-1FR", tz="Europe/Paris")``.

    Its start is ``start_at``. Without one it starts with its schedule: intervals count from the local
    day of creation, which also lends its weekday or date; the time of day, where the rule names none,
    is 00:00; ``COUNT`` counts from the creation. ``on_gap`` and ``on_fold`` as for ``Cron``.
    Raises ``Invalid`` with a pointer to the field of the JSON form.
    """

    kind: ClassVar[RuleKind] = "rrule"
    is_counted_exactly: ClassVar[bool] = False

    rrule: str  # the normal text
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
        fill(
            self,
            rrule=parsed.text,
            tz=tz,
            on_gap=read_choice(on_gap, GAPS, "/on_gap"),
            on_fold=read_choice(on_fold, FOLDS, "/on_fold"),
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
            fill(self, **self._started(start_ms, is_chosen=True))

    def _started(self, floor_ms: int, *, is_chosen: bool) -> dict[str, object]:
        """What a start adds: the instant that the user chose, or the instant of creation."""
        parsed = self.parsed
        floor_s = -(-floor_ms // 1000)
        local_s = max(floor_s + offset_table(self.tz).offset(floor_s), FIRST_DAY * DAY_S)
        rule = completed(parsed.parts, local_s if is_chosen else local_s - local_s % DAY_S)
        until = parsed.until
        last_s = until.at_s if until is not None and not until.is_utc else None
        counted = (local_s, parsed.count) if parsed.count is not None else None
        seams = _seams(self.on_gap, self.on_fold, is_wildcard=parsed.is_wildcard)
        slots = _rrule_slots(rule, counted, last_s, self.tz, seams)
        return {"completed": rule, "_slots": slots, "_floor_ms": floor_ms}

    @property
    def is_wildcard(self) -> bool:
        return self.parsed.is_wildcard

    @property
    def is_bound(self) -> bool:
        return self._slots is not None

    def bind(self, schedule_id: str, created_ms: int) -> Self:  # noqa: ARG002 - it has no H
        if self.start_ms is not None or self.anchor_ms == created_ms:
            return self
        started = self._started(created_ms + 1, is_chosen=False)
        return changed(self, anchor_ms=created_ms, **started)

    def canonical(self) -> str:
        anchor = "" if self.anchor_ms is None else f" anchor={self.anchor_ms}"
        return f"rrule {self.rrule}{anchor} {self._seams_text()}"

    def fields(self) -> dict[str, str]:
        return {"rrule": self.rrule, **self._seams_fields()}

    def __repr__(self) -> str:
        return f"RRule({self.rrule!r}, tz={self.tz!r})"


def _without_hash(text: str, seed: str) -> str:
    return resolve_hash(text, seed) if uses_hash(text) else text


def _seams(on_gap: OnGap, on_fold: OnFold, *, is_wildcard: bool) -> Seams:
    if is_wildcard:
        return WILDCARD
    return Seams(make_up_gaps=on_gap == "next", first_pass_only=on_fold == "first")


@lru_cache(COMPILED_MAX)
def _cron_slots(text: str, tz: str, on_gap: OnGap, on_fold: OnFold) -> tuple[CronExpression, Slots]:
    parsed = _parsed_cron(text)
    seams = _seams(on_gap, on_fold, is_wildcard=parsed.is_wildcard)
    return parsed, Slots(parsed.times, offset_table(tz), seams)


_parsed_cron = lru_cache(COMPILED_MAX)(parse_cron)


@lru_cache(COMPILED_MAX)
def _parsed_rrule(text: str) -> RecurrenceText:
    """As ``parse_rrule``; refuses as well what would be empty whatever its start."""
    parsed = parse_rrule(text)
    # 1 January 2000 lends a date that every month has, and every period counts: if even this names
    # nothing, no start can help.
    times = _times(replace(completed(parsed.parts, _LENIENT_START_S), interval=1, phase=0))
    if times is None or times.ceiling(0) is None:
        raise Invalid(
            "this recurrence rule can never fire: its parts name no date and time together; "
            "check how many days the month has, and BYSETPOS",
            POINTER,
        )
    return parsed


_LENIENT_START_S: Final = 10_957 * DAY_S
_times = lru_cache(COMPILED_MAX)(local_times)


@lru_cache(COMPILED_MAX)
def _rrule_slots(
    rule: Recurrence, counted: tuple[int, int] | None, last_s: int | None, tz: str, seams: Seams
) -> Slots:
    """``counted``: the local second to count from, and COUNT; ``last_s``: a local UNTIL. Not both."""
    times: LocalTimes | None = _times(rule)
    if times is None:
        raise Invalid(
            "this recurrence rule can never fire: its interval meets none of its times", POINTER
        )
    if counted is not None:
        last_s = times.nth(*counted)
    if last_s is not None:
        times = Ending(times, last_s)
    return Slots(times, offset_table(tz), seams)
