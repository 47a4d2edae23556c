"""The requests about tasks while they run, whoever carries them.

Over Redis the commands themselves answer (``commands.callbacks``, ``commands.live``), over HTTP
``remote_live``.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from tasksched.commands.callbacks import CallbackRef, Heard
from tasksched.commands.live import EventQuery
from tasksched.model.callback import FailureReport
from tasksched.model.live import Followed, Gap, Happened, LineSaid, Quiet
from tasksched.model.states import State


class CallbackBackend(Protocol):
    """Reports for runs that go on elsewhere. All of them may be repeated."""

    async def heartbeat(
        self, ref: CallbackRef, *, lease_ms: int | None = None, progress: str = ""
    ) -> Heard: ...

    async def complete(self, ref: CallbackRef, result: bytes) -> State: ...

    async def fail(self, ref: CallbackRef, report: FailureReport) -> State: ...


class LiveBackend(Protocol):
    """What is told of tasks while they run. ``Quiet`` says that there is nothing for now."""

    async def lines(
        self, tenant: str, task_id: str, *, after: str | None = None, limit: int = 200
    ) -> list[LineSaid]: ...

    def follow(
        self, tenant: str, task_id: str, after: str | None = None
    ) -> AsyncGenerator[Followed | Quiet, None]:
        """Ends with a final state. Raises Unavailable where it breaks off before."""
        ...

    def events(self, query: EventQuery) -> AsyncGenerator[Happened | Gap | Quiet, None]: ...
