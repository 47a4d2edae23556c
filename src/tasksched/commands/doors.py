"""Doors: creating is refused where a queue or a tenant is drained; what is there already still runs.

What is set is read again after TTL_MS, so a drain is in force everywhere within about a second. A create
that was made before, told by its key, is answered as ever: only what would be new is refused. Occurrences
of recurring tasks, redriven dead letters and notifications are not new, and come in.
"""

from collections.abc import Sequence
from typing import Final

from tasksched import clock
from tasksched.errors import Draining
from tasksched.model.notify import QUEUE
from tasksched.model.task import TaskSpec
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.rules import RuleBook, queue_field, tenant_field

TTL_MS: Final = 1_000
REMEMBERED_MAX: Final = 10_000
"""Of so many pairs of tenant and queue what is set is remembered."""

Row = tuple[str, TaskSpec, str]


class Doors:
    """Which creates may come in. One per process; safe for concurrent use in one event loop."""

    def __init__(self, store: Store) -> None:
        self._reads = Reads(store)
        self._book = RuleBook(store)
        self._known: dict[tuple[str, str], tuple[int, str | None]] = {}

    async def refused(self, rows: Sequence[Row]) -> dict[int, Draining]:
        """The places of the rows that must not be created, with the error of each."""
        drained: dict[tuple[str, str], str] = {}
        for tenant, queue in {(spec.tenant, spec.queue) for _, spec, _ in rows}:
            what = None if queue == QUEUE else await self._drained(tenant, queue)
            if what is not None:
                drained[tenant, queue] = what
        if not drained:
            return {}
        places = [n for n, row in enumerate(rows) if (row[1].tenant, row[1].queue) in drained]
        # Only a key names a task that somebody else may have made before.
        keyed = [n for n in places if rows[n][2]]
        found = await self._reads.tasks([rows[n][0] for n in keyed]) if keyed else []
        known = {n for n, task in zip(keyed, found, strict=True) if task is not None}
        return {
            n: Draining(
                f"{drained[rows[n][1].tenant, rows[n][1].queue]} is drained: nothing is created"
            )
            for n in places
            if n not in known
        }

    async def _drained(self, tenant: str, queue: str) -> str | None:
        """What is drained, as a person names it."""
        known = self._known.get((tenant, queue))
        if known is not None and clock.mono_ms() - known[0] < TTL_MS:
            return known[1]
        fields = (queue_field(queue), tenant_field(tenant))
        of_queue, of_tenant = await self._book.get_many(fields)
        found = None
        if "draining" in of_queue.value.split():
            found = f"queue {queue}"
        elif "draining" in of_tenant.value.split():
            found = f"tenant {tenant}"
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[tenant, queue] = clock.mono_ms(), found
        return found
