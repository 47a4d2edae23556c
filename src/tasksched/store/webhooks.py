"""Webhook records: a tenant's endpoints and signing secrets, and the word to scripts who wants what.

Invariant: what scripts read (``hooks:<tenant>``) is the union of the events of the enabled endpoints. It
is widened before a record is written and narrowed after, so that a crash between the two costs a
notification without a receiver, and not an event without a notification. What several changes and a
crash may leave wrong is mended by the janitors (``store.hooks``).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from tasksched import log
from tasksched.errors import Conflict, Unavailable
from tasksched.model.endpoint import (
    Endpoint,
    open_secret,
    rotated,
    seal_secret,
    secret_place,
    words,
)
from tasksched.model.seal import PLAIN, Bodies
from tasksched.model.signature import new_secret
from tasksched.model.tenant import Secret, TenantSettings, current
from tasksched.store.hooks import field_of, wanted_by
from tasksched.store.protocol import Changed, Store
from tasksched.store.records import TRIES, Kept, Records, set_conf

TENANT: Final = "tenant"  # as the owner of a secret; an endpoint's id is longer

_log = log.get("webhooks")


class WebhookRecords:
    """The webhooks of one namespace. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store, bodies: Bodies = PLAIN) -> None:
        self._store = store
        self._bodies = bodies
        self._tenants = Records(store, store.global_keys.tenants, TenantSettings)

    def _endpoints(self, tenant: str) -> Records[Endpoint]:
        return Records(self._store, self._store.global_keys.endpoints(tenant), Endpoint)

    # -- endpoints --------------------------------------------------------------------------------

    async def all(self, tenant: str) -> dict[str, Kept[Endpoint]]:
        """Id → endpoint, those that were made first standing first."""
        found, _ = await self._endpoints(tenant).readable()
        order = sorted(found, key=lambda name: (found[name].value.created_ms, name))
        return {name: found[name] for name in order}

    async def get(self, tenant: str, endpoint_id: str) -> Kept[Endpoint] | None:
        return await self._endpoints(tenant).get(endpoint_id)

    async def put(
        self, tenant: str, endpoint_id: str, endpoint: Endpoint, *, expected: int
    ) -> Changed:
        """Words: ``kept``, ``version``, ``missing``. ``expected`` 0 creates."""
        if endpoint.enabled:
            await self._widen(tenant, endpoint)
        changed = await self._endpoints(tenant).put(endpoint_id, endpoint, expected=expected)
        await self._try_to_narrow(tenant)
        return changed

    async def remove(self, tenant: str, endpoint_id: str, *, expected: int | None) -> Changed:
        """Words: ``removed``, ``missing``, ``version``."""
        changed = await self._endpoints(tenant).remove(endpoint_id, expected=expected)
        await self._try_to_narrow(tenant)
        return changed

    async def disable(
        self, tenant: str, endpoint_id: str, reason: str, now_ms: int, *, url: str
    ) -> None:
        """No more messages for it; nothing where it is gone, disabled, or not at ``url`` any more."""
        for _ in range(TRIES):
            kept = await self.get(tenant, endpoint_id)
            if kept is None or not kept.value.enabled or kept.value.url != url:
                return
            endpoint = msgspec.structs.replace(
                kept.value, enabled=False, disabled_reason=reason, updated_ms=now_ms
            )
            changed = await self.put(tenant, endpoint_id, endpoint, expected=kept.version)
            if changed.word == "kept":
                return
        raise Conflict(f"endpoint {endpoint_id} changes faster than it can be disabled")

    async def _widen(self, tenant: str, endpoint: Endpoint) -> None:
        known = await self._words(tenant)
        if not set(words(endpoint.events).split()) <= set(known.split()):
            others = [each.value for each in (await self.all(tenant)).values()]
            await self._say(tenant, [*others, endpoint])

    async def _try_to_narrow(self, tenant: str) -> None:
        """The record is written, and its secret perhaps told only now: a word too many is no error."""
        try:
            await self._narrow(tenant)
        except (Conflict, Unavailable) as error:
            _log.warning("hooks.not_narrowed", tenant=tenant, error=str(error))

    async def _narrow(self, tenant: str) -> None:
        """What is said is what stands, also where several change endpoints at once: whoever says
        something looks afterwards, and says it again where the records say another thing.
        """
        for _ in range(TRIES):
            stand = [each.value for each in (await self.all(tenant)).values()]
            if await self._words(tenant) == wanted_by(stand):
                return
            await self._say(tenant, stand)
        raise Conflict("the endpoints change faster than schedulers can be told")

    async def _words(self, tenant: str) -> str:
        raw = await self._store.gateway.command(
            "HGET", self._store.global_keys.conf, field_of(tenant)
        )
        return raw.decode().partition(" ")[2].strip() if raw else ""

    async def _say(self, tenant: str, endpoints: Iterable[Endpoint]) -> None:
        await set_conf(self._store, field_of(tenant), wanted_by(endpoints))

    # -- secrets ----------------------------------------------------------------------------------

    def sealed(self, tenant: str, owner: str, secret: str) -> str:
        """A secret as a record holds it."""
        return seal_secret(self._bodies, secret, secret_place(tenant, owner))

    def opened(self, tenant: str, owner: str, stored: Iterable[str]) -> list[str]:
        """Stored secrets in the clear. Raises Invalid where their key is not here."""
        place = secret_place(tenant, owner)
        return [open_secret(self._bodies, each, place) for each in stored]

    async def tenant_secrets(self, tenant: str, now_ms: int, *, make: bool) -> tuple[Secret, ...]:
        """The tenant's stored secrets; the first one is made now where ``make`` says so."""
        for _ in range(TRIES):
            kept = await self._tenants.get(tenant)
            found = () if kept is None else kept.value.secrets
            if current(found, now_ms) or not make:
                return found
            await self._rotate(tenant, kept, new_secret(), now_ms, 0)
        raise Conflict(f"tenant {tenant} changes faster than it can be written")

    async def rotate_tenant_secret(self, tenant: str, now_ms: int, overlap_ms: int) -> str:
        """A new secret for the tenant; the old one signs along for so long."""
        secret = new_secret()
        for _ in range(TRIES):
            kept = await self._tenants.get(tenant)
            if await self._rotate(tenant, kept, secret, now_ms, overlap_ms):
                return secret
        raise Conflict(f"tenant {tenant} changes faster than it can be written")

    async def _rotate(
        self,
        tenant: str,
        kept: Kept[TenantSettings] | None,
        secret: str,
        now_ms: int,
        overlap_ms: int,
    ) -> bool:
        settings = TenantSettings() if kept is None else kept.value
        secrets = rotated(settings.secrets, self.sealed(tenant, TENANT, secret), now_ms, overlap_ms)
        changed = await self._tenants.put(
            tenant,
            msgspec.structs.replace(settings, secrets=secrets),
            expected=0 if kept is None else kept.version,
        )
        return changed.word == "kept"
