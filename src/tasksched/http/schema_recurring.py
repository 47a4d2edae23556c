"""Schema of recurring tasks: their public shapes of JSON, in and out. As ``schema`` for tasks.

The view of a recurring task ends with the members that define it, spelled as a body takes them, so that
what GET answered may be PUT again; what stands before them is only told, and a PUT leaves it unread.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from tasksched.http.schema import (
    ConcurrencyLimit,
    Durability,
    DurationIn,
    HandlerTargetBody,
    HttpTargetBody,
    Instant,
    Key,
    Length,
    Moment,
    Name,
    Priority,
    RetryBody,
    RetryView,
    Tags,
)
from tasksched.http.schema_notify import ReceiverBody, ReceiverView
from tasksched.model.recurring import After, LedgerOutcome, Overlap, ScheduleStatus
from tasksched.model.schedule.misfire import LIMIT_DEFAULT, LIMIT_MAX, CatchUp
from tasksched.model.schedule.preview import PREVIEW_MAX
from tasksched.model.schedule.rules import OnFold, OnGap

RUNS_MAX = 1_000_000_000
RATE_DEFAULT, RATE_LEAST, RATE_MOST = 10.0, 0.01, 10_000.0
PREVIEW_DEFAULT = 10

Expression = Annotated[
    str,
    Meta(
        description="5 fields, 6 with seconds first, 7 with the year last; or @daily and the like",
        extra_json_schema={"examples": ["30 2 * * *"], "maxLength": 128},
    ),
]
Recurrence = Annotated[
    str,
    Meta(
        description="A recurrence rule of RFC 5545",
        extra_json_schema={"examples": ["FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"]},
    ),
]
Zone = Annotated[
    str,
    Meta(description="An IANA name, exactly", extra_json_schema={"examples": ["Europe/Paris"]}),
]


def _whole(most: int) -> Meta:
    return Meta(extra_json_schema={"minimum": 1, "maximum": most})


# -- in -----------------------------------------------------------------------------------------


class RuleBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """When: exactly one of ``cron``, ``interval``, ``delay`` and ``rrule``, and what goes with it."""

    cron: Expression | None = None
    interval: DurationIn | None = None
    delay: DurationIn | None = None
    rrule: Recurrence | None = None
    timezone: Zone | None = "UTC"
    start_at: Instant | None = None
    end_at: Instant | None = None
    on_gap: OnGap | None = "next"
    on_fold: OnFold | None = "first"


class RecurringBody(RuleBody, forbid_unknown_fields=True, kw_only=True):
    """A recurring task. ``interval`` is a fixed rate, ``delay`` a pause after each run's end."""

    target: HttpTargetBody | HandlerTargetBody
    payload: Any = UNSET
    queue: Name | None = "default"
    priority: Priority | None = "normal"
    retry: RetryBody | None = None
    timeout: DurationIn | None = None
    lease: DurationIn | None = None
    tags: Tags | None = None
    notify: list[ReceiverBody] | None = None
    concurrency_key: Key | None = None
    concurrency_limit: ConcurrencyLimit | None = None
    max_runs: Annotated[int, _whole(RUNS_MAX)] | None = None
    overlap: Overlap | None = "skip"
    catch_up: CatchUp | None = "one"
    catch_up_limit: Annotated[int, _whole(LIMIT_MAX)] | None = LIMIT_DEFAULT
    misfire_grace: DurationIn | None = None
    jitter: DurationIn | None = None
    after: After | None = "terminal"
    owner: Name | None = None
    id: Name | None = None


class RecurringChangesBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change; what is not named stays, null is the default. A rule may replace another."""

    cron: Expression | None | UnsetType = UNSET
    interval: DurationIn | None | UnsetType = UNSET
    delay: DurationIn | None | UnsetType = UNSET
    rrule: Recurrence | None | UnsetType = UNSET
    timezone: Zone | None | UnsetType = UNSET
    start_at: Instant | None | UnsetType = UNSET
    end_at: Instant | None | UnsetType = UNSET
    on_gap: OnGap | None | UnsetType = UNSET
    on_fold: OnFold | None | UnsetType = UNSET
    target: HttpTargetBody | HandlerTargetBody | UnsetType = UNSET
    payload: Any = UNSET
    queue: Name | None | UnsetType = UNSET
    priority: Priority | None | UnsetType = UNSET
    retry: RetryBody | None | UnsetType = UNSET
    timeout: DurationIn | None | UnsetType = UNSET
    lease: DurationIn | None | UnsetType = UNSET
    tags: Tags | None | UnsetType = UNSET
    notify: list[ReceiverBody] | None | UnsetType = UNSET
    concurrency_key: Key | None | UnsetType = UNSET
    concurrency_limit: ConcurrencyLimit | None | UnsetType = UNSET
    max_runs: Annotated[int, _whole(RUNS_MAX)] | None | UnsetType = UNSET
    overlap: Overlap | None | UnsetType = UNSET
    catch_up: CatchUp | None | UnsetType = UNSET
    catch_up_limit: Annotated[int, _whole(LIMIT_MAX)] | None | UnsetType = UNSET
    misfire_grace: DurationIn | None | UnsetType = UNSET
    jitter: DurationIn | None | UnsetType = UNSET
    after: After | None | UnsetType = UNSET
    owner: Name | None | UnsetType = UNSET
    id: Name | None | UnsetType = UNSET


class PreviewBody(RuleBody, forbid_unknown_fields=True, kw_only=True):
    """A rule, and from when on to look: ``after`` is now unless it is given."""

    after: Instant | None = None
    n: Annotated[int, _whole(PREVIEW_MAX)] | None = PREVIEW_DEFAULT


class BackfillBody(Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """A range of nominal times, both ends in it; ``rate``: so many become due a second."""

    from_: Instant
    to: Instant
    dry_run: bool | None = False
    rate: (
        Annotated[float, Meta(extra_json_schema={"minimum": RATE_LEAST, "maximum": RATE_MOST})]
        | None
    ) = RATE_DEFAULT


# -- out ----------------------------------------------------------------------------------------


class RecurringTimestamps(Struct):
    """When it was made, and when its definition changed last."""

    created_at: Moment
    updated_at: Moment


class RecurringView(Struct, kw_only=True):
    """A recurring task as it stands. ``payload`` is missing where there is none, and in lists."""

    recurring_task_id: str
    status: ScheduleStatus
    version: int
    created: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    tenant: str
    description: str
    next_run_at: Moment | None
    last_run_at: Moment | None
    runs: int
    reason: str | None
    corrupt: bool | UnsetType = UNSET
    encrypted: bool | UnsetType = UNSET
    timestamps: RecurringTimestamps
    tzdata_version: str
    # From here on its definition, as a body takes it.
    cron: str | UnsetType = UNSET
    interval: Length | UnsetType = UNSET
    delay: Length | UnsetType = UNSET
    rrule: str | UnsetType = UNSET
    timezone: str
    start_at: Moment | None
    end_at: Moment | None
    on_gap: OnGap | UnsetType = UNSET
    on_fold: OnFold | UnsetType = UNSET
    target: HttpTargetBody | HandlerTargetBody
    payload: Any = UNSET
    queue: str
    priority: str
    retry: RetryView
    timeout: Length | None
    lease: Length | None
    tags: list[str]
    notify: list[ReceiverView]
    concurrency_key: str | None
    concurrency_limit: int | None
    max_runs: int | None
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    misfire_grace: Length | None
    jitter: Length | None
    after: After | UnsetType = UNSET
    owner: str | None


class RecurringPage(Struct):
    """Recurring tasks, those that run next first; the cursor of what follows, null at the end."""

    items: list[RecurringView]
    next_cursor: str | None


class LedgerItem(Struct, kw_only=True):
    """What became of one nominal time, or of a range of neighbours with the same outcome.

    ``exact`` is false where ``count`` is the least there can have been. ``lateness``: from the nominal
    time to the creation of the task.
    """

    outcome: LedgerOutcome
    nominal_at: Moment
    first_at: Moment
    last_at: Moment
    count: int
    exact: bool
    lateness: Length | None
    task_id: str | None
    by_hand: bool


class LedgerPage(Struct):
    """The last 100 entries of seven days, newest first."""

    items: list[LedgerItem]
    next_cursor: str | None


class FireView(Struct):
    """One time of a rule. ``local``: on the wall of its zone; ``note``: what the clock does to it."""

    at: Moment
    local: str
    note: str | None


class NextView(Struct):
    """The next nominal times. A fixed delay has one at most: the others follow from the runs."""

    next: list[FireView]


class PreviewView(Struct):
    """The next nominal times of a rule, fewer where it ends."""

    description: str
    timezone: str
    tzdata_version: str
    next: list[FireView]


class RemovedView(Struct):
    """The recurring task that is no more."""

    recurring_task_id: str
    durability: Durability = "memory"


class TriggeredView(Struct):
    """The extra occurrence that was made."""

    task_id: str
    recurring_task_id: str
    durability: Durability = "memory"


class BackfillView(Struct, kw_only=True):
    """``count`` nominal times lie in the range; ``task_ids``: those that got an occurrence now."""

    dry_run: bool
    count: int
    exact: bool
    task_ids: list[str]
    durability: Durability | UnsetType = UNSET


DEFINITION: tuple[str, ...] = RecurringBody.__struct_encode_fields__
READ_ONLY = tuple(name for name in RecurringView.__struct_fields__ if name not in DEFINITION)
"""Members of the view that a body does not have; a PUT leaves them unread."""
PREVIEW: tuple[str, ...] = PreviewBody.__struct_encode_fields__
BACKFILL: tuple[str, ...] = BackfillBody.__struct_encode_fields__
