"""Store: the protocol at a glance. One typed method per Lua script; replies become values.

Methods take a shard number and rows, and say nothing about HTTP, retries of tasks or time zones.
``now_ms`` is 0 in production (the server's clock); tests pass an integer.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from tasksched.model.outcome import Outcome
from tasksched.model.task import (
    DEFAULT_OPTIONS,
    HTTP_ROUTE,
    HandlerTarget,
    Options,
    Target,
    TaskSpec,
    decode_options,
)
from tasksched.store.connect import Gateway
from tasksched.store.keys import NamespaceKeys, ShardKeys
from tasksched.store.scripts import Arg

SUBMIT_MAX = 200
BATCH_MAX = 128
DISPATCH_MAX = 200
BYTES_MAX = 1 << 20

_encode_json = msgspec.json.Encoder().encode


class Grant(NamedTuple):
    """One started run, as ``take`` grants it."""

    id: str
    fence: str
    attempt: int
    lane: str
    due_ms: int
    created_ms: int
    started_ms: int
    payload: bytes | None
    options: Options
    lease_ms: int | None
    uncounted: int
    lost: int
    nominal_ms: int | None = None

    @property
    def attempts(self) -> int:
        """Attempts that count in this life, this one included."""
        return self.attempt - self.uncounted

    @property
    def route(self) -> str:
        return self.lane.rsplit(":", 1)[1]


class Dispatched(NamedTuple):
    now_ms: int
    moved: int
    again_ms: int  # call again then; -1 = when woken
    expired: int
    watch_ms: int  # the watch index wants a look then; -1 = never
    owed_ms: int  # a schedule owes something then; -1 = none


class Overdue(NamedTuple):
    id: str
    state: str
    fence: str
    options: Options
    attempts: int
    lost: int
    worker: str


class Changed(NamedTuple):
    """The answer of a verb on one task: what happened, and the state and version it has now."""

    word: str
    state: str = ""
    version: int = 0


class Swept(NamedTuple):
    next: str
    removed: int
    watched: int
    consumers: int


class Beat(NamedTuple):
    """One live run in a heartbeat."""

    id: str
    fence: str
    lease_ms: int
    timeout_ms: int | None = None
    progress: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit changes; None leaves a field alone. Strings are as ``lua/edit.lua`` reads them."""

    lane: str | None = None
    due: str | None = None
    payload: bytes | None = None
    options: str | None = None
    expires_at_ms: int | None = None
    expires_never: bool = False
    lease_ms: int | None = None


def _new_op() -> str:
    return secrets.token_hex(6)


def opt(value: int | None) -> Arg:
    return "" if value is None else value


def target_of(route: str, options: Options) -> Target:
    """The target of a record: the request of an HTTP one, else the handler of its route."""
    if route == HTTP_ROUTE and options.http is not None:
        return options.http
    name, _, version = route.partition("@")
    return HandlerTarget(name, version or None)


class Store:
    """The scripts of one namespace. ``shards`` is fixed when the namespace is made."""

    def __init__(self, gateway: Gateway, namespace: str, shards: int, *, now_ms: int = 0) -> None:
        self.gateway = gateway
        self.namespace = namespace
        self.shards = shards
        self.now_ms = now_ms
        self.keys = [ShardKeys.of(namespace, number) for number in range(shards)]
        self.global_keys = NamespaceKeys(namespace)

    def _values(self, shard: int, **values: Arg) -> dict[str, Arg]:
        return {"clock": self.keys[shard].clock, "now_ms": self.now_ms, **values}

    # -- producers ------------------------------------------------------------------------------

    async def submit(
        self, shard: int, tasks: Sequence[tuple[str, TaskSpec, str]]
    ) -> tuple[int, dict[int, str]]:
        """Create (id, spec, fingerprint)s of one shard, at most SUBMIT_MAX.

        Returns the server's now and, for each row that made no task, the word why:
        ``exists``, ``reused``, ``gone``. Safe to repeat.
        """
        assert 0 < len(tasks) <= SUBMIT_MAX, len(tasks)
        rows = [
            (
                task_id, spec.lane, spec.due, spec.payload, spec.options, fingerprint,
                opt(spec.expires_at_ms), opt(spec.lease_ms),
            )
            for task_id, spec, fingerprint in tasks
        ]  # fmt: skip
        reply = await self.gateway.run("submit", self._values(shard), rows)
        words = {reply[n] - 1: reply[n + 1].decode() for n in range(1, len(reply), 2)}
        return reply[0], words

    # Each call of these four has a name of its own, which its replays share.

    async def cancel(
        self, shard: int, task_id: str, tenant: str, version: int | None, *, op: str = ""
    ) -> Changed:
        values = self._values(
            shard, id=task_id, tenant=tenant, version=opt(version), op=op or _new_op()
        )
        return _changed(await self.gateway.run("cancel", values))

    async def run_now(
        self, shard: int, task_id: str, tenant: str, version: int | None, *, op: str = ""
    ) -> Changed:
        values = self._values(
            shard, id=task_id, tenant=tenant, version=opt(version), op=op or _new_op()
        )
        return _changed(await self.gateway.run("run_now", values))

    async def redrive(
        self,
        shard: int,
        task_id: str,
        tenant: str,
        version: int | None,
        due: str = "+0",
        *,
        op: str = "",
    ) -> Changed:
        values = self._values(
            shard, id=task_id, tenant=tenant, version=opt(version), due=due, op=op or _new_op()
        )
        return _changed(await self.gateway.run("redrive", values))

    async def edit(
        self,
        shard: int,
        task_id: str,
        tenant: str,
        version: int | None,
        edit: Edit,
        *,
        op: str = "",
    ) -> Changed:
        expires: Arg = "=" if edit.expires_never else ""
        if edit.expires_at_ms is not None:
            expires = f"={edit.expires_at_ms}"
        values = self._values(
            shard,
            id=task_id,
            tenant=tenant,
            version=opt(version),
            lane=edit.lane or "",
            due=edit.due or "",
            payload=b"" if edit.payload is None else b"=" + edit.payload,
            options="" if edit.options is None else f"={edit.options}",
            expires=expires,
            lease="" if edit.lease_ms is None else f"={edit.lease_ms}",
            op=op or _new_op(),
        )
        return _changed(await self.gateway.run("edit", values))

    # -- schedulers -----------------------------------------------------------------------------

    async def dispatch(self, shard: int, limit: int = DISPATCH_MAX) -> Dispatched:
        reply = await self.gateway.run("dispatch", self._values(shard, limit=limit))
        return Dispatched(*reply)

    async def overdue(self, shard: int, limit: int = BATCH_MAX) -> tuple[bool, list[Overdue]]:
        """Whether leases are held (an outage just ended), and what must be looked at."""
        reply = await self.gateway.run("overdue", self._values(shard, limit=limit))
        held = reply[1] > reply[0]
        return held, [_overdue(row) for row in reply[2:]]

    async def reap(self, shard: int, lost: Sequence[tuple[str, str, Outcome]]) -> list[str]:
        """End (id, fence, LOST outcome)s. Words: the state now, ``stale``, ``alive``."""
        rows = [
            (task_id, fence, opt(outcome.retry_ms), _encode_json(outcome.error))
            for task_id, fence, outcome in lost
        ]
        return _words(await self.gateway.run("reap", self._values(shard), rows))

    async def reclaim(self, shard: int, task_ids: Sequence[str]) -> list[str]:
        """Words: ``PENDING`` (back in the index), ``waits``, ``stray``."""
        rows = [(task_id,) for task_id in task_ids]
        return _words(await self.gateway.run("reclaim", self._values(shard), rows))

    async def sweep(self, shard: int, stream: str, start: str, limit: int = BATCH_MAX) -> Swept:
        values = {**self._values(shard, stream=stream, limit=limit), "from": start}
        reply = await self.gateway.run("sweep", values)
        return Swept(reply[0].decode(), *reply[1:])

    async def prune(self, shard: int, tenant: str, **limits: int) -> tuple[int, bool]:
        """Tasks removed, and whether more could be. ``limits``: see ``lua/prune.lua``."""
        reply = await self.gateway.run("prune", self._values(shard, tenant=tenant, **limits))
        return reply[0], bool(reply[1])

    async def enlist(
        self, members: str, member: str, ttl_ms: int, *, patience_ms: int | None = None
    ) -> list[str]:
        """Say that ``member`` lives for ``ttl_ms`` more (0 = it leaves); returns who lives."""
        values: dict[str, Arg] = {
            "members": members,
            "now_ms": self.now_ms,
            "member": member,
            "ttl_ms": ttl_ms,
        }
        return _words(await self.gateway.run("enlist", values, patience_ms=patience_ms))

    # -- workers --------------------------------------------------------------------------------

    async def announce(self, shard: int, worker: str, ttl_ms: int, serves: Sequence[str]) -> int:
        """Say what the worker serves; returns the streams that came back from the parked ones."""
        values = self._values(shard, worker=worker, ttl_ms=ttl_ms)
        reply = await self.gateway.run("announce", values, [(what,) for what in serves])
        return int(reply[1])

    async def take(
        self, shard: int, worker: str, *, call: int, slots: int, lease_ms: int
    ) -> tuple[int, bool, list[Grant]]:
        """The server's now, whether more may wait, and the started runs. Safe to repeat by call."""
        values = self._values(shard, worker=worker, call=call, slots=slots, lease_ms=lease_ms)
        reply = await self.gateway.run("take", values)
        now_ms = reply[0]
        return now_ms, reply[1] == 1, [_grant(row, now_ms) for row in reply[2:]]

    async def heartbeat(self, shard: int, beats: Sequence[Beat]) -> list[str]:
        """Words: ``ok``, ``cancel``, ``stale``."""
        return _words(await self.gateway.run("heartbeat", self._values(shard), beat_rows(beats)))

    async def settle(
        self,
        shard: int,
        ends: Sequence[tuple[str, str, Outcome]],
        *,
        patience_ms: int | None = None,
    ) -> list[str]:
        """Record (id, fence, outcome)s. Words: the state now, ``stale``, ``conflict``."""
        rows = [
            (
                task_id, fence, outcome.kind, opt(outcome.retry_ms), outcome.reason,
                b"" if outcome.error is None else _encode_json(outcome.error), outcome.result,
            )
            for task_id, fence, outcome in ends
        ]  # fmt: skip
        reply = await self.gateway.run("settle", self._values(shard), rows, patience_ms=patience_ms)
        return _words(reply)

    async def release(self, shard: int, runs: Sequence[tuple[str, str]]) -> list[str]:
        return _words(await self.gateway.run("release", self._values(shard), list(runs)))


def beat_rows(beats: Sequence[Beat]) -> list[tuple[Arg, ...]]:
    """Rows of ``lua/heartbeat.lua``; the heartbeat thread sends them on a connection of its own."""
    return [(b.id, b.fence, b.lease_ms, opt(b.timeout_ms), b.progress) for b in beats]


def _words(reply: list[bytes]) -> list[str]:
    return [word.decode() for word in reply]


def _changed(reply: list[Any]) -> Changed:
    if len(reply) == 1:
        return Changed(reply[0].decode())
    return Changed(reply[0].decode(), reply[1].decode(), reply[2])


def _options(raw: bytes | None) -> Options:
    return decode_options(raw) if raw else DEFAULT_OPTIONS


def _grant(row: list[Any], now_ms: int) -> Grant:
    """One row of ``take``. By position and without detours: it is made for every task that runs."""
    (
        _,
        _,
        lane,
        due_ms,
        created_ms,
        attempt,
        fence,
        raw,
        payload,
        lease,
        uncounted,
        lost,
        _,
        id_,
        nominal,
    ) = row
    options = decode_options(raw) if raw else DEFAULT_OPTIONS
    return Grant(
        id_.decode(), fence.decode(), attempt, lane.decode(), int(due_ms), int(created_ms), now_ms,
        payload, options, int(lease) if lease else None, int(uncounted or 0), int(lost or 0),
        int(nominal) if nominal else None,
    )  # fmt: skip


def _overdue(row: list[Any]) -> Overdue:
    if row[1] is None:
        return Overdue(row[0].decode(), "", "", DEFAULT_OPTIONS, 0, 0, "")
    return Overdue(
        id=row[0].decode(),
        state=row[1].decode(),
        fence=(row[2] or b"").decode(),
        options=_options(row[4]),
        attempts=int(row[5] or 0) - int(row[6] or 0),
        lost=int(row[7] or 0),
        worker=(row[8] or b"").decode(),
    )
