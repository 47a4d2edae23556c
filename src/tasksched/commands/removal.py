"""Removal: tasks leave by hand, before retention would take them.

What has finished is removed at once; what waits is cancelled first, so that its followers hear of it;
what runs stays. An idempotency key stays used for as long as it would have been.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tasksched.errors import Conflict, NotFound, PreconditionFailed
from tasksched.model.ids import shard_of
from tasksched.model.states import FINAL
from tasksched.settings import Settings
from tasksched.store.protocol import BATCH_MAX, Store
from tasksched.store.reads import Reads

TRIES: Final = 5


class Memory(NamedTuple):
    """How long a key, and an id without one, is remembered after the creation."""

    keyed_ms: int
    unkeyed_ms: int

    @classmethod
    def of(cls, settings: Settings) -> "Memory":
        return cls(settings.key_memory_ms, settings.id_memory_ms)


class Removal:
    """Removes tasks of one namespace. Cheap to make."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store = store
        self._memory = memory
        self._reads = Reads(store)

    async def delete(
        self, tenant: str, task_id: str, *, version: int | None = None, op: str = ""
    ) -> None:
        """Removes the task. Raises NotFound, PreconditionFailed, or Conflict where it runs."""
        for _ in range(TRIES):
            task = await self._reads.task(task_id, bodies=False)
            if task is None or task.tenant != tenant:
                raise NotFound(f"no task {task_id}", task_id=task_id)
            if version is not None and version != task.version:
                raise PreconditionFailed(
                    f"the version is {task.version}", version=task.version, task_status=task.status
                )
            if task.status == "RUNNING":
                raise Conflict(
                    f"task {task_id} runs: cancel it first", task_id=task_id, task_status="RUNNING"
                )
            if task.status not in FINAL:
                shard = self._shard(task_id)
                changed = await self._store.cancel(shard, task_id, tenant, task.version, op=op)
                if changed.word != "cancelled":
                    continue  # it was dispatched or started in between
            words = await self.purge(tenant, [task_id], op=op)
            if words[task_id] != "state":
                return
        raise Conflict(f"task {task_id} changes faster than it can be deleted", task_id=task_id)

    async def purge(
        self,
        tenant: str,
        task_ids: Sequence[str],
        *,
        op: str = "",
        versions: Mapping[str, int] | None = None,
    ) -> dict[str, str]:
        """Id → ``purged``, ``missing``, ``state`` (it has not finished), or ``version``.

        ``versions``: of those the only version that is meant.
        """
        by_shard: defaultdict[int, list[str]] = defaultdict(list)
        for task_id in task_ids:
            by_shard[self._shard(task_id)].append(task_id)
        found: dict[str, str] = {}
        for shard, mine in by_shard.items():
            for first in range(0, len(mine), BATCH_MAX):
                rows = mine[first : first + BATCH_MAX]
                name = op and f"{op}-{rows[0]}"
                meant = [(task_id, (versions or {}).get(task_id)) for task_id in rows]
                words = await self._store.purge(
                    shard, tenant, meant, op=name, **self._memory._asdict()
                )
                found |= zip(rows, words, strict=True)
        return found

    def _shard(self, task_id: str) -> int:
        shard = shard_of(task_id, self._store.shards)
        if shard is None:
            raise NotFound(f"no task {task_id}", task_id=task_id)
        return shard
