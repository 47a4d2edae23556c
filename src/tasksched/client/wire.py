"""Wire: tasks as the HTTP API writes them, from and to the values of the model.

Reading is lenient: an unknown member is skipped and an absent one has its default, so that a client
works with an API that is a little newer or older. Writing sends only what is not default. Errors come
back by their ``code``, so a program catches the same classes over HTTP and over Redis.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tasksched.client.backend import Change, Page
from tasksched.client.patience import details_of
from tasksched.client.wire_limits import concurrency_members, concurrency_of
from tasksched.commands.tasks import Changes
from tasksched.errors import (
    BY_CODE,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    Problem,
    TaskschedError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from tasksched.model import codec
from tasksched.model.durations import format_duration, parse_duration
from tasksched.model.instants import format_instant, parse_instant
from tasksched.model.notify import Cause, Delivery, Receiver
from tasksched.model.retry import Retry
from tasksched.model.states import OutcomeName, State
from tasksched.model.task import (
    DEFAULT_RETRY,
    Attempt,
    Created,
    ErrorInfo,
    HandlerTarget,
    HttpTarget,
    NoticeTarget,
    Target,
    Task,
    TaskSpec,
)

_EXTRA = ("task_id", "task_status", "recurring_task_id", "recurring_status", "version")
_ANY_SIZE = 1 << 31  # what the API accepted is not refused here
_DEFAULTS = TaskSpec(target=HandlerTarget("any"))
_BY_STATUS: dict[int, type[TaskschedError]] = {
    400: Invalid, 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict,
    412: PreconditionFailed, 413: TooLarge, 422: Invalid, 429: TooManyRequests, 502: Unavailable,
    503: Unavailable, 504: Unavailable,
}  # fmt: skip


# -- out ----------------------------------------------------------------------------------------


def task_body(spec: TaskSpec) -> dict[str, Any]:
    """The body of a create; the tenant travels in a header."""
    body: dict[str, Any] = {"target": target_body(spec.target)}
    if spec.payload:
        body["payload"] = codec.decode(spec.payload)
    for field, (name, write) in OPTIONS.items():
        value = getattr(spec, field)
        if value != getattr(_DEFAULTS, field):
            body[name] = write(value)
    return body | concurrency_members(spec.concurrency)


def target_body(target: Target) -> dict[str, Any]:
    if isinstance(target, HttpTarget):
        headers = dict(target.headers)
        body = {"type": "http", "url": target.url, "method": target.method, "headers": headers}
        return {**body, "async": True} if target.is_async else body
    assert isinstance(target, HandlerTarget), target
    version = {} if target.version is None else {"version": target.version}
    return {"type": "handler", "name": target.name, **version}


OPTIONS: dict[str, tuple[str, Any]] = {
    "run_at_ms": ("run_at", format_instant),
    "delay_ms": ("delay", format_duration),
    "queue": ("queue", str),
    "priority": ("priority", str),
    "retry": ("retry", Retry.to_json),
    "timeout_ms": ("timeout", format_duration),
    "lease_ms": ("lease", format_duration),
    "expires_at_ms": ("expires_at", format_instant),
    "tags": ("tags", list),
    "notify": ("notify", msgspec.to_builtins),
    "traceparent": ("traceparent", str),
    "key": ("idempotency_key", str),
}
_CHANGES: dict[str, tuple[str, Any]] = {
    **{field: OPTIONS[field] for field in OPTIONS if field not in {"traceparent", "key"}},
    **{name: (name, lambda value: value) for name in ("concurrency_key", "concurrency_limit")},
    "payload": ("payload", lambda data: codec.decode(data) if data else None),
    "target": ("target", target_body),
}


def changes_body(changes: Changes) -> dict[str, Any]:
    """The body of an edit: what is set, with null for what shall be emptied."""
    body: dict[str, Any] = {}
    for field, (name, write) in _CHANGES.items():
        value = getattr(changes, field)
        if value is not UNSET:
            body[name] = None if value is None else write(value)
    return body


# -- in -----------------------------------------------------------------------------------------


class _Timestamps(msgspec.Struct):
    created_at: str
    run_at: str
    queued_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


class _DeliveryView(msgspec.Struct):
    message_id: str
    event: str
    endpoint_id: str | None = None


class _TaskView(msgspec.Struct, kw_only=True):
    task_id: str
    status: State
    version: int = 1
    tenant: str = "default"
    queue: str = "default"
    priority: str = "normal"
    target: dict[str, Any]
    payload: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    corrupt: bool = False
    encrypted: bool = False
    attempts: int = 0
    error: ErrorInfo | None = None
    reason: str | None = None
    fingerprint: str | None = None
    cancel_requested: bool = False
    progress: dict[str, Any] | None = None
    deferred: bool = False
    postponed: str | None = None
    tags: tuple[str, ...] = ()
    notify: tuple[Receiver, ...] = ()
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    traceparent: str | None = None
    delivery: _DeliveryView | None = None
    retry: dict[str, Any] | None = None
    timeout: str | None = None
    lease: str | None = None
    expires_at: str | None = None
    timestamps: _Timestamps
    recurring_task_id: str | None = None
    nominal_at: str | None = None
    missed: int = 0
    why_waiting: list[dict[str, Any]] = []


class _PageView(msgspec.Struct):
    items: list[_TaskView]
    next_cursor: str | None = None


class _AttemptView(msgspec.Struct, kw_only=True):
    attempt: int
    fence: int
    worker: str
    started_at: str
    ended_at: str | None = None
    outcome: OutcomeName | None = None
    error: ErrorInfo | None = None


class _AttemptsView(msgspec.Struct):
    items: list[_AttemptView]


class _CreatedView(msgspec.Struct):
    task_id: str
    created: bool = True
    version: int = 1
    run_at: str | None = None
    durability: str = "memory"


class _ChangedView(msgspec.Struct):
    status: State
    version: int = 0
    cancel_requested: bool = False


class _BatchItem(msgspec.Struct):
    status: int
    task_id: str | None = None
    created: bool = True
    version: int = 1
    run_at: str | None = None
    durability: str = "memory"
    code: str | None = None
    detail: str | None = None
    errors: list[dict[str, Any]] = []
    limit: str | None = None
    retry_after: str | None = None


class _BatchView(msgspec.Struct):
    items: list[_BatchItem]


class _ProblemView(msgspec.Struct):
    code: str | None = None
    detail: str | None = None
    title: str | None = None
    errors: list[dict[str, Any]] = []
    task_id: str | None = None
    task_status: str | None = None
    recurring_task_id: str | None = None
    recurring_status: str | None = None
    version: int | None = None
    limit: str | None = None
    retry_after: str | None = None


def read_task(raw: bytes) -> tuple[Task, list[dict[str, Any]]]:
    """A task, and why it waits."""
    view = decoded(raw, _TaskView)
    return _task(view), view.why_waiting


def read_page(raw: bytes) -> Page:
    view = decoded(raw, _PageView)
    return Page([_task(item) for item in view.items], view.next_cursor)


def read_attempts(raw: bytes) -> list[Attempt]:
    return [
        Attempt(
            attempt=view.attempt,
            fence=view.fence,
            worker=view.worker,
            started_ms=parse_instant(view.started_at),
            ended_ms=moment_ms(view.ended_at),
            outcome=view.outcome,
            error=view.error,
        )
        for view in decoded(raw, _AttemptsView).items
    ]


def read_created(status: int, raw: bytes, *, own_key: bool) -> Created:
    """The answer to a create. ``own_key``: a replay can only be our own request, sent twice."""
    view = decoded(raw, _CreatedView)
    due_ms = moment_ms(view.run_at) or 0
    if status == 200 and not own_key:
        task, _ = read_task(raw)
        return Created(task.id, False, task.due_ms, task.version, task, view.durability)
    return Created(view.task_id, True, due_ms, view.version, durability=view.durability)


def read_batch(raw: bytes, specs: list[TaskSpec]) -> list[Created | TaskschedError]:
    """The answers to a batch, one for each spec."""
    items = decoded(raw, _BatchView).items
    if len(items) != len(specs):
        raise TaskschedError(f"the API answered {len(items)} of {len(specs)} tasks of a batch")
    return [_batch_answer(item, spec) for item, spec in zip(items, specs, strict=True)]


def read_change(raw: bytes) -> Change:
    view = decoded(raw, _ChangedView)
    return Change(view.status, view.version, view.cancel_requested and view.status == "RUNNING")


def read_error(status: int, raw: bytes, retry_after_ms: int | None) -> TaskschedError:
    """The error that a problem+json names; what is not one is told by its status."""
    try:
        view = msgspec.json.decode(raw, type=_ProblemView)
    except (msgspec.DecodeError, UnicodeDecodeError):
        view = _ProblemView()
    extra = {name: value for name in _EXTRA if (value := getattr(view, name)) is not None}
    if retry_after_ms is not None:
        extra["retry_after_ms"] = retry_after_ms
    extra |= details_of(view.limit, view.retry_after)
    detail = view.detail or view.title or f"the API answered {status}"
    return _error(status, view.code, detail, _problems(view.errors), extra)


def _error(
    status: int,
    code: str | None,
    detail: str,
    problems: tuple[Problem, ...],
    extra: dict[str, Any],
) -> TaskschedError:
    kind = BY_CODE.get(code or "") or _BY_STATUS.get(status, TaskschedError)
    if issubclass(kind, Invalid):
        return kind(detail, problems=problems, **extra)
    return kind(detail, **extra)


def _problems(errors: list[dict[str, Any]]) -> tuple[Problem, ...]:
    return tuple(
        Problem(str(each.get("pointer", "")), str(each.get("detail", ""))) for each in errors
    )


def _batch_answer(item: _BatchItem, spec: TaskSpec) -> Created | TaskschedError:
    if item.task_id is not None and item.status < 300:
        created = item.created or spec.key is None
        due_ms = moment_ms(item.run_at) or 0
        return Created(item.task_id, created, due_ms, item.version, durability=item.durability)
    problems = _problems(item.errors)
    detail = item.detail or (problems[0].detail if problems else f"refused with {item.status}")
    extra = details_of(item.limit, item.retry_after)
    return _error(item.status, item.code, detail, problems, extra)


def _task(view: _TaskView) -> Task:
    times = view.timestamps
    return Task(
        id=view.task_id,
        status=view.status,
        version=view.version,
        tenant=view.tenant,
        queue=view.queue,
        priority=view.priority,
        target=target_of(view.target),
        created_ms=parse_instant(times.created_at),
        due_ms=parse_instant(times.run_at),
        attempts=view.attempts,
        payload=None if view.encrypted and view.payload == b"null" else body_of(view.payload),
        result=None if view.encrypted and view.result == b"null" else body_of(view.result),
        retry=DEFAULT_RETRY if view.retry is None else Retry.parse(view.retry, "/retry"),
        timeout_ms=None if view.timeout is None else parse_duration(view.timeout),
        lease_ms=None if view.lease is None else parse_duration(view.lease),
        expires_at_ms=moment_ms(view.expires_at),
        tags=view.tags,
        notify=view.notify,
        concurrency=concurrency_of(view.concurrency_key, view.concurrency_limit),
        traceparent=view.traceparent,
        delivery=_delivery(view.delivery),
        reason=view.reason,
        fingerprint=view.fingerprint,
        error=view.error,
        cancel_requested=view.cancel_requested,
        progress=view.progress,
        is_deferred=view.deferred,
        postponed=view.postponed,
        queued_ms=moment_ms(times.queued_at),
        finished_ms=moment_ms(times.finished_at),
        schedule=f"{view.tenant}:{view.recurring_task_id}" if view.recurring_task_id else None,
        nominal_ms=moment_ms(view.nominal_at),
        missed=view.missed,
        corrupt=view.corrupt,
        encrypted=view.encrypted,
    )


def target_of(body: dict[str, Any]) -> Target:
    if body.get("type") == "http":
        headers = tuple((body.get("headers") or {}).items())
        is_async = body.get("async") is True
        return HttpTarget(body["url"], body.get("method", "POST"), headers, is_async)
    if body.get("type") == "notification":
        subject = body.get("task_id") or body.get("recurring_task_id") or ""
        return NoticeTarget(Cause(body["event"], subject, "", 0))
    return HandlerTarget(body["name"], body.get("version"))


def _delivery(view: _DeliveryView | None) -> Delivery | None:
    return None if view is None else Delivery(view.message_id, view.event, view.endpoint_id)


def body_of(raw: Raw | UnsetType) -> bytes | None:
    if raw is UNSET:
        return None
    return codec.encode(msgspec.json.decode(raw), most=_ANY_SIZE)


def moment_ms(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


def decoded(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise TaskschedError(f"the API's answer cannot be read: {error}") from error
