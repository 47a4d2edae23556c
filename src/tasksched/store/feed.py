"""Feed: the shards' logs of events as one, from a place on.

A place is a vector, the last entry seen of each shard and how much of one entry, so that what is read
after it is neither lost nor told twice. Invariant: a log that was cut past the place says so once; it
may also say so where just the entry of the place itself was cut. Nothing here writes.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from tasksched.errors import Malformed
from tasksched.model.live import KINDS, Gap, Happened
from tasksched.model.place import PlaceSeal
from tasksched.store.protocol import Store
from tasksched.store.replies import pairs_of

ENTRIES_MAX: Final = 20
"""Entries of a shard that one look reads; each holds at most a batch of ids."""
EVENTS_MAX: Final = 1000  # as in lua/lib/move.lua
PLACE_MAX: Final = 32 * 1024

Stamp = tuple[int, int]
BEGIN: Final[Stamp] = (0, 0)
_RANK: Final = {word: n for n, word in enumerate(KINDS)}


class Place(NamedTuple):
    """``seen``: of each shard, the entry up to which all was told; of ``shard``, ``told`` events
    of the entry after that as well.
    """

    seen: list[Stamp]
    shard: int = 0
    told: int = 0


class Places:
    """Places as words: sealed, and all of one length, so that they tell nothing of other tenants."""

    def __init__(self, secret: bytes, shards: int) -> None:
        self._seal = PlaceSeal(secret)
        self._form = Struct(f">{2 * shards}QII")

    def write(self, place: Place) -> str:
        """The place as an opaque word."""
        numbers = [number for stamp in place.seen for number in stamp]
        return self._seal.seal(self._form.pack(*numbers, place.shard, place.told))

    def read(self, text: str) -> Place:
        """Raises Malformed for what is no place of this namespace."""
        raw = self._seal.open(text) if len(text) <= PLACE_MAX else None
        if raw is None or len(raw) != self._form.size:
            raise Malformed("this is no id of an event of ours", "@Last-Event-ID")
        *numbers, shard, told = self._form.unpack(raw)
        return Place(list(zip(numbers[::2], numbers[1::2], strict=True)), shard, told)


class Move(NamedTuple):
    """One task that moved. ``word``: one of ``KINDS``."""

    word: str
    tenant: str
    queue: str
    task_id: str


class _Entry(NamedTuple):
    stamp: Stamp
    shard: int
    fields: dict[str, str]


Wanted = Callable[[Move], bool]


class Feed:
    """Reads on one namespace. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.places = Places(store.secret, store.shards)

    async def now(self) -> Place:
        """The place after all that has happened so far."""
        found = await self._store.gateway.pipeline(
            [("XREVRANGE", keys.events, "+", "-", "COUNT", 1) for keys in self._store.keys]
        )
        return Place([_stamp(entries[0][0]) if entries else BEGIN for entries in found])

    async def after(self, place: Place, wanted: Wanted) -> tuple[list[Happened | Gap], Place, bool]:
        """What happened since and is wanted, a bounded part of it; the place then; whether more is
        there. In order within a shard, and nearly in the order of time over all.
        """
        commands: list[Sequence[Any]] = []
        for keys, stamp in zip(self._store.keys, place.seen, strict=True):
            commands.append(("XRANGE", keys.events, _text(stamp), "+", "COUNT", ENTRIES_MAX + 1))
            commands.append(("XLEN", keys.events))
        replies = await self._store.gateway.pipeline(commands)
        entries: list[_Entry] = []
        cut: set[int] = set()
        more = False
        for shard, (reply, length) in enumerate(zip(replies[::2], replies[1::2], strict=True)):
            fresh = [_Entry(_stamp(entry), shard, _fields(raw)) for entry, raw in reply]
            if fresh and fresh[0].stamp == place.seen[shard]:
                del fresh[0]
            elif fresh and (place.seen[shard] != BEGIN or length >= EVENTS_MAX):
                cut.add(shard)
            more = more or len(fresh) > ENTRIES_MAX
            entries += fresh[:ENTRIES_MAX]
        if place.shard in cut:
            place = Place(place.seen)
        # What is begun is told to its end first: a place holds one entry that is begun, no more.
        entries.sort(key=lambda each: (not place.told or each.shard != place.shard, each[:2]))
        events, then = self._told(entries, place, wanted)
        return [*([Gap(id=self.places.write(place))] if cut else []), *events], then, more

    def _told(
        self, entries: Sequence[_Entry], place: Place, wanted: Wanted
    ) -> tuple[list[Happened | Gap], Place]:
        seen = list(place.seen)
        skipped = place.told if entries and entries[0].shard == place.shard else 0
        events: list[Happened | Gap] = []
        for stamp, shard, fields in entries:
            moves = _moves(fields)
            for told, move in enumerate(moves[skipped:], skipped + 1):
                if not wanted(move):
                    continue
                here = Place(seen, shard, told)
                if told == len(moves):
                    here = Place([*seen[:shard], stamp, *seen[shard + 1 :]])
                kind, status = KINDS[move.word]
                events.append(
                    Happened(
                        id=self.places.write(here), kind=kind, task_id=move.task_id, tenant=move.tenant,
                        queue=move.queue, status=status, at_ms=int(fields["ms"]),
                    )
                )  # fmt: skip
            skipped = 0
            seen[shard] = stamp
        return events, Place(seen) if entries else place


def _moves(fields: dict[str, str]) -> list[Move]:
    """The moves of one entry, always in the same order."""
    found = []
    for name, ids in fields.items():
        owner, _, word = name.rpartition(":")
        tenant, _, queue = owner.partition(":")
        if word in KINDS and queue:
            found.append((_RANK[word], tenant, queue, word, ids))
    found.sort()
    return [
        Move(word, tenant, queue, task_id)
        for _, tenant, queue, word, ids in found
        for task_id in ids.split(" ")
    ]


def _stamp(entry: bytes) -> Stamp:
    ms, _, seq = entry.decode().partition("-")
    return int(ms), int(seq)


def _text(stamp: Stamp) -> str:
    return f"{stamp[0]}-{stamp[1]}"


def _fields(raw: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in pairs_of(raw)}
