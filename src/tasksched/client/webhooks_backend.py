"""WebhooksBackend: the requests about webhook endpoints, whoever carries them. As ``backend`` for tasks."""

from typing import Protocol

from tasksched.commands.endpoints import DeliveryPage, EndpointChanges, EndpointSpec
from tasksched.model.endpoint import DeliveryInfo, EndpointInfo
from tasksched.model.states import State


class WebhooksBackend(Protocol):
    """What a transport does about webhooks. ``version`` None: whichever it is."""

    async def create(self, tenant: str, spec: EndpointSpec) -> EndpointInfo: ...

    async def list(self, tenant: str) -> list[EndpointInfo]: ...

    async def get(self, tenant: str, endpoint_id: str) -> EndpointInfo: ...

    async def update(
        self,
        tenant: str,
        endpoint_id: str,
        changes: EndpointChanges,
        *,
        version: int | None = None,
    ) -> EndpointInfo: ...

    async def rotate_secret(
        self, tenant: str, endpoint_id: str, *, overlap_ms: int, version: int | None = None
    ) -> EndpointInfo: ...

    async def rotate_tenant_secret(self, tenant: str, *, overlap_ms: int) -> str: ...

    async def remove(
        self, tenant: str, endpoint_id: str, *, version: int | None = None
    ) -> None: ...

    async def test(self, tenant: str, endpoint_id: str) -> DeliveryInfo: ...

    async def deliveries(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        status: tuple[State, ...] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> DeliveryPage: ...

    async def replay(self, tenant: str, endpoint_id: str, delivery_id: str) -> DeliveryInfo: ...
