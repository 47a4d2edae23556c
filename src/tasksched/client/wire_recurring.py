"""Wire recurring: recurring tasks as the HTTP API writes them. As ``wire`` for tasks.

A rule comes without the creation that it is bound to; that stands beside it, so the same instants
follow from it here as at the server.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tasksched.client.recurring_backend import Fill, Kept, RecurringPage
from tasksched.client.schedule_options import RecurringChanges
from tasksched.client.wire import (
    OPTIONS,
    body_of,
    decoded,
    moment_ms,
    target_body,
    target_of,
)
from tasksched.client.wire_limits import concurrency_members, concurrency_of
from tasksched.commands.recurring import Backfilled
from tasksched.model import codec
from tasksched.model.durations import format_duration, parse_duration
from tasksched.model.instants import format_instant, parse_instant
from tasksched.model.notify import Receiver
from tasksched.model.recurring import (
    After,
    LedgerEntry,
    LedgerOutcome,
    Overlap,
    Schedule,
    ScheduleSpec,
    ScheduleStatus,
)
from tasksched.model.retry import Retry
from tasksched.model.schedule import Rule, parse_rule
from tasksched.model.schedule.misfire import LIMIT_DEFAULT, CatchUp, MisfirePolicy
from tasksched.model.task import DEFAULT_RETRY, HandlerTarget, TaskSpec

_TEMPLATE = ("queue", "priority", "retry", "timeout_ms", "lease_ms", "tags", "notify")
_DEFAULTS = TaskSpec(target=HandlerTarget("any"))


# -- out ----------------------------------------------------------------------------------------


def definition_body(spec: ScheduleSpec) -> dict[str, Any]:
    """The body that defines it; the tenant travels in a header."""
    template, misfire = spec.template, spec.misfire
    body: dict[str, Any] = {
        "id": spec.id,
        **spec.rule.fields(),
        "target": target_body(template.target),
        "overlap": spec.overlap,
        "catch_up": misfire.catch_up,
        "catch_up_limit": misfire.limit,
    }
    if template.payload:
        body["payload"] = codec.decode(template.payload)
    for field in _TEMPLATE:
        name, write = OPTIONS[field]
        value = getattr(template, field)
        if value != getattr(_DEFAULTS, field):
            body[name] = write(value)
    body |= concurrency_members(template.concurrency)
    optional = {
        "misfire_grace": _length(misfire.grace_ms),
        "jitter": _length(spec.jitter_ms),
        "max_runs": spec.max_runs,
        "owner": spec.owner,
        "after": spec.after if spec.rule.kind == "delay" else None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


_CHANGES: dict[str, tuple[str, Any]] = {
    **{field: OPTIONS[field] for field in _TEMPLATE if field != "lease_ms"},
    "overlap": ("overlap", str),
    "catch_up": ("catch_up", str),
    "catch_up_limit": ("catch_up_limit", int),
    "misfire_grace_ms": ("misfire_grace", format_duration),
    "jitter_ms": ("jitter", format_duration),
    "max_runs": ("max_runs", int),
    "after": ("after", str),
    **{name: (name, lambda value: value) for name in ("concurrency_key", "concurrency_limit")},
    "payload": ("payload", codec.decode),
}


def changes_body(changes: RecurringChanges) -> dict[str, Any]:
    """The body of an edit: what is set, with null for what shall be emptied."""
    body: dict[str, Any] = {}
    if changes.rule is not UNSET:
        # A whole rule is another one: a bound that it has not is a bound no more.
        body = {"start_at": None, "end_at": None, **changes.rule.fields()}
    for field, (name, write) in _CHANGES.items():
        value = getattr(changes, field)
        if value is not UNSET:
            body[name] = None if value is None else write(value)
    return body


def backfill_body(fill: Fill) -> dict[str, Any]:
    first_ms, last_ms = fill.span_ms
    return {
        "from": format_instant(first_ms),
        "to": format_instant(last_ms),
        "dry_run": fill.dry_run,
        "rate": fill.rate,
    }


def _length(ms: int | None) -> str | None:
    return None if ms is None else format_duration(ms)


# -- in -----------------------------------------------------------------------------------------


class _Timestamps(msgspec.Struct):
    created_at: str
    updated_at: str | None = None


class _RecurringView(msgspec.Struct, kw_only=True):
    recurring_task_id: str
    status: ScheduleStatus
    version: int = 1
    created: bool = False
    tenant: str = "default"
    next_run_at: str | None = None
    last_run_at: str | None = None
    runs: int = 0
    reason: str | None = None
    timestamps: _Timestamps
    cron: str | None = None
    interval: str | None = None
    delay: str | None = None
    rrule: str | None = None
    timezone: str | None = None
    start_at: str | None = None
    end_at: str | None = None
    on_gap: str | None = None
    on_fold: str | None = None
    target: dict[str, Any]
    payload: Raw | UnsetType = UNSET
    queue: str = "default"
    priority: str = "normal"
    retry: dict[str, Any] | None = None
    timeout: str | None = None
    lease: str | None = None
    tags: tuple[str, ...] = ()
    notify: tuple[Receiver, ...] = ()
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    max_runs: int | None = None
    overlap: Overlap = "skip"
    catch_up: CatchUp = "one"
    catch_up_limit: int = LIMIT_DEFAULT
    misfire_grace: str | None = None
    jitter: str | None = None
    after: After = "terminal"
    owner: str | None = None


class _PageView(msgspec.Struct):
    items: list[_RecurringView]
    next_cursor: str | None = None


class _LedgerItem(msgspec.Struct, kw_only=True):
    outcome: LedgerOutcome
    first_at: str
    last_at: str
    count: int = 1
    exact: bool = True
    lateness: str | None = None
    task_id: str | None = None
    by_hand: bool = False


class _LedgerView(msgspec.Struct):
    items: list[_LedgerItem]


class _TriggeredView(msgspec.Struct):
    task_id: str


class _BackfillView(msgspec.Struct):
    count: int
    task_ids: list[str] = []
    exact: bool = True


def read_kept(raw: bytes) -> Kept:
    view = decoded(raw, _RecurringView)
    return Kept(view.created, _schedule(view))


def read_schedule(raw: bytes) -> Schedule:
    return _schedule(decoded(raw, _RecurringView))


def read_page(raw: bytes) -> RecurringPage:
    view = decoded(raw, _PageView)
    return RecurringPage([_schedule(item) for item in view.items], view.next_cursor)


def read_ledger(raw: bytes) -> list[LedgerEntry]:
    return [
        LedgerEntry(
            outcome=item.outcome,
            first_ms=parse_instant(item.first_at),
            last_ms=parse_instant(item.last_at),
            count=item.count,
            is_exact=item.exact,
            lateness_ms=_length_ms(item.lateness),
            task_id=item.task_id,
            by_hand=item.by_hand,
        )
        for item in decoded(raw, _LedgerView).items
    ]


def read_triggered(raw: bytes) -> str:
    found: _TriggeredView = decoded(raw, _TriggeredView)
    return found.task_id


def read_backfilled(raw: bytes) -> Backfilled:
    view = decoded(raw, _BackfillView)
    return Backfilled(view.count, view.task_ids, is_exact=view.exact)


def _schedule(view: _RecurringView) -> Schedule:
    created_ms = parse_instant(view.timestamps.created_at)
    spec = _spec(view, created_ms)
    updated_ms = moment_ms(view.timestamps.updated_at)
    return Schedule(
        spec=spec,
        status=view.status,
        version=view.version,
        generation_ms=created_ms,
        created_ms=created_ms,
        updated_ms=created_ms if updated_ms is None else updated_ms,
        next_ms=moment_ms(view.next_run_at),
        last_ms=moment_ms(view.last_run_at),
        runs=view.runs,
        reason=view.reason,
    )


def _spec(view: _RecurringView, created_ms: int) -> ScheduleSpec:
    template = TaskSpec(
        target=target_of(view.target),
        payload=body_of(view.payload) or b"",
        tenant=view.tenant,
        queue=view.queue,
        priority=view.priority,
        retry=DEFAULT_RETRY if view.retry is None else Retry.parse(view.retry, "/retry"),
        timeout_ms=_length_ms(view.timeout),
        lease_ms=_length_ms(view.lease),
        tags=view.tags,
        notify=view.notify,
        concurrency=concurrency_of(view.concurrency_key, view.concurrency_limit),
    )
    return ScheduleSpec(
        id=view.recurring_task_id,
        template=template,
        rule=_rule(view).bind(f"{view.tenant}:{view.recurring_task_id}", created_ms),
        overlap=view.overlap,
        after=view.after,
        misfire=MisfirePolicy(view.catch_up, view.catch_up_limit, _length_ms(view.misfire_grace)),
        jitter_ms=_length_ms(view.jitter),
        max_runs=view.max_runs,
        owner=view.owner,
    )


def _rule(view: _RecurringView) -> Rule:
    return parse_rule(msgspec.structs.asdict(view), least_ms=0)


def _length_ms(text: str | None) -> int | None:
    return None if text is None else parse_duration(text)
