"""The rules that count elapsed time: ``Every`` (fixed rate) and ``Delay`` (fixed delay).

Owns their arithmetic, in UTC: 24 hours are 24 hours, whatever the clocks of the zone do in between. A
fixed rate is anchor + k * interval, so it cannot drift: the anchor is ``start_at`` or the creation of
the schedule, and neither runs, restarts nor edits of other fields move it. A fixed delay has no such
grid: its next time follows from the verdict on the run before, and before that there is nothing to
count, miss or catch up with. Invariants as for every ``Rule``.
Deliberately not here: who creates the next occurrence of a fixed delay, and when.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from tasksched.model.durations import SECOND_MS, Duration, format_duration, parse_duration
from tasksched.model.instants import Instant
from tasksched.model.schedule.rule import (
    CEILING_MS,
    COUNT_MAX,
    Rule,
    RuleKind,
    UnboundError,
    changed,
    fill,
    read_bounds,
)

LEAST_MS: Final = SECOND_MS
"""The shortest interval or recurring delay, unless a setting says otherwise."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Every(Rule):
    """A fixed rate: ``Every("15m")``, at anchor + k * interval. At least ``least_ms``, at most 10 years.

    With ``start_at`` that is the anchor and the first run; without, the creation is the anchor and the
    first run comes one interval later. ``tz`` is for local bounds and for showing times only.
    Raises ``Invalid`` with a pointer to the field of the JSON form.
    """

    kind: ClassVar[RuleKind] = "interval"

    interval_ms: int
    tz: str
    start_ms: int | None
    end_ms: int | None
    anchor_ms: int | None
    _ceiling_ms: int = field(compare=False)

    def __init__(
        self,
        interval: Duration,
        *,
        tz: str = "UTC",
        start_at: Instant | None = None,
        end_at: Instant | None = None,
        least_ms: int = LEAST_MS,
    ) -> None:
        start_ms, end_ms = read_bounds(start_at, end_at, tz)
        fill(
            self,
            interval_ms=parse_duration(interval, "/interval", least_ms=least_ms),
            tz=tz,
            start_ms=start_ms,
            end_ms=end_ms,
            anchor_ms=start_ms,
            _ceiling_ms=CEILING_MS if end_ms is None else min(end_ms, CEILING_MS),
        )

    @property
    def is_bound(self) -> bool:
        return self.anchor_ms is not None

    @property
    def _first_ms(self) -> int:
        """The first time of the grid that counts: the start itself, or one interval after creation."""
        if self.anchor_ms is None:
            raise UnboundError("bind() this rule to its schedule first")
        return self.anchor_ms if self.start_ms is not None else self.anchor_ms + self.interval_ms

    def next(self, after_ms: int) -> int | None:
        first_ms = self._first_ms
        if after_ms >= first_ms:
            first_ms += ((after_ms - first_ms) // self.interval_ms + 1) * self.interval_ms
        return first_ms if first_ms <= self._ceiling_ms else None

    def previous(self, before_ms: int) -> int | None:
        last_ms = min(before_ms - 1, self._ceiling_ms)
        steps = (last_ms - self._first_ms) // self.interval_ms
        return self._first_ms + steps * self.interval_ms if steps >= 0 else None

    def count(self, from_ms: int, to_ms: int, cap: int = COUNT_MAX) -> int:
        first_ms, last_ms = self._first_ms, min(to_ms, self._ceiling_ms)
        until = (last_ms - first_ms) // self.interval_ms
        before = max((from_ms - first_ms) // self.interval_ms, -1)
        return min(max(until - before, 0), cap)

    def bind(self, schedule_id: str, created_ms: int) -> Self:  # noqa: ARG002 - it has no H
        if self.start_ms is not None or self.anchor_ms == created_ms:
            return self
        return changed(self, anchor_ms=created_ms)

    def canonical(self) -> str:
        anchor = "" if self.anchor_ms is None else f" anchor={self.anchor_ms}"
        return f"interval {self.interval_ms}{anchor} {self._bounds_text()}"

    def fields(self) -> dict[str, str]:
        return {"interval": format_duration(self.interval_ms), **self._bounds_fields()}

    def __repr__(self) -> str:
        return f"Every({format_duration(self.interval_ms)!r})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Delay(Rule):
    """A fixed delay: ``Delay("15m")`` after the verdict on the run before. Bounds as ``Every``.

    ``next`` takes the instant of the verdict. There is no grid: ``previous`` is None, ``count`` is 0.
    """

    kind: ClassVar[RuleKind] = "delay"

    delay_ms: int
    tz: str
    start_ms: int | None
    end_ms: int | None
    _ceiling_ms: int = field(compare=False)

    def __init__(
        self,
        delay: Duration,
        *,
        tz: str = "UTC",
        start_at: Instant | None = None,
        end_at: Instant | None = None,
        least_ms: int = LEAST_MS,
    ) -> None:
        start_ms, end_ms = read_bounds(start_at, end_at, tz)
        fill(
            self,
            delay_ms=parse_duration(delay, "/delay", least_ms=least_ms),
            tz=tz,
            start_ms=start_ms,
            end_ms=end_ms,
            _ceiling_ms=CEILING_MS if end_ms is None else min(end_ms, CEILING_MS),
        )

    def first(self, created_ms: int) -> int | None:
        """``start_at``, or at once if that is past; without it, one delay after creation."""
        if self.start_ms is None:
            return self.next(created_ms)
        first_ms = max(self.start_ms, created_ms)
        return first_ms if first_ms <= self._ceiling_ms else None

    def next(self, after_ms: int) -> int | None:
        at_ms = after_ms + self.delay_ms
        return at_ms if at_ms <= self._ceiling_ms else None

    def previous(self, before_ms: int) -> int | None:  # noqa: ARG002 - whatever it is
        return None

    def count(self, from_ms: int, to_ms: int, cap: int = COUNT_MAX) -> int:  # noqa: ARG002
        return 0

    def between(self, from_ms: int, to_ms: int, limit: int) -> list[int]:  # noqa: ARG002
        return []

    def bind(self, schedule_id: str, created_ms: int) -> Self:  # noqa: ARG002 - needs neither
        return self

    def canonical(self) -> str:
        return f"delay {self.delay_ms} {self._bounds_text()}"

    def fields(self) -> dict[str, str]:
        return {"delay": format_duration(self.delay_ms), **self._bounds_fields()}

    def __repr__(self) -> str:
        return f"Delay({format_duration(self.delay_ms)!r})"
