"""Walk: through the tasks that match a filter, batch by batch, as they stand in the indexes.

An operation walks in the order of a task's life (waiting, held, finished), so that a task that moves
on meanwhile is met later and not missed; and it leaves alone what came after it was made: tasks
created since, verdicts given since. A call examines at most EXAMINED_MAX records, so a batch may be
short, even empty, and yet not the last.
"""

from typing import Final, NamedTuple

import msgspec

from tasksched.model.filters import Filter
from tasksched.model.operation import Count, Kind
from tasksched.model.states import FINAL, State
from tasksched.model.task import Task
from tasksched.store.reads import Place, Reads

EXAMINED_MAX: Final = 1_000
COUNTED_MAX: Final = 10_000
"""So many records are looked at to count where no counter can tell."""

CHUNK: Final = 100

Cursor = tuple[int, int, str]

BEGIN: Final = Place(-1, "")
"""The place before the first one of a phase, in a cursor."""


class Phase(NamedTuple):
    """Where to look, and for what."""

    states: frozenset[State]
    newest: bool = False


_DEAD: Final = Phase(frozenset({"FAILED"}))
_PENDING: Final = Phase(frozenset({"PENDING"}))
_QUEUED: Final = Phase(frozenset({"QUEUED"}))
NEWEST_DEAD: Final = (Phase(frozenset({"FAILED"}), newest=True),)
PHASES: Final[dict[Kind, tuple[Phase, ...]]] = {
    "redrive": (_DEAD,),
    "purge": (_DEAD,),
    "cancel": (_PENDING, Phase(frozenset({"QUEUED", "RUNNING"}))),
    "edit": (_PENDING, _QUEUED),
    "delete": (_PENDING, _QUEUED, Phase(FINAL)),
}
"""What each kind of operation is for."""

# A task that starts, or waits for a retry, may move to a place that was passed already. What a second
# look finds is rare, and what the first look found is not there any more; but an edited task is.
WALKS: Final[dict[Kind, tuple[Phase, ...]]] = {
    **PHASES,
    "cancel": PHASES["cancel"] * 2,
    "delete": (_PENDING, _QUEUED) + PHASES["delete"],
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to walk through. ``before_ms``: what came later is left alone."""

    tenant: str
    filter: Filter
    phases: tuple[Phase, ...]
    before_ms: int | None = None


class Batch(NamedTuple):
    """Some of the tasks, without their bodies, and where to go on (None: nothing follows)."""

    tasks: list[Task]
    cursor: Cursor | None


async def next_batch(reads: Reads, plan: Plan, cursor: Cursor | None, limit: int) -> Batch:
    """Up to ``limit`` tasks that match."""
    number, place = (0, None) if cursor is None else (cursor[0], Place(*cursor[1:]))
    place = None if place == BEGIN else place
    walk = _Walk(reads, plan, limit)
    while number < len(plan.phases):
        if walk.is_over:
            return Batch(walk.found, (number, *(place or BEGIN)))
        stopped = await walk.through(plan.phases[number], place)
        if stopped is not None:
            return Batch(walk.found, (number, *stopped))
        number, place = number + 1, None
    return Batch(walk.found, None)


async def count(reads: Reads, plan: Plan) -> Count:
    """How many match, by looking at them: COUNTED_MAX records at most."""
    cursor, number = None, 0
    for _ in range(COUNTED_MAX // EXAMINED_MAX):
        found = await next_batch(reads, plan, cursor, EXAMINED_MAX)
        number += len(found.tasks)
        cursor = found.cursor
        if cursor is None:
            return Count(number)
    return Count(number, at_least=True)


class _Walk:
    def __init__(self, reads: Reads, plan: Plan, limit: int) -> None:
        self._reads = reads
        self._plan = plan
        self._limit = limit
        self._left = EXAMINED_MAX
        self._seen: set[str] = set()
        self.found: list[Task] = []

    @property
    def is_over(self) -> bool:
        """Whether this call may find or examine no more."""
        return len(self.found) == self._limit or self._left == 0

    async def through(self, phase: Phase, place: Place | None) -> Place | None:
        """Collects from one phase; where it stopped before the end, None at the end."""
        plan = self._plan
        states = phase.states & frozenset(plan.filter.status or phase.states)
        indexes = await self._indexes(states) if states else {}
        due = self._range(states)
        while indexes:
            missing = self._limit - len(self.found)
            if place is not None and self.is_over:
                return place
            # One more than needed tells whether anything follows.
            ask = min(
                self._left, missing + 1 if self._takes_all(states) else max(missing + 1, CHUNK)
            )
            entries = await self._reads.page(
                indexes, place, limit=ask, newest=phase.newest, due=due
            )
            tasks = await self._reads.tasks([e.id for e in entries]) if entries else []
            for entry, task in zip(entries, tasks, strict=True):
                if len(self.found) == self._limit:
                    return place
                self._left -= 1
                place = Place(entry.score, entry.id)
                if task is not None and task.status in states and self._wants(task):
                    self._seen.add(task.id)
                    self.found.append(task)
            if len(entries) < ask:
                return None
        return None

    def _wants(self, task: Task) -> bool:
        plan = self._plan
        if task.id in self._seen:
            return False  # it moved on between two reads
        if task.tenant != plan.tenant or not plan.filter.matches(task):
            return False
        if task.status == "RUNNING" and task.cancel_requested:
            return False  # a heartbeat moved it to a later place of the index
        return plan.before_ms is None or task.created_ms <= plan.before_ms

    def _takes_all(self, states: frozenset[State]) -> bool:
        """Whether nearly every entry will match."""
        by_index = {"fingerprint", "finished_from_ms", "finished_to_ms", "status"}
        return states == {"FAILED"} and self._plan.filter.named <= by_index

    def _range(self, states: frozenset[State]) -> tuple[int | None, int | None]:
        asked, before_ms = self._plan.filter, self._plan.before_ms
        if states <= {"PENDING"}:
            return asked.due_from_ms, asked.due_to_ms
        if not states <= FINAL:
            return None, None
        ends = [ms for ms in (asked.finished_to_ms, before_ms) if ms is not None]
        return asked.finished_from_ms, min(ends, default=None)

    async def _indexes(self, states: frozenset[State]) -> dict[int, list[str]]:
        """Shard → the indexes that hold what the phase looks for."""
        plan = self._plan
        if states <= {"PENDING"}:
            return await self._reads.waiting_indexes(plan.tenant, plan.filter.fits_lane)
        lanes = await self._reads.lanes(plan.tenant)
        if not states <= FINAL:
            return {shard: ["watch"] for shard in lanes}
        indexes = []
        if "FAILED" in states:
            fingerprint = plan.filter.fingerprint
            group = f"group:{plan.tenant}:{fingerprint}"
            indexes.append(f"dead:{plan.tenant}" if fingerprint is None else group)
        if states - {"FAILED"}:
            indexes.append(f"done:{plan.tenant}")
        return dict.fromkeys(lanes, indexes)
