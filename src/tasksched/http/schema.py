"""Schema: the public shapes of JSON, in and out, as one list of Structs.

What answers look like is encoded from these, what requests may hold is named by these (``parse`` reads
their members by the rules of the model), and ``/openapi.json`` is generated from these. So the three
cannot drift apart. Constraints stand here for the reader of the schema only: the model enforces them.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tasksched.http.schema_notify import (
    DeliveryOf,
    NotificationTargetView,
    ReceiverBody,
    ReceiverView,
)
from tasksched.model.limits import CONCURRENCY_MAX
from tasksched.model.names import HANDLER_NAME_MAX, KEY_MAX, NAME_MAX, TAGS_MAX
from tasksched.model.states import OutcomeName, State

_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _name(most: int, description: str) -> Meta:
    schema = {"pattern": _NAME, "minLength": 1, "maxLength": most}
    return Meta(description=description, extra_json_schema=schema)


Name = Annotated[str, _name(NAME_MAX, "ASCII letters and digits, then also . _ -")]
HandlerName = Annotated[str, _name(HANDLER_NAME_MAX, "The name workers know a function by")]
Key = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": KEY_MAX})]
Traceparent = Annotated[
    str, Meta(extra_json_schema={"pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"})
]
ConcurrencyLimit = Annotated[
    int, Meta(extra_json_schema={"minimum": 1, "maximum": CONCURRENCY_MAX})
]
Instant = Annotated[
    str,
    Meta(
        description="RFC 3339 with an offset; or a local time, with timezone",
        extra_json_schema={"examples": ["2026-03-08T09:00:00Z"]},
    ),
]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
DurationIn = Annotated[
    int | float | str,
    Meta(
        description='Seconds as a number, "1d2h" (units w d h m s ms), or ISO 8601 "PT1H30M"',
        extra_json_schema={"examples": ["1h30m", 90]},
    ),
]
Length = Annotated[str, Meta(description='A duration in its canonical form, such as "1h30m"')]
Priority = Literal["critical", "high", "normal", "low"]
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Durability = Literal["memory", "replicated", "fsync"]
Tags = Annotated[list[Name], Meta(extra_json_schema={"maxItems": TAGS_MAX, "uniqueItems": True})]


# -- in -----------------------------------------------------------------------------------------


class HttpTargetBody(Struct, tag="http", tag_field="type", forbid_unknown_fields=True):
    """A request that a worker makes, with the payload as its body.

    ``async``: an answer of 202 means that the verdict comes later, by a callback.
    """

    url: str
    method: Method = "POST"
    headers: dict[str, str] = {}
    is_async: bool | UnsetType = msgspec.field(name="async", default=UNSET)


class HandlerTargetBody(Struct, tag="handler", tag_field="type", forbid_unknown_fields=True):
    """A function that workers know under this name and, where given, this version."""

    name: HandlerName
    version: Name | None = None


class BackoffBody(Struct, forbid_unknown_fields=True):
    """How long to wait between attempts: initial, then ``factor`` times as long, at most ``max``."""

    initial: DurationIn = "1s"
    factor: float = 2
    max: DurationIn = "1h"
    jitter: Literal["full", "equal", "none"] = "full"


class RetryBody(Struct, forbid_unknown_fields=True):
    """How often a task may start, and how often in a row it may lose its worker."""

    max_attempts: int = 5
    max_lost: int = 3
    backoff: BackoffBody = msgspec.field(default_factory=BackoffBody)


class TaskBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A task to create. Without ``run_at`` and ``delay`` it is due now."""

    target: HttpTargetBody | HandlerTargetBody
    payload: Any = UNSET
    run_at: Instant | None = None
    timezone: str | None = None
    delay: DurationIn | None = None
    queue: Name = "default"
    priority: Priority = "normal"
    retry: RetryBody | None = None
    timeout: DurationIn | None = None
    lease: DurationIn | None = None
    expires_at: Instant | None = None
    tags: Tags | None = None
    notify: list[ReceiverBody] | None = None
    concurrency_key: Key | None = None
    concurrency_limit: ConcurrencyLimit | None = None
    traceparent: Traceparent | None = None
    idempotency_key: Key | None = None


class ChangesBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change of a waiting task; what is not named stays. ``retry`` is replaced as a whole."""

    target: HttpTargetBody | HandlerTargetBody | UnsetType = UNSET
    payload: Any = UNSET
    run_at: Instant | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    delay: DurationIn | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    retry: RetryBody | None | UnsetType = UNSET
    timeout: DurationIn | None | UnsetType = UNSET
    lease: DurationIn | UnsetType = UNSET
    expires_at: Instant | None | UnsetType = UNSET
    tags: Tags | None | UnsetType = UNSET
    notify: list[ReceiverBody] | None | UnsetType = UNSET
    concurrency_key: Key | None | UnsetType = UNSET
    concurrency_limit: ConcurrencyLimit | UnsetType = UNSET


class NothingBody(Struct, forbid_unknown_fields=True):
    """No options: an empty object, or no body."""


# -- out ----------------------------------------------------------------------------------------


class ErrorView(Struct):
    """Why the last attempt failed."""

    type: str
    message: str
    traceback: str


class Timestamps(Struct, kw_only=True):
    """When what happened. ``run_at`` is when the task is, or was, due."""

    created_at: Moment
    run_at: Moment
    queued_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None


class BackoffView(Struct):
    """How long the task waits between attempts."""

    initial: Length
    factor: int | float
    max: Length
    jitter: str


class RetryView(Struct):
    """The retry policy, all of it."""

    max_attempts: int
    max_lost: int
    backoff: BackoffView


class TaskView(Struct, kw_only=True):
    """A task as it stands. ``payload`` is missing where the task has none, and in lists.

    ``encrypted``: a payload or result is null because its key is not here.

    An occurrence of a recurring task says of which, for which time, and for how many that were missed.
    ``deferred``: it runs elsewhere, and its verdict comes by a callback. ``postponed``: why the last
    start was handed back. ``log_url``: what its runs said.
    """

    task_id: str
    status: State
    version: int
    created: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    tenant: str
    queue: str
    priority: str
    target: HttpTargetBody | HandlerTargetBody | NotificationTargetView
    payload: Any = UNSET
    result: Any = UNSET
    corrupt: bool | UnsetType = UNSET
    encrypted: bool | UnsetType = UNSET
    attempts: int
    error: ErrorView | None
    reason: str | None
    fingerprint: str | None
    cancel_requested: bool
    progress: dict[str, Any] | None
    deferred: bool
    postponed: str | None
    log_url: str | UnsetType = UNSET
    tags: list[str]
    notify: list[ReceiverView]
    concurrency_key: str | None
    concurrency_limit: int | None
    traceparent: str | None
    delivery: DeliveryOf | UnsetType = UNSET
    retry: RetryView
    timeout: Length | None
    lease: Length | None
    expires_at: Moment | None
    recurring_task_id: str | UnsetType = UNSET
    nominal_at: Moment | None | UnsetType = UNSET
    missed: int | UnsetType = UNSET
    timestamps: Timestamps
    why_waiting: list[dict[str, Any]] | UnsetType = UNSET


class CreatedView(Struct, kw_only=True):
    """A task that was just created; whoever waits for its result gets the whole task instead."""

    task_id: str
    status: State | None
    created: bool
    durability: Durability
    version: int
    run_at: Moment


class ChangedView(Struct, kw_only=True):
    """What a verb made of a task."""

    task_id: str
    status: State
    version: int
    cancel_requested: bool | UnsetType = UNSET
    durability: Durability = "memory"


class AttemptView(Struct, kw_only=True):
    """One execution by one worker."""

    attempt: int
    fence: int
    worker: str
    started_at: Moment
    ended_at: Moment | None
    outcome: OutcomeName | None
    error: ErrorView | None


class TaskPage(Struct):
    """Items, and the cursor of what follows; null at the end. A page may be short, even empty."""

    items: list[TaskView]
    next_cursor: str | None


class AttemptPage(Struct):
    """Every attempt on record, oldest first."""

    items: list[AttemptView]
    next_cursor: str | None


class FieldError(Struct, omit_defaults=True):
    """One wrong field: ``pointer`` into the body, or the parameter or header it came in."""

    pointer: str
    detail: str
    parameter: str | None = None
    header: str | None = None


class ProblemView(Struct, kw_only=True, omit_defaults=True):
    """Every answer that is no success. Test ``code``, never the texts."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str | None = None
    errors: list[FieldError] | None = None
    task_id: str | None = None
    task_status: str | None = None
    recurring_task_id: str | None = None
    recurring_status: str | None = None
    version: int | None = None
    limit: str | None = None
    retry_after: Length | None = None


class BatchItem(Struct, kw_only=True, omit_defaults=True):
    """What became of one task of a batch: 201, 200 for a replay, else the error."""

    status: int
    task_id: str | None = None
    created: bool | None = None
    durability: Durability | None = None
    version: int | None = None
    run_at: Moment | None = None
    code: str | None = None
    detail: str | None = None
    errors: list[FieldError] | None = None
    limit: str | None = None
    retry_after: Length | None = None


class BatchView(Struct):
    """One answer for each item, in the order of the request."""

    items: list[BatchItem]


class CountView(Struct):
    """How many tasks there are, from counters."""

    total: int
    by_status: dict[str, int]
    by_queue: dict[str, dict[str, int]]


class ProblemKindView(Struct):
    """What a ``code`` means. ``retryable``: the same request may succeed later."""

    code: str
    title: str
    status: int
    retryable: bool
    detail: str


class StatusView(Struct):
    """A probe that succeeds."""

    status: Literal["ok"]


class RedisView(Struct, kw_only=True):
    """The server as it describes itself."""

    version: str
    role: str
    maxmemory_policy: str
    maxmemory_bytes: int
    used_memory_bytes: int
    memory_budget_bytes: int
    memory_budget_ratio: float
    accepts: bool
    aof: bool


class HealthView(Struct, kw_only=True):
    """How the system is. ``lag``: how long the longest-waiting task has been due; null for none."""

    status: Literal["ok", "degraded", "down"]
    version: str
    redis: RedisView | None
    schedulers: int
    workers: int
    lag: Length | None
    warnings: list[str]


class StatsView(Struct, kw_only=True):
    """Over all tenants: tasks now, moves into each state since ever, finds of the audits."""

    total: int
    by_status: dict[str, int]
    by_queue: dict[str, dict[str, int]]
    moves: dict[str, dict[str, int]]
    findings: dict[str, int]
    schedulers: int
    workers: int
    lag: Length | None


class WorkerPage(Struct):
    """What each live worker says about itself."""

    items: list[dict[str, Any]]
    next_cursor: str | None
