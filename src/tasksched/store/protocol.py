"""Store: the protocol at a glance. One typed method per Lua script; replies become values.

Methods take a shard number and rows, and say nothing about HTTP, retries of tasks or time zones.
``now_ms`` is 0 in production (the server's clock); tests pass an integer.
"""

import secrets
from collections.abc import Iterable, Sequence

import msgspec

from tasksched.model.fingerprint import fingerprint_of
from tasksched.model.outcome import Outcome
from tasksched.model.task import TaskSpec
from tasksched.store.connect import Gateway
from tasksched.store.keys import NamespaceKeys, ShardKeys
from tasksched.store.replies import (
    Beat,
    Changed,
    Dispatched,
    Edit,
    Grant,
    Overdue,
    Release,
    Swept,
    beat_rows,
    changed_of,
    dispatched_of,
    grant_of,
    opt,
    overdue_of,
    target_of,
    words_of,
)
from tasksched.store.scripts import Arg

__all__ = [
    "BATCH_MAX", "BYTES_MAX", "DISPATCH_MAX", "SUBMIT_MAX", "Beat", "Changed", "Dispatched", "Edit",
    "Grant", "Overdue", "Release", "Store", "Swept", "beat_rows", "changed_of", "new_op", "opt", "target_of",
]  # fmt: skip

SUBMIT_MAX = 200
BATCH_MAX = 128
DISPATCH_MAX = 200
BYTES_MAX = 1 << 20

_encode_json = msgspec.json.Encoder().encode


def new_op() -> str:
    """A name for one call, which its replays share."""
    return secrets.token_hex(6)


class Store:
    """The scripts of one namespace. ``shards`` is fixed when the namespace is made."""

    def __init__(
        self,
        gateway: Gateway,
        namespace: str,
        shards: int,
        *,
        now_ms: int = 0,
        secret: bytes = b"",
    ) -> None:
        self.secret = secret  # of the namespace: callback tokens are made with it
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
        ``exists``, ``reused``, ``gone``, ``quota``. Safe to repeat.
        """
        assert 0 < len(tasks) <= SUBMIT_MAX, len(tasks)
        rows = [
            (
                task_id, spec.lane, spec.due, spec.payload, spec.options, fingerprint,
                opt(spec.expires_at_ms), opt(spec.lease_ms), spec.wants, spec.permit_key,
            )
            for task_id, spec, fingerprint in tasks
        ]  # fmt: skip
        reply = await self.gateway.run("submit", self._values(shard), rows)
        words = {reply[n] - 1: reply[n + 1].decode() for n in range(1, len(reply), 2)}
        return reply[0], words

    async def deliver(self, shard: int, tenant: str, rows: Sequence[tuple[str, str, bytes]]) -> int:
        """Make (id, options, payload)s on the reserved queue; how many were not there before."""
        values = self._values(shard, tenant=tenant)
        return int(await self.gateway.run("deliver", values, list(rows)))

    # Each call of these four has a name of its own, which its replays share.

    async def cancel(
        self, shard: int, task_id: str, tenant: str, version: int | None, *, op: str = ""
    ) -> Changed:
        values = self._values(
            shard, id=task_id, tenant=tenant, version=opt(version), op=op or new_op()
        )
        return changed_of(await self.gateway.run("cancel", values))

    async def run_now(
        self, shard: int, task_id: str, tenant: str, version: int | None, *, op: str = ""
    ) -> Changed:
        values = self._values(
            shard, id=task_id, tenant=tenant, version=opt(version), op=op or new_op()
        )
        return changed_of(await self.gateway.run("run_now", values))

    async def redrive(
        self,
        shard: int,
        task_id: str,
        tenant: str,
        version: int | None,
        edit: Edit | None = None,
        *,
        op: str = "",
    ) -> Changed:
        """A new life, with these changes. Words: redriven, missing, version, state."""
        edit = edit or Edit()
        values = self._values(
            shard,
            id=task_id,
            tenant=tenant,
            version=opt(version),
            due=edit.due or "+0",
            op=op or new_op(),
            **edit.values(),
        )
        return changed_of(await self.gateway.run("redrive", values))

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
        """Words: edited, missing, version, state."""
        values = self._values(
            shard,
            id=task_id,
            tenant=tenant,
            version=opt(version),
            due=edit.due or "",
            op=op or new_op(),
            **edit.values(),
        )
        return changed_of(await self.gateway.run("edit", values))

    async def purge(
        self,
        shard: int,
        tenant: str,
        tasks: Sequence[tuple[str, int | None]],
        *,
        keyed_ms: int,
        unkeyed_ms: int,
        op: str = "",
    ) -> list[str]:
        """Remove finished tasks, by id and the version that is meant (None: whichever).

        Words: ``purged``, ``missing``, ``state``, ``version``.
        """
        values = self._values(
            shard, tenant=tenant, keyed_ms=keyed_ms, unkeyed_ms=unkeyed_ms, op=op or new_op()
        )
        rows = [(task_id, opt(version)) for task_id, version in tasks]
        return words_of(await self.gateway.run("purge", values, rows))

    async def forget(self, shard: int, tenant: str, queues: Iterable[str]) -> str:
        """Drop what a shard remembers of a tenant without tasks. Words: ``forgotten``, ``busy``."""
        values: dict[str, Arg] = {"clock": self.keys[shard].clock, "tenant": tenant}
        rows = [(queue,) for queue in sorted({"default", *queues})]
        for first in range(0, len(rows), BATCH_MAX):
            word = b"more"
            while word == b"more":
                word = await self.gateway.run("forget", values, rows[first : first + BATCH_MAX])
            if word == b"busy":
                return "busy"
        return "forgotten"

    # -- schedulers -----------------------------------------------------------------------------

    async def dispatch(self, shard: int, limit: int = DISPATCH_MAX) -> Dispatched:
        reply = await self.gateway.run("dispatch", self._values(shard, limit=limit))
        return dispatched_of(reply)

    async def expire(self, shard: int) -> tuple[int, int]:
        """Fail what expired before its first start: how many, and when the next one is due to."""
        reply = await self.gateway.run("expire", self._values(shard))
        return reply[0], reply[1]

    async def overdue(self, shard: int, limit: int = BATCH_MAX) -> tuple[bool, list[Overdue]]:
        """Whether leases are held (an outage just ended), and what must be looked at."""
        reply = await self.gateway.run("overdue", self._values(shard, limit=limit))
        held = reply[1] > reply[0]
        return held, [overdue_of(row) for row in reply[2:]]

    async def reap(self, shard: int, lost: Sequence[tuple[str, str, Outcome]]) -> list[str]:
        """End (id, fence, outcome)s, LOST or TIMED_OUT. Words: the state now, ``stale``, ``alive``."""
        rows = [
            (
                task_id, fence, outcome.kind, opt(outcome.retry_ms), outcome.reason,
                _encode_json(outcome.error), _failure(outcome),
            )
            for task_id, fence, outcome in lost
        ]  # fmt: skip
        return words_of(await self.gateway.run("reap", self._values(shard), rows))

    async def reclaim(self, shard: int, task_ids: Sequence[str]) -> list[str]:
        """Words: ``PENDING`` (back in the index), ``waits``, ``stray``."""
        rows = [(task_id,) for task_id in task_ids]
        return words_of(await self.gateway.run("reclaim", self._values(shard), rows))

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
        return words_of(await self.gateway.run("enlist", values, patience_ms=patience_ms))

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
        return now_ms, reply[1] == 1, [grant_of(row, now_ms) for row in reply[2:]]

    async def heartbeat(self, shard: int, beats: Sequence[Beat]) -> list[str]:
        """Words: ``ok``, ``cancel``, ``stale``."""
        return words_of(await self.gateway.run("heartbeat", self._values(shard), beat_rows(beats)))

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
                _failure(outcome),
            )
            for task_id, fence, outcome in ends
        ]  # fmt: skip
        reply = await self.gateway.run("settle", self._values(shard), rows, patience_ms=patience_ms)
        return words_of(reply)

    async def release(self, shard: int, runs: Sequence[Release | tuple[str, str]]) -> list[str]:
        """Hand runs back, at once or after a wait. Words as ``settle``."""
        rows = [(r.id, r.fence, opt(r.wait_ms), r.why) for r in (Release(*run) for run in runs)]
        return words_of(await self.gateway.run("release", self._values(shard), rows))

    async def defer(self, shard: int, runs: Sequence[tuple[str, str, int]]) -> list[str]:
        """Leave (id, fence, lease_ms)s to their callbacks. Words: the state now, ``stale``."""
        return words_of(await self.gateway.run("defer", self._values(shard), list(runs)))

    async def lines(self, shard: int, said: Sequence[tuple[str, str, int, str]]) -> list[str]:
        """Append (id, fence, seq, text)s to the logs of their tasks. Words: ``ok``, ``stale``."""
        return words_of(await self.gateway.run("lines", self._values(shard), list(said)))

    async def checkpoint(self, shard: int, task_id: str, fence: str, value: bytes) -> bool:
        """Keep a value for the next attempt; False where the run is not the current one."""
        values = self._values(shard, id=task_id, fence=fence, value=value)
        return bool(await self.gateway.run("checkpoint", values) == b"ok")

    # -- settings -------------------------------------------------------------------------------

    async def put_record(
        self, home: str, field: str, value: bytes, *, expected: int | None = None
    ) -> Changed:
        """Write (or, empty, remove) a versioned record. Words: kept, removed, version, missing."""
        values: dict[str, Arg] = {
            "home": home, "field": field, "expected": opt(expected), "value": value,
        }  # fmt: skip
        word, version = await self.gateway.run("put_record", values)
        return Changed(word.decode(), "", version)

    async def configure(self, shard: int, settings: Sequence[tuple[str, str]]) -> int:
        """Copy (field, "version text")s of the home record to a shard; how many were newer."""
        values: dict[str, Arg] = {"clock": self.keys[shard].clock}
        return int(await self.gateway.run("configure", values, list(settings)))


def _failure(outcome: Outcome) -> str:
    """The fingerprint that groups a final failure with its like."""
    if outcome.retry_ms is not None or outcome.error is None or not outcome.reason:
        return ""
    return fingerprint_of(outcome.error)
