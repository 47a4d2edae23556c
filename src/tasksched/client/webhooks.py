"""Webhooks: ``app.webhooks``, where a tenant's events are sent, and what became of them.

::

    made = await app.webhooks.create("https://example.com/hook", ["task.failed"])
    made.secret                       # shown once: the receiver verifies with it

Every method raises NotFound for an unknown id, and PreconditionFailed where ``version`` is another one.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from tasksched.client.backend import PAGE_MAX
from tasksched.client.link import Link
from tasksched.client.webhooks_backend import WebhooksBackend
from tasksched.commands.endpoints import EndpointChanges, EndpointSpec
from tasksched.model.durations import Duration, parse_duration
from tasksched.model.endpoint import (
    OVERLAP_MAX_MS,
    OVERLAP_MS,
    DeliveryInfo,
    EndpointInfo,
    check_description,
)
from tasksched.model.http_rules import check_url
from tasksched.model.notify import EventType
from tasksched.model.receivers import check_events
from tasksched.model.signature import check_secret
from tasksched.model.states import State


class Webhooks:
    """The webhook endpoints of the app's tenant."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def create(
        self,
        url: str,
        events: Sequence[EventType],
        *,
        description: str = "",
        enabled: bool = True,
        secret: str | None = None,
    ) -> EndpointInfo:
        """A new endpoint; its ``secret`` is shown here and never again."""
        spec = EndpointSpec(
            url=check_url(url, "/url"),
            events=check_events(events, "/events"),
            description=check_description(description),
            enabled=enabled,
            secret=None if secret is None else check_secret(secret),
        )
        return await (await self._backend()).create(self._tenant, spec)

    async def list(self) -> list[EndpointInfo]:
        """All of them, the oldest first."""
        return await (await self._backend()).list(self._tenant)

    async def get(self, endpoint_id: str) -> EndpointInfo:
        return await (await self._backend()).get(self._tenant, endpoint_id)

    async def update(
        self,
        endpoint_id: str,
        *,
        url: str | UnsetType = UNSET,
        events: Sequence[EventType] | UnsetType = UNSET,
        description: str | UnsetType = UNSET,
        enabled: bool | UnsetType = UNSET,
        version: int | None = None,
    ) -> EndpointInfo:
        """Changes what is named; the rest stays."""
        changes = EndpointChanges(
            url=url if url is UNSET else check_url(url, "/url"),
            events=events if events is UNSET else check_events(events, "/events"),
            description=description if description is UNSET else check_description(description),
            enabled=enabled,
        )
        backend = await self._backend()
        return await backend.update(self._tenant, endpoint_id, changes, version=version)

    async def enable(self, endpoint_id: str) -> EndpointInfo:
        return await self.update(endpoint_id, enabled=True)

    async def disable(self, endpoint_id: str) -> EndpointInfo:
        """It is sent nothing more, deliveries that wait included."""
        return await self.update(endpoint_id, enabled=False)

    async def delete(self, endpoint_id: str, *, version: int | None = None) -> None:
        """Removes it with its secrets: what waits to be delivered to it fails."""
        await (await self._backend()).remove(self._tenant, endpoint_id, version=version)

    async def rotate_secret(
        self, endpoint_id: str, *, overlap: Duration | None = None, version: int | None = None
    ) -> EndpointInfo:
        """A new ``secret``, shown here alone; the one before signs along for ``overlap`` (a day)."""
        backend = await self._backend()
        return await backend.rotate_secret(
            self._tenant, endpoint_id, overlap_ms=_overlap_ms(overlap), version=version
        )

    async def rotate_tenant_secret(self, *, overlap: Duration | None = None) -> str:
        """A new secret of the tenant: of HTTP targets, and of ``notify`` without one of its own."""
        backend = await self._backend()
        return await backend.rotate_tenant_secret(self._tenant, overlap_ms=_overlap_ms(overlap))

    async def test(self, endpoint_id: str) -> DeliveryInfo:
        """Sends it the event ``webhook.test``. Raises Conflict while it is disabled."""
        return await (await self._backend()).test(self._tenant, endpoint_id)

    async def deliveries(
        self, endpoint_id: str, *, status: State | None = None, limit: int | None = None
    ) -> AsyncIterator[DeliveryInfo]:
        """What was sent to it, or shall be: what runs and waits first, then the newest."""
        left, cursor = limit, None
        while left is None or left > 0:
            page = await (await self._backend()).deliveries(
                self._tenant,
                endpoint_id,
                status=() if status is None else (status,),
                limit=PAGE_MAX if left is None else min(left, PAGE_MAX),
                cursor=cursor,
            )
            for delivery in page.items:
                yield delivery
            left, cursor = None if left is None else left - len(page.items), page.next_cursor
            if cursor is None:
                return

    async def replay(self, endpoint_id: str, delivery_id: str) -> DeliveryInfo:
        """Sends the same message again. Raises Conflict for one that is still on its way."""
        return await (await self._backend()).replay(self._tenant, endpoint_id, delivery_id)

    @property
    def _tenant(self) -> str:
        return self._link.tenant

    async def _backend(self) -> WebhooksBackend:
        return (await self._link.backend()).webhooks

    # -- the same without an event loop -----------------------------------------------------------

    def create_sync(self, url: str, events: Sequence[EventType], **options: Any) -> EndpointInfo:
        return self._link.run(self.create(url, events, **options))

    def list_sync(self) -> Sequence[EndpointInfo]:
        return self._link.run(self.list())

    def get_sync(self, endpoint_id: str) -> EndpointInfo:
        return self._link.run(self.get(endpoint_id))

    def update_sync(self, endpoint_id: str, **changes: Any) -> EndpointInfo:
        return self._link.run(self.update(endpoint_id, **changes))

    def enable_sync(self, endpoint_id: str) -> EndpointInfo:
        return self._link.run(self.enable(endpoint_id))

    def disable_sync(self, endpoint_id: str) -> EndpointInfo:
        return self._link.run(self.disable(endpoint_id))

    def delete_sync(self, endpoint_id: str, *, version: int | None = None) -> None:
        self._link.run(self.delete(endpoint_id, version=version))

    def rotate_secret_sync(
        self, endpoint_id: str, *, overlap: Duration | None = None, version: int | None = None
    ) -> EndpointInfo:
        return self._link.run(self.rotate_secret(endpoint_id, overlap=overlap, version=version))

    def rotate_tenant_secret_sync(self, *, overlap: Duration | None = None) -> str:
        return self._link.run(self.rotate_tenant_secret(overlap=overlap))

    def test_sync(self, endpoint_id: str) -> DeliveryInfo:
        return self._link.run(self.test(endpoint_id))

    def deliveries_sync(self, endpoint_id: str, **filters: Any) -> Sequence[DeliveryInfo]:
        async def collect() -> Sequence[DeliveryInfo]:
            return [found async for found in self.deliveries(endpoint_id, **filters)]

        return self._link.run(collect())

    def replay_sync(self, endpoint_id: str, delivery_id: str) -> DeliveryInfo:
        return self._link.run(self.replay(endpoint_id, delivery_id))


def _overlap_ms(overlap: Duration | None) -> int:
    if overlap is None:
        return OVERLAP_MS
    return parse_duration(overlap, "/overlap", most_ms=OVERLAP_MAX_MS)
