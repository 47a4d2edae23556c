"""Webhooks over HTTP: endpoints, their secrets, what was sent to them. One function a route.

As for recurring tasks, an endpoint is changed and removed only by whoever names its version
(``If-Match``, else 428); verbs take it where it is given. An answer shows a secret once, when it was made.
"""

from typing import Any

from msgspec import UNSET

from tasksched.errors import NotFound
from tasksched.http import parse, parse_recurring, parse_webhooks, render
from tasksched.http.exchange import JSON, Headers, Reply
from tasksched.http.paging import cut, limit_of, next_link
from tasksched.http.problems import PreconditionRequired
from tasksched.http.schema import ErrorView
from tasksched.http.schema_webhooks import (
    DeliveryPage,
    DeliveryTimestamps,
    DeliveryView,
    RemovedWebhookView,
    TenantSecretView,
    WebhookPage,
    WebhookTimestamps,
    WebhookView,
)
from tasksched.http.services import Call
from tasksched.http.tasks import (
    EDIT_TYPES,
    JSON_TYPES,
    PRIVATE,
    json_body,
    no_options,
    require_type,
    states_of,
    tenant_of,
)
from tasksched.model.endpoint import DeliveryInfo, EndpointInfo
from tasksched.model.instants import format_instant
from tasksched.store.reads import Place

NO_STORE = (b"cache-control", b"no-store")  # of answers with a secret


# -- what requests have in common -----------------------------------------------------------------


def _id_of(call: Call, part: str = "id") -> str:
    """An id in the path. What can be none is not found."""
    found = parse_recurring.check_id(call.part(part))
    if found is None:
        raise NotFound("there is nothing of this id")
    return found


def _required_version(call: Call) -> int | None:
    """The version of ``If-Match``, which must be there; None for ``*``."""
    given = call.header(b"if-match")
    if given is None:
        raise PreconditionRequired(
            "this would change what is there: name its version with If-Match"
        )
    return parse.version_of(given)


async def _overlap_ms(call: Call) -> int:
    """The overlap that a rotation asks for; its body may be missing."""
    call.query()
    raw = await call.body()
    if raw:
        require_type(call, JSON_TYPES)
    return parse_webhooks.overlap_ms(parse.decode_json(raw) if raw else {})


def view_of(endpoint: EndpointInfo) -> WebhookView:
    """The endpoint as an answer shows it."""
    return WebhookView(
        webhook_id=endpoint.id,
        version=endpoint.version,
        tenant=endpoint.tenant,
        url=endpoint.url,
        events=list(endpoint.events),
        description=endpoint.description,
        enabled=endpoint.enabled,
        disabled_reason=endpoint.disabled_reason,
        secret=UNSET if endpoint.secret is None else endpoint.secret,
        timestamps=WebhookTimestamps(
            format_instant(endpoint.created_ms), format_instant(endpoint.updated_ms)
        ),
    )


def delivery_view(delivery: DeliveryInfo) -> DeliveryView:
    """The delivery as an answer shows it."""
    error = delivery.error
    return DeliveryView(
        delivery_id=delivery.id,
        message_id=delivery.message_id,
        event=delivery.event,
        webhook_id=delivery.endpoint_id,
        status=delivery.status,
        attempts=delivery.attempts,
        reason=delivery.reason,
        error=ErrorView(error.type, error.message, error.traceback) if error else None,
        timestamps=DeliveryTimestamps(
            created_at=format_instant(delivery.created_ms),
            run_at=format_instant(delivery.run_ms),
            last_attempt_at=render.moment(delivery.last_attempt_ms),
            finished_at=render.moment(delivery.finished_ms),
        ),
    )


def _reply(endpoint: EndpointInfo, status: int = 200, headers: Headers | None = None) -> Reply:
    etag = (b"etag", b'"%d"' % endpoint.version)
    keep = PRIVATE if endpoint.secret is None else NO_STORE
    return Reply(status, render.encode(view_of(endpoint)), [JSON, keep, etag, *(headers or [])])


def _delivered(call: Call, delivery: DeliveryInfo) -> Reply:
    where = (b"location", f"{call.prefix}/tasks/{delivery.id}".encode())
    return Reply(202, render.encode(delivery_view(delivery)), [JSON, PRIVATE, where])


# -- endpoints ------------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Make a webhook endpoint. The answer shows its secret, as no other one does."""
    raw = await json_body(call)
    call.query()
    spec = parse_webhooks.endpoint(parse.decode_json(raw))
    made = await call.services.endpoints.create(tenant_of(call), spec)
    where = (b"location", f"{call.prefix}/webhooks/{made.id}".encode())
    return _reply(made, 201, [where])


async def list_(call: Call) -> Reply:
    """The webhook endpoints of the tenant, the oldest first."""
    query = call.query("limit", "cursor")
    found = await call.services.endpoints.list(tenant_of(call))
    shown, cursor = cut(found, lambda each: Place(each.created_ms, each.id), query, "webhooks")
    body = render.encode(WebhookPage([view_of(each) for each in shown], cursor))
    return Reply(200, body, [JSON, PRIVATE, *next_link(call, query, cursor)])


async def get(call: Call) -> Reply:
    """The webhook endpoint as it stands."""
    call.query()
    return _reply(await call.services.endpoints.get(tenant_of(call), _id_of(call)))


async def edit(call: Call) -> Reply:
    """Change members of a webhook endpoint; what is not named stays."""
    raw = await json_body(call, EDIT_TYPES)
    call.query()
    changes = parse_webhooks.changes(parse.decode_json(raw))
    tenant, endpoint_id, endpoints = tenant_of(call), _id_of(call), call.services.endpoints
    await endpoints.get(tenant, endpoint_id)
    version = _required_version(call)
    return _reply(await endpoints.update(tenant, endpoint_id, changes, version=version))


async def remove(call: Call) -> Reply:
    """Remove a webhook endpoint and its secrets: what waits to be delivered to it fails."""
    await no_options(call)
    tenant, endpoint_id, endpoints = tenant_of(call), _id_of(call), call.services.endpoints
    await endpoints.get(tenant, endpoint_id)
    await endpoints.remove(tenant, endpoint_id, version=_required_version(call))
    return Reply(200, render.encode(RemovedWebhookView(endpoint_id)), [JSON, PRIVATE])


async def enable(call: Call) -> Reply:
    """Send to a webhook endpoint again, from the next event on."""
    return await _turn(call, enabled=True)


async def disable(call: Call) -> Reply:
    """Send nothing more to a webhook endpoint, until it is enabled."""
    return await _turn(call, enabled=False)


async def _turn(call: Call, *, enabled: bool) -> Reply:
    await no_options(call)
    version = parse.version_of(call.header(b"if-match"))
    endpoints = call.services.endpoints
    turn: Any = endpoints.enable if enabled else endpoints.disable
    return _reply(await turn(tenant_of(call), _id_of(call), version=version))


async def rotate_secret(call: Call) -> Reply:
    """Give a webhook endpoint a new secret, which the answer shows.

    The one before signs along for ``overlap`` (a day), so that the receiver has time to change.
    """
    overlap_ms = await _overlap_ms(call)
    found = await call.services.endpoints.rotate_secret(
        tenant_of(call),
        _id_of(call),
        overlap_ms=overlap_ms,
        version=parse.version_of(call.header(b"if-match")),
    )
    return _reply(found)


async def rotate_tenant_secret(call: Call) -> Reply:
    """Give the tenant a new signing secret, which the answer shows.

    It signs requests to HTTP targets, and what ``notify`` without a secret of its own sends.
    """
    overlap_ms = await _overlap_ms(call)
    tenant = tenant_of(call)
    secret = await call.services.endpoints.rotate_tenant_secret(tenant, overlap_ms=overlap_ms)
    return Reply(200, render.encode(TenantSecretView(tenant, secret)), [JSON, NO_STORE])


# -- deliveries -----------------------------------------------------------------------------------


async def test(call: Call) -> Reply:
    """Send a webhook endpoint the event ``webhook.test``."""
    await no_options(call)
    return _delivered(call, await call.services.endpoints.test(tenant_of(call), _id_of(call)))


async def deliveries(call: Call) -> Reply:
    """What was sent to a webhook endpoint, or shall be, with what became of it."""
    query = call.query("status", "limit", "cursor")
    found = await call.services.endpoints.deliveries(
        tenant_of(call),
        _id_of(call),
        status=states_of(query.get("status")),
        limit=limit_of(query.get("limit")),
        cursor=query.get("cursor"),
    )
    page = DeliveryPage([delivery_view(each) for each in found.items], found.next_cursor)
    headers = [JSON, PRIVATE, *next_link(call, query, found.next_cursor)]
    return Reply(200, render.encode(page), headers)


async def replay(call: Call) -> Reply:
    """Send a message to its webhook endpoint again, under the same ``webhook-id``."""
    await no_options(call)
    endpoint_id, delivery_id = _id_of(call), _id_of(call, "delivery")
    found = await call.services.endpoints.replay(tenant_of(call), endpoint_id, delivery_id)
    return _delivered(call, found)
