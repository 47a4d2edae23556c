"""Reseal: bring every stored body and secret under the current key, so that older keys can go.

Opens what any known key opens, and what was stored plain, and seals it anew where it belongs: an
occurrence's copy of its schedule's payload gets a place of its own. Safe to repeat, and to stop at any
time. What is written meanwhile is sealed by whoever writes it: give every process the new key first.
"""

import base64
import binascii
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from tasksched.errors import Invalid
from tasksched.model.endpoint import (
    SEALED_TEXT,
    Endpoint,
    seal_secret,
    secret_place,
)
from tasksched.model.seal import Bodies, is_sealed
from tasksched.model.tenant import Secret, TenantSettings
from tasksched.store.protocol import BYTES_MAX, Store
from tasksched.store.records import Kept, Records
from tasksched.store.sealed import Sealed, Stored
from tasksched.store.webhooks import TENANT

ROWS_MAX: Final = 100

Change = tuple[Stored, bytes]
T = TypeVar("T", TenantSettings, Endpoint)


class Resealed(msgspec.Struct, kw_only=True):
    """What became of the bodies and secrets. ``resealed``: by now under ``current`` (or would be).

    ``unknown`` are sealed with a key that is not here, ``broken`` do not belong where they stand, and
    ``changed`` while this ran: look again. Older keys may go when the three are 0.
    """

    current: str
    bodies: int = 0
    up_to_date: int = 0
    resealed: int = 0
    unknown: int = 0
    broken: int = 0
    changed: int = 0
    was_plain: int = 0


async def reseal_all(store: Store, bodies: Bodies, *, dry_run: bool = False) -> Resealed:
    """Seals everything with the current key. Raises Invalid without a key, Unavailable."""
    if bodies.codec is None:
        raise Invalid("there is no key to encrypt with: set TASKSCHED_ENCRYPTION_KEYS", "/keys")
    work = _Work(store, bodies, dry_run=dry_run)
    async for found in work.sealed.walk():
        await work.records(found)
    await work.settings()
    return work.report


class _Work:
    """One run over everything."""

    def __init__(self, store: Store, bodies: Bodies, *, dry_run: bool) -> None:
        assert bodies.codec is not None
        self.sealed = Sealed(store)
        self.report = Resealed(current=bodies.codec.current)
        self._store = store
        self._bodies = bodies
        self._codec = bodies.codec
        self._dry_run = dry_run
        self._renewals: dict[Stored, int] = {}  # of options: secrets that they hold

    # -- tasks and recurring tasks --------------------------------------------------------------

    async def records(self, found: Sequence[Stored]) -> None:
        changes = [(old, new) for old in found if (new := self._renewed(old))]
        for shard, batch in _batches(changes):
            words = ["resealed"] * len(batch)
            if not self._dry_run:
                words = await self.sealed.reseal(shard, batch)
            for (old, _), word in zip(batch, words, strict=True):
                self._count(word == "resealed", self._renewals.pop(old, 1))

    def _count(self, done: bool, bodies: int) -> None:
        if done:
            self.report.resealed += bodies
        else:
            self.report.changed += bodies

    def _renewed(self, old: Stored) -> bytes | None:
        """What shall stand there; None where there is nothing to do, or no way."""
        if old.field == "options":
            return self._options(old)
        raw = self._plain_of(old.raw, old.places)
        return None if raw is None else self._bodies.seal(raw, old.places[-1])

    def _options(self, old: Stored) -> bytes | None:
        options = msgspec.json.decode(old.raw)
        holders = [(each, each["url"]) for each in options.get("notify", ())]
        if delivery := options.get("delivery"):
            holders.append((delivery, options.get("http", {}).get("url", "")))
        renewed = 0
        for holder, url in holders:
            if secret := holder.get("secret"):
                holder["secret"] = self._secret(secret, secret_place(old.tenant, url))
                renewed += holder["secret"] != secret
        if not renewed:
            return None
        self._renewals[old] = renewed
        return msgspec.json.encode(options)

    # -- settings -------------------------------------------------------------------------------

    async def settings(self) -> None:
        """The signing secrets of tenants and endpoints. Their records get a new version."""
        tenants = Records(self._store, self._store.global_keys.tenants, TenantSettings)
        for tenant, kept in (await tenants.all()).items():
            await self._keep(tenants, tenant, kept, secret_place(tenant, TENANT))
        for tenant in sorted(set(await self.sealed.endpoint_tenants())):
            home = self._store.global_keys.endpoints(tenant)
            endpoints = Records(self._store, home, Endpoint)
            for name, each in (await endpoints.all()).items():
                await self._keep(endpoints, name, each, secret_place(tenant, name))

    async def _keep(self, home: Records[T], name: str, kept: Kept[T], place: str) -> None:
        secrets = kept.value.secrets
        renewed = tuple(Secret(self._secret(s.value, place), s.until_ms) for s in secrets)
        count = sum(new != old for new, old in zip(renewed, secrets, strict=True))
        if count == 0 or self._dry_run:
            self.report.resealed += count
            return
        value = msgspec.structs.replace(kept.value, secrets=renewed)
        changed = await home.put(name, value, expected=kept.version)
        self._count(changed.word == "kept", count)

    # -- one body -------------------------------------------------------------------------------

    def _secret(self, stored: str, place: str) -> str:
        """A secret as it shall stand."""
        raw = stored.encode()
        if stored.startswith(SEALED_TEXT):
            try:
                raw = base64.b64decode(stored.removeprefix(SEALED_TEXT), validate=True)
            except binascii.Error:
                self.report.bodies += 1
                self.report.broken += 1
                return stored
        plain = self._plain_of(raw, (place,))
        return stored if plain is None else seal_secret(self._bodies, plain.decode(), place)

    def _plain_of(self, stored: bytes, places: tuple[str, ...]) -> bytes | None:
        """What must be sealed anew; None where there is nothing to do, or no way."""
        report = self.report
        report.bodies += 1
        if not is_sealed(stored):
            report.was_plain += 1
            return stored
        key_id = self._codec.key_of(stored)
        if key_id is None:
            report.unknown += 1
            return None
        try:
            raw = self._bodies.open(stored, *places)
        except Invalid:
            report.broken += 1
            return None
        if key_id == self._codec.current:
            report.up_to_date += 1
            return None
        return raw


def _batches(changes: Sequence[Change]) -> Iterator[tuple[int, list[Change]]]:
    """The changes by shard, in calls of at most ROWS_MAX rows and about BYTES_MAX."""
    by_shard: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        by_shard[change[0].shard].append(change)
    for shard, rows in by_shard.items():
        batch: list[Change] = []
        size = 0
        for row in rows:
            if batch and (len(batch) == ROWS_MAX or size + 2 * len(row[1]) > BYTES_MAX):
                yield shard, batch
                batch, size = [], 0
            batch.append(row)
            size += 2 * len(row[1])
        yield shard, batch
