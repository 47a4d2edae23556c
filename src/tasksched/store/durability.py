"""Durability: how far a change that was just made has got, asked for and told truthfully.

``memory``: applied on the primary, always true. ``replicated``: a replica acknowledged it (WAIT).
``fsync``: it is on the primary's disk, claimed only where ``appendfsync always`` is set or a probe
showed that WAITAOF really waits (some servers with ``everysec`` answer it at once).

The replication stream and the append-only file are linear, so waiting for a small write that comes
later covers every earlier one of the same server. That is what happens here: a fresh write and the
wait go together on one connection, so that a replay, which changed nothing, waits as well.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Literal

from tasksched import clock
from tasksched.errors import TaskschedError
from tasksched.store.connect import Gateway
from tasksched.store.keys import ShardKeys

Level = Literal["memory", "replicated", "fsync"]
WAIT_MS = 2_000
PROBES = 3
PROBE_WAITED_MS = 5


class Durability:
    """Waits for levels on behalf of many. One per gateway."""

    def __init__(self, gateway: Gateway, keys: Sequence[ShardKeys]) -> None:
        self._gateway = gateway
        self._keys = keys
        self._fsync: Literal["always", "waits", "never"] | None = None
        self._probing = asyncio.Lock()

    async def reach(self, shard: int, level: Level) -> Level:
        """The level that what was written to the shard has now: ``level``, or less."""
        if level == "replicated":
            return "replicated" if await self._wait(shard, ("WAIT", 1, WAIT_MS)) >= 1 else "memory"
        if level == "fsync":
            kind = await self._fsync_kind(shard)
            if kind == "always":
                return "fsync"
            if kind == "waits" and await self._wait(shard, ("WAITAOF", 1, 0, WAIT_MS)) >= 1:
                return "fsync"
        return "memory"

    async def _wait(self, shard: int, command: tuple[str | int, ...]) -> int:
        mark = ("HSET", self._keys[shard].clock, "waited_ms", clock.wall_ms())
        _, acknowledged = await self._gateway.pipeline([mark, command])
        return int(acknowledged[0] if isinstance(acknowledged, list) else acknowledged)

    async def _fsync_kind(self, shard: int) -> Literal["always", "waits", "never"]:
        async with self._probing:
            if self._fsync is None:
                self._fsync = await self._probe(shard)
            return self._fsync

    async def _probe(self, shard: int) -> Literal["always", "waits", "never"]:
        """Learns once whether a wait for the disk is one: a fsync a second cannot always be done."""
        denied = self._gateway.denied
        try:
            if "CONFIG|GET" not in denied:
                reply = await self._gateway.command("CONFIG", "GET", "appendfsync")
                if b"always" in (reply.values() if isinstance(reply, dict) else reply):
                    return "always"
            if "WAITAOF" in denied:
                return "never"
            for _ in range(PROBES):
                await asyncio.sleep(random.uniform(0.05, 0.3))
                began = clock.mono_ms()
                if await self._wait(shard, ("WAITAOF", 1, 0, WAIT_MS)) < 1:
                    return "never"
                if clock.mono_ms() - began > PROBE_WAITED_MS:
                    return "waits"
        except TaskschedError as error:  # a server without WAITAOF, or one that hides its settings
            if error.retryable:
                raise
        return "never"
