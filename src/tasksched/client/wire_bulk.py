"""Wire bulk: groups and operations as the HTTP API writes them, from and to values. As ``wire``."""

from collections.abc import Callable
from typing import Any

import msgspec

from tasksched.client.bulk_backend import DeadPage, GroupPage, OperationPage
from tasksched.client.wire import changes_body, decoded, moment_ms, read_page
from tasksched.commands.dead_letters import Group
from tasksched.commands.operations import Request
from tasksched.model.durations import parse_duration
from tasksched.model.filters import RULES, filter_of
from tasksched.model.instants import parse_instant
from tasksched.model.operation import Count, Kind, Operation, OperationState
from tasksched.model.task import ErrorInfo

_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "run_at": ("run_at_ms", parse_instant),
    "expires_at": ("expires_at_ms", moment_ms),
    "delay": ("delay_ms", parse_duration),
    "timeout": ("timeout_ms", lambda text: None if text is None else parse_duration(text)),
    "lease": ("lease_ms", parse_duration),
}


def request_body(request: Request, *, dry_run: bool) -> dict[str, Any]:
    """The body of an operation: who asks for everything has said so by then."""
    body: dict[str, Any] = {"filter": request.filter.to_json(), "rate": request.rate}
    if not request.filter.named:
        body["all"] = True
    if dry_run:
        body["dry_run"] = True
    if request.changes is not None:
        body["changes"] = changes_body(request.changes)
    return body


class _GroupView(msgspec.Struct, kw_only=True):
    fingerprint: str
    count: int
    type: str | None = None
    message: str | None = None
    sample_task_id: str | None = None
    sample_error: ErrorInfo | None = None
    queues: dict[str, int] = {}
    handlers: dict[str, int] = {}
    reasons: dict[str, int] = {}
    first_seen: str | None = None
    last_seen: str | None = None


class _GroupPage(msgspec.Struct):
    items: list[_GroupView]
    next_cursor: str | None = None


class _Times(msgspec.Struct):
    created_at: str
    updated_at: str
    finished_at: str | None = None


class _OperationView(msgspec.Struct, kw_only=True):
    operation_id: str
    kind: Kind
    status: OperationState
    tenant: str
    filter: dict[str, Any] = {}
    changes: dict[str, Any] | None = None
    rate: int
    expected: Count
    done: int = 0
    skipped: int = 0
    error: str | None = None
    timestamps: _Times


class _OperationPage(msgspec.Struct):
    items: list[_OperationView]
    next_cursor: str | None = None


def read_count(raw: bytes) -> Count:
    found: Count = decoded(raw, Count)
    return found


def read_dead_page(raw: bytes) -> DeadPage:
    return DeadPage(*read_page(raw))


def read_groups(raw: bytes) -> GroupPage:
    page = decoded(raw, _GroupPage)
    return GroupPage([_group(view) for view in page.items], page.next_cursor)


def read_operation(raw: bytes) -> Operation:
    return _operation(decoded(raw, _OperationView))


def read_operations(raw: bytes) -> OperationPage:
    page = decoded(raw, _OperationPage)
    return OperationPage([_operation(view) for view in page.items], page.next_cursor)


def _group(view: _GroupView) -> Group:
    return Group(
        fingerprint=view.fingerprint,
        count=view.count,
        type=view.type,
        message=view.message,
        sample_task_id=view.sample_task_id,
        sample_error=view.sample_error,
        queues=view.queues,
        handlers=view.handlers,
        reasons=view.reasons,
        first_seen_ms=moment_ms(view.first_seen),
        last_seen_ms=moment_ms(view.last_seen),
    )


def _operation(view: _OperationView) -> Operation:
    # A word of a newer API says nothing here.
    words = {name: value for name, value in view.filter.items() if name in RULES}
    return Operation(
        id=view.operation_id,
        kind=view.kind,
        tenant=view.tenant,
        filter=filter_of(words, tuple(RULES)),
        changes=None if view.changes is None else _changes(view.changes),
        rate=view.rate,
        state=view.status,
        expected=view.expected,
        done=view.done,
        skipped=view.skipped,
        created_ms=parse_instant(view.timestamps.created_at),
        updated_ms=parse_instant(view.timestamps.updated_at),
        finished_ms=moment_ms(view.timestamps.finished_at),
        error=view.error,
    )


def _changes(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in body.items():
        field, read = _READ.get(name, (name, lambda value: value))
        found[field] = read(value)
    return found
