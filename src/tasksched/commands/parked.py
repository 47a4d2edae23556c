"""Parked: what waits aside because nothing may run it now, in figures for all edges.

Streams, and lanes of single tenants, are parked by the dispatcher with a reason (``lua/lib/park.lua``).
Among them stand concurrency keys and limits that are asked for again, which are no places of tasks.
Invariant: a look reads so many heads of indexes and no task, so it costs the same with ten waiting tasks
and with ten million; a reason is one word, whoever it is about.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tasksched.store.protocol import Store

STREAMS_MAX: Final = 1_024
"""Of what is parked in a shard, so many are looked at; the others are counted as ``OTHER``."""

TENANTS_MAX: Final = 64
"""Of the tenants that wait behind one of them."""

OTHER: Final = "_other"
NO_WORKER: Final = "no_worker"


@dataclass(frozen=True, slots=True)
class Parked:
    """Parked streams and lanes by reason, and due tasks by the route that no live worker serves."""

    streams: dict[str, int] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)
    without_worker: dict[str, int] = field(default_factory=dict)


async def look(store: Store, now_ms: int) -> Parked:
    """Over all shards and tenants. Raises Unavailable."""
    heads = await _pipeline(
        store,
        (
            command
            for keys in store.keys
            for command in (("ZRANGE", keys.parked, 0, STREAMS_MAX - 1), ("ZCARD", keys.parked))
        ),
    )
    seen = [(n // 2, raw.decode()) for n in range(0, len(heads), 2) for raw in heads[n]]
    places = [(shard, name) for shard, name in seen if is_stream(name) or is_lane(name)]
    whys = await _pipeline(
        store, (("HGET", store.keys[shard].parked_why, name) for shard, name in places)
    )
    reasons = [OTHER if why is None else why.decode().partition(" ")[0] for why in whys]
    found = list(zip(places, reasons, strict=True))
    streams = Counter(reason for (_, name), reason in found if is_stream(name))
    lanes = Counter(reason for (_, name), reason in found if is_lane(name))
    streams[OTHER] += max(0, sum(heads[1::2]) - len(seen))
    unserved = [place for place, reason in found if reason == NO_WORKER and is_stream(place[1])]
    return Parked(+streams, +lanes, await _due_by_route(store, unserved, now_ms))


def is_stream(name: str) -> bool:
    """queue:priority:route, as names of those have no colon."""
    return name.count(":") == 2


def is_lane(name: str) -> bool:
    """queue:priority:tenant:route."""
    return name.count(":") == 3


async def _due_by_route(
    store: Store, streams: list[tuple[int, str]], now_ms: int
) -> dict[str, int]:
    turns = [("ZRANGE", store.keys[s].turns(stream), 0, TENANTS_MAX - 1) for s, stream in streams]
    tenants = await _pipeline(store, turns)
    lanes: list[tuple[str, str]] = []
    for (shard, stream), names in zip(streams, tenants, strict=True):
        queue, priority, route = stream.split(":")
        for name in names:
            lanes.append(
                (route, store.keys[shard].due(f"{queue}:{priority}:{name.decode()}:{route}"))
            )
    counts = await _pipeline(store, (("ZCOUNT", key, "-inf", now_ms) for _, key in lanes))
    found: Counter[str] = Counter()
    for (route, _), number in zip(lanes, counts, strict=True):
        found[route] += number
    return +found


async def _pipeline(store: Store, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    listed = list(commands)
    return await store.gateway.pipeline(listed) if listed else []
