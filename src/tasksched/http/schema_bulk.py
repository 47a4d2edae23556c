"""Schema bulk: the public shapes of dead letters, operations and retention. As ``schema``."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tasksched.http.schema import (
    ChangesBody,
    DurationIn,
    ErrorView,
    Instant,
    Length,
    Moment,
    Name,
    Priority,
)
from tasksched.model.operation import RATE_MAX, RATE_USUAL, Kind, OperationState
from tasksched.model.states import State

Pattern = Annotated[str, Meta(description="A handler's name; `billing.*` for all that begin so")]
Rate = Annotated[int, Meta(description="Tasks a second", extra_json_schema={"maximum": RATE_MAX})]
All = Annotated[bool, Meta(description="Needed with an empty filter, which means everything")]
DryRun = Annotated[bool, Meta(description="Only say how many match")]


# -- in -----------------------------------------------------------------------------------------


class DeadFilterBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters; what is not named does not matter. Bounds in time are inclusive."""

    queue: Name | UnsetType = UNSET
    handler: Pattern | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    fingerprint: str | UnsetType = UNSET
    tag: Name | UnsetType = UNSET
    finished_from: Instant | UnsetType = UNSET
    finished_to: Instant | UnsetType = UNSET


class TaskFilterBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tasks; what is not named does not matter. Bounds in time are inclusive."""

    status: State | list[State] | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    handler: Pattern | UnsetType = UNSET
    tag: Name | UnsetType = UNSET
    due_from: Instant | UnsetType = UNSET
    due_to: Instant | UnsetType = UNSET


class DeadBulkBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do with all dead letters that match."""

    filter: DeadFilterBody = msgspec.field(default_factory=DeadFilterBody)
    dry_run: DryRun = False
    rate: Rate = RATE_USUAL
    all: All = False


class TaskBulkBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do with all tasks that match."""

    filter: TaskFilterBody = msgspec.field(default_factory=TaskFilterBody)
    dry_run: DryRun = False
    rate: Rate = RATE_USUAL
    all: All = False


class TaskEditBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change of all waiting tasks that match; neither payload nor target nor notify."""

    filter: TaskFilterBody = msgspec.field(default_factory=TaskFilterBody)
    changes: ChangesBody
    dry_run: DryRun = False
    rate: Rate = RATE_USUAL
    all: All = False


class RedriveChangesBody(ChangesBody, forbid_unknown_fields=True, kw_only=True):
    """What to change of a task on its way into a new life. May be missing, null or empty."""


class RetentionBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How long what is finished stays; null is what the installation says."""

    success: DurationIn | None = None
    failed: DurationIn | None = None
    count: int | None = None
    bytes: int | None = None


# -- out ----------------------------------------------------------------------------------------


class DeletedView(Struct):
    """A task that is gone."""

    task_id: str
    deleted: Literal[True] = True


class GroupView(Struct, kw_only=True):
    """Failures of one kind: type, message without its numbers and ids, innermost frame.

    Counts are of those that match; first and last time and the sample are of the whole group.
    """

    fingerprint: str
    count: int
    type: str | None
    message: str | None
    sample_task_id: str | None
    sample_error: ErrorView | None
    queues: dict[str, int]
    handlers: dict[str, int]
    reasons: dict[str, int]
    first_seen: Moment | None
    last_seen: Moment | None


class GroupPage(Struct):
    """Groups, the largest first. ``partial``: there are too many counters to read them all."""

    items: list[GroupView]
    next_cursor: str | None
    partial: bool


class CountedView(Struct):
    """How many match. ``at_least``: counting was cut short."""

    dry_run: Literal[True]
    count: int
    at_least: bool


class ExpectedView(Struct):
    """How many matched when the operation was made."""

    count: int
    at_least: bool


class OperationTimes(Struct):
    """When what happened."""

    created_at: Moment
    updated_at: Moment
    finished_at: Moment | None


class OperationView(Struct, kw_only=True):
    """One verb for many tasks. ``found``: met so far: done, or skipped for its state."""

    operation_id: str
    kind: Kind
    status: OperationState
    tenant: str
    filter: dict[str, Any]
    changes: dict[str, Any] | None
    rate: int
    expected: ExpectedView
    found: int
    done: int
    skipped: int
    error: str | None
    timestamps: OperationTimes


class OperationPage(Struct):
    """Operations, the newest first; those that ended are kept for a day."""

    items: list[OperationView]
    next_cursor: str | None


class RetentionView(Struct, kw_only=True):
    """How long what is finished stays; null is what the installation says."""

    success: Length | None
    failed: Length | None
    count: int | None
    bytes: int | None
