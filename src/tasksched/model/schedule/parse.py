"""The JSON form of a rule: from the fields of a request to one shared value.

Owns ``parse_rule``: exactly one of ``cron``, ``interval``, ``delay`` and ``rrule``, with ``timezone``,
``start_at``, ``end_at``, ``on_gap`` and ``on_fold`` beside it; a field that is null counts as missing.
Invariants: the same text gives the same object (while it is in the bounded cache); a refusal is one
``Invalid`` with a pointer for every field that is wrong; ``parse_rule(rule.fields())`` is an unbound
``rule`` again. Deliberately not here: the fields of a schedule that are no part of its rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from tasksched.errors import Invalid, Problem
from tasksched.model.durations import parse_duration
from tasksched.model.instants import format_instant
from tasksched.model.schedule.fixed import LEAST_MS, Delay, Every
from tasksched.model.schedule.rule import Rule, RuleKind, read_bounds, read_choice
from tasksched.model.schedule.rules import COMPILED_MAX, FOLDS, GAPS, Cron, OnFold, OnGap, RRule

RULE_FIELDS: Final[tuple[RuleKind, ...]] = ("cron", "interval", "delay", "rrule")
_FIELDS: Final = (*RULE_FIELDS, "timezone", "start_at", "end_at", "on_gap", "on_fold")


def parse_rule(fields: Mapping[str, object], *, least_ms: int = LEAST_MS) -> Rule:
    """The rule of a request, not yet bound to a schedule. Other keys of ``fields`` are not looked at.

    ``least_ms`` is the shortest interval or delay. Raises ``Invalid``.
    """
    values = tuple([fields.get(name) for name in _FIELDS])
    # Stored rules are all text, and come again with every firing: one look-up. What is not text may
    # not be hashable, or be equal to what means something else, as True and 1, so it is read anew.
    if all(value is None or type(value) is str for value in values):
        return _from_texts(values, least_ms)
    return _read(dict(zip(_FIELDS, values, strict=True)), least_ms)


@lru_cache(COMPILED_MAX)
def _from_texts(values: tuple[object, ...], least_ms: int) -> Rule:
    return _read(dict(zip(_FIELDS, values, strict=True)), least_ms)


def _read(fields: Mapping[str, object], least_ms: int) -> Rule:
    kind = _kind(fields)
    tz = "UTC" if fields.get("timezone") is None else fields["timezone"]
    readers: tuple[Callable[[], Any], ...] = (
        lambda: _read_text(kind, fields[kind], least_ms),
        lambda: read_bounds(fields.get("start_at"), fields.get("end_at"), tz),
        lambda: _read_seam(fields, "on_gap", GAPS, kind),
        lambda: _read_seam(fields, "on_fold", FOLDS, kind),
    )
    values: list[Any] = []
    problems: list[Problem] = []
    for read in readers:
        try:
            values.append(read())
        except Invalid as error:
            problems += error.problems
    if problems:
        raise Invalid(problems=tuple(problems))
    text, bounds, on_gap, on_fold = values
    start_at, end_at = (None if at_ms is None else format_instant(at_ms) for at_ms in bounds)
    return _shared(kind, text, _Options(str(tz), start_at, end_at, on_gap, on_fold))


def require_first(rule: Rule, created_ms: int) -> int:
    """The first nominal time of a bound rule. Raises ``Invalid`` at its field if there is none.

    Text that can never fire was refused before; this refuses what is over (a year that has passed, an
    ``end_at`` before the first time) and what the clock of the zone always jumps over.
    """
    first_ms = rule.first(created_ms)
    if first_ms is None:
        last = f" until {format_instant(rule.end_ms)}" if rule.end_ms is not None else ""
        raise Invalid(
            f"this rule never fires after {format_instant(created_ms)}{last} in {rule.tz}",
            f"/{rule.kind}",
        )
    return first_ms


def _kind(fields: Mapping[str, object]) -> RuleKind:
    kinds = [name for name in RULE_FIELDS if fields.get(name) is not None]
    detail = "exactly one of cron, interval, delay and rrule is needed"
    if not kinds:
        raise Invalid(detail)
    if len(kinds) > 1:
        raise Invalid(detail, problems=tuple(Problem(f"/{name}", detail) for name in kinds))
    return kinds[0]


def _read_text(kind: RuleKind, value: object, least_ms: int) -> str | int:
    """The text of a calendar rule, once it is known to be one; a duration in ms."""
    match kind:
        case "cron":
            rule: Any = Cron(value)  # type: ignore[arg-type] # it refuses what is no text
            return rule.expression  # type: ignore[no-any-return]
        case "rrule":
            return RRule(value).rrule  # type: ignore[arg-type]
        case _:
            return parse_duration(value, f"/{kind}", least_ms=least_ms)


def _read_seam(
    fields: Mapping[str, object], name: str, choices: tuple[Any, ...], kind: RuleKind
) -> Any:
    value = fields.get(name)
    choice = choices[0] if value is None else read_choice(value, choices, f"/{name}")
    if choice != choices[0] and kind in {"interval", "delay"}:
        # An interval has no local times: to accept this would be to promise something.
        raise Invalid(f"{name} goes with cron and rrule only, not with {kind}", f"/{name}")
    return choice


@dataclass(frozen=True, slots=True)
class _Options:
    tz: str
    start_at: str | None
    end_at: str | None
    on_gap: OnGap
    on_fold: OnFold


@lru_cache(COMPILED_MAX)
def _shared(kind: RuleKind, text: Any, options: _Options) -> Rule:
    tz, start_at, end_at = options.tz, options.start_at, options.end_at
    if kind in {"interval", "delay"}:
        fixed = Every if kind == "interval" else Delay
        return fixed(
            timedelta(milliseconds=text), tz=tz, start_at=start_at, end_at=end_at, least_ms=0
        )
    calendar = Cron if kind == "cron" else RRule
    return calendar(
        text,
        tz=tz,
        on_gap=options.on_gap,
        on_fold=options.on_fold,
        start_at=start_at,
        end_at=end_at,
    )
