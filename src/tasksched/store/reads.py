"""Reads: records, attempts, lists and counters. Nothing here writes.

Lists never load payloads. Every list is by cursor and bounded; the place in an index is (score,
id), so that neither removals nor a million equal scores shift it (``lua/page.lua``).
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from tasksched.errors import TaskschedError
from tasksched.model.ids import shard_of
from tasksched.model.states import STATES
from tasksched.model.task import (
    DEFAULT_OPTIONS,
    Attempt,
    ErrorInfo,
    HandlerTarget,
    Task,
    decode_options,
)
from tasksched.store.protocol import Store, target_of
from tasksched.store.replies import pairs_of
from tasksched.store.scripts import Arg

_FIELDS = (
    "state", "version", "lane", "due_ms", "created_ms", "options", "attempt", "uncounted", "life",
    "lease_ms", "expires_ms", "reason", "error", "cancel_requested", "progress", "queued_ms",
    "finished_ms", "fence", "worker", "started_ms", "ended_ms", "outcome", "schedule", "nominal_ms",
    "missed", "failure", "postponed", "deferred",
)  # fmt: skip
_BODIES = ("payload", "result", "body")


NEVER_MS = 1 << 62
LINES_MAX = 200  # as in lua/lines.lua


class Place(NamedTuple):
    """Where a page ended: the score and id of the last entry seen."""

    score: int
    id: str


class Line(NamedTuple):
    """One line that a run said. ``id`` grows within a task."""

    id: str
    at_ms: int
    attempt: int
    text: str


class Entry(NamedTuple):
    score: int
    id: str


class Reads:
    """Queries on one namespace. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._gateway = store.gateway

    async def task(self, task_id: str, *, bodies: bool = True) -> Task | None:
        """The task, or None; ``bodies`` loads payload and result too."""
        found = await self.tasks([task_id], bodies=bodies)
        return found[0]

    async def tasks(self, task_ids: Sequence[str], *, bodies: bool = False) -> list[Task | None]:
        """Tasks in the order of the ids; None where there is none."""
        fields = _FIELDS + _BODIES if bodies else _FIELDS
        keys = [self._task_key(task_id) for task_id in task_ids]
        raws = await self._gateway.pipeline(
            [("HMGET", key, *fields) for key in keys if key is not None]
        )
        replies = iter(raws)
        rows = [None if key is None else next(replies) for key in keys]
        tasks = [
            None
            if row is None or row[0] is None
            else task_of(task_id, dict(zip(fields, row, strict=True)))
            for task_id, row in zip(task_ids, rows, strict=True)
        ]
        return await self._with_large_payloads(tasks, rows) if bodies else tasks

    async def _with_large_payloads(
        self, tasks: list[Task | None], rows: Sequence[Any]
    ) -> list[Task | None]:
        for n, (task, row) in enumerate(zip(tasks, rows, strict=True)):
            if task is not None and row[-1] is not None:
                key = self.store.keys[_shard(task.id, self.store)].body(task.id)
                payload = await self._gateway.command("GET", key)
                tasks[n] = msgspec.structs.replace(task, payload=payload, corrupt=payload is None)
        return tasks

    def _task_key(self, task_id: str) -> str | None:
        shard = shard_of(task_id, self.store.shards)
        return None if shard is None else self.store.keys[shard].task(task_id)

    async def attempts(self, task: Task) -> list[Attempt]:
        """Every attempt on record, oldest first; the last one comes from the task itself."""
        key = self.store.keys[_shard(task.id, self.store)].attempts(task.id)
        raws = await self._gateway.command("LRANGE", key, 0, -1)
        found = [_archived(msgspec.json.decode(raw)) for raw in raws]
        return [*found, task.last_attempt] if task.last_attempt else found

    async def checkpoint(self, task_id: str) -> bytes | None:
        """What an earlier attempt kept for the next one."""
        key = self.store.keys[_shard(task_id, self.store)].checkpoint(task_id)
        found: bytes | None = await self._gateway.command("GET", key)
        return found

    async def lease_until_ms(self, task_id: str) -> int | None:
        """When a task that runs must be heard of again; None where nobody waits for it."""
        key = self.store.keys[_shard(task_id, self.store)].watch
        found = await self._gateway.command("ZSCORE", key, task_id)
        return None if found is None else int(float(found))

    async def last_op(self, task_id: str) -> str | None:
        """The name of the last call that cancelled, edited, redrove or hurried the task."""
        key = self.store.keys[_shard(task_id, self.store)].task(task_id)
        found = await self._gateway.command("HGET", key, "op")
        return None if found is None else found.decode()

    async def lines(self, task_id: str, after: str = "-", limit: int = LINES_MAX) -> list[Line]:
        """What the runs of a task said, oldest first, after the line of this id."""
        key = self.store.keys[_shard(task_id, self.store)].lines(task_id)
        start = after if after == "-" else f"({after}"
        found = await self._gateway.command("XRANGE", key, start, "+", "COUNT", limit)
        return [_line(entry.decode(), _fields(fields)) for entry, fields in found]

    async def page(
        self,
        indexes: dict[int, list[str]],
        after: Place | None,
        *,
        limit: int,
        newest: bool = False,
        due: tuple[int | None, int | None] = (None, None),
    ) -> list[Entry]:
        """The next entries over the named indexes (shard → key suffixes), merged by time."""
        low, high = ("-inf" if due[0] is None else due[0]), ("+inf" if due[1] is None else due[1])
        values: dict[str, Arg] = {
            "newest": int(newest),
            "score": "" if after is None else "+inf" if after.score == NEVER_MS else after.score,
            "id": "" if after is None else after.id,
            "low": low,
            "high": high,
            "limit": limit,
        }
        replies = await asyncio.gather(
            *(
                self._gateway.run(
                    "page",
                    {"clock": self.store.keys[shard].clock, **values},
                    [(s,) for s in suffixes],
                )
                for shard, suffixes in indexes.items()
                if suffixes
            )
        )
        streams = [_entries(found) for reply in replies for found in reply]
        merged = heapq.merge(*streams, reverse=newest)
        return [entry for entry, _ in zip(merged, range(limit), strict=False)]

    async def lanes(self, tenant: str) -> dict[int, list[str]]:
        """Shard → lanes of the tenant that may hold waiting tasks."""
        keys = self.store.keys
        found = await self._gateway.pipeline([("SMEMBERS", k.index(tenant)) for k in keys])
        return {n: sorted(lane.decode() for lane in lanes) for n, lanes in enumerate(found)}

    async def waiting_indexes(
        self, tenant: str, is_wanted: Callable[[str], bool]
    ) -> dict[int, list[str]]:
        """Shard → the indexes of the tenant's PENDING tasks by due time, as ``page`` takes them.

        ``is_wanted`` chooses lanes; tasks held for a concurrency key stand together, whatever their lane.
        """
        keys = self.store.keys
        held = await self._gateway.pipeline([("EXISTS", k.withheld(tenant)) for k in keys])
        return {
            shard: [
                *(f"due:{lane}" for lane in lanes if is_wanted(lane)),
                *([f"withheld:{tenant}"] if held[shard] else []),
            ]
            for shard, lanes in (await self.lanes(tenant)).items()
        }

    async def counts(self) -> dict[tuple[str, str, str], int]:
        """(tenant, queue, state) → tasks in it now."""
        total: dict[tuple[str, str, str], int] = {}
        for fields in await self._hashes("counts"):
            for field, value in fields.items():
                tenant, _, rest = field.partition(":")
                queue, _, state = rest.partition(":")
                if state in STATES:
                    total[tenant, queue, state] = total.get((tenant, queue, state), 0) + int(value)
        return total

    async def totals(self) -> dict[str, int]:
        """``queue:STATE`` → moves into it since ever, and the ``stray:`` and ``illegal:`` finds."""
        total: dict[str, int] = {}
        for fields in await self._hashes("stats"):
            for field, value in fields.items():
                total[field] = total.get(field, 0) + int(value)
        return total

    async def _hashes(self, name: Literal["counts", "stats"]) -> list[dict[str, str]]:
        found = await self._gateway.pipeline(
            [("HGETALL", getattr(k, name)) for k in self.store.keys]
        )
        return [_fields(raw) for raw in found]

    async def waiting(self, task: Task) -> dict[str, Any]:
        """What stands where a waiting task waits: why parked, full, live route, entries ahead, now.

        ``parked`` and ``lane_parked``: the reason of the stream, and of the tenant's lane, as
        ``lua/lib/park.lua`` writes it. ``held``: it waits for a permit of its concurrency key.
        """
        keys = self.store.keys[_shard(task.id, self.store)]
        lane = f"{task.queue}:{task.priority}:{task.tenant}:{task.target.route}"
        stream = f"{task.queue}:{task.priority}:{task.target.route}"
        found = await self._gateway.pipeline(
            [
                ("TIME",),
                ("HGET", keys.clock, "seen_ms"),
                ("ZSCORE", keys.routes, task.target.route),
                ("HGET", keys.parked_why, stream),
                ("HGET", keys.parked_why, lane),
                ("HGET", keys.task(task.id), "held"),
                ("SISMEMBER", keys.full, stream),
                ("ZRANK", keys.due(lane), task.id),
                ("XLEN", keys.ready(stream)),
            ]
        )
        now, seen, live, stream_why, lane_why, held, full, rank, length = found
        now_ms = max(int(now[0]) * 1000 + int(now[1]) // 1000, int(seen or 0))
        return {
            "now_ms": self.store.now_ms or now_ms,
            "live": live is not None and float(live) > (self.store.now_ms or now_ms),
            "parked": (stream_why or b"").decode(),
            "lane_parked": (lane_why or b"").decode(),
            "held": held is not None,
            "full": bool(full),
            "ahead": rank,
            "in_stream": length,
        }

    async def served(self, task: Task) -> list[str]:
        """The routes of the task's handler, in any version, that live workers serve now."""
        if not isinstance(task.target, HandlerTarget):
            return []
        keys = self.store.keys[_shard(task.id, self.store)]
        now = await self.now_ms()
        found = await self._gateway.command("ZRANGE", keys.routes, f"({now}", "+inf", "BYSCORE")
        routes = sorted(raw.decode() for raw in found)
        return [route for route in routes if route.partition("@")[0] == task.target.name]

    async def members(self, kind: Literal["workers", "schedulers"]) -> list[str]:
        """The workers or schedulers that live, by their own word."""
        key = getattr(self.store.global_keys, kind)
        now = await self.now_ms()
        found = await self._gateway.command("ZRANGE", key, now, "+inf", "BYSCORE")
        return [name.decode() for name in found]

    async def workers(self) -> list[dict[str, str]]:
        """One dict per live worker: what it says about itself."""
        names = await self.members("workers")
        keys = [self.store.global_keys.worker(name) for name in names]
        found = await self._gateway.pipeline([("HGETALL", key) for key in keys]) if keys else []
        return [{"worker": n, **_fields(raw)} for n, raw in zip(names, found, strict=True) if raw]

    async def now_ms(self) -> int:
        """The server's time."""
        if self.store.now_ms:
            return self.store.now_ms
        seconds, micros = await self._gateway.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


def _shard(task_id: str, store: Store) -> int:
    shard = shard_of(task_id, store.shards)
    if shard is None:
        raise TaskschedError(f"{task_id} is no task id")
    return shard


def _entries(found: Sequence[bytes]) -> list[Entry]:
    return [Entry(_score(found[n + 1]), found[n].decode()) for n in range(0, len(found), 2)]


def _score(raw: bytes) -> int:
    """A time; NEVER_MS stands for the infinite score of what has none."""
    score = float(raw)
    return NEVER_MS if score == math.inf else int(score)


def _fields(raw: Any) -> dict[str, str]:
    """A hash reply as text."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in pairs_of(raw)}


def _line(entry: str, fields: dict[str, str]) -> Line:
    return Line(entry, int(fields["ms"]), int(fields["attempt"]), fields["text"])


def _int(raw: bytes | None) -> int | None:
    return None if raw is None else int(raw)


def _error(raw: bytes | str | None) -> ErrorInfo | None:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=ErrorInfo)
    except msgspec.DecodeError:
        return ErrorInfo("Unreadable", repr(raw[:200]))


def task_of(task_id: str, raw: dict[str, Any]) -> Task:
    """The record as a value. Payload and result stay bytes: a broken one harms nobody here."""
    queue, priority, tenant, route = raw["lane"].decode().split(":")
    options = decode_options(raw["options"]) if raw["options"] else DEFAULT_OPTIONS
    error = _error(raw["error"])
    attempt = int(raw["attempt"] or 0)
    return Task(
        id=task_id,
        status=raw["state"].decode(),
        version=int(raw["version"] or 1),
        tenant=tenant,
        queue=queue,
        priority=priority,
        target=target_of(route, options),
        created_ms=int(raw["created_ms"]),
        due_ms=int(raw["due_ms"]),
        attempts=attempt - int(raw["uncounted"] or 0),
        life=int(raw["life"] or 1),
        payload=raw.get("payload"),
        result=raw.get("result"),
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        lease_ms=_int(raw["lease_ms"]),
        expires_at_ms=_int(raw["expires_ms"]),
        tags=options.tags,
        notify=options.notify,
        delivery=options.delivery,
        concurrency=options.concurrency,
        traceparent=options.traceparent,
        fingerprint=raw["failure"].decode() if raw["failure"] else None,
        postponed=raw["postponed"].decode() if raw["postponed"] else None,
        is_deferred=raw["deferred"] is not None and raw["state"] == b"RUNNING",
        reason=raw["reason"].decode() if raw["reason"] else None,
        error=error if raw["state"] != b"SUCCESS" else None,
        cancel_requested=raw["cancel_requested"] == b"1",
        progress=msgspec.json.decode(raw["progress"]) if raw["progress"] else None,
        queued_ms=_int(raw["queued_ms"]),
        finished_ms=_int(raw["finished_ms"]),
        last_attempt=_last_attempt(attempt, raw, error) if attempt else None,
        schedule=raw["schedule"].decode() if raw["schedule"] else None,
        nominal_ms=_int(raw["nominal_ms"]),
        missed=int(raw["missed"] or 0),
    )


def _last_attempt(number: int, raw: dict[str, Any], error: ErrorInfo | None) -> Attempt:
    outcome = raw["outcome"].decode() if raw["outcome"] else None
    return Attempt(
        attempt=number,
        fence=int(raw["fence"]),
        worker=raw["worker"].decode(),
        started_ms=int(raw["started_ms"]),
        ended_ms=_int(raw["ended_ms"]),
        outcome=outcome,
        error=error if outcome not in {None, "SUCCEEDED", "RELEASED"} else None,
    )


def _archived(raw: dict[str, str]) -> Attempt:
    outcome: Any = raw["outcome"]
    return Attempt(
        attempt=int(raw["attempt"]),
        fence=int(raw["fence"]),
        worker=raw["worker"],
        started_ms=int(raw["started_ms"]),
        ended_ms=int(raw["ended_ms"]),
        outcome=outcome,
        error=_error(raw.get("error")) if outcome not in {"SUCCEEDED", "RELEASED"} else None,
    )
