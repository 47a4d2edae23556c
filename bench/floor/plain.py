"""The floor: what plain scripts cost that answer the same question with nothing around them.

Four scripts of ten lines: no idempotence, lanes, fences, windows, events or counters; one redis
call for each thing they do. They are driven by the same client library in the same batches, so
that what is above the floor is the price of the semantics, or of our waste.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_HOME = Path(__file__).resolve().parent
NAMES = ("create", "dispatch", "take", "settle")


class Floor:
    """The plain scripts on one connection pool."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._shas: dict[str, str] = {}

    async def load(self) -> None:
        """Makes the scripts known to the server, and the stream it reads."""
        for name in NAMES:
            source = (_HOME / f"{name}.lua").read_text()
            self._shas[name] = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            await self._redis.execute_command("SCRIPT", "LOAD", source)
        await self._redis.execute_command("XGROUP", "CREATE", "ready", "workers", "0", "MKSTREAM")

    async def create(self, now_ms: int, rows: Sequence[tuple[str, int, bytes]]) -> None:
        flat = [part for row in rows for part in row]
        await self._run("create", "due", now_ms, *flat)

    async def dispatch(self, now_ms: int, limit: int) -> int:
        return int(await self._run("dispatch", "due", now_ms, limit))

    async def take(self, now_ms: int, slots: int) -> list[tuple[bytes, bytes, bytes]]:
        grants = await self._run("take", "ready", now_ms, slots, 30_000)
        return [tuple(grant) for grant in grants]

    async def settle(self, now_ms: int, ends: Sequence[tuple[bytes, bytes]]) -> None:
        flat = [part for end in ends for part in end]
        await self._run("settle", "ready", now_ms, *flat)

    async def _run(self, name: str, key: str, *arguments: Any) -> Any:
        return await self._redis.execute_command("EVALSHA", self._shas[name], 1, key, *arguments)
