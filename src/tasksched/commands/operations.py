"""Operations: what may be asked about bulk operations: begin one, look at them, stop one.

An operation is a record from its first moment, so that nothing is lost where this process dies. A small
one is done before the request is answered, under a lease like any other; a larger one is left to the
schedulers (``commands.operator``). What came after its creation is left alone.
"""

import secrets
from typing import Final

import msgspec

from tasksched.commands.dead_letters import count_tasks
from tasksched.commands.operator import LEASE_MS, Job, new_name, records_of
from tasksched.commands.removal import Memory
from tasksched.commands.tasks import Changes
from tasksched.commands.verbs import Verbs, packed
from tasksched.errors import Conflict, Invalid, NotFound, TooManyRequests
from tasksched.model.filters import Filter
from tasksched.model.operation import RATE_USUAL, Count, Kind, Operation
from tasksched.store.protocol import Store
from tasksched.store.reads import Place, Reads
from tasksched.store.records import Kept

SMALL_MAX: Final = 200
"""Tasks of an operation that is done at once, where its rate allows that within a second."""

RECORDS_MAX: Final = 200
"""Operations on record; the oldest that ended make room."""

OF_TENANT_MAX: Final = 50
"""Operations of one tenant that have not ended."""

STOP_TRIES: Final = 20
BUSY_MS: Final = 5_000


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One verb for every task that matches. ``changes`` belong to ``edit``."""

    kind: Kind
    tenant: str
    filter: Filter
    changes: Changes | None = None
    rate: int = RATE_USUAL


class Operations:
    """The requests about operations. Safe for concurrent use."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store = store
        self._reads = Reads(store)
        self._records = records_of(store)
        self._verbs = Verbs(store, memory)
        self._name = new_name()

    async def count(self, request: Request) -> Count:
        """How many tasks it would be for: a dry run."""
        return await count_tasks(self._store, request.tenant, request.kind, request.filter)

    async def start(self, request: Request) -> Operation:
        """Begins it; a small one has ended when this returns. Raises Invalid, TooManyRequests."""
        changes = packed(request.changes) if request.changes is not None else None
        if (request.kind == "edit") != bool(changes):
            raise Invalid("an edit says what to change, and nothing else does", "/changes")
        now_ms = await self._reads.now_ms()
        expected = await self.count(request)
        is_small = not expected.at_least and expected.count <= min(SMALL_MAX, request.rate)
        operation = Operation(
            id=f"op_{secrets.token_hex(8)}",
            kind=request.kind,
            tenant=request.tenant,
            filter=request.filter,
            changes=changes,
            rate=request.rate,
            expected=expected,
            created_ms=now_ms,
            updated_ms=now_ms,
            owner=self._name if is_small else "",
            until_ms=now_ms + LEASE_MS if is_small else 0,
        )
        await self._make_room(request.tenant)
        kept = await self._records.put(operation.id, operation, expected=0)
        if not is_small:
            return operation
        job = Job(self._store, self._verbs, Kept(kept.version, operation), paced=False)
        while await job.step() is not None:
            continue
        return job.operation

    async def get(self, tenant: str, operation_id: str) -> Operation:
        """Raises NotFound; another tenant's operation is not found either."""
        return (await self._kept(tenant, operation_id)).value

    async def page(
        self, tenant: str, after: Place | None, limit: int
    ) -> tuple[list[Operation], Place | None]:
        """The newest first, and the place to go on from; None at the end."""
        kept, _ = await self._records.readable()
        found = [each.value for each in kept.values() if each.value.tenant == tenant]
        found.sort(key=_place, reverse=True)
        if after is not None:
            found = [each for each in found if _place(each) < after]
        return found[:limit], _place(found[limit - 1]) if len(found) > limit else None

    async def stop(self, tenant: str, operation_id: str) -> Operation:
        """Nothing more is done. A batch in flight may still end. Raises NotFound, Conflict."""
        for _ in range(STOP_TRIES):
            kept = await self._kept(tenant, operation_id)
            operation = kept.value
            if operation.state == "STOPPED":
                return operation
            if operation.state != "RUNNING":
                raise Conflict(f"operation {operation_id} has ended: it is {operation.state}")
            now_ms = await self._reads.now_ms()
            # Its owner stays named: only the owner may still tell what became of its last batch.
            stopped = msgspec.structs.replace(
                operation, state="STOPPED", updated_ms=now_ms, finished_ms=now_ms
            )
            answer = await self._records.put(operation_id, stopped, expected=kept.version)
            if answer.word == "kept":
                return stopped
        raise Conflict(f"operation {operation_id} changes faster than it can be stopped")

    async def forget(self, tenant: str) -> None:
        """Those of a tenant are stopped, and their records go. Whoever works on one notices."""
        found, _ = await self._records.readable()
        for name, kept in found.items():
            if kept.value.tenant == tenant:
                await self._records.remove(name)

    async def _kept(self, tenant: str, operation_id: str) -> Kept[Operation]:
        kept = await self._records.get(operation_id)
        if kept is None or kept.value.tenant != tenant:
            raise NotFound(f"no operation {operation_id}")
        return kept

    async def _make_room(self, tenant: str) -> None:
        """Raises TooManyRequests."""
        found, _ = await self._records.readable()
        running = [k for k in found.values() if k.value.finished_ms is None]
        if sum(kept.value.tenant == tenant for kept in running) >= OF_TENANT_MAX:
            raise TooManyRequests(
                f"{OF_TENANT_MAX} operations of this tenant run at a time", retry_after_ms=BUSY_MS
            )
        if len(found) < RECORDS_MAX:
            return
        ended = [kept for kept in found.values() if kept.value.finished_ms is not None]
        if not ended:
            raise TooManyRequests(f"{RECORDS_MAX} operations run at a time", retry_after_ms=BUSY_MS)
        oldest = min(ended, key=lambda kept: kept.value.finished_ms or 0)
        await self._records.remove(oldest.value.id, expected=oldest.version)


def _place(operation: Operation) -> Place:
    return Place(operation.created_ms, operation.id)
