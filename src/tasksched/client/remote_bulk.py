"""Remote bulk: many tasks at once over the HTTP API. As ``remote``, a BulkBackend."""

from typing import Any
from urllib.parse import quote

import msgspec

from tasksched.client import wire_bulk
from tasksched.client.ask import Ask, Send
from tasksched.client.bulk_backend import DeadPage, GroupPage, OperationPage
from tasksched.commands.operations import Request
from tasksched.model.filters import Filter
from tasksched.model.operation import Count, Operation

PATHS = {
    "redrive": "/dead-letters/redrive",
    "purge": "/dead-letters/purge",
    "cancel": "/tasks/cancel",
    "edit": "/tasks/edit",
    "delete": "/tasks/delete",
}


class RemoteBulk:
    """A BulkBackend over HTTP."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def dead_page(
        self, tenant: str, asked: Filter, cursor: str | None, limit: int
    ) -> DeadPage:
        query = _query(asked, cursor, limit)
        reply = await self._send(Ask("GET", "/dead-letters", tenant, query=query))
        return wire_bulk.read_dead_page(reply.content)

    async def dead_groups(
        self, tenant: str, asked: Filter, cursor: str | None, limit: int
    ) -> GroupPage:
        query = _query(asked, cursor, limit)
        reply = await self._send(Ask("GET", "/dead-letters/groups", tenant, query=query))
        return wire_bulk.read_groups(reply.content)

    async def count(self, request: Request) -> Count:
        return wire_bulk.read_count(await self._begin(request, dry_run=True))

    async def start(self, request: Request) -> Operation:
        return wire_bulk.read_operation(await self._begin(request, dry_run=False))

    async def _begin(self, request: Request, *, dry_run: bool) -> bytes:
        body = msgspec.json.encode(wire_bulk.request_body(request, dry_run=dry_run))
        # A second operation would move what failed again after the first.
        ask = Ask("POST", PATHS[request.kind], request.tenant, body, repeatable=dry_run)
        content: bytes = (await self._send(ask)).content
        return content

    async def operation(self, tenant: str, operation_id: str) -> Operation:
        reply = await self._send(Ask("GET", f"/operations/{quote(operation_id)}", tenant))
        return wire_bulk.read_operation(reply.content)

    async def operations(self, tenant: str, cursor: str | None, limit: int) -> OperationPage:
        query = _query(Filter(), cursor, limit)
        reply = await self._send(Ask("GET", "/operations", tenant, query=query))
        return wire_bulk.read_operations(reply.content)

    async def stop(self, tenant: str, operation_id: str) -> Operation:
        path = f"/operations/{quote(operation_id)}/stop"
        return wire_bulk.read_operation((await self._send(Ask("POST", path, tenant))).content)

    async def delete(self, tenant: str, task_id: str, version: int | None) -> None:
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        path = f"/tasks/{quote(task_id, safe='')}"
        await self._send(Ask("DELETE", path, tenant, headers=headers, repeatable=False))


def _query(asked: Filter, cursor: str | None, limit: int) -> dict[str, str]:
    words: dict[str, Any] = {**asked.to_json(), "cursor": cursor, "limit": limit}
    return {name: str(value) for name, value in words.items() if value is not None}
