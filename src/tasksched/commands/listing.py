"""Listing: tasks by filter, page by page, from the indexes and never from the key space.

A list is a walk through phases: RUNNING, QUEUED, PENDING by due time, then what has finished, newest
first; a status leaves out the phases that cannot hold it. Queue, priority, handler and due time choose
lanes and ranges where the index knows them; everything else is a look at the record. A call examines at
most EXAMINED_MAX records, so a page may be short, even empty, and yet have a cursor. Payloads stay unread.

A cursor is a place (phase, score, id), so neither removals nor equal times shift it; it is bound to its
filter. Started tasks stand by the time of their next look, which a heartbeat moves: one may be seen twice.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

import msgspec

from tasksched.errors import Malformed
from tasksched.model.filters import name_fits
from tasksched.model.states import FINAL, STATES, State
from tasksched.model.task import HandlerTarget, Task
from tasksched.store.reads import Place, Reads

LIMIT_MAX: Final = 500
EXAMINED_MAX: Final = 1_000
CHUNK: Final = 100
"""So many records are looked at together where most may not match."""

CURSOR_MAX: Final = 256
SCORE_MAX: Final = 2**53
_ID_LENGTH: Final = 23


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to list, checked. Both due bounds are inclusive; ``handler`` may end with ``*``."""

    tenant: str = "default"
    status: tuple[State, ...] = ()
    queue: str | None = None
    priority: str | None = None
    handler: str | None = None
    tag: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    limit: int = 50
    cursor: str | None = None


class Page(NamedTuple):
    """Tasks without their bodies, and the cursor of what follows (None at the end)."""

    items: list[Task]
    next_cursor: str | None


class Phase(NamedTuple):
    states: frozenset[State]
    newest: bool = False


PHASES: Final = (
    Phase(frozenset({"RUNNING"})),
    Phase(frozenset({"QUEUED"})),
    Phase(frozenset({"PENDING"})),
    Phase(FINAL, newest=True),
)
_PENDING: Final = 2


async def list_tasks(reads: Reads, query: TaskQuery) -> Page:
    """The next page. Raises Malformed for a cursor of another filter, or of nobody."""
    assert 1 <= query.limit <= LIMIT_MAX, query.limit
    walk = _Walk(reads, query)
    phase, place = (0, None) if query.cursor is None else _read_cursor(query, query.cursor)
    for number in range(phase, len(PHASES)):
        if not _wanted(query, number):
            continue
        stopped = await walk.through(number, place)
        if stopped is not None:
            return Page(walk.items, _write_cursor(query, number, stopped))
        place = None
        if len(walk.items) == query.limit:
            return Page(walk.items, _cursor_after(query, number))
    return Page(walk.items, None)


class _Walk:
    """One call's way through the phases, with what it found and what it may still look at."""

    def __init__(self, reads: Reads, query: TaskQuery) -> None:
        self._reads = reads
        self._query = query
        self._left = EXAMINED_MAX
        self.items: list[Task] = []

    async def through(self, number: int, place: Place | None) -> Place | None:
        """Collects from one phase; where it stopped before the end, None at the end."""
        phase, query = PHASES[number], self._query
        states = _states(query, number)
        indexes = await self._indexes(number, states)
        due = (query.due_from_ms, query.due_to_ms) if number == _PENDING else (None, None)
        while True:
            missing = query.limit - len(self.items)
            if place is not None and (missing == 0 or self._left == 0):
                return place
            # One more than needed tells whether anything follows.
            ask = min(
                self._left, missing + 1 if self._all_match(number) else max(missing + 1, CHUNK)
            )
            entries = await self._reads.page(
                indexes, place, limit=ask, newest=phase.newest, due=due
            )
            tasks = await self._reads.tasks([e.id for e in entries]) if entries else []
            for entry, task in zip(entries, tasks, strict=True):
                if len(self.items) == query.limit:
                    return place
                self._left -= 1
                place = Place(entry.score, entry.id)
                if task is not None and task.status in states and _matches(task, query):
                    self.items.append(task)
            if len(entries) < ask:
                return None

    async def _indexes(self, number: int, states: frozenset[State]) -> dict[int, list[str]]:
        """Shard → the indexes that hold what the phase looks for."""
        if number == _PENDING:
            return await self._reads.waiting_indexes(
                self._query.tenant, lambda lane: _lane_matches(lane, self._query)
            )
        lanes = await self._reads.lanes(self._query.tenant)
        if number < _PENDING:
            return {shard: ["watch"] for shard in lanes}
        names = [f"dead:{self._query.tenant}"] if "FAILED" in states else []
        if states - {"FAILED"}:
            names.append(f"done:{self._query.tenant}")
        return dict.fromkeys(lanes, names)

    def _all_match(self, number: int) -> bool:
        """Whether nearly every entry of the phase will be an item."""
        query = self._query
        if number == _PENDING:
            return query.tag is None
        asked = (query.queue, query.priority, query.handler, query.tag)
        ranged = query.due_from_ms is not None or query.due_to_ms is not None
        one_index = _states(query, number) in {FINAL, frozenset({"FAILED"})}
        return number > _PENDING and one_index and not ranged and asked == (None,) * 4


def _states(query: TaskQuery, number: int) -> frozenset[State]:
    return PHASES[number].states & frozenset(query.status or STATES)


def _wanted(query: TaskQuery, number: int) -> bool:
    return bool(_states(query, number))


def _cursor_after(query: TaskQuery, number: int) -> str | None:
    """The cursor of the next phase that can hold something."""
    later = [n for n in range(number + 1, len(PHASES)) if _wanted(query, n)]
    return _write_cursor(query, later[0], None) if later else None


def _lane_matches(lane: str, query: TaskQuery) -> bool:
    queue, priority, _, route = lane.split(":")
    if query.queue is not None and query.queue != queue:
        return False
    if query.priority is not None and query.priority != priority:
        return False
    # The route of HTTP targets is no handler's name, so no pattern but "*" could mean it.
    name = route.partition("@")[0]
    return query.handler is None or name_fits(name, query.handler)


def _matches(task: Task, query: TaskQuery) -> bool:
    if task.tenant != query.tenant:
        return False
    if query.queue is not None and task.queue != query.queue:
        return False
    if query.priority is not None and task.priority != query.priority:
        return False
    if query.tag is not None and query.tag not in task.tags:
        return False
    if query.due_from_ms is not None and task.due_ms < query.due_from_ms:
        return False
    if query.due_to_ms is not None and task.due_ms > query.due_to_ms:
        return False
    if query.handler is None:
        return True
    target = task.target
    return isinstance(target, HandlerTarget) and name_fits(target.name, query.handler)


# -- cursors ------------------------------------------------------------------------------------

_Cursor = tuple[int, int | None, str, str]
_cursor_decoder: Final = msgspec.json.Decoder(_Cursor)


def _filter_hash(query: TaskQuery) -> str:
    """Equal for queries that differ in nothing but their limit and their cursor."""
    bare = msgspec.structs.replace(query, limit=1, cursor=None)
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()[:16]


def _write_cursor(query: TaskQuery, number: int, place: Place | None) -> str:
    score, task_id = (None, "") if place is None else place
    raw = msgspec.json.encode((number, score, task_id, _filter_hash(query)))
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read_cursor(query: TaskQuery, text: str) -> tuple[int, Place | None]:
    try:
        if len(text) > CURSOR_MAX:
            raise ValueError("too long")
        raw = urlsafe_b64decode(text.encode("ascii") + b"==")
        number, score, task_id, mark = _cursor_decoder.decode(raw)
    except (ValueError, msgspec.DecodeError) as error:
        raise Malformed("this is no cursor of ours", "?cursor") from error
    if mark != _filter_hash(query):
        raise Malformed("this cursor belongs to another filter; begin again without", "?cursor")
    if not 0 <= number < len(PHASES):
        raise Malformed("this is no cursor of ours", "?cursor")
    if score is None:
        return number, None
    if abs(score) > SCORE_MAX or len(task_id) != _ID_LENGTH or not task_id.isascii():
        raise Malformed("this is no cursor of ours", "?cursor")
    return number, Place(score, task_id)
