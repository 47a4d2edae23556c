"""Remote limits: queues and tenants over the HTTP API. As ``remote``, a LimitsBackend."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import structs

from tasksched.client.ask import Ask, Send
from tasksched.client.backend import PAGE_MAX
from tasksched.client.limits_backend import QueueVerb, TenantVerb
from tasksched.client.remote_live import Listen
from tasksched.client.wire import decoded
from tasksched.client.wire_limits import read_purged, read_queue, read_tenant
from tasksched.commands.tenant_purge import Purged
from tasksched.model.limits import QueueRules, QueueState, TenantRules, TenantState

QUEUES, TENANTS = "/queues", "/tenants"


class RemoteLimits:
    """A LimitsBackend over HTTP."""

    def __init__(self, send: Send, listen: Listen) -> None:
        self._send = send
        self._listen = listen

    async def export_tenant(self, tenant: str, name: str) -> AsyncGenerator[str, None]:
        """The lines of an export as they come. Raises Unavailable where they break off."""
        async with aclosing(
            self._listen(Ask("GET", f"{_path(TENANTS, name)}/export", tenant))
        ) as lines:
            async for line in lines:
                yield f"{line}\n"

    async def queues(self, tenant: str) -> list[QueueState]:
        found = await self._json(Ask("GET", QUEUES, tenant))
        return [read_queue(item) for item in found["items"]]

    async def queue(self, tenant: str, name: str) -> QueueState:
        return read_queue(await self._json(Ask("GET", _path(QUEUES, name), tenant)))

    async def put_queue(
        self, tenant: str, name: str, rules: QueueRules, version: int
    ) -> QueueState:
        return read_queue(await self._json(_put(_path(QUEUES, name), tenant, rules, version)))

    async def queue_verb(self, tenant: str, name: str, verb: QueueVerb) -> QueueState:
        return read_queue(await self._json(Ask("POST", f"{_path(QUEUES, name)}/{verb}", tenant)))

    async def set_everything(self, tenant: str, *, paused: bool) -> None:
        await self._send(Ask("POST", "/pause" if paused else "/resume", tenant))

    async def tenants(self, tenant: str) -> list[TenantState]:
        found: list[TenantState] = []
        query = {"limit": str(PAGE_MAX)}
        while True:
            page = await self._json(Ask("GET", TENANTS, tenant, query=query))
            found += [read_tenant(item) for item in page["items"]]
            if page["next_cursor"] is None:
                return found
            query["cursor"] = page["next_cursor"]

    async def tenant(self, tenant: str, name: str) -> TenantState:
        return read_tenant(await self._json(Ask("GET", _path(TENANTS, name), tenant)))

    async def put_tenant(
        self, tenant: str, name: str, rules: TenantRules, version: int
    ) -> TenantState:
        return read_tenant(await self._json(_put(_path(TENANTS, name), tenant, rules, version)))

    async def tenant_verb(self, tenant: str, name: str, verb: TenantVerb) -> TenantState:
        return read_tenant(await self._json(Ask("POST", f"{_path(TENANTS, name)}/{verb}", tenant)))

    async def purge_tenant(self, tenant: str, name: str) -> Purged:
        body = msgspec.json.encode({"confirm": name})
        return read_purged(
            await self._json(Ask("POST", f"{_path(TENANTS, name)}/purge", tenant, body))
        )

    async def _json(self, ask: Ask) -> dict[str, Any]:
        found: dict[str, Any] = decoded((await self._send(ask)).content, dict[str, Any])
        return found


def _path(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}"


def _put(path: str, tenant: str, rules: QueueRules | TenantRules, version: int) -> Ask:
    body = msgspec.json.encode(structs.asdict(rules))
    # Sent twice it meets its own first: the version is another one then.
    headers = {"If-Match": f'"{version}"'}
    return Ask("PUT", path, tenant, body, headers=headers, repeatable=False)
