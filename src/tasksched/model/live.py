"""What can be seen of tasks while it happens: what one task's runs say, and what becomes of all.

``kind`` is the word by which an event goes over the wire. Values only.
"""

from typing import Any, ClassVar, Final

import msgspec

from tasksched.model.states import State


class LineSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A run said a line. ``id`` grows within the task, and is where to go on after it."""

    kind: ClassVar[str] = "line"
    id: str
    at_ms: int
    attempt: int
    text: str


class Progressed(msgspec.Struct, frozen=True, kw_only=True):
    """How far the run is, by its own word: ``at`` is any finite number, or None."""

    kind: ClassVar[str] = "progress"
    at: float | None = None
    message: str = ""

    @classmethod
    def of(cls, progress: dict[str, Any]) -> "Progressed":
        return cls(at=progress.get("at"), message=progress.get("message") or "")


class StateSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The task is in this state, in this attempt (0 before the first)."""

    kind: ClassVar[str] = "state"
    status: State
    attempt: int
    cancel_requested: bool = False


Followed = LineSaid | Progressed | StateSeen


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a tenant moved. ``kind``: ``task.created``, ``task.succeeded`` and so on.

    ``id`` is where to go on after it, over all shards.
    """

    id: str
    kind: str
    task_id: str
    tenant: str
    queue: str
    status: State
    at_ms: int


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Events may be missing here: the log, which is bounded, was cut past the place asked for."""

    kind: ClassVar[str] = "gap"
    id: str


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing happened for now. ``id``: where to go on, where that is known."""

    id: str = ""


KINDS: Final[dict[str, tuple[str, State]]] = {
    "CREATED": ("task.created", "PENDING"),
    "RETRYING": ("task.retrying", "PENDING"),
    "REDRIVEN": ("task.redriven", "PENDING"),
    "PENDING": ("task.waiting", "PENDING"),
    "QUEUED": ("task.queued", "QUEUED"),
    "RUNNING": ("task.started", "RUNNING"),
    "SUCCESS": ("task.succeeded", "SUCCESS"),
    "FAILED": ("task.failed", "FAILED"),
    "CANCELLED": ("task.cancelled", "CANCELLED"),
}
"""Word in the log (``lua/lib/move.lua``) → kind and state, in the order in which one call tells them."""
