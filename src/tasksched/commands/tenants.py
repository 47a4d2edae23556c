"""Tenants: what is set for one of them, as far as users may see it.

The record also holds signing secrets; a write leaves alone what it is not about, and is made under the
version it read.
"""

from typing import Final

import msgspec

from tasksched.errors import Conflict, PreconditionFailed
from tasksched.model.tenant import TenantSettings
from tasksched.store.protocol import Store
from tasksched.store.records import Kept, Records

TRIES: Final = 5


class RetentionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is finished stays. None: as the installation's settings say."""

    success_ms: int | None = None
    failed_ms: int | None = None
    count_max: int | None = None
    bytes_max: int | None = None


class Tenants:
    """The requests about tenants."""

    def __init__(self, store: Store) -> None:
        self._records = Records(store, store.global_keys.tenants, TenantSettings)

    async def get(self, tenant: str) -> Kept[TenantSettings]:
        """Version 0: nothing was ever set."""
        return await self._records.get(tenant) or Kept(0, TenantSettings())

    async def put_retention(
        self, tenant: str, choice: RetentionChoice, *, version: int | None = None
    ) -> Kept[TenantSettings]:
        """Sets all four, those that are None to none. Raises PreconditionFailed, Conflict."""
        for _ in range(TRIES):
            kept = await self.get(tenant)
            if version is not None and version != kept.version:
                raise PreconditionFailed(f"the version is {kept.version}", version=kept.version)
            changed = msgspec.structs.replace(
                kept.value,
                retention_success_ms=choice.success_ms,
                retention_failed_ms=choice.failed_ms,
                retention_count_max=choice.count_max,
                retention_bytes_max=choice.bytes_max,
            )
            if changed == kept.value and kept.version:
                return kept
            answer = await self._records.put(tenant, changed, expected=kept.version)
            if answer.word == "kept":
                return Kept(answer.version, changed)
        raise Conflict(f"tenant {tenant} changes faster than it can be set")
