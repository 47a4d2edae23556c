"""Tenants: what is set for one of them, as far as users may see it.

Two records hold it: the settings (with the signing secrets), and the rules that scripts read. A write
leaves alone what it is not about, and is made under the version it read. The version that users see is
the sum of the two: it grows with every change of either, so it names one state of both.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tasksched.errors import Conflict
from tasksched.model.limits import Switches, TenantRules, TenantState
from tasksched.model.tenant import TenantSettings
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.records import Kept, Records
from tasksched.store.rules import RuleBook, require_version, tenant_field, uses

TRIES: Final = 5


class RetentionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is finished stays. None: as the installation's settings say."""

    success_ms: int | None = None
    failed_ms: int | None = None
    count_max: int | None = None
    bytes_max: int | None = None


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it stands, with its settings."""

    state: TenantState
    settings: TenantSettings


class Tenants:
    """The requests about tenants."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads = Reads(store)
        self._book = RuleBook(store)
        self._records = Records(store, store.global_keys.tenants, TenantSettings)

    async def get(self, tenant: str) -> TenantView:
        """Version 0: nothing was ever set."""
        settings = await self._settings(tenant)
        rules = await self._book.get(tenant_field(tenant))
        (state,) = await self._states({tenant: (settings.version, rules)})
        return TenantView(state=state, settings=settings.value)

    async def all(self) -> list[TenantState]:
        """Those that have tasks, or for which something is set, by name."""
        ruled = await self._book.named(tenant_field(""))
        rules = {name: kept for name, kept in ruled.items() if kept.value}
        records = await self._records.all()
        busy = {owner for (owner, _, _), number in (await self._reads.counts()).items() if number}
        none = Kept(0, "")
        return await self._states(
            {
                name: (records[name].version if name in records else 0, rules.get(name, none))
                for name in sorted({*rules, *records, *busy})
            }
        )

    async def put(
        self,
        tenant: str,
        *,
        retention: RetentionChoice | None = None,
        limits: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> None:
        """Sets retention as a whole, or the limits as a whole, or both; None leaves that as it is.

        Of the limits ``paused`` and ``draining`` stay where they are not named. Raises Invalid,
        PreconditionFailed for another version, Conflict.
        """
        for _ in range(TRIES):
            settings = await self._settings(tenant)
            rules = await self._book.get(tenant_field(tenant))
            require_version(version, settings.version + rules.version)
            before = TenantRules.of_words(rules.value)
            kept = TenantRules(**{each: getattr(before, each) for each in Switches})
            after = before if limits is None else kept.changed(limits)
            wanted = settings.value if retention is None else _with(settings.value, retention)
            if await self._kept(tenant, settings, wanted) and await self._ruled(
                tenant, rules, after.words
            ):
                return
            if version is not None:
                # Whatever came in between, it is not the version any more that was asked for.
                version = -1
        raise Conflict(f"tenant {tenant} changes faster than it can be set")

    async def pause(self, tenant: str) -> None:
        """Nothing of the tenant starts any more."""
        await self._book.switch(tenant_field(tenant), "paused", on=True)

    async def drain(self, tenant: str) -> None:
        """Creating is refused to the tenant; what it has still runs."""
        await self._book.switch(tenant_field(tenant), "draining", on=True)

    async def resume(self, tenant: str) -> None:
        """Ends a pause and a drain."""
        for word in Switches:
            await self._book.switch(tenant_field(tenant), word, on=False)

    async def _settings(self, tenant: str) -> Kept[TenantSettings]:
        return await self._records.get(tenant) or Kept(0, TenantSettings())

    async def _kept(
        self, tenant: str, before: Kept[TenantSettings], wanted: TenantSettings
    ) -> bool:
        """Whether the settings are what is wanted now."""
        if wanted == before.value:
            return True
        answer = await self._records.put(tenant, wanted, expected=before.version)
        return answer.word == "kept"

    async def _ruled(self, tenant: str, before: Kept[str], words: str) -> bool:
        if words == before.value:
            return True
        return await self._book.put(tenant_field(tenant), words, before.version) is not None

    async def _states(self, found: Mapping[str, tuple[int, Kept[str]]]) -> list[TenantState]:
        used = await uses(self._store, [*_limits("p", found), *_limits("t", found)])
        unfinished, running = used[: len(found)], used[len(found) :]
        return [
            TenantState(
                name=name,
                version=version + rules.version,
                rules=TenantRules.of_words(rules.value),
                unfinished=unfinished[n].used,
                running=running[n].used,
            )
            for n, (name, (version, rules)) in enumerate(found.items())
        ]


def _limits(kind: str, names: Iterable[str]) -> list[str]:
    return [f"{kind}/{name}" for name in names]


def _with(settings: TenantSettings, choice: RetentionChoice) -> TenantSettings:
    return msgspec.structs.replace(
        settings,
        retention_success_ms=choice.success_ms,
        retention_failed_ms=choice.failed_ms,
        retention_count_max=choice.count_max,
        retention_bytes_max=choice.bytes_max,
    )
