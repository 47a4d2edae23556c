"""System: how the whole thing is. Health, readiness, counters, workers; one reader for all edges.

Every figure comes from counters and the heads of indexes, so asking costs the same with ten tasks and
with ten million. ``health`` and ``metrics`` answer also when Redis does not: that is what they are for.
``draining`` is set by whoever stops the process, so that readiness ends before the listener does.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tasksched import clock
from tasksched.commands import parked
from tasksched.errors import TaskschedError, Unavailable
from tasksched.model.limits import QueueRules
from tasksched.model.states import STATES
from tasksched.settings import Settings
from tasksched.store.checks import check_server
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.replies import pairs_of
from tasksched.store.rules import EVERYTHING, RuleBook, queue_field, uses
from tasksched.store.scripts import Arg

READY_TIMEOUT_S: Final = 2.0
FINDINGS_TTL_MS: Final = 15_000
HEADS_MAX: Final = 32
"""Of each index of a shard, so many heads are looked at for the lag."""

STREAMS_MAX: Final = 64
"""Of the streams with unread entries, so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """The server as it describes itself."""

    version: str
    role: str
    maxmemory_policy: str
    maxmemory_bytes: int
    used_memory_bytes: int
    aof: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Redis (None: it does not answer), who lives, and how far behind we are."""

    redis: RedisFacts | None
    schedulers: int = 0
    workers: int = 0
    lag_ms: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """Tasks that exist, by state and by queue and state."""

    by_status: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    by_queue: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.by_status.values())

    def add(self, queue: str, state: str, number: int) -> None:
        self.by_status[state] += number
        states = self.by_queue.setdefault(queue, dict.fromkeys(STATES, 0))
        states[state] += number


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """Of a queue that is limited: permits there are, those in use, and those that shards have."""

    most: int
    in_use: int
    allotted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The counters of the namespace at one moment, over all tenants."""

    counts: Counts
    moves: dict[str, dict[str, int]]
    findings: dict[str, int]
    workers: int
    schedulers: int
    lag_ms: int | None
    parked: parked.Parked
    permits: dict[str, Permits]


class System:
    """What may be asked about the system. One per process; safe for concurrent use."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.draining = False
        self._store = store
        self._settings = settings
        self._reads = Reads(store)
        self._warnings: tuple[str, ...] = ()
        self._checked_ms: int | None = None

    async def ready(self) -> None:
        """Returns if requests can be served; raises Unavailable, saying why not."""
        if self.draining:
            raise Unavailable("this process is about to end")
        values: dict[str, Arg] = {
            "clock": self._store.keys[0].clock,
            "newest": 0,
            "score": "",
            "id": "",
        }
        values |= {"low": "-inf", "high": "-inf", "limit": 1}
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._store.gateway.run("page", values, [("lanes",)], patience_ms=0)
                role = await self._store.gateway.command("ROLE")
        except TimeoutError as error:
            raise Unavailable("Redis does not answer in time") from error
        if role[0] != b"master":
            raise Unavailable("this Redis is a replica: nothing can be accepted")

    async def health(self) -> Health:
        """Redis, schedulers, workers, lag and warnings. Never raises for Redis' sake."""
        try:
            facts = await self._facts()
            workers = await self._reads.members("workers")
            schedulers = await self._reads.members("schedulers")
            lag_ms = await self.lag_ms()
            await self._check()
            everything = await RuleBook(self._store).get(EVERYTHING)
        except TaskschedError:
            return Health(redis=None, warnings=("Redis does not answer",))
        missing = [f"no {kind} is alive" for kind, found in (
            ("scheduler", schedulers), ("worker", workers)) if not found]  # fmt: skip
        paused = ["everything is paused"] if everything.value else []
        return Health(
            redis=facts,
            schedulers=len(schedulers),
            workers=len(workers),
            lag_ms=lag_ms,
            warnings=(*self._warnings, *missing, *paused),
        )

    async def counts(self, tenant: str | None = None) -> Counts:
        """Tasks of one tenant, or of all."""
        counts = Counts()
        for (owner, queue, state), number in sorted((await self._reads.counts()).items()):
            # Shards are read one after the other; a task that moves meanwhile may leave a -1.
            if tenant in {None, owner} and number > 0:
                counts.add(queue, state, number)
        return counts

    async def snapshot(self) -> Snapshot:
        """Everything for ``stats`` and ``metrics``. Raises Unavailable."""
        moves: defaultdict[str, dict[str, int]] = defaultdict(dict)
        findings: dict[str, int] = {}
        for name, number in sorted((await self._reads.totals()).items()):
            queue, _, state = name.partition(":")
            if state in STATES:
                moves[queue][state] = number
            else:
                findings[name] = number
        return Snapshot(
            counts=await self.counts(),
            moves=dict(moves),
            findings=findings,
            workers=len(await self._reads.members("workers")),
            schedulers=len(await self._reads.members("schedulers")),
            lag_ms=await self.lag_ms(),
            parked=await parked.look(self._store, await self._reads.now_ms()),
            permits=await self._permits(),
        )

    async def _permits(self) -> dict[str, Permits]:
        kept = await RuleBook(self._store).named(queue_field(""))
        rules = {name: QueueRules.of_words(each.value) for name, each in sorted(kept.items())}
        limited = {name: each.max_running for name, each in rules.items() if each.max_running}
        used = await uses(self._store, [f"q/{name}" for name in limited])
        return {
            name: Permits(most=most, in_use=use.used, allotted=use.allotted)
            for (name, most), use in zip(limited.items(), used, strict=True)
        }

    async def workers(self) -> list[dict[str, str]]:
        """What each live worker says about itself."""
        return await self._reads.workers()

    async def lag_ms(self) -> int | None:
        """How long the task that waits longest has been due; None while none waits.

        Seen from the heads of the lanes that are due, of those behind streams that are served,
        full or parked, and of what lies unread in the streams.
        """
        now_ms = await self._reads.now_ms()
        oldest = [await self._oldest_pending_ms(now_ms), await self._oldest_unread_ms()]
        due = [ms for ms in oldest if ms is not None and ms <= now_ms]
        return now_ms - min(due) if due else None

    async def _oldest_pending_ms(self, now_ms: int) -> int | None:
        """The earliest due time of tasks that are due, not paused, and not handed over."""
        commands: list[tuple[Any, ...]] = []
        for keys in self._store.keys:
            commands += [
                ("ZRANGE", keys.lanes, "-inf", now_ms, "BYSCORE", "LIMIT", 0, HEADS_MAX),
                ("ZRANGE", keys.backlog, 0, HEADS_MAX - 1),
                ("SRANDMEMBER", keys.full, HEADS_MAX),
                ("ZRANGE", keys.parked, 0, HEADS_MAX - 1),
            ]
        found = await self._store.gateway.pipeline(commands)
        lanes = {(n // 4, _text(lane)) for n in range(0, len(found), 4) for lane in found[n]}
        aside = await self._not_paused(
            (n // 4, _text(name)) for n in range(0, len(found), 4) for name in found[n + 3]
        )
        lanes |= {place for place in aside if parked.is_lane(place[1])}
        streams = [
            (n // 4, _text(stream))
            for n in range(0, len(found), 4)
            for stream in {*found[n + 1], *found[n + 2]}
        ]
        streams += [place for place in aside if parked.is_stream(place[1])]
        lanes |= set(await self._lanes_behind(streams))
        due = [self._store.keys[shard].due(lane) for shard, lane in sorted(lanes)]
        heads = await self._pipeline(("ZRANGE", key, 0, 0, "WITHSCORES") for key in due)
        return min((int(float(head[1])) for head in heads if head), default=None)

    async def _not_paused(self, places: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """Of what is parked: who waits because somebody wants it to is not behind."""
        listed = list(places)
        keys = self._store.keys
        whys = await self._pipeline(("HGET", keys[n].parked_why, name) for n, name in listed)
        return [
            place
            for place, why in zip(listed, whys, strict=True)
            if why is None or not why.startswith(b"paused")
        ]

    async def _lanes_behind(self, streams: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """The lanes that feed streams: one for each tenant that has something due there."""
        turns = [self._store.keys[shard].turns(stream) for shard, stream in streams]
        tenants = await self._pipeline(("ZRANGE", key, 0, HEADS_MAX - 1) for key in turns)
        found = []
        for (shard, stream), names in zip(streams, tenants, strict=True):
            queue, priority, route = stream.split(":")
            found += [(shard, f"{queue}:{priority}:{_text(name)}:{route}") for name in names]
        return found

    async def _oldest_unread_ms(self) -> int | None:
        """When the oldest entry that no worker has read was handed over: the time in its id."""
        unread = await self._pipeline(
            ("ZRANGE", keys.unread, 0, HEADS_MAX - 1) for keys in self._store.keys
        )
        ready = [
            of_shard.ready(_text(stream))
            for of_shard, streams in zip(self._store.keys, unread, strict=True)
            for stream in streams
        ]
        found = await asyncio.gather(*(self._unread_ms(key) for key in ready[:STREAMS_MAX]))
        return min((ms for ms in found if ms is not None), default=None)

    async def _unread_ms(self, stream: str) -> int | None:
        command = self._store.gateway.command
        try:
            groups = await command("XINFO", "GROUPS", stream)
            start = f"({_last_delivered(groups[0])}" if groups else "-"
            entries = await command("XRANGE", stream, start, "+", "COUNT", 1)
        except Unavailable:
            raise
        except TaskschedError:
            return None  # swept away between the two looks
        return int(_text(entries[0][0]).partition("-")[0]) if entries else None

    async def _pipeline(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        listed = list(commands)
        return await self._store.gateway.pipeline(listed) if listed else []

    async def _facts(self) -> RedisFacts:
        info = await self._store.gateway.command("INFO")
        return RedisFacts(
            version=str(info.get("valkey_version") or info.get("redis_version", "")),
            role=str(info.get("role", "")),
            maxmemory_policy=str(info.get("maxmemory_policy", "")),
            maxmemory_bytes=int(info.get("maxmemory", 0)),
            used_memory_bytes=int(info.get("used_memory", 0)),
            aof=str(info.get("aof_enabled", "0")) == "1",
        )

    async def _check(self) -> None:
        """The start-up checks again, now and then: a server's configuration can change."""
        now_ms = clock.mono_ms()
        if self._checked_ms is None or now_ms - self._checked_ms > FINDINGS_TTL_MS:
            found = await check_server(self._store.gateway)
            self._warnings = tuple(f.text for f in found if f.level != "ok")
            self._checked_ms = now_ms


def _last_delivered(group: Any) -> str:
    """From one group of XINFO GROUPS."""
    return next(
        _text(value) for name, value in pairs_of(group) if _text(name) == "last-delivered-id"
    )


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)
