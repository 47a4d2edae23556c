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

DRAINING: Final = "draining"

Row = tuple[str, TaskSpec, str]
Pair = tuple[str, str]


class Doors:
    """Which creates may come in. One per process; safe for concurrent use in one event loop."""

    def __init__(self, store: Store) -> None:
        self._reads = Reads(store)
        self._book = RuleBook(store)
        self._known: dict[Pair, tuple[int, str | None]] = {}

    async def refused(self, rows: Sequence[Row]) -> dict[int, Draining]:
        """The places of the rows that must not be created, with the error of each."""
        pairs = {(spec.tenant, spec.queue) for _, spec, _ in rows if spec.queue != QUEUE}
        looked = await self._looked_at(sorted(pairs))
        drained = {pair: what for pair, what in looked.items() if what is not None}
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

    async def _looked_at(self, pairs: Sequence[Pair]) -> dict[Pair, str | None]:
        """What is drained of each tenant and queue, as a person names it; one call for all of them."""
        now_ms = clock.mono_ms()
        fresh = {
            pair: known[1]
            for pair in pairs
            if (known := self._known.get(pair)) is not None and now_ms - known[0] < TTL_MS
        }
        stale = [pair for pair in pairs if pair not in fresh]
        if not stale:
            return fresh
        fields = [each for t, q in stale for each in (queue_field(q), tenant_field(t))]
        kept = [each.value.split() for each in await self._book.get_many(fields)]
        if len(self._known) + len(stale) > REMEMBERED_MAX:
            self._known.clear()
        for (tenant, queue), of_queue, of_tenant in zip(stale, kept[::2], kept[1::2], strict=True):
            found = None
            if DRAINING in of_queue:
                found = f"queue {queue}"
            elif DRAINING in of_tenant:
                found = f"tenant {tenant}"
            self._known[tenant, queue] = now_ms, found
            fresh[tenant, queue] = found
        return fresh
