"""Dead letters: the FAILED tasks of a tenant, one by one and in groups of the same failure.

Lists come from the index by the time of the verdict, or with a fingerprint from that of its group;
counts from the counters that every verdict keeps, over all shards. A page of groups reads counters and
the two ends of each group, so it costs the same whether a group has ten members or a million.
"""

import asyncio
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, defaultdict
from typing import Any, Final, NamedTuple

import msgspec

from tasksched.commands import walk
from tasksched.errors import Malformed
from tasksched.model.filters import Filter
from tasksched.model.fingerprint import normalised
from tasksched.model.notify import QUEUE as NOTIFICATIONS
from tasksched.model.operation import DEAD_KINDS, Count, Kind
from tasksched.model.task import ErrorInfo, Task
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.replies import pairs_of

CELLS_MAX: Final = 100_000
"""So many counters of a tenant are read: of each shard an equal share."""

GROUPS_MAX: Final = 100
"""Of one page: each group asks its shards for their first and last member."""

SCAN_COUNT: Final = 1_000
CURSOR_MAX: Final = 256
SCORE_MAX: Final = 2**53
_BY_CELL: Final = frozenset({"queue", "handler", "reason", "fingerprint"})
_BY_INDEX: Final = frozenset({"fingerprint", "finished_from_ms", "finished_to_ms"})
_BY_STATE: Final = frozenset({"status", "queue"})


class Page(NamedTuple):
    """Dead letters without their bodies, and the cursor of what follows (None at the end)."""

    items: list[Task]
    next_cursor: str | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one kind. Counts are of those that match; the times and the sample (the latest
    failure) are of the whole group. ``message`` is without what differs from task to task.
    """

    fingerprint: str
    count: int
    type: str | None
    message: str | None
    sample_task_id: str | None
    sample_error: ErrorInfo | None
    queues: dict[str, int]
    handlers: dict[str, int]
    reasons: dict[str, int]
    first_seen_ms: int | None
    last_seen_ms: int | None


class GroupPage(NamedTuple):
    """The largest first. ``is_partial``: there are more than CELLS_MAX counters."""

    items: list[Group]
    next_cursor: str | None
    is_partial: bool = False


class Cell(NamedTuple):
    """One counter of a shard's ``groups``."""

    shard: int
    fingerprint: str
    queue: str
    route: str
    reason: str
    number: int


class DeadLetters:
    """The questions about dead letters. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads = Reads(store)

    async def page(self, tenant: str, asked: Filter, cursor: str | None, limit: int) -> Page:
        """The newest first. Raises Malformed for a cursor of another filter, or of nobody."""
        mark = _mark("page", tenant, asked)
        plan = walk.Plan(tenant=tenant, filter=asked, phases=walk.NEWEST_DEAD)
        place = None if cursor is None else _read_cursor(cursor, mark)
        found = await walk.next_batch(self._reads, plan, place and (0, *place), limit)
        return Page(found.tasks, _write_cursor(found.cursor and found.cursor[1:], mark))

    async def groups(self, tenant: str, asked: Filter, cursor: str | None, limit: int) -> GroupPage:
        """Groups by count; ``asked`` may name queue, handler, reason and fingerprint."""
        assert 1 <= limit <= GROUPS_MAX, limit
        mark = _mark("groups", tenant, asked)
        cells, is_partial = await self._cells(tenant)
        chosen = [cell for cell in cells if _fits(cell, asked)]
        counts: Counter[str] = Counter()
        for cell in chosen:
            counts[cell.fingerprint] += cell.number
        order = sorted((-number, name) for name, number in counts.items() if number > 0)
        if cursor is not None:
            number, name = _read_cursor(cursor, mark)
            order = [each for each in order if each > (-number, name)]
        shown = [name for _, name in order[:limit]]
        items = await self._described(tenant, shown, chosen, cells) if shown else []
        last = (items[-1].count, items[-1].fingerprint) if len(order) > limit else None
        return GroupPage(items, _write_cursor(last, mark), is_partial)

    async def count(self, tenant: str, asked: Filter) -> Count:
        """How many match: from counters or indexes where they can tell, else by looking."""
        if asked.named <= _BY_INDEX:
            return Count(await self._indexed(tenant, asked))
        if asked.named <= _BY_CELL:
            cells, is_partial = await self._cells(tenant)
            return Count(sum(c.number for c in cells if _fits(c, asked)), is_partial)
        plan = walk.Plan(tenant=tenant, filter=asked, phases=walk.PHASES["redrive"])
        return await walk.count(self._reads, plan)

    async def _indexed(self, tenant: str, asked: Filter) -> int:
        low = "-inf" if asked.finished_from_ms is None else asked.finished_from_ms
        high = "+inf" if asked.finished_to_ms is None else asked.finished_to_ms
        keys = [
            shard.dead(tenant)
            if asked.fingerprint is None
            else shard.group(f"{tenant}:{asked.fingerprint}")
            for shard in self._store.keys
        ]
        found = await self._store.gateway.pipeline([("ZCOUNT", key, low, high) for key in keys])
        return sum(found)

    async def _cells(self, tenant: str) -> tuple[list[Cell], bool]:
        """The counters of all shards, and whether some were left out."""
        share = -(-CELLS_MAX // self._store.shards)
        found = await asyncio.gather(
            *(self._cells_of(keys.groups(tenant), share) for keys in self._store.keys)
        )
        cells = [
            _cell(shard, name, number)
            for shard, fields in enumerate(found)
            for name, number in fields.items()
        ]
        return cells, any(len(fields) >= share for fields in found)

    async def _cells_of(self, key: str, most: int) -> dict[str, int]:
        fields: dict[str, int] = {}
        cursor: Any = 0
        while len(fields) < most:
            cursor, raw = await self._store.gateway.command(
                "HSCAN", key, cursor, "COUNT", SCAN_COUNT
            )
            fields |= {name.decode(): int(number) for name, number in pairs_of(raw)}
            if int(cursor) == 0:
                break
        return fields

    async def _described(
        self, tenant: str, names: list[str], chosen: list[Cell], cells: list[Cell]
    ) -> list[Group]:
        ends = await self._ends(tenant, names, cells)
        samples = await self._reads.tasks([ends[name].sample or "" for name in names])
        by_name: defaultdict[str, list[Cell]] = defaultdict(list)
        for cell in chosen:
            by_name[cell.fingerprint].append(cell)
        return [
            _group(name, by_name[name], ends[name], sample)
            for name, sample in zip(names, samples, strict=True)
        ]

    async def _ends(self, tenant: str, names: list[str], cells: list[Cell]) -> dict[str, "_Ends"]:
        """First and last of each group, asked of the shards that have any of it."""
        wanted = set(names)
        places = sorted({(c.fingerprint, c.shard) for c in cells if c.fingerprint in wanted})
        keys = [self._store.keys[shard].group(f"{tenant}:{name}") for name, shard in places]
        commands = [("ZRANGE", key, end, end, "WITHSCORES") for key in keys for end in (0, -1)]
        found = await self._store.gateway.pipeline(commands)
        by_name: defaultdict[str, list[Any]] = defaultdict(list)
        for n, (name, _) in enumerate(places):
            by_name[name] += found[2 * n : 2 * n + 2]
        return {name: _ends_of(by_name[name]) for name in names}


async def count_tasks(store: Store, tenant: str, kind: Kind, asked: Filter) -> Count:
    """How many tasks an operation of this kind would be for."""
    if kind in DEAD_KINDS:
        return await DeadLetters(store).count(tenant, asked)
    reads, phases = Reads(store), walk.PHASES[kind]
    if not asked.named <= _BY_STATE:
        return await walk.count(reads, walk.Plan(tenant=tenant, filter=asked, phases=phases))
    states = {state for phase in phases for state in phase.states}
    states &= set(asked.status or states)
    return Count(
        sum(
            number
            for (owner, queue, state), number in (await reads.counts()).items()
            if owner == tenant and state in states and asked.queue in {None, queue}
            and (asked.queue is not None or queue != NOTIFICATIONS or state == "FAILED")
        )
    )  # fmt: skip


def _cell(shard: int, name: str, number: int) -> Cell:
    fingerprint, queue, route, reason = name.split(":", 3)
    return Cell(shard, fingerprint, queue, route, reason, number)


def _fits(cell: Cell, asked: Filter) -> bool:
    return (
        asked.queue in {None, cell.queue}
        and asked.reason in {None, cell.reason}
        and asked.fingerprint in {None, cell.fingerprint}
        and asked.fits_route(cell.route)
    )


class _Ends(NamedTuple):
    first_ms: int | None = None
    last_ms: int | None = None
    sample: str | None = None


def _ends_of(found: list[Any]) -> _Ends:
    """From the first and the last member of each shard."""
    firsts = [int(float(raw[1])) for raw in found[::2] if raw]
    lasts = [(int(float(raw[1])), raw[0].decode()) for raw in found[1::2] if raw]
    if not firsts or not lasts:
        return _Ends()
    return _Ends(min(firsts), *max(lasts))


def _group(name: str, cells: list[Cell], ends: _Ends, sample: Task | None) -> Group:
    queues: Counter[str] = Counter()
    handlers: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for cell in cells:
        queues[cell.queue] += cell.number
        handlers[cell.route.partition("@")[0]] += cell.number
        reasons[cell.reason] += cell.number
    # It may have been redriven, and may even have failed otherwise, since the index was read.
    if sample is not None and sample.fingerprint != name:
        sample = None
    error = sample.error if sample else None
    return Group(
        fingerprint=name,
        count=sum(cell.number for cell in cells),
        type=error.type if error else None,
        message=normalised(error.message) if error else None,
        sample_task_id=sample.id if sample else None,
        sample_error=error,
        queues=dict(queues.most_common()),
        handlers=dict(handlers.most_common()),
        reasons=dict(reasons.most_common()),
        first_seen_ms=ends.first_ms,
        last_seen_ms=ends.last_ms,
    )


# -- cursors ------------------------------------------------------------------------------------

_decoder: Final = msgspec.json.Decoder(tuple[int, str, str])


def _mark(listed: str, tenant: str, asked: Filter) -> str:
    """Equal for the same question about the same list."""
    return hashlib.sha256(msgspec.json.encode((listed, tenant, asked))).hexdigest()[:16]


def _write_cursor(place: tuple[int, str] | None, mark: str) -> str | None:
    if place is None:
        return None
    return urlsafe_b64encode(msgspec.json.encode((*place, mark))).rstrip(b"=").decode()


def _read_cursor(text: str, mark: str) -> tuple[int, str]:
    try:
        if len(text) > CURSOR_MAX:
            raise ValueError("too long")
        number, name, found = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=="))
    except (ValueError, msgspec.DecodeError) as error:
        raise Malformed("this is no cursor of ours", "?cursor") from error
    if found != mark:
        raise Malformed("this cursor belongs to another filter; begin again without", "?cursor")
    if abs(number) > SCORE_MAX or not name.isascii():
        raise Malformed("this is no cursor of ours", "?cursor")
    return number, name
