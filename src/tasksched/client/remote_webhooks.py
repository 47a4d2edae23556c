"""Remote webhooks: webhook endpoints over the HTTP API. As ``remote``, a WebhooksBackend.

What makes something new each time (an endpoint, a secret, a message) is not sent again after a lost reply.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from tasksched.client.ask import Ask, Send
from tasksched.client.wire import decoded, moment_ms
from tasksched.commands.endpoints import DeliveryPage, EndpointChanges, EndpointSpec
from tasksched.errors import Invalid, NotFound
from tasksched.model.durations import format_duration
from tasksched.model.endpoint import DeliveryInfo, EndpointInfo
from tasksched.model.instants import parse_instant
from tasksched.model.names import check_name
from tasksched.model.notify import EventType
from tasksched.model.states import State
from tasksched.model.task import ErrorInfo

PATH = "/webhooks"


class RemoteWebhooks:
    """A WebhooksBackend over HTTP."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def create(self, tenant: str, spec: EndpointSpec) -> EndpointInfo:
        body = _json(spec)
        ask = Ask("POST", PATH, tenant, body, repeatable=False)
        return _read_endpoint((await self._send(ask)).content)

    async def list(self, tenant: str) -> list[EndpointInfo]:
        reply = await self._send(Ask("GET", PATH, tenant))
        return [_endpoint(view) for view in decoded(reply.content, _Endpoints).items]

    async def get(self, tenant: str, endpoint_id: str) -> EndpointInfo:
        return _read_endpoint((await self._send(Ask("GET", _path(endpoint_id), tenant))).content)

    async def update(
        self,
        tenant: str,
        endpoint_id: str,
        changes: EndpointChanges,
        *,
        version: int | None = None,
    ) -> EndpointInfo:
        ask = Ask("PATCH", _path(endpoint_id), tenant, _json(changes), headers=_match(version))
        return _read_endpoint((await self._send(ask)).content)

    async def rotate_secret(
        self, tenant: str, endpoint_id: str, *, overlap_ms: int, version: int | None = None
    ) -> EndpointInfo:
        path, body = _path(endpoint_id, "/rotate-secret"), _overlap(overlap_ms)
        ask = Ask("POST", path, tenant, body, headers=_match(version), repeatable=False)
        return _read_endpoint((await self._send(ask)).content)

    async def rotate_tenant_secret(self, tenant: str, *, overlap_ms: int) -> str:
        path, body = f"{PATH}/rotate-tenant-secret", _overlap(overlap_ms)
        reply = await self._send(Ask("POST", path, tenant, body, repeatable=False))
        found: _SecretView = decoded(reply.content, _SecretView)
        return found.secret

    async def remove(self, tenant: str, endpoint_id: str, *, version: int | None = None) -> None:
        path, headers = _path(endpoint_id), _match(version)
        await self._send(Ask("DELETE", path, tenant, headers=headers, repeatable=False))

    async def test(self, tenant: str, endpoint_id: str) -> DeliveryInfo:
        return await self._delivered(tenant, _path(endpoint_id, "/test"))

    async def replay(self, tenant: str, endpoint_id: str, delivery_id: str) -> DeliveryInfo:
        _path(delivery_id)
        return await self._delivered(
            tenant, _path(endpoint_id, f"/deliveries/{delivery_id}/replay")
        )

    async def _delivered(self, tenant: str, path: str) -> DeliveryInfo:
        reply = await self._send(Ask("POST", path, tenant, repeatable=False))
        return _delivery(decoded(reply.content, _DeliveryView))

    async def deliveries(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        status: tuple[State, ...] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> DeliveryPage:
        named = {"status": ",".join(status), "limit": str(limit), "cursor": cursor}
        asked = {name: value for name, value in named.items() if value}
        ask = Ask("GET", _path(endpoint_id, "/deliveries"), tenant, query=asked)
        page = decoded((await self._send(ask)).content, _Deliveries)
        return DeliveryPage([_delivery(view) for view in page.items], page.next_cursor)


class _Timestamps(msgspec.Struct):
    created_at: str
    updated_at: str = ""
    run_at: str = ""
    last_attempt_at: str | None = None
    finished_at: str | None = None


class _EndpointView(msgspec.Struct, kw_only=True):
    webhook_id: str
    version: int
    tenant: str
    url: str
    events: tuple[EventType, ...]
    description: str = ""
    enabled: bool
    disabled_reason: str | None = None
    secret: str | None = None
    timestamps: _Timestamps


class _Endpoints(msgspec.Struct):
    items: list[_EndpointView]


class _SecretView(msgspec.Struct):
    secret: str


class _DeliveryView(msgspec.Struct, kw_only=True):
    delivery_id: str
    message_id: str
    event: str
    webhook_id: str
    status: State
    attempts: int
    reason: str | None = None
    error: ErrorInfo | None = None
    timestamps: _Timestamps


class _Deliveries(msgspec.Struct):
    items: list[_DeliveryView]
    next_cursor: str | None = None


def _read_endpoint(raw: bytes) -> EndpointInfo:
    return _endpoint(decoded(raw, _EndpointView))


def _endpoint(view: _EndpointView) -> EndpointInfo:
    return EndpointInfo(
        id=view.webhook_id,
        version=view.version,
        tenant=view.tenant,
        url=view.url,
        events=view.events,
        enabled=view.enabled,
        disabled_reason=view.disabled_reason,
        description=view.description,
        created_ms=parse_instant(view.timestamps.created_at),
        updated_ms=parse_instant(view.timestamps.updated_at),
        secret=view.secret,
    )


def _delivery(view: _DeliveryView) -> DeliveryInfo:
    return DeliveryInfo(
        id=view.delivery_id,
        message_id=view.message_id,
        event=view.event,
        endpoint_id=view.webhook_id,
        status=view.status,
        attempts=view.attempts,
        reason=view.reason,
        error=view.error,
        created_ms=parse_instant(view.timestamps.created_at),
        run_ms=parse_instant(view.timestamps.run_at),
        last_attempt_ms=moment_ms(view.timestamps.last_attempt_at),
        finished_ms=moment_ms(view.timestamps.finished_at),
    )


def _json(asked: EndpointSpec | EndpointChanges) -> bytes:
    named: dict[str, Any] = {name: getattr(asked, name) for name in asked.__struct_fields__}
    return msgspec.json.encode({n: v for n, v in named.items() if v is not UNSET})


def _overlap(overlap_ms: int) -> bytes:
    return msgspec.json.encode({"overlap": format_duration(overlap_ms)})


def _path(endpoint_id: str, rest: str = "") -> str:
    """The path of an endpoint. Raises NotFound for what can be the id of none."""
    try:
        return f"{PATH}/{check_name(endpoint_id)}{rest}"
    except Invalid:
        raise NotFound(f"no webhook endpoint {endpoint_id}") from None


def _match(version: int | None) -> dict[str, str]:
    return {"If-Match": "*" if version is None else f'"{version}"'}
