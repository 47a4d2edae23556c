"""Schema limits: the public shapes of queues and tenants, their rules and their use. As ``schema``.

What GET answers may be PUT again: the members that are only told stay unread.
"""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tasksched.http.schema import Name
from tasksched.http.schema_bulk import RetentionBody, RetentionView
from tasksched.model.limits import (
    NUMBER_MAX,
    RATE_LEAST,
    RATE_MOST,
    WEIGHT_LEAST,
    WEIGHT_MOST,
    QueueRules,
    TenantRules,
)

Running = Annotated[
    int,
    Meta(
        description="Tasks that run or are about to, at most, over all workers",
        extra_json_schema={"minimum": 1, "maximum": NUMBER_MAX},
    ),
]
Pending = Annotated[
    int,
    Meta(
        description="Tasks that are not finished, at most",
        extra_json_schema={"minimum": 0, "maximum": NUMBER_MAX},
    ),
]
Rate = Annotated[
    float,
    Meta(
        description="A second; three decimals at most",
        extra_json_schema={"minimum": RATE_LEAST, "maximum": RATE_MOST},
    ),
]
Weight = Annotated[
    float,
    Meta(
        description="Its part of what tenants share, against 1 of the others",
        extra_json_schema={"minimum": WEIGHT_LEAST, "maximum": WEIGHT_MOST},
    ),
]


# -- in -----------------------------------------------------------------------------------------


class QueueBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The rules of a queue, as a whole; ``paused`` and ``draining`` stay where they are not named."""

    paused: bool | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    strict: bool | None = False
    max_running: Running | None = None
    dispatch_rate: Rate | None = None


class TenantPurgeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """``confirm``: the tenant's name once more."""

    confirm: Name


class TenantBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The settings of a tenant: its retention as a whole, or its limits as a whole, or both.

    A body that names none of the limits leaves them as they are, and so with the retention; an empty
    one takes both away. ``paused`` and ``draining`` stay where they are not named.
    """

    retention: RetentionBody | None | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    weight: Weight | None | UnsetType = UNSET
    max_running: Running | None | UnsetType = UNSET
    dispatch_rate: Rate | None | UnsetType = UNSET
    max_pending: Pending | None | UnsetType = UNSET
    create_rate: Rate | None | UnsetType = UNSET


# -- out ----------------------------------------------------------------------------------------


class QueueView(Struct, kw_only=True):
    """A queue: its rules, and how it is.

    ``counts``: the tenant's tasks by state. ``in_use``: tasks of all tenants that run or are about to;
    ``allotted``: permits of ``max_running`` that shards have. ``paused_by``: everything, queue, share.
    """

    name: str
    version: int
    paused: bool
    draining: bool
    strict: bool
    max_running: int | None
    dispatch_rate: float | None
    paused_by: str | None
    in_use: int
    allotted: int
    counts: dict[str, int]


class QueuePage(Struct):
    """Queues by name: those that hold tasks of the tenant, and those that have rules."""

    items: list[QueueView]
    next_cursor: str | None


class UsageView(Struct):
    """Tasks that are not finished, and of those the ones that run or are about to."""

    unfinished: int
    running: int


class TenantItem(Struct, kw_only=True):
    """A tenant: its limits, and its use of them."""

    tenant: str
    version: int
    paused: bool
    draining: bool
    weight: float
    max_running: int | None
    dispatch_rate: float | None
    max_pending: int | None
    create_rate: float | None
    usage: UsageView


class TenantView(TenantItem, kw_only=True):
    """A tenant with its retention, and what holds where none is set (bytes null: a share of memory)."""

    retention: RetentionView
    defaults: RetentionView


class TenantPurgeView(Struct, kw_only=True):
    """What this request removed, and what is left; to be asked again until ``done``."""

    tenant: str
    tasks: int
    recurring_tasks: int
    webhooks: int
    api_keys: int
    left: int
    running: int
    done: bool


class TenantPage(Struct):
    """Tenants by name: those that have tasks, or for which something is set."""

    items: list[TenantItem]
    next_cursor: str | None


class EverythingView(Struct):
    """Whether everything stands still. What is paused by itself is told by queues and tenants."""

    paused: bool


QUEUE_RULES: Final = tuple(field.name for field in msgspec.structs.fields(QueueRules))
TENANT_RULES: Final = tuple(field.name for field in msgspec.structs.fields(TenantRules))
QUEUE_TOLD: Final = tuple(set(QueueView.__struct_fields__) - set(QUEUE_RULES))
TENANT_TOLD: Final = tuple(set(TenantView.__struct_fields__) - {*TENANT_RULES, "retention"})
"""Members of the views that are only told."""
