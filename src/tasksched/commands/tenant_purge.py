"""Purge of a tenant: all that it has goes, and its keys open nothing any more.

A purge is no record of its own. Each request does a bounded part and says what is left, and whoever asks
repeats it until it is done. It begins with a pause and a drain, which stand whoever dies: nothing new
comes and nothing starts until the last part is done, and what runs is asked to stop. Invariant: what
makes tasks (schedules, webhooks, operations) goes before the tasks do, and the rules go last.

What stays: the audit; the version of its rules; the names of tasks in the event log and the hashes of
ids that were removed before, until both have passed by themselves.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from tasksched.commands import walk
from tasksched.commands.keys import Keys
from tasksched.commands.operations import Operations
from tasksched.commands.recurring import Recurring
from tasksched.commands.removal import Memory, Removal
from tasksched.errors import Conflict, NotFound
from tasksched.model.filters import Filter
from tasksched.model.ids import shard_of
from tasksched.model.limits import Switches
from tasksched.model.notify import QUEUE
from tasksched.model.states import FINAL
from tasksched.model.task import Task
from tasksched.model.tenant import TenantSettings
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.records import Records
from tasksched.store.rules import RuleBook, share_field, tenant_field
from tasksched.store.webhooks import WebhookRecords

TASKS_MAX: Final = 1_000
"""A request removes about so many tasks."""

ACTOR: Final = "purge"
"""Who is named in the audit where keys are revoked on the way; whoever asked has an entry of his own."""

BATCH: Final = 200
AT_ONCE: Final = 16
PAGE: Final = 200

_PHASES: Final = (
    walk.Phase(FINAL),
    walk.Phase(frozenset({"PENDING"})),
    walk.Phase(frozenset({"QUEUED", "RUNNING"})),
)
_FILTERS: Final = (Filter(), Filter(queue=QUEUE))
"""The second: what tells others of tasks stands apart from them, and ends made some more of it."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What one request did. ``left``: tasks that are there yet, ``running`` of them run and were asked
    to stop. ``done``: nothing is left of the tenant.
    """

    tasks: int
    recurring_tasks: int
    webhooks: int
    api_keys: int
    left: int
    running: int
    done: bool


class TenantPurge:
    """The purge of tenants of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads = Reads(store)
        self._book = RuleBook(store)
        self._keys = Keys(store, actor=ACTOR)
        self._recurring = Recurring(store)
        self._webhooks = WebhookRecords(store)
        self._removal = Removal(store, Memory(0, 0))  # nothing remembers its ids
        self._operations = Operations(store, Memory(0, 0))
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def purge(self, tenant: str) -> Purged:
        """The next part; to be asked again until it says ``done``. Safe to ask at any time."""
        for word in Switches:
            await self._book.switch(tenant_field(tenant), word, on=True)
        keys = await self._revoke(tenant)
        webhooks = await self._webhooks.all(tenant)
        for name in webhooks:
            await self._webhooks.remove(tenant, name, expected=None)
        await self._operations.forget(tenant)
        schedules = await self._remove_schedules(tenant)
        tasks = await self._remove_tasks(tenant)
        counts = await self._counts(tenant)
        left = sum(counts.values())
        queues = {queue for queue, _ in counts}
        is_done = left == 0 and schedules < PAGE and await self._forget(tenant, queues)
        return Purged(
            tasks=tasks,
            recurring_tasks=schedules,
            webhooks=len(webhooks),
            api_keys=keys,
            left=left,
            running=sum(n for (_, state), n in counts.items() if state == "RUNNING"),
            done=is_done,
        )

    async def _revoke(self, tenant: str) -> int:
        mine = [key for key in await self._keys.list() if key.tenant == tenant]
        active = [key.id for key in mine if key.state == "active"]
        for key_id in active:
            await self._keys.revoke(key_id)
        return len(active)

    async def _remove_schedules(self, tenant: str) -> int:
        """At most PAGE of them."""
        removed, after = 0, None
        while True:
            found, after = await self._recurring.page(tenant, after, limit=PAGE - removed)
            for schedule in found:
                with contextlib.suppress(NotFound):
                    await self._recurring.remove(tenant, schedule.spec.id)
            removed += len(found)
            if after is None or removed == PAGE:
                return removed

    async def _remove_tasks(self, tenant: str) -> int:
        removed = 0
        for asked in _FILTERS:
            plan = walk.Plan(tenant=tenant, filter=asked, phases=_PHASES)
            cursor = None
            while removed < TASKS_MAX:
                found = await walk.next_batch(self._reads, plan, cursor, BATCH)
                removed += await self._remove(tenant, found.tasks)
                cursor = found.cursor
                if cursor is None:
                    break
        return removed

    async def _remove(self, tenant: str, tasks: list[Task]) -> int:
        finished = [task.id for task in tasks if task.status in FINAL]
        words = await self._removal.purge(tenant, finished)
        others = [task for task in tasks if task.status not in FINAL]
        ended = await asyncio.gather(*(self._end(tenant, task) for task in others))
        return list(words.values()).count("purged") + sum(ended)

    async def _end(self, tenant: str, task: Task) -> bool:
        """Whether it is gone. What runs is asked to stop, and met again by a later request."""
        async with self._slots:
            if task.status == "RUNNING":
                shard = shard_of(task.id, self._store.shards)
                assert shard is not None, task.id
                await self._store.cancel(shard, task.id, tenant, task.version)
                return False
            with contextlib.suppress(NotFound, Conflict):
                await self._removal.delete(tenant, task.id)
                return True
        return False

    async def _counts(self, tenant: str) -> dict[tuple[str, str], int]:
        """(queue, state) → tasks in it now."""
        found = await self._reads.counts()
        return {(queue, state): n for (owner, queue, state), n in found.items() if owner == tenant}

    async def _forget(self, tenant: str, queues: Iterable[str]) -> bool:
        """The last part; whether nothing came in between."""
        words = [await self._store.forget(n, tenant, queues) for n in range(self._store.shards)]
        if "busy" in words:
            return False
        home = self._store.global_keys.tenants
        await Records(self._store, home, TenantSettings).remove(tenant)
        shares = await self._book.named(share_field(tenant, ""))
        fields = [*(share_field(tenant, queue) for queue in shares), tenant_field(tenant)]
        for field in fields:
            kept = await self._book.get(field)
            if kept.value and await self._book.put(field, "", kept.version) is None:
                return False
        return True
