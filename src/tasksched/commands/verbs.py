"""Verbs: what an operation does to the tasks of one planned batch.

Each call carries a name made of the operation and the task, and the version that was planned where a
second time would do harm: so a batch that is done again, because the process that did it died before it
could say so, moves nothing twice and is counted alike. Invariant: what has moved on since it was planned
and is not asked for any more stays as it is, unless it was this operation that moved it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tasksched.commands.removal import Memory, Removal
from tasksched.commands.tasks import UNSET, Changes, edit_of
from tasksched.errors import Conflict, Invalid, NotFound, PreconditionFailed
from tasksched.model.ids import shard_of
from tasksched.model.operation import Operation
from tasksched.model.retry import Retry
from tasksched.model.task import Task
from tasksched.store.protocol import BATCH_MAX, Store
from tasksched.store.reads import Reads

TRIES: Final = 5
AT_ONCE: Final = 16
"""So many tasks of a batch are in flight together."""

BULK_FIELDS: Final = (
    "run_at_ms", "delay_ms", "queue", "priority", "retry", "timeout_ms", "lease_ms",
    "expires_at_ms", "tags", "concurrency_key", "concurrency_limit",
)  # fmt: skip
"""What many tasks can have changed together: no payload and no target, which are each task's own."""


class Tally(NamedTuple):
    """How a batch ended: done, or left as it was."""

    done: int = 0
    skipped: int = 0


Ends = dict[str, bool | None]
"""Task → whether it was done; None for one that this operation did before and met again."""


def tally_of(ends: Ends) -> Tally:
    found = list(ends.values())
    return Tally(found.count(True), found.count(False))


def packed(changes: Changes) -> dict[str, Any]:
    """Changes for many tasks, as a record holds them. Raises Invalid for what cannot be for many."""
    found: dict[str, Any] = {}
    for name in Changes.__struct_fields__:
        value = getattr(changes, name)
        if value is UNSET:
            continue
        if name not in BULK_FIELDS:
            raise Invalid(f"{name} cannot be changed for many tasks", f"/changes/{name}")
        found[name] = value.to_json() if isinstance(value, Retry) else value
    return found


def unpacked(fields: Mapping[str, Any]) -> Changes:
    found = dict(fields)
    if "retry" in found:
        found["retry"] = Retry.parse(found["retry"], "/changes/retry")
    if "tags" in found:
        found["tags"] = tuple(found["tags"])
    return Changes(**found)


class _One(NamedTuple):
    """One task of a batch. ``again``: it may have been done before, by somebody who died."""

    operation: Operation
    task_id: str
    version: int
    again: bool

    @property
    def op(self) -> str:
        return f"{self.operation.id}-{self.task_id}"


class Verbs:
    """Applies operations to tasks of one namespace."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store = store
        self._reads = Reads(store)
        self._removal = Removal(store, memory)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def apply(self, operation: Operation, ends: Ends, *, again: bool) -> None:
        """Does the batch. ``again``: see ``_One``. Raises what stood in the way of any of it.

        ``ends`` hears of each task as it ends, so that it knows the half of a batch too.
        """
        if operation.kind == "purge":
            await self._purge(operation, ends, again=again)
            return
        each = {"redrive": self._redrive, "cancel": self._cancel, "edit": self._edit,
                "delete": self._delete}[operation.kind]  # fmt: skip

        async def one(task_id: str, version: int) -> None:
            async with self._slots:
                ends[task_id] = await each(_One(operation, task_id, version, again))

        jobs = [one(*planned) for planned in operation.batch]
        for failed in await asyncio.gather(*jobs, return_exceptions=True):
            if failed is not None:
                raise failed

    async def _purge(self, operation: Operation, ends: Ends, *, again: bool) -> None:
        by_shard: defaultdict[int, list[str]] = defaultdict(list)
        for task_id, _ in operation.batch:
            by_shard[_shard(task_id, self._store)].append(task_id)
        gone = {"purged", "missing"} if again else {"purged"}
        for ids in by_shard.values():
            for first in range(0, len(ids), BATCH_MAX):
                rows = ids[first : first + BATCH_MAX]
                words = await self._removal.purge(
                    operation.tenant, rows, op=operation.id, versions=dict(operation.batch)
                )
                ends |= {task_id: word in gone for task_id, word in words.items()}

    # Each answers whether it was done; None for a task that this operation did before and met again.

    async def _redrive(self, one: _One) -> bool | None:
        shard, tenant = _shard(one.task_id, self._store), one.operation.tenant
        changed = await self._store.redrive(shard, one.task_id, tenant, one.version, op=one.op)
        if changed.word == "redriven" and changed.version == one.version and not one.again:
            return None
        return changed.word == "redriven"

    async def _cancel(self, one: _One) -> bool | None:
        shard, tenant = _shard(one.task_id, self._store), one.operation.tenant
        version = one.version
        for _ in range(TRIES):
            changed = await self._store.cancel(shard, one.task_id, tenant, version, op=one.op)
            if changed.word != "version":
                return changed.word in {"cancelled", "requested"}
            task = await self._asked_for(one)
            if task is None:
                return False
            version = task.version
        return False

    async def _edit(self, one: _One) -> bool | None:
        shard, tenant = _shard(one.task_id, self._store), one.operation.tenant
        changes = unpacked(one.operation.changes or {})
        for _ in range(TRIES):
            task = await self._asked_for(one)
            if task is None:
                return False
            if _lacks_key(task, changes):
                return False
            edit = edit_of(task, changes)
            changed = await self._store.edit(
                shard, one.task_id, tenant, task.version, edit, op=one.op
            )
            if changed.word == "edited":
                # The same version: it has been edited before, and stands where that moved it.
                before = one.version if one.again else task.version
                return True if changed.version != before else None
            if changed.word != "version":
                return False
        return False

    async def _delete(self, one: _One) -> bool | None:
        tenant = one.operation.tenant
        for _ in range(TRIES):
            task = await self._asked_for(one)
            if task is None:
                return one.again and await self._reads.task(one.task_id, bodies=False) is None
            try:
                await self._removal.delete(tenant, one.task_id, version=task.version, op=one.op)
            except PreconditionFailed:
                continue
            except NotFound:
                return one.again
            except Conflict:
                return False
            return True
        return False

    async def _asked_for(self, one: _One) -> Task | None:
        """The task as it is, if it is still one of those, or is none because this operation moved it."""
        task = await self._reads.task(one.task_id, bodies=False)
        if task is None or task.tenant != one.operation.tenant:
            return None
        if one.operation.filter.matches(task):
            return task
        is_ours = one.again and await self._reads.last_op(one.task_id) == one.op
        return task if is_ours else None


def _lacks_key(task: Task, changes: Changes) -> bool:
    """Whether a limit is asked for, and the task has no concurrency key that it could be of."""
    is_alone = changes.concurrency_key is UNSET and changes.concurrency_limit is not UNSET
    return is_alone and task.concurrency is None


def _shard(task_id: str, store: Store) -> int:
    shard = shard_of(task_id, store.shards)
    assert shard is not None, task_id
    return shard
