"""BulkBackend: the requests about many tasks at once, whoever carries them. As ``backend``."""

from typing import NamedTuple, Protocol

from tasksched.commands.dead_letters import Group
from tasksched.commands.operations import Request
from tasksched.model.filters import Filter
from tasksched.model.operation import Count, Operation
from tasksched.model.task import Task


class DeadPage(NamedTuple):
    """Some of the dead letters, the newest first; it may be short and yet not the last page."""

    items: list[Task]
    next_cursor: str | None


class GroupPage(NamedTuple):
    """Some of the groups, the largest first."""

    items: list[Group]
    next_cursor: str | None


class OperationPage(NamedTuple):
    """Some of the operations, the newest first."""

    items: list[Operation]
    next_cursor: str | None


class BulkBackend(Protocol):
    """What a transport does about many tasks."""

    async def dead_page(
        self, tenant: str, asked: Filter, cursor: str | None, limit: int
    ) -> DeadPage: ...

    async def dead_groups(
        self, tenant: str, asked: Filter, cursor: str | None, limit: int
    ) -> GroupPage: ...

    async def count(self, request: Request) -> Count:
        """How many tasks it would be for: a dry run."""
        ...

    async def start(self, request: Request) -> Operation:
        """A small one has ended when this returns."""
        ...

    async def operation(self, tenant: str, operation_id: str) -> Operation: ...

    async def operations(self, tenant: str, cursor: str | None, limit: int) -> OperationPage: ...

    async def stop(self, tenant: str, operation_id: str) -> Operation: ...

    async def delete(self, tenant: str, task_id: str, version: int | None) -> None: ...
