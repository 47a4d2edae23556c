"""Rules: what is set for queues, tenants, shares and everything, as words in the home record ``conf``.

A write stands at home first, under the version that was read, and is then told to every shard; what a
shard did not hear a scheduler tells it later (``records.copy_conf``). The words are made by
``model.limits``.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tasksched.errors import Conflict, PreconditionFailed
from tasksched.store.protocol import Store
from tasksched.store.records import Kept
from tasksched.store.replies import pairs_of

TRIES: Final = 10
SCAN_COUNT: Final = 1_000
EVERYTHING: Final = "all"


def queue_field(queue: str) -> str:
    return f"queue:{queue}"


def tenant_field(tenant: str) -> str:
    return f"tenant:{tenant}"


def share_field(tenant: str, queue: str) -> str:
    return f"share:{tenant}:{queue}"


class RuleBook:
    """The rules of one namespace. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._home = store.global_keys.conf

    async def get(self, field: str) -> Kept[str]:
        """The words. Version 0: nothing was ever set."""
        return (await self.get_many([field]))[0]

    async def get_many(self, fields: Iterable[str]) -> list[Kept[str]]:
        raws = await self._store.gateway.command("HMGET", self._home, *fields)
        return [_kept(raw) for raw in raws]

    async def named(self, prefix: str) -> dict[str, Kept[str]]:
        """Those whose field begins so, by what follows the prefix."""
        found: dict[str, Kept[str]] = {}
        cursor = 0
        while True:
            raw, entries = await self._store.gateway.command(
                "HSCAN", self._home, cursor, "MATCH", f"{prefix}*", "COUNT", SCAN_COUNT
            )
            for name, value in pairs_of(entries):
                found[name.decode().removeprefix(prefix)] = _kept(value)
            cursor = int(raw)
            if cursor == 0:
                return found

    async def put(self, field: str, words: str, expected: int) -> int | None:
        """The new version; None where another version than ``expected`` is there.

        Raises Unavailable when a shard could not be told; it is told later.
        """
        # An empty value would remove the record, and with it the version that shards compare.
        text = words or " "
        changed = await self._store.put_record(self._home, field, text.encode(), expected=expected)
        if changed.word != "kept":
            return None
        told = [(field, f"{changed.version} {text}")]
        shards = range(self._store.shards)
        await asyncio.gather(*(self._store.configure(shard, told) for shard in shards))
        return changed.version

    async def switch(self, field: str, word: str, *, on: bool) -> int:
        """Adds or takes away one word; the version then."""
        for _ in range(TRIES):
            kept = await self.get(field)
            words = kept.value.split()
            if (word in words) == on:
                return kept.version
            text = " ".join([word, *words] if on else [each for each in words if each != word])
            version = await self.put(field, text, kept.version)
            if version is not None:
                return version
        raise Conflict(f"{field} changes faster than it can be set")


class Use(NamedTuple):
    """Of a limit, over all shards: tasks that hold a permit, and permits that the shards have."""

    used: int
    allotted: int


async def uses(store: Store, limits: Sequence[str]) -> list[Use]:
    """Of each limit, as ``lua/lib/limits.lua`` names them: ``t/acme``, ``q/mail``, ``k/<hash>``, ``p/acme``."""
    if not limits:
        return []
    commands = [("HMGET", key, *limits) for k in store.keys for key in (k.counts, k.allot)]
    rows = await store.gateway.pipeline(commands)
    counts, allots = rows[::2], rows[1::2]
    return [
        Use(
            sum(int(row[n] or 0) for row in counts),
            sum(int((row[n] or b"0").partition(b" ")[0]) for row in allots),
        )
        for n in range(len(limits))
    ]


def require_version(asked: int | None, version: int) -> None:
    """Raises PreconditionFailed where another version is asked for."""
    if asked is not None and asked != version:
        raise PreconditionFailed(f"the version is {version}", version=version)


def _kept(raw: bytes | None) -> Kept[str]:
    version, _, words = (raw or b"0").decode().partition(" ")
    return Kept(int(version), words.strip())
