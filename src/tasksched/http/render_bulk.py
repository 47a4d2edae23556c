"""Render bulk: groups, operations and retention, as the bytes of an answer. As ``render``."""

from typing import Any, Final

from tasksched.commands import dead_letters
from tasksched.http.render import encode, length, moment
from tasksched.http.schema import ErrorView
from tasksched.http.schema_bulk import (
    CountedView,
    ExpectedView,
    GroupPage,
    GroupView,
    OperationPage,
    OperationTimes,
    OperationView,
    RetentionView,
)
from tasksched.model.instants import format_instant
from tasksched.model.operation import Count, Operation
from tasksched.model.tenant import TenantSettings
from tasksched.settings import Settings

_TIMES: Final = ("run_at_ms", "expires_at_ms")


def groups(page: dead_letters.GroupPage) -> bytes:
    return encode(
        GroupPage([group_view(each) for each in page.items], page.next_cursor, page.is_partial)
    )


def group_view(group: dead_letters.Group) -> GroupView:
    error = group.sample_error
    return GroupView(
        fingerprint=group.fingerprint,
        count=group.count,
        type=group.type,
        message=group.message,
        sample_task_id=group.sample_task_id,
        sample_error=ErrorView(error.type, error.message, error.traceback) if error else None,
        queues=group.queues,
        handlers=group.handlers,
        reasons=group.reasons,
        first_seen=moment(group.first_seen_ms),
        last_seen=moment(group.last_seen_ms),
    )


def counted(count: Count) -> bytes:
    return encode(CountedView(True, count.count, count.at_least))


def operation_view(operation: Operation) -> OperationView:
    """The operation with filter and changes as they may be sent again."""
    return OperationView(
        operation_id=operation.id,
        kind=operation.kind,
        status=operation.state,
        tenant=operation.tenant,
        filter=operation.filter.to_json(),
        changes=None if operation.changes is None else _changes(operation.changes),
        rate=operation.rate,
        expected=ExpectedView(operation.expected.count, operation.expected.at_least),
        found=operation.found,
        done=operation.done,
        skipped=operation.skipped,
        error=operation.error,
        timestamps=OperationTimes(
            format_instant(operation.created_ms),
            format_instant(operation.updated_ms),
            moment(operation.finished_ms),
        ),
    )


def operation_page(found: list[Operation], next_cursor: str | None) -> bytes:
    return encode(OperationPage([operation_view(each) for each in found], next_cursor))


def _changes(stored: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name, value in stored.items():
        if name.endswith("_ms"):
            write = moment if name in _TIMES else length
            body[name.removesuffix("_ms")] = write(value)
        else:
            body[name] = value
    return body


def retention_views(
    chosen: TenantSettings, settings: Settings
) -> tuple[RetentionView, RetentionView]:
    """What is set for a tenant, and what holds where nothing is."""
    own = RetentionView(
        success=length(chosen.retention_success_ms),
        failed=length(chosen.retention_failed_ms),
        count=chosen.retention_count_max,
        bytes=chosen.retention_bytes_max,
    )
    defaults = RetentionView(
        success=length(settings.retention_success_ms),
        failed=length(settings.retention_failed_ms),
        count=settings.retention_count_max,
        bytes=settings.retention_bytes_max or None,
    )
    return own, defaults
