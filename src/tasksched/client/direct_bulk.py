"""Direct bulk: many tasks at once over Redis itself. As ``direct``, a BulkBackend."""

from tasksched.client.bulk_backend import DeadPage, GroupPage, OperationPage
from tasksched.commands.bulk import Bulk
from tasksched.commands.operations import Request
from tasksched.model.filters import Filter
from tasksched.model.operation import Count, Operation
from tasksched.store.reads import Place


class DirectBulk:
    """A BulkBackend over one session's commands."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk

    async def dead_page(
        self, tenant: str, asked: Filter, cursor: str | None, limit: int
    ) -> DeadPage:
        return DeadPage(*await self._bulk.dead_letters.page(tenant, asked, cursor, limit))

    async def dead_groups(
        self, tenant: str, asked: Filter, cursor: str | None, limit: int
    ) -> GroupPage:
        found = await self._bulk.dead_letters.groups(tenant, asked, cursor, limit)
        return GroupPage(found.items, found.next_cursor)

    async def count(self, request: Request) -> Count:
        return await self._bulk.operations.count(request)

    async def start(self, request: Request) -> Operation:
        return await self._bulk.operations.start(request)

    async def operation(self, tenant: str, operation_id: str) -> Operation:
        return await self._bulk.operations.get(tenant, operation_id)

    async def operations(self, tenant: str, cursor: str | None, limit: int) -> OperationPage:
        place = None
        if cursor is not None:
            created_ms, _, operation_id = cursor.partition(" ")
            place = Place(int(created_ms), operation_id)
        found, then = await self._bulk.operations.page(tenant, place, limit)
        return OperationPage(found, None if then is None else f"{then.score} {then.id}")

    async def stop(self, tenant: str, operation_id: str) -> Operation:
        return await self._bulk.operations.stop(tenant, operation_id)

    async def delete(self, tenant: str, task_id: str, version: int | None) -> None:
        await self._bulk.removal.delete(tenant, task_id, version=version)
