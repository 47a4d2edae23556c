"""Endpoints: what a user may ask for about webhooks, one method a request. No HTTP in sight.

A secret is told once, in the answer that made it. What was sent, or shall be, are tasks of the reserved
queue under the endpoint's tag: deliveries are listed and replayed from there. Invariant: whoever changes
an endpoint changes the version it saw, or tries again where it named none.
"""

import secrets as random_source
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tasksched.commands.listing import TaskQuery, list_tasks
from tasksched.errors import Conflict, Invalid, NotFound, PreconditionFailed
from tasksched.model import ids
from tasksched.model.endpoint import (
    ENDPOINTS_MAX,
    OVERLAP_MAX_MS,
    OVERLAP_MS,
    DeliveryInfo,
    Endpoint,
    EndpointInfo,
    new_endpoint_id,
    rotated,
)
from tasksched.model.message import PREFIX, delivery_options, delivery_row, message_body
from tasksched.model.notify import QUEUE, TEST_EVENT, Delivery, EventType
from tasksched.model.seal import PLAIN, Bodies
from tasksched.model.signature import new_secret
from tasksched.model.states import State
from tasksched.model.task import Task
from tasksched.model.tenant import Secret
from tasksched.store.protocol import Edit, Store
from tasksched.store.reads import Reads
from tasksched.store.records import TRIES, Kept
from tasksched.store.webhooks import WebhookRecords

Unset = msgspec.UnsetType
UNSET = msgspec.UNSET
Change = Callable[[Endpoint, int], Endpoint]


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint to make, checked. ``secret`` None: a new one."""

    url: str
    events: tuple[EventType, ...]
    description: str = ""
    enabled: bool = True
    secret: str | None = None


class EndpointChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What an update shall change; what is UNSET stays."""

    url: str | Unset = UNSET
    events: tuple[EventType, ...] | Unset = UNSET
    description: str | Unset = UNSET
    enabled: bool | Unset = UNSET


class DeliveryPage(NamedTuple):
    """Deliveries as lists of tasks have them: what runs and waits, then what has finished."""

    items: list[DeliveryInfo]
    next_cursor: str | None


class Endpoints:
    """The requests about webhook endpoints. Safe for concurrent use in one event loop."""

    def __init__(self, store: Store, bodies: Bodies = PLAIN) -> None:
        self._store = store
        self._bodies = bodies
        self._reads = Reads(store)
        self._records = WebhookRecords(store, bodies)

    # -- endpoints --------------------------------------------------------------------------------

    async def create(self, tenant: str, spec: EndpointSpec) -> EndpointInfo:
        """A new endpoint, with its secret. Raises Conflict where the tenant has as many as it may."""
        if len(await self._records.all(tenant)) >= ENDPOINTS_MAX:
            raise Conflict(f"a tenant has at most {ENDPOINTS_MAX} webhook endpoints")
        now_ms = await self._reads.now_ms()
        endpoint_id, secret = new_endpoint_id(), spec.secret or new_secret()
        endpoint = Endpoint(
            url=spec.url,
            events=spec.events,
            enabled=spec.enabled,
            description=spec.description,
            secrets=(Secret(self._records.sealed(tenant, endpoint_id, secret)),),
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        changed = await self._records.put(tenant, endpoint_id, endpoint, expected=0)
        return _info(tenant, endpoint_id, Kept(changed.version, endpoint), secret)

    async def list(self, tenant: str) -> list[EndpointInfo]:
        """All endpoints of the tenant, the oldest first; there are few."""
        found = await self._records.all(tenant)
        return [_info(tenant, name, kept) for name, kept in found.items()]

    async def get(self, tenant: str, endpoint_id: str) -> EndpointInfo:
        return _info(tenant, endpoint_id, await self._kept(tenant, endpoint_id))

    async def update(
        self,
        tenant: str,
        endpoint_id: str,
        changes: EndpointChanges,
        *,
        version: int | None = None,
    ) -> EndpointInfo:
        """Raises NotFound, PreconditionFailed. What changes nothing leaves the version."""

        def change(old: Endpoint, _: int) -> Endpoint:
            named = {name: getattr(changes, name) for name in changes.__struct_fields__}
            given = {name: value for name, value in named.items() if value is not UNSET}
            if given.get("enabled"):
                given["disabled_reason"] = None
            return msgspec.structs.replace(old, **given)

        return await self._change(tenant, endpoint_id, change, version)

    async def enable(
        self, tenant: str, endpoint_id: str, *, version: int | None = None
    ) -> EndpointInfo:
        changes = EndpointChanges(enabled=True)
        return await self.update(tenant, endpoint_id, changes, version=version)

    async def disable(
        self, tenant: str, endpoint_id: str, *, version: int | None = None
    ) -> EndpointInfo:
        """It gets nothing any more, deliveries that wait included, until it is enabled."""
        changes = EndpointChanges(enabled=False)
        return await self.update(tenant, endpoint_id, changes, version=version)

    async def rotate_secret(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        overlap_ms: int = OVERLAP_MS,
        version: int | None = None,
    ) -> EndpointInfo:
        """A new secret, told in the answer; the one before signs along for ``overlap_ms``."""
        _require_overlap(overlap_ms)
        secret = new_secret()
        sealed = self._records.sealed(tenant, endpoint_id, secret)

        def change(old: Endpoint, now_ms: int) -> Endpoint:
            secrets = rotated(old.secrets, sealed, now_ms, overlap_ms)
            return msgspec.structs.replace(old, secrets=secrets)

        found = await self._change(tenant, endpoint_id, change, version)
        return msgspec.structs.replace(found, secret=secret)

    async def rotate_tenant_secret(self, tenant: str, *, overlap_ms: int = OVERLAP_MS) -> str:
        """A new secret of the tenant, told once: it signs HTTP targets and what ``notify`` sends."""
        _require_overlap(overlap_ms)
        now_ms = await self._reads.now_ms()
        return await self._records.rotate_tenant_secret(tenant, now_ms, overlap_ms)

    async def remove(self, tenant: str, endpoint_id: str, *, version: int | None = None) -> None:
        """Gone with its secrets: what waits to be delivered to it fails. Raises NotFound.

        Where it goes between our look and our word, it may be our own word, whose reply was lost.
        """
        await self._kept(tenant, endpoint_id)
        changed = await self._records.remove(tenant, endpoint_id, expected=version)
        if changed.word == "version":
            raise _differs(changed.version)

    async def _kept(self, tenant: str, endpoint_id: str) -> Kept[Endpoint]:
        kept = await self._records.get(tenant, endpoint_id)
        if kept is None:
            raise _missing(endpoint_id)
        return kept

    async def _change(
        self, tenant: str, endpoint_id: str, change: Change, version: int | None
    ) -> EndpointInfo:
        now_ms = await self._reads.now_ms()
        for _ in range(TRIES):
            kept = await self._kept(tenant, endpoint_id)
            if version not in {None, kept.version}:
                raise _differs(kept.version)
            endpoint = change(kept.value, now_ms)
            if endpoint == kept.value:
                return _info(tenant, endpoint_id, kept)
            endpoint = msgspec.structs.replace(endpoint, updated_ms=now_ms)
            changed = await self._records.put(tenant, endpoint_id, endpoint, expected=kept.version)
            if changed.word == "kept":
                return _info(tenant, endpoint_id, Kept(changed.version, endpoint))
        raise Conflict(f"endpoint {endpoint_id} changes faster than it can be changed")

    # -- deliveries -------------------------------------------------------------------------------

    async def test(self, tenant: str, endpoint_id: str) -> DeliveryInfo:
        """Sends the endpoint an event ``webhook.test``. Raises Conflict while it is disabled."""
        kept = await self._enabled(tenant, endpoint_id)
        now_ms = await self._reads.now_ms()
        made_id = ids.mint(random_source.randbelow(self._store.shards), now_ms)
        delivery = Delivery(PREFIX + made_id, TEST_EVENT, endpoint=endpoint_id)
        body = message_body(TEST_EVENT, now_ms, {"endpoint_id": endpoint_id, "tenant": tenant})
        return await self._deliver(tenant, made_id, body, kept.value.url, delivery)

    async def deliveries(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        status: tuple[State, ...] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> DeliveryPage:
        """What was sent to the endpoint, or shall be. Raises NotFound, Malformed for a cursor."""
        await self._kept(tenant, endpoint_id)
        query = TaskQuery(
            tenant=tenant,
            status=status,
            queue=QUEUE,
            tag=endpoint_id,
            limit=limit,
            cursor=cursor,
        )
        page = await list_tasks(self._reads, query)
        found = [_delivery(task) for task in page.items if task.delivery is not None]
        return DeliveryPage(found, page.next_cursor)

    async def replay(self, tenant: str, endpoint_id: str, delivery_id: str) -> DeliveryInfo:
        """The same message again, to where the endpoint is now.

        A failed or cancelled delivery gets a new life; beside one that arrived a second one is made.
        Raises NotFound, and Conflict for one that still waits or runs, or a disabled endpoint.
        """
        kept = await self._enabled(tenant, endpoint_id)
        task = await self._reads.task(delivery_id)
        if not _is_of(task, tenant, endpoint_id):
            raise NotFound(f"no delivery {delivery_id} of endpoint {endpoint_id}")
        assert task is not None
        assert task.delivery is not None
        url, shard = kept.value.url, ids.shard_of(delivery_id, self._store.shards)
        assert shard is not None
        if task.status == "SUCCESS":
            if not task.payload:
                raise Conflict(f"the message of delivery {delivery_id} is lost")
            body = self._bodies.open_payload(task.payload, tenant, delivery_id, None)
            made_id = ids.mint(shard, await self._reads.now_ms())
            return await self._deliver(tenant, made_id, body, url, task.delivery)
        edit = Edit(options=delivery_options(url, task.delivery))
        changed = await self._store.redrive(shard, delivery_id, tenant, None, edit)
        if changed.word == "state":
            raise Conflict(
                f"delivery {delivery_id} is {changed.state}: it is not over",
                task_status=changed.state,
            )
        if changed.word == "missing":
            raise NotFound(f"no delivery {delivery_id} of endpoint {endpoint_id}")
        return await self._read_delivery(delivery_id)

    async def _enabled(self, tenant: str, endpoint_id: str) -> Kept[Endpoint]:
        kept = await self._kept(tenant, endpoint_id)
        if not kept.value.enabled:
            raise Conflict(f"endpoint {endpoint_id} is disabled: enable it first")
        return kept

    async def _deliver(
        self, tenant: str, task_id: str, body: bytes, url: str, delivery: Delivery
    ) -> DeliveryInfo:
        shard = ids.shard_of(task_id, self._store.shards)
        assert shard is not None, task_id
        row = delivery_row(self._bodies, tenant, task_id, body, delivery_options(url, delivery))
        await self._store.deliver(shard, tenant, [row])
        return await self._read_delivery(task_id)

    async def _read_delivery(self, task_id: str) -> DeliveryInfo:
        task = await self._reads.task(task_id, bodies=False)
        if task is None:
            raise NotFound(f"no delivery {task_id}")
        return _delivery(task)


def _is_of(task: Task | None, tenant: str, endpoint_id: str) -> bool:
    if task is None or task.tenant != tenant or task.delivery is None:
        return False
    return task.delivery.endpoint == endpoint_id


def _require_overlap(overlap_ms: int) -> None:
    if not 0 <= overlap_ms <= OVERLAP_MAX_MS:
        raise Invalid("an overlap is from 0 to 30 days", "/overlap")


def _missing(endpoint_id: str) -> NotFound:
    return NotFound(f"no webhook endpoint {endpoint_id}")


def _differs(version: int) -> PreconditionFailed:
    return PreconditionFailed(f"the version is {version}", version=version)


def _info(
    tenant: str, endpoint_id: str, kept: Kept[Endpoint], secret: str | None = None
) -> EndpointInfo:
    endpoint = kept.value
    return EndpointInfo(
        id=endpoint_id,
        version=kept.version,
        tenant=tenant,
        url=endpoint.url,
        events=endpoint.events,
        enabled=endpoint.enabled,
        disabled_reason=endpoint.disabled_reason,
        description=endpoint.description,
        created_ms=endpoint.created_ms,
        updated_ms=endpoint.updated_ms,
        secret=secret,
    )


def _delivery(task: Task) -> DeliveryInfo:
    delivery = task.delivery
    assert delivery is not None, task.id
    return DeliveryInfo(
        id=task.id,
        message_id=delivery.message,
        event=delivery.event,
        endpoint_id=delivery.endpoint or "",
        status=task.status,
        attempts=task.attempts,
        reason=task.reason,
        error=task.error,
        created_ms=task.created_ms,
        run_ms=task.due_ms,
        last_attempt_ms=None if task.last_attempt is None else task.last_attempt.started_ms,
        finished_ms=task.finished_ms,
    )
