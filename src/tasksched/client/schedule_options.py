"""Schedule options: what a caller may say about a recurring task beside its handler's arguments.

They have the names of the HTTP API's. ``rule_of`` reads when it runs, ``spec_of`` makes the whole
definition, ``RecurringChanges`` is an edit: what it does not name stays. Nothing here sends anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from tasksched.client.options import concurrency_in, parsed
from tasksched.errors import Invalid
from tasksched.model import codec
from tasksched.model.durations import Duration, parse_duration
from tasksched.model.names import Priority, check_name
from tasksched.model.notify import Receiver
from tasksched.model.receivers import Notify, check_schedule_receivers
from tasksched.model.recurring import AFTERS, OVERLAPS, After, Overlap, ScheduleSpec
from tasksched.model.retry import Retry
from tasksched.model.schedule import Cron, Every, Rule
from tasksched.model.schedule.misfire import CATCH_UPS, CatchUp, MisfirePolicy
from tasksched.model.schedule.rule import read_choice
from tasksched.model.task import DEFAULT_RETRY, TaskSpec

When = Rule | Duration
"""A rule; or a cron expression; or a duration, which is an interval: ``"15m"``."""

_MISFIRE = {"catch_up": "catch_up", "catch_up_limit": "limit", "misfire_grace_ms": "grace_ms"}


class Policy(TypedDict, total=False):
    """What happens when runs overlap or nominal times were missed. See ``docs/python.md``."""

    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    misfire_grace: Duration | None
    jitter: Duration | None
    max_runs: int | None
    after: After


class ScheduleOptions(Policy, total=False):
    """Of ``handler.every(…)``."""

    id: Required[str]
    tenant: str | None
    notify: Notify


class DeclaredOptions(Policy, total=False):
    """Of ``@app.task(cron=…, schedule_options=…)``."""

    id: str
    notify: Notify


class EditOptions(Policy, total=False):
    """Of ``Recurring.edit(…)``. ``payload`` is the value itself, not a handler's arguments."""

    rule: When
    queue: str
    priority: Priority
    retry: Retry | None
    timeout: Duration | None
    tags: Sequence[str]
    notify: Notify
    concurrency_key: str | None
    concurrency_limit: int
    payload: Any


class RecurringChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit shall change; what is UNSET stays. None clears where a field can be empty."""

    rule: Rule | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    catch_up: CatchUp | UnsetType = UNSET
    catch_up_limit: int | UnsetType = UNSET
    misfire_grace_ms: int | None | UnsetType = UNSET
    jitter_ms: int | None | UnsetType = UNSET
    max_runs: int | None | UnsetType = UNSET
    after: After | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout_ms: int | None | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    notify: tuple[Receiver, ...] | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    concurrency_key: str | None | UnsetType = UNSET
    concurrency_limit: int | UnsetType = UNSET


def rule_of(when: When) -> Rule:
    """The rule that is meant. Raises Invalid.

    No duration has a space in it, and every cron expression has, or begins with ``@``.
    """
    if isinstance(when, Rule):
        return when
    if isinstance(when, str) and (" " in when.strip() or when.lstrip().startswith("@")):
        return Cron(when)
    return Every(when)


def spec_of(
    template: TaskSpec, schedule_id: str, rule: Rule, policy: Mapping[str, Any]
) -> ScheduleSpec:
    """The definition of a recurring task. Raises Invalid with a pointer to the field."""
    _require_timeless(template)
    check_name(schedule_id, "/id")
    given = _policy(policy)
    if "notify" in given:
        template = msgspec.structs.replace(template, notify=given.pop("notify"))
    misfire = MisfirePolicy(
        **{_MISFIRE[name]: given.pop(name) for name in _MISFIRE if name in given}
    )
    return ScheduleSpec(id=schedule_id, template=template, rule=rule, misfire=misfire, **given)


def changes_of(options: EditOptions) -> RecurringChanges:
    """The edit that these options ask for. Raises Invalid, also where they ask for none."""
    given: dict[str, Any] = dict(options)
    policy = (*Policy.__annotations__, "notify")
    fields = _policy({name: given[name] for name in policy if name in given})
    named = (
        "queue", "priority", "retry", "timeout", "tags", "concurrency_key", "concurrency_limit",
    )  # fmt: skip
    fields |= parsed({name: given[name] for name in named if name in given})  # type: ignore[arg-type]  # by name there
    if "rule" in given:
        fields["rule"] = rule_of(given["rule"])
    if "payload" in given:
        fields["payload"] = codec.encode(given["payload"], "/payload")
    # What may be cleared: None is no value there, and is left out above.
    if given.get("timeout", UNSET) is None:
        fields["timeout_ms"] = None
    if given.get("retry", UNSET) is None:
        fields["retry"] = DEFAULT_RETRY
    if given.get("concurrency_key", UNSET) is None:
        fields["concurrency_key"] = None
    if not fields:
        raise Invalid("say what to change")
    return RecurringChanges(**fields)


def edited(spec: ScheduleSpec, changes: RecurringChanges) -> ScheduleSpec:
    """The definition after the edit. What went with another kind of rule goes with it."""
    named = {name: getattr(changes, name) for name in changes.__struct_fields__}
    given = {name: value for name, value in named.items() if value is not UNSET}
    misfire = {_MISFIRE[name]: given.pop(name) for name in _MISFIRE if name in given}
    template = {name: given.pop(name) for name in TaskSpec.__struct_fields__ if name in given}
    template["concurrency"] = concurrency_in(given, spec.template.concurrency)
    if "rule" in given and given["rule"].kind != "delay":
        given.setdefault("after", "terminal")
    old = spec.misfire
    return msgspec.structs.replace(
        spec,
        template=msgspec.structs.replace(spec.template, **template),
        misfire=MisfirePolicy(
            misfire.get("catch_up", old.catch_up),
            misfire.get("limit", old.limit),
            misfire.get("grace_ms", old.grace_ms),
        ),
        **given,
    )


def _policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that these options set, durations as ``…_ms``."""
    unknown = policy.keys() - _READERS.keys()
    if unknown:
        raise Invalid(f"unknown; known are {', '.join(_READERS)}", f"/{min(map(str, unknown))}")
    return {_READERS[name][0]: _READERS[name][1](value) for name, value in policy.items()}


def _choice(choices: Any, pointer: str) -> Any:
    return lambda value: read_choice(value, choices, pointer)


def _length(pointer: str) -> Any:
    return lambda value: None if value is None else parse_duration(value, pointer)


def _jitter(value: Duration | None) -> int | None:
    return None if value is None else parse_duration(value, "/jitter") or None


def _limit(value: object) -> int:
    if type(value) is not int:
        raise Invalid("it is a whole number", "/catch_up_limit")
    return value


def _runs(value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise Invalid("it is a whole number from 1 on", "/max_runs")
    return value


_READERS: dict[str, tuple[str, Any]] = {
    "overlap": ("overlap", _choice(OVERLAPS, "/overlap")),
    "catch_up": ("catch_up", _choice(CATCH_UPS, "/catch_up")),
    "catch_up_limit": ("catch_up_limit", _limit),
    "misfire_grace": ("misfire_grace_ms", _length("/misfire_grace")),
    "jitter": ("jitter_ms", _jitter),
    "max_runs": ("max_runs", _runs),
    "after": ("after", _choice(AFTERS, "/after")),
    "notify": ("notify", check_schedule_receivers),
}


def _require_timeless(template: TaskSpec) -> None:
    """Raises Invalid for options that only one task can have."""
    for value, name in (
        (template.run_at_ms, "at"),
        (template.delay_ms, "delay"),
        (template.key, "key"),
        (template.expires_at_ms, "expires"),
    ):
        if value is not None:
            raise Invalid(f"a recurring task has no {name}: its rule says when", f"/{name}")
