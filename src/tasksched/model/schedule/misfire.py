"""Misfires: what to do about nominal times that are past.

Owns the plan: given a rule, the last nominal time that is settled, and now, which occurrences are
created and what is recorded of the others. Invariants: every nominal time in (last, now] is either one
of ``runs`` or in one range of ``skipped``: nothing is lost without a record; runs and ranges are in the
order of time; the plan is a pure function of its arguments, so any scheduler may make it, and making it
costs the same after a second and after a year. What is later than ``grace_ms`` is missed, exactly that
late is not. Nothing is owed for times up to ``last_ms``, which is therefore the creation, the resume or
the edit where that is later. Deliberately not here: overlap, and how a record is packed.
"""

from dataclasses import dataclass
from typing import Final, Literal

from tasksched.errors import Invalid
from tasksched.model.schedule.rule import COUNT_MAX, Rule

CatchUp = Literal["one", "none", "all"]
SkippedOutcome = Literal["missed", "coalesced", "catch_up_dropped"]

CATCH_UPS: Final[tuple[CatchUp, ...]] = ("one", "none", "all")
LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class MisfirePolicy:
    """What a schedule wants: one run for all, none, or all of the newest ``limit``.

    ``grace_ms``: a nominal time that is later than this is missed; None: none ever is.
    Raises ``Invalid`` at the field.
    """

    catch_up: CatchUp = "one"
    limit: int = LIMIT_DEFAULT
    grace_ms: int | None = None

    def __post_init__(self) -> None:
        if self.catch_up not in CATCH_UPS:
            raise Invalid("it is one of " + ", ".join(CATCH_UPS), "/catch_up")
        if not 1 <= self.limit <= LIMIT_MAX:
            raise Invalid(f"it is a number from 1 to {LIMIT_MAX}", "/catch_up_limit")
        if self.catch_up == "none" and self.grace_ms is None:
            raise Invalid(
                "catch_up none needs misfire_grace: how late is a run that still counts as on time?",
                "/misfire_grace",
            )


@dataclass(frozen=True, slots=True)
class Run:
    """An occurrence to create. ``stands_for``: the overdue nominal times it covers, itself included."""

    nominal_ms: int
    stands_for: int = 1

    @property
    def missed(self) -> int:
        """The count of missed times that the run carries: 0 for one that is merely due."""
        return self.stands_for if self.stands_for > 1 else 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A range of ``count`` nominal times that get no run; at least so many, unless ``is_exact``."""

    outcome: SkippedOutcome
    first_ms: int
    last_ms: int
    count: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """``overdue`` nominal times in all; ``runs`` and ``skipped`` oldest first; then ``next_ms``."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]
    overdue: int
    is_exact: bool
    next_ms: int | None

    @property
    def is_catch_up(self) -> bool:
        """Whether something was missed: with ``all`` the runs then follow each other."""
        return self.overdue > 1


def plan(
    rule: Rule, *, last_ms: int, now_ms: int, policy: MisfirePolicy, cap: int = COUNT_MAX
) -> Plan:
    """What to do about the nominal times of a bound ``rule`` in (``last_ms``, ``now_ms``].

    ``cap`` ends the counting where it costs more for a longer range (``is_counted_exactly``).
    A fixed delay has no times to miss: ``ValueError``.
    """
    if rule.kind == "delay":
        raise ValueError("a fixed delay has no nominal times to miss")
    # There are fewer nominal times than milliseconds: such a cap is never reached.
    tally = _Tally(rule, max(now_ms - last_ms, 0) + 1 if rule.is_counted_exactly else cap)
    overdue = tally.count(last_ms, now_ms)
    # What is at or before `late_ms` is later than the grace allows.
    late_ms = last_ms
    if policy.grace_ms is not None:
        late_ms = max(last_ms, now_ms - policy.grace_ms - 1)
    runs: list[Run] = []
    skipped: list[Skipped] = []
    if overdue:
        if policy.catch_up == "all":
            runs = [Run(at_ms) for at_ms in rule.newest(late_ms, now_ms, policy.limit)]
        else:
            stands_for = overdue if policy.catch_up == "one" else 1
            runs = [Run(at_ms, stands_for) for at_ms in rule.newest(late_ms, now_ms, 1)]
        first_run_ms = runs[0].nominal_ms if runs else now_ms + 1
        if policy.catch_up == "none":
            # There is no run that it could have been merged into: all the others are just missed.
            late_ms = first_run_ms - 1
        skipped += tally.range("missed", last_ms, late_ms)
        outcome: SkippedOutcome = "catch_up_dropped" if policy.catch_up == "all" else "coalesced"
        skipped += tally.range(outcome, late_ms, first_run_ms - 1)
    return Plan(tuple(runs), tuple(skipped), overdue, overdue < tally.cap, rule.next(now_ms))


@dataclass(frozen=True, slots=True)
class _Tally:
    """Counts nominal times up to a cap, and knows whether it was reached."""

    rule: Rule
    cap: int

    def count(self, after_ms: int, until_ms: int) -> int:
        return self.rule.count(after_ms, until_ms, self.cap) if after_ms < until_ms else 0

    def range(self, outcome: SkippedOutcome, after_ms: int, until_ms: int) -> list[Skipped]:
        """The nominal times in (after_ms, until_ms] as one range, or no range if there are none."""
        count = self.count(after_ms, until_ms)
        first_ms, last_ms = self.rule.next(after_ms), self.rule.previous(until_ms + 1)
        if not count or first_ms is None or last_ms is None:
            return []
        return [Skipped(outcome, first_ms, last_ms, count, is_exact=count < self.cap)]
