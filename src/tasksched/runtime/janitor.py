"""Janitor: retention, and the sweep that mends what the watch index cannot see.

One shard at a time in rotation, one bounded script call after the other. Finished tasks leave by
age, count and bytes, as their tenant's settings say, else the installation's; entries of ready streams that have no task behind them go, running tasks that
were lost from the watch index are watched again, consumers of dead workers are removed. Next times
that were computed with another release of the zone data are computed anew: at the first look at a
shard, and hourly, for a process with an older release may have written since. Settings that a shard
has not heard of are copied to it; and who wants to hear of a tenant's events is compared with its
endpoints, one tenant a round. Invariant: where a tenant's settings cannot be read, nothing of it goes.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import msgspec

from tasksched import clock, log
from tasksched.errors import TaskschedError
from tasksched.model.tenant import TenantSettings
from tasksched.runtime import ticker
from tasksched.store import hooks
from tasksched.store.limits import Limits
from tasksched.store.protocol import BATCH_MAX, Store
from tasksched.store.reads import Reads
from tasksched.store.records import Records, copy_conf
from tasksched.store.schedules import Schedules

RETIME_MS = 3_600_000
HOOKS_MS = 60_000  # between two looks at all tenants that have webhook endpoints
BUDGET_SHARE = 4  # finished records may use a quarter of the server's memory budget

_NOTHING_SET = TenantSettings()

_log = log.get("janitor")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is finished stays. ``bytes_max`` 0: a quarter of ``maxmemory``."""

    success_ms: int
    failed_ms: int
    count_max: int
    bytes_max: int
    key_memory_ms: int
    id_memory_ms: int


class Janitor:
    """Cleans the shards it is given, one after the other."""

    def __init__(self, store: Store, retention: Retention, *, look_ms: int) -> None:
        self._store = store
        self._retention = retention
        self._rest_s = look_ms / 1000
        self._schedules = Schedules(store)
        self._tenants = Records(store, store.global_keys.tenants, TenantSettings)
        self._untold: list[tuple[str, str]] = []
        self._untold_ms = 0.0
        self._limits = Limits(store)
        self._keys_at: dict[int, int] = {}
        self._retimed_ms: dict[int, int] = {}
        self.removed = 0
        self.mended = 0

    async def run(self, shards: Callable[[], Sequence[int]]) -> None:
        """Cleans until cancelled; ``shards`` tells which ones are ours now."""
        for turn in itertools.count():
            await asyncio.sleep(self._rest_s)
            mine = shards()
            if not mine:
                continue
            try:
                await self.clean(mine[turn % len(mine)])
            except TaskschedError as error:
                _log.warning("clean.failed", error=str(error))

    async def clean(self, shard: int) -> None:
        """One round over one shard."""
        await self._retime(shard)
        await self._mend_hooks()
        await copy_conf(self._store, shard)
        self._keys_at[shard] = await self._limits.relinquish(shard, self._keys_at.get(shard, 0))
        keys, gateway = self._store.keys[shard], self._store.gateway
        streams, tenants = await gateway.pipeline(
            [("SMEMBERS", keys.opened), ("SMEMBERS", keys.tenants)]
        )
        for stream in streams:
            await self._sweep(shard, stream.decode())
        if tenants:
            bytes_max = await self._bytes_max()
            chosen, unreadable = await self._tenants.readable()
            for tenant in {name.decode() for name in tenants}.difference(unreadable):
                own = chosen[tenant].value if tenant in chosen else _NOTHING_SET
                await self._prune(shard, tenant, self._bounds(own, bytes_max))

    async def _retime(self, shard: int) -> None:
        before_ms = self._retimed_ms.get(shard)
        if before_ms is not None and clock.mono_ms() - before_ms < RETIME_MS:
            return
        await ticker.retime(self._schedules, shard, await Reads(self._store).now_ms())
        self._retimed_ms[shard] = clock.mono_ms()

    async def _mend_hooks(self) -> None:
        if not self._untold and clock.mono_ms() >= self._untold_ms:
            self._untold = await hooks.told(self._store)
            self._untold_ms = clock.mono_ms() + HOOKS_MS
        if self._untold:
            tenant, said = self._untold.pop()
            await hooks.mend(self._store, tenant, said)

    async def _sweep(self, shard: int, stream: str) -> None:
        start = "-"
        while start:
            swept = await self._store.sweep(shard, stream, start)
            start = swept.next
            if swept.removed or swept.watched:
                self.mended += swept.removed + swept.watched
                _log.info(
                    "swept",
                    shard=shard,
                    stream=stream,
                    removed=swept.removed,
                    watched=swept.watched,
                )

    def _bounds(self, own: TenantSettings, bytes_max: int) -> dict[str, int]:
        """What one shard may keep for a tenant: its own settings where it has any, else ours."""

        def first(mine: int | None, ours: int) -> int:
            return ours if mine is None else mine

        usual, shards = self._retention, self._store.shards
        own_bytes = own.retention_bytes_max
        return {
            "done_ms": first(own.retention_success_ms, usual.success_ms),
            "dead_ms": first(own.retention_failed_ms, usual.failed_ms),
            "count_max": -(-first(own.retention_count_max, usual.count_max) // shards),
            "bytes_max": bytes_max if own_bytes is None else max(own_bytes // shards, 1),
            "keyed_ms": usual.key_memory_ms,
            "unkeyed_ms": usual.id_memory_ms,
        }

    async def _prune(self, shard: int, tenant: str, limits: dict[str, int]) -> None:
        more = True
        while more:
            removed, more = await self._store.prune(shard, tenant, limit=BATCH_MAX, **limits)
            self.removed += removed

    async def _bytes_max(self) -> int:
        """Bytes of finished records that one tenant may keep in one shard."""
        total = self._retention.bytes_max
        if not total:
            info = await self._store.gateway.command("INFO", "memory")
            total = _memory_budget(info) // BUDGET_SHARE
        return max(total // self._store.shards, 1) if total else 1 << 52


def _memory_budget(info: object) -> int:
    """``maxmemory`` of the server; 0 when it has none."""
    if isinstance(info, dict):
        return int(info.get("maxmemory", 0))
    text = info.decode() if isinstance(info, bytes) else str(info)
    for line in text.splitlines():
        if line.startswith("maxmemory:"):
            return int(line[10:])
    return 0
