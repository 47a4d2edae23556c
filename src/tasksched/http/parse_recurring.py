"""Parse recurring: bodies about recurring tasks become commands. As ``parse``, by the same rules.

``null`` means "not given" everywhere but in a payload. A PUT takes what GET answered: the members that
are only told stay unread, except that those which name the recurring task must name the same one. An
edit is merged here, member by member, into the definition it changes, and the whole is read again.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tasksched.errors import Invalid
from tasksched.http.parse import (
    NO_TARGET,
    Members,
    Rule,
    flag,
    payload_rule,
    read_concurrency,
    read_lease,
    read_target,
    read_timeout,
)
from tasksched.http.schema_recurring import (
    BACKFILL,
    DEFINITION,
    PREVIEW,
    PREVIEW_DEFAULT,
    RATE_DEFAULT,
    RATE_LEAST,
    RATE_MOST,
    READ_ONLY,
    RUNS_MAX,
)
from tasksched.model import names
from tasksched.model.durations import parse_duration
from tasksched.model.instants import parse_bound, parse_instant
from tasksched.model.receivers import check_queue, check_schedule_receivers
from tasksched.model.recurring import AFTERS, OVERLAPS, After, Overlap, ScheduleSpec
from tasksched.model.retry import Retry
from tasksched.model.schedule.misfire import (
    CATCH_UPS,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    CatchUp,
    MisfirePolicy,
)
from tasksched.model.schedule.parse import RULE_FIELDS, parse_rule
from tasksched.model.schedule.preview import PREVIEW_MAX
from tasksched.model.schedule.rule import Choice, read_choice
from tasksched.model.schedule.rule import Rule as ScheduleRule
from tasksched.model.task import DEFAULT_RETRY, TaskSpec

_SEAMS: Final = ("on_gap", "on_fold")
_CALENDAR: Final = frozenset({"cron", "rrule"})


class Source(NamedTuple):
    """What a definition owes to its request: whose it is, and its id where that is fixed."""

    tenant: str
    id: str | None
    payload_bytes_max: int


def read_only_allowed(body: object, source: Source) -> object:
    """The body of a PUT without what is only told. Raises Invalid where it is about another one."""
    if type(body) is not dict:
        return body
    mine = {"recurring_task_id": source.id, "tenant": source.tenant}
    for name, value in mine.items():
        if body.get(name) not in (None, value):
            raise Invalid("this is not the one that the request is about", f"/{name}")
    if body.get("encrypted") and body.get("payload") is None:
        raise Invalid("it was read without the key of its payload: give the payload", "/payload")
    return {name: value for name, value in body.items() if name not in READ_ONLY}


def definition(body: object, source: Source, made_id: Callable[[], str]) -> ScheduleSpec:
    """The command to create or replace a recurring task. Raises Invalid for all that is wrong.

    ``made_id`` is asked where neither the request nor the body has an id.
    """
    members = Members(body, "", DEFINITION)
    assert isinstance(body, dict)
    named = members.take("id", names.check_name, None, None)
    if named is not None and source.id is not None and named != source.id:
        members.refuse("id", "differs from the id in the path")
    template = _template(members, source)
    rule = members.attempt(lambda: parse_rule(body))
    overlap: Overlap = members.take("overlap", _one_of(OVERLAPS), "skip", "skip")
    after: After = members.take("after", _one_of(AFTERS), "terminal", "terminal")
    misfire = _misfire(members)
    jitter_ms = members.take("jitter", parse_duration, None, None)
    max_runs = members.take("max_runs", _count(RUNS_MAX), None, None)
    owner = members.take("owner", names.check_name, None, None)

    def spec(rule: ScheduleRule) -> ScheduleSpec:
        return ScheduleSpec(
            id=source.id or named or made_id(),
            template=template,
            rule=rule,
            overlap=overlap,
            after=after,
            misfire=misfire or MisfirePolicy(),
            jitter_ms=jitter_ms or None,
            max_runs=max_runs,
            owner=owner,
        )

    found = None if rule is None else members.attempt(lambda: spec(rule))
    members.finish()
    assert found is not None
    return found


def _template(members: Members, source: Source) -> TaskSpec:
    if not members.has("target"):
        members.refuse("target", "a target is needed")
    return TaskSpec(
        target=members.take("target", read_target, NO_TARGET, NO_TARGET),
        payload=members.take("payload", payload_rule(source.payload_bytes_max), b""),
        tenant=source.tenant,
        queue=members.take("queue", check_queue, "default", "default"),
        priority=members.take("priority", names.check_priority, "normal", "normal"),
        retry=members.take("retry", Retry.parse, DEFAULT_RETRY, DEFAULT_RETRY),
        timeout_ms=members.take("timeout", read_timeout, None, None),
        lease_ms=members.take("lease", read_lease, None, None),
        tags=members.take("tags", names.check_tags, (), ()),
        notify=members.take("notify", check_schedule_receivers, (), ()),
        concurrency=read_concurrency(members),
    )


def _misfire(members: Members) -> MisfirePolicy | None:
    """The policy; None where a member of it was refused, which is then told once."""
    wrong = members.wrong
    catch_up: CatchUp = members.take("catch_up", _one_of(CATCH_UPS), "one", "one")
    limit = members.take("catch_up_limit", _count(LIMIT_MAX), LIMIT_DEFAULT, LIMIT_DEFAULT)
    grace_ms = members.take("misfire_grace", parse_duration, None, None)
    if members.wrong > wrong:
        return None
    return members.attempt(lambda: MisfirePolicy(catch_up, limit, grace_ms))


def merged(body: object, old: Mapping[str, Any]) -> dict[str, Any]:
    """The definition ``old`` with the members of ``body`` in place of its own.

    The rule of another kind takes the place of the old one, and what only went with that goes too.
    """
    members = Members(body, "", DEFINITION)
    members.finish()
    assert isinstance(body, dict)
    kept = dict(old)
    kinds = [kind for kind in RULE_FIELDS if body.get(kind) is not None]
    if kinds:
        for kind in RULE_FIELDS:
            kept.pop(kind, None)
        if not _CALENDAR.intersection(kinds):
            for name in _SEAMS:
                kept.pop(name, None)
        if "delay" not in kinds:
            kept.pop("after", None)
    if body.get("concurrency_key", "") is None:
        kept.pop("concurrency_limit", None)
    return {**kept, **body}


def _one_of(choices: tuple[Choice, ...]) -> Rule[Choice]:
    def rule(value: object, pointer: str) -> Choice:
        return read_choice(value, choices, pointer)

    return rule


def _count(most: int) -> Rule[int]:
    def rule(value: object, pointer: str) -> int:
        if type(value) is int and 1 <= value <= most:
            return value
        raise Invalid(f"it is a whole number from 1 to {most}", pointer)

    return rule


class Preview(NamedTuple):
    """A rule to look ahead with; ``after_ms`` is None for now."""

    rule: ScheduleRule
    after_ms: int | None
    n: int


def preview(body: object) -> Preview:
    """What a preview asks for. Raises Invalid for all that is wrong."""
    members = Members(body, "", PREVIEW)
    assert isinstance(body, dict)
    rule = members.attempt(lambda: parse_rule(body))
    # A zone that is wrong was told with the rule.
    zone = rule.tz if rule is not None else "UTC"

    def instant(value: object, pointer: str) -> int:
        return parse_bound(value, pointer, timezone=zone)

    after_ms = members.take("after", instant, None, None)
    n = members.take("n", _count(PREVIEW_MAX), PREVIEW_DEFAULT, PREVIEW_DEFAULT)
    members.finish()
    assert rule is not None
    return Preview(rule, after_ms, n)


class Backfill(NamedTuple):
    """The nominal times to fill: both ends belong to the range."""

    span_ms: tuple[int, int]
    dry_run: bool
    rate: float


def backfill(body: object) -> Backfill:
    """What a backfill asks for. Raises Invalid for all that is wrong."""
    members = Members(body, "", BACKFILL)
    for name in ("from", "to"):
        if not members.has(name):
            members.refuse(name, "both ends of the range are needed")
    first_ms = members.take("from", parse_instant, 0, 0)
    last_ms = members.take("to", parse_instant, first_ms, first_ms)
    dry_run = members.take("dry_run", flag, False, False)
    rate = members.take("rate", _rate, RATE_DEFAULT, RATE_DEFAULT)
    members.finish()
    return Backfill((first_ms, last_ms), dry_run, rate)


def _rate(value: object, pointer: str) -> float:
    if type(value) in {int, float} and RATE_LEAST <= value <= RATE_MOST:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise Invalid(f"it is a number a second, from {RATE_LEAST} to {RATE_MOST}", pointer)


def replaced_payload(spec: ScheduleSpec, payload: bytes) -> ScheduleSpec:
    """The same with another payload, as it is stored."""
    template = msgspec.structs.replace(spec.template, payload=payload)
    return msgspec.structs.replace(spec, template=template)


def check_id(text: str) -> str | None:
    """The id of a path, None where it is none."""
    try:
        return names.check_name(text)
    except Invalid:
        return None
