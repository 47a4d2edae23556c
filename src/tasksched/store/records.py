"""Records: small versioned values that people set: tenants, endpoints, operations, settings.

Each stands in one hash of the namespace as ``version JSON`` and is written under the version that was
read (``lua/put_record.lua``). What scripts need of them stands in the home record ``conf`` and is
copied to every shard; a scheduler copies it again until the versions agree.
"""

from typing import Generic, NamedTuple, TypeVar

import msgspec

from tasksched import log
from tasksched.errors import Conflict, TaskschedError
from tasksched.store.protocol import Changed, Store
from tasksched.store.replies import pairs_of

T = TypeVar("T")

TRIES = 10

_LAMENTED: set[tuple[str, str]] = set()
"""Homes and names of records that were logged as unreadable: once a process, whoever looks."""

_log = log.get("records")


class Kept(NamedTuple, Generic[T]):
    """A record as it stands. Version 0: there is none, and the value is the default."""

    version: int
    value: T


class Records(Generic[T]):
    """The records of one kind: a hash, and the type of what it holds."""

    def __init__(self, store: Store, home: str, kind: type[T]) -> None:
        self._store = store
        self._home = home
        self._decode = msgspec.json.Decoder(kind).decode

    async def get(self, name: str) -> Kept[T] | None:
        raw = await self._store.gateway.command("HGET", self._home, name)
        return None if raw is None else self._kept(raw)

    async def all(self) -> dict[str, Kept[T]]:
        """Every record of the kind; there are few."""
        return {name: self._kept(value) for name, value in (await self._raw()).items()}

    async def readable(self) -> tuple[dict[str, Kept[T]], list[str]]:
        """Those that can be read, and the names of the others, which are logged once.

        What a newer release may have left shall not stop what is done for the rest.
        """
        found: dict[str, Kept[T]] = {}
        others: list[str] = []
        for name, value in (await self._raw()).items():
            try:
                found[name] = self._kept(value)
            except TaskschedError:
                others.append(name)
                if (self._home, name) not in _LAMENTED:
                    _log.error("record.unreadable", home=self._home, name=name)
        _LAMENTED.update((self._home, name) for name in others)
        return found, others

    async def put(self, name: str, value: T, *, expected: int | None = None) -> Changed:
        """Words: ``kept`` (with its version), ``version`` or ``missing`` for another ``expected``."""
        raw = msgspec.json.encode(value)
        return await self._store.put_record(self._home, name, raw, expected=expected)

    async def remove(self, name: str, *, expected: int | None = None) -> Changed:
        """Words: ``removed``, ``missing``, ``version``."""
        return await self._store.put_record(self._home, name, b"", expected=expected)

    async def _raw(self) -> dict[str, bytes]:
        raw = await self._store.gateway.command("HGETALL", self._home)
        return {name.decode(): value for name, value in pairs_of(raw)}

    def _kept(self, raw: bytes) -> Kept[T]:
        version, _, text = raw.partition(b" ")
        try:
            return Kept(int(version), self._decode(text))
        except msgspec.DecodeError as error:
            raise TaskschedError(f"a record of {self._home} cannot be read: {error}") from error


async def set_conf(store: Store, field: str, text: str) -> None:
    """Sets what scripts read as ``setting(field)``: at home first, then in every shard.

    Raises Unavailable when a shard could not be told; the janitor tells it later.
    """
    home = store.global_keys.conf
    for _ in range(TRIES):
        raw = await store.gateway.command("HGET", home, field)
        version = int(raw.partition(b" ")[0]) if raw else 0
        # An empty value would remove the record, and with it the version that shards compare.
        changed = await store.put_record(home, field, (text or " ").encode(), expected=version)
        if changed.word == "kept":
            value = f"{changed.version} {text or ' '}"
            for shard in range(store.shards):
                await store.configure(shard, [(field, value)])
            return
    raise Conflict(f"{field} changes faster than it can be set")


async def copy_conf(store: Store, shard: int) -> int:
    """Brings one shard up to date with the home record; how many settings were behind."""
    home = await home_conf(store)
    if not home:
        return 0
    stored = await store.gateway.command("HMGET", store.keys[shard].conf, *home)
    behind = [
        (name, value)
        for (name, value), known in zip(home.items(), stored, strict=True)
        if known is None or known.decode() != value
    ]
    moved = 0
    for first in range(0, len(behind), 100):
        moved += await store.configure(shard, behind[first : first + 100])
    return moved


async def home_conf(store: Store) -> dict[str, str]:
    """Every setting at home, as ``version text``."""
    raw = await store.gateway.command("HGETALL", store.global_keys.conf)
    return {name.decode(): value.decode() for name, value in pairs_of(raw)}
