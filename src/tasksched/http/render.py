"""Render: tasks and what becomes of them, as the bytes of an answer.

Times are RFC 3339 in UTC with milliseconds, durations one canonical text; both are read back by
``parse``, so what was answered may be sent again. Stored bytes that cannot be read make ``"corrupt":
true`` beside a null and never an error: one broken payload must not hide a page of tasks. The answer
to a create is put together by hand, since it is the hot path of the API.
"""

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tasksched.errors import Invalid
from tasksched.http.schema import (
    AttemptPage,
    AttemptView,
    BackoffView,
    ErrorView,
    HandlerTargetBody,
    HttpTargetBody,
    RetryView,
    TaskPage,
    TaskView,
    Timestamps,
)
from tasksched.http.schema_notify import DeliveryOf, NotificationTargetView, ReceiverView
from tasksched.model import codec
from tasksched.model.durations import format_duration
from tasksched.model.instants import format_instant
from tasksched.model.notify import Delivery, Receiver
from tasksched.model.retry import Retry
from tasksched.model.task import (
    Attempt,
    Created,
    ErrorInfo,
    HandlerTarget,
    HttpTarget,
    NoticeTarget,
    Target,
    Task,
)

encode = msgspec.json.Encoder().encode

_ANY_SIZE: Final = 1 << 31
_NULL: Final = msgspec.Raw(b"null")


def created(made: Created, durability: str) -> bytes:
    """The answer to a create: always PENDING, version 1, even where it was handed over at once."""
    return (
        f'{{"task_id":"{made.id}","status":"PENDING","created":true,"durability":"{durability}",'
        f'"version":1,"run_at":"{format_instant(made.due_ms)}"}}'
    ).encode()


def task_view(task: Task) -> TaskView:
    """The task, with its payload and result where they were loaded and there are any."""
    payload, payload_broken = body_of(task.payload, broken=task.corrupt)
    result, result_broken = body_of(task.result, broken=False)
    if task.encrypted:
        payload = _NULL if payload is UNSET else payload
        result = _NULL if result is UNSET else result
    started_ms = task.last_attempt.started_ms if task.last_attempt else None
    return TaskView(
        task_id=task.id,
        status=task.status,
        version=task.version,
        tenant=task.tenant,
        queue=task.queue,
        priority=task.priority,
        target=_target_view(task.target),
        payload=payload,
        result=result,
        corrupt=True if payload_broken or result_broken else UNSET,
        encrypted=True if task.encrypted else UNSET,
        attempts=task.attempts,
        error=_error(task.error),
        reason=task.reason,
        fingerprint=task.fingerprint,
        cancel_requested=task.cancel_requested,
        progress=task.progress,
        deferred=task.is_deferred,
        postponed=task.postponed,
        tags=list(task.tags),
        notify=receivers(task.notify),
        concurrency_key=task.concurrency.key if task.concurrency else None,
        concurrency_limit=task.concurrency.limit if task.concurrency else None,
        traceparent=task.traceparent,
        delivery=_delivery(task.delivery),
        retry=retry_view(task.retry),
        timeout=length(task.timeout_ms),
        lease=length(task.lease_ms),
        expires_at=moment(task.expires_at_ms),
        recurring_task_id=task.schedule.partition(":")[2] if task.schedule else UNSET,
        nominal_at=moment(task.nominal_ms) if task.schedule else UNSET,
        missed=task.missed if task.schedule else UNSET,
        timestamps=Timestamps(
            created_at=format_instant(task.created_ms),
            run_at=format_instant(task.due_ms),
            queued_at=moment(task.queued_ms),
            started_at=moment(started_ms),
            finished_at=moment(task.finished_ms),
        ),
    )


def whole_view(task: Task) -> TaskView:
    """As ``task_view`` for a task that was loaded with its bodies: no result is told as null."""
    view = task_view(task)
    view.log_url = f"/tasks/{task.id}/log"
    if view.result is UNSET:
        view.result = None
    return view


def page(tasks: list[Task], next_cursor: str | None) -> bytes:
    return encode(TaskPage([task_view(task) for task in tasks], next_cursor))


def attempts(found: list[Attempt]) -> bytes:
    views = [
        AttemptView(
            attempt=attempt.attempt,
            fence=attempt.fence,
            worker=attempt.worker,
            started_at=format_instant(attempt.started_ms),
            ended_at=moment(attempt.ended_ms),
            outcome=attempt.outcome,
            error=_error(attempt.error),
        )
        for attempt in found
    ]
    return encode(AttemptPage(views, None))


def _target_view(
    target: Target,
) -> HttpTargetBody | HandlerTargetBody | NotificationTargetView:
    if not isinstance(target, NoticeTarget):
        return target_body(target)
    event, subject = target.cause.event, target.cause.subject
    if event.startswith("task."):
        return NotificationTargetView(event, task_id=subject)
    return NotificationTargetView(event, recurring_task_id=subject.partition(":")[2])


def receivers(found: tuple[Receiver, ...]) -> list[ReceiverView]:
    """Who is told, without the secrets."""
    return [ReceiverView(each.url, list(each.events)) for each in found]


def _delivery(delivery: Delivery | None) -> DeliveryOf | UnsetType:
    if delivery is None:
        return UNSET
    return DeliveryOf(delivery.message, delivery.event, delivery.endpoint)


def target_body(target: Target) -> HttpTargetBody | HandlerTargetBody:
    """The target as it may be sent in again."""
    if isinstance(target, HttpTarget):
        is_async = True if target.is_async else UNSET
        return HttpTargetBody(target.url, target.method, dict(target.headers), is_async)  # type: ignore[arg-type]  # checked on its way in
    assert isinstance(target, HandlerTarget), target
    return HandlerTargetBody(target.name, target.version)


def body_of(stored: bytes | None, *, broken: bool) -> tuple[msgspec.Raw | UnsetType, bool]:
    """Stored bytes as JSON, and whether they are broken; UNSET where there are none."""
    if broken:
        return _NULL, True
    if not stored:
        return UNSET, False
    try:
        value = codec.decode(stored)
        # msgpack knows more than JSON (bytes, extensions); encoding again finds what is not ours.
        codec.encode(value, most=_ANY_SIZE)
        return msgspec.Raw(encode(value)), False
    except (Invalid, RecursionError):
        return _NULL, True


def retry_view(retry: Retry) -> RetryView:
    factor = int(retry.factor) if retry.factor.is_integer() else retry.factor
    backoff = BackoffView(
        format_duration(retry.initial_ms), factor, format_duration(retry.max_ms), retry.jitter
    )
    return RetryView(retry.max_attempts, retry.max_lost, backoff)


def _error(error: ErrorInfo | None) -> ErrorView | None:
    return None if error is None else ErrorView(error.type, error.message, error.traceback)


def length(ms: int | None) -> str | None:
    return None if ms is None else format_duration(ms)


def moment(ms: int | None) -> str | None:
    return None if ms is None else format_instant(ms)
