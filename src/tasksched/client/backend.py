"""Backend: the few requests the client makes, whoever carries them.

``direct`` speaks to Redis, ``remote`` to the HTTP API; handles and handlers do not know which. Every
method raises the errors of ``tasksched.errors`` and nothing of the library below. A submit may be
sent again after a lost reply, by the backend itself: it never makes a second task of one call.
Values are the model's; turning them into what users see is the client's work, not the backend's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tasksched.client.bulk_backend import BulkBackend
from tasksched.client.limits_backend import LimitsBackend
from tasksched.client.live_backend import CallbackBackend, LiveBackend
from tasksched.client.recurring_backend import RecurringBackend
from tasksched.client.webhooks_backend import WebhooksBackend
from tasksched.commands.tasks import Changes
from tasksched.errors import TaskschedError
from tasksched.model.states import State
from tasksched.model.task import Attempt, Created, Task, TaskSpec

PAGE_MAX = 200


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks of a tenant. None does not care. ``handler``: a name, or its beginning with ``*``."""

    tenant: str
    status: State | None = None
    queue: str | None = None
    handler: str | None = None
    tag: str | None = None
    limit: int = 100


class Page(NamedTuple):
    """Some of the tasks asked for; it may be short, or empty, and yet not the last one."""

    items: list[Task]
    next_cursor: str | None


class Change(NamedTuple):
    """What a verb made of a task. ``cancel_requested``: it runs, and was asked to stop."""

    status: State
    version: int
    cancel_requested: bool = False


class Explanation(NamedTuple):
    """Why a task has not run: each a ``reason`` with a ``detail``, the weightiest first.

    ``redis_cli`` is the line that shows its record, where the backend can name the key.
    """

    task: Task
    reasons: list[dict[str, Any]]
    redis_cli: str | None = None


class Backend(Protocol):
    """What a transport does. One per event loop; safe for concurrent use in it."""

    @property
    def call_max(self) -> int:
        """So many tasks without a key make a call of ``submit_many`` worth it."""
        ...

    @property
    def keyed_max(self) -> int:
        """As ``call_max`` for tasks with keys, which may have to be spread over shards."""
        ...

    @property
    def calls_at_once(self) -> int:
        """So many calls of ``submit_many`` keep the other side busy."""
        ...

    @property
    def recurring(self) -> RecurringBackend:
        """The same for recurring tasks."""
        ...

    @property
    def webhooks(self) -> WebhooksBackend:
        """The same for webhook endpoints."""
        ...

    @property
    def callbacks(self) -> CallbackBackend:
        """Reports for runs that go on elsewhere."""
        ...

    @property
    def live(self) -> LiveBackend:
        """What is told of tasks while they run."""
        ...

    @property
    def limits(self) -> LimitsBackend:
        """The same for queues and tenants."""
        ...

    @property
    def bulk(self) -> BulkBackend:
        """The same for many tasks at once."""
        ...

    async def submit(self, spec: TaskSpec) -> Created: ...

    async def submit_many(self, specs: Sequence[TaskSpec]) -> list[Created | TaskschedError]:
        """Answers in order; what is wrong with one is its own answer."""
        ...

    async def get(self, tenant: str, task_id: str) -> Task: ...

    async def page(self, query: Query, cursor: str | None) -> Page: ...

    async def attempts(self, tenant: str, task_id: str) -> list[Attempt]: ...

    async def wait(self, tenant: str, task_id: str, timeout_ms: int) -> Task:
        """The task once it is final, or as it stands when the time is over (or a little before)."""
        ...

    async def cancel(self, tenant: str, task_id: str, version: int | None) -> Change: ...

    async def edit(
        self, tenant: str, task_id: str, changes: Changes, version: int | None
    ) -> Change: ...

    async def run_now(self, tenant: str, task_id: str, version: int | None) -> Change: ...

    async def redrive(
        self, tenant: str, task_id: str, version: int | None, changes: Changes | None = None
    ) -> Change: ...

    async def explain(self, tenant: str, task_id: str) -> Explanation: ...

    async def stats(self) -> dict[str, Any]:
        """Counters over all tenants, as the API's ``/stats`` gives them."""
        ...

    async def workers(self) -> list[dict[str, Any]]:
        """What each live worker says about itself."""
        ...

    async def audit(self, limit: int, cursor: str | None) -> dict[str, Any]:
        """What was done with the rights of an operator, as ``GET /audit`` tells it."""
        ...

    async def close(self) -> None: ...
