"""Queues: what is set for them, and who stands still. Queues belong to the namespace, not to a tenant.

A tenant can stand still in a queue by itself (its share); everything can as well. Pauses let run what
runs: nothing new starts. A drain is the other end: nothing new is created, and what is there still runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tasksched.errors import Conflict
from tasksched.model.limits import QueueRules, QueueState, Switches
from tasksched.model.states import STATES
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.records import Kept
from tasksched.store.rules import (
    EVERYTHING,
    RuleBook,
    queue_field,
    require_version,
    share_field,
    tenant_field,
    uses,
)

TRIES: Final = 5
PAUSED: Final = "paused"


class Queues:
    """The requests about queues, and the one pause of everything."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads = Reads(store)
        self._book = RuleBook(store)

    async def all(self, tenant: str) -> list[QueueState]:
        """Those that hold tasks of the tenant, and those that have rules, by name."""
        kept = await self._book.named(queue_field(""))
        counts = await self._counts(tenant)
        return await self._states(tenant, sorted({*kept, *counts}), kept, counts)

    async def get(self, tenant: str, name: str) -> QueueState:
        """A queue that nobody ever used or set is empty and has no rules."""
        kept = {name: await self._book.get(queue_field(name))}
        counts = await self._counts(tenant)
        return (await self._states(tenant, [name], kept, counts))[0]

    async def put(
        self, name: str, given: Mapping[str, Any], *, version: int | None = None
    ) -> Kept[QueueRules]:
        """Sets the rules as a whole; ``paused`` and ``draining`` stay where they are not named.

        Raises Invalid, PreconditionFailed for another version, Conflict.
        """
        field = queue_field(name)
        for _ in range(TRIES):
            kept = await self._book.get(field)
            require_version(version, kept.version)
            before = QueueRules.of_words(kept.value)
            rules = QueueRules(**{each: getattr(before, each) for each in Switches}).changed(given)
            if rules == before:
                return Kept(kept.version, rules)
            put = await self._book.put(field, rules.words, kept.version)
            if put is not None:
                return Kept(put, rules)
        raise Conflict(f"queue {name} changes faster than it can be set")

    async def pause(self, name: str) -> None:
        """For all tenants: nothing of it starts any more."""
        await self._book.switch(queue_field(name), PAUSED, on=True)

    async def drain(self, name: str) -> None:
        """Creating is refused; what is there still runs."""
        await self._book.switch(queue_field(name), "draining", on=True)

    async def resume(self, name: str) -> None:
        """Ends a pause and a drain."""
        for word in Switches:
            await self._book.switch(queue_field(name), word, on=False)

    async def pause_share(self, tenant: str, name: str) -> None:
        """What the tenant has in the queue does not start; others go on."""
        await self._book.switch(share_field(tenant, name), PAUSED, on=True)

    async def resume_share(self, tenant: str, name: str) -> None:
        await self._book.switch(share_field(tenant, name), PAUSED, on=False)

    async def pause_everything(self) -> None:
        """Nothing starts in the whole namespace, notifications included."""
        await self._book.switch(EVERYTHING, PAUSED, on=True)

    async def resume_everything(self) -> None:
        """Ends that pause; what is paused by itself stays so."""
        await self._book.switch(EVERYTHING, PAUSED, on=False)

    # -- looking --------------------------------------------------------------------------------

    async def _counts(self, tenant: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (owner, queue, state), number in (await self._reads.counts()).items():
            # Shards are read one after the other; a task that moves meanwhile may leave a -1.
            if owner == tenant and number > 0:
                found.setdefault(queue, dict.fromkeys(STATES, 0))[state] += number
        return found

    async def _states(
        self,
        tenant: str,
        names: Sequence[str],
        kept: Mapping[str, Kept[str]],
        counts: Mapping[str, dict[str, int]],
    ) -> list[QueueState]:
        fields = [EVERYTHING, *(share_field(tenant, name) for name in names)]
        everything, *shares = await self._book.get_many(fields)
        used = await uses(self._store, [f"q/{name}" for name in names])
        found = []
        for name, share, use in zip(names, shares, used, strict=True):
            version, words = kept.get(name, Kept(0, ""))
            rules = QueueRules.of_words(words)
            found.append(
                QueueState(
                    name=name,
                    version=version,
                    rules=rules,
                    counts=counts.get(name, dict.fromkeys(STATES, 0)),
                    in_use=use.used,
                    allotted=use.allotted,
                    paused_by=_paused_by(everything.value, rules, share.value),
                )
            )
        return found


def _paused_by(everything: str, rules: QueueRules, share: str) -> str | None:
    if PAUSED in everything.split():
        return "everything"
    if rules.paused:
        return "queue"
    return "share" if PAUSED in share.split() else None


async def pauses_of(book: RuleBook, tenant: str, queue: str) -> list[str]:
    """What holds tasks of this tenant in this queue: ``everything``, ``queue``, ``tenant``, ``share``."""
    fields = {
        "everything": EVERYTHING,
        "queue": queue_field(queue),
        "tenant": tenant_field(tenant),
        "share": share_field(tenant, queue),
    }
    kept = await book.get_many(fields.values())
    return [what for what, each in zip(fields, kept, strict=True) if PAUSED in each.value.split()]
