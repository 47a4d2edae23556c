"""Schema of long runs: what their callbacks send and get, and what is told of tasks while they run.

As ``schema``: requests are checked by the model, and these are what ``/openapi.json`` is made of.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tasksched.http.schema import Durability, DurationIn, Moment
from tasksched.model.states import State

Fence = Annotated[
    int | str,
    Meta(description="Of the attempt, as the header Tasksched-Fence had it: a number or a string"),
]


class HeartbeatBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The run lives. ``lease``: until it must be heard of again. ``progress``: any finite number."""

    fence: Fence
    lease: DurationIn | None = None
    progress: float | None = None
    message: str | None = None


class CompleteBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The run succeeded. Without a ``result`` it is null."""

    fence: Fence
    result: Any = None


class CallbackErrorBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What went wrong. ``details``: text, or any JSON; kept as the error's traceback, at most 6 KiB."""

    type: str = "Error"
    message: str
    details: Any = None


class FailBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The run failed. What follows is decided by the task's retry policy, unless not ``retryable``."""

    fence: Fence
    error: CallbackErrorBody
    retryable: bool = True
    retry_after: DurationIn | None = None


class HeardView(Struct, kw_only=True):
    """Whether the run should stop, and until when it is left alone."""

    task_id: str
    fence: str
    cancel_requested: bool
    lease_until: Moment


class ReportedView(Struct, kw_only=True):
    """What the report made of the task: PENDING where it will be tried again."""

    task_id: str
    fence: str
    status: State
    durability: Durability


class LineView(Struct, kw_only=True):
    """One line that a run said."""

    id: str
    at: Moment
    attempt: int
    text: str


class LinePage(Struct):
    """Lines, oldest first. ``next_cursor`` goes on after them; null where there are no more yet."""

    items: list[LineView]
    next_cursor: str | None


class ProgressView(Struct, kw_only=True):
    """The event ``progress``."""

    at: int | float | None
    message: str


class StateView(Struct, kw_only=True):
    """The event ``state``. ``attempt``: 0 before the first."""

    status: State
    attempt: int
    cancel_requested: bool


class EventView(Struct, kw_only=True):
    """The events of ``/events``, each under its name, such as ``task.succeeded``."""

    task_id: str
    status: State
    queue: str
    at: Moment


class GapView(Struct, kw_only=True):
    """The event ``gap``: what came before it may be incomplete."""

    reason: Literal["trimmed"] = "trimmed"


MEMBERS = {
    body: tuple(body.__struct_fields__)
    for body in (HeartbeatBody, CompleteBody, CallbackErrorBody, FailBody)
}
"""The members that requests may hold."""
