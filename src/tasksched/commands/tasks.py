"""Tasks: what a user may ask for, one method a request. No HTTP and no Redis in sight.

Edges (HTTP, client, CLI) parse into ``TaskSpec`` and friends and render what comes back. Input is
checked by those who parse; here stands what needs the store: ids and shards, idempotency, group
commit of concurrent single creates, edits that read before they write, and the words of refusal.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from tasksched import clock
from tasksched.commands.batcher import Batcher
from tasksched.commands.doors import Doors
from tasksched.commands.quota import Quota
from tasksched.commands.waiter import Waiter
from tasksched.errors import (
    Conflict,
    Invalid,
    KeyReused,
    NotFound,
    Overloaded,
    PreconditionFailed,
    TaskschedError,
)
from tasksched.model import codec, ids
from tasksched.model.endpoint import seal_receivers
from tasksched.model.notify import QUEUE, Receiver, words_of
from tasksched.model.receivers import with_secrets
from tasksched.model.retry import Retry
from tasksched.model.seal import PLAIN, Bodies, task_place
from tasksched.model.states import FINAL
from tasksched.model.task import (
    Attempt,
    Created,
    HttpTarget,
    NoticeTarget,
    Options,
    Target,
    Task,
    TaskSpec,
    edited_concurrency,
    encode_options,
    permit_key_of,
)
from tasksched.store.durability import Durability, Level
from tasksched.store.protocol import BYTES_MAX, SUBMIT_MAX, Changed, Edit, Store
from tasksched.store.reads import Reads

EDIT_TRIES = 5
_EXTRA_BYTES = 256

Row = tuple[str, TaskSpec, str]
_Amend = Callable[[int, str, str, int | None, Edit], Awaitable[Changed]]
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit shall change; what is UNSET stays. None clears where a field can be empty."""

    run_at_ms: int | Unset = UNSET
    delay_ms: int | Unset = UNSET
    payload: bytes | Unset = UNSET
    queue: str | Unset = UNSET
    priority: str | Unset = UNSET
    target: Target | Unset = UNSET
    retry: Retry | Unset = UNSET
    timeout_ms: int | None | Unset = UNSET
    lease_ms: int | Unset = UNSET
    expires_at_ms: int | None | Unset = UNSET
    tags: tuple[str, ...] | Unset = UNSET
    notify: tuple[Receiver, ...] | Unset = UNSET
    concurrency_key: str | None | Unset = UNSET
    concurrency_limit: int | Unset = UNSET


class Tasks:
    """The requests about tasks. One per process; safe for concurrent use in one event loop."""

    def __init__(
        self, store: Store, waiter: Waiter, durability: Durability, bodies: Bodies = PLAIN
    ) -> None:
        self._store = store
        self._bodies = bodies
        self._durability = durability
        self._quota = Quota(store)
        self._doors = Doors(store)
        self.reads = Reads(store)
        self._waiter = waiter
        self._turn = itertools.count()
        self._keyed: list[Batcher[Row, Created | TaskschedError]] = [
            Batcher(partial(self._send, shard), most=SUBMIT_MAX) for shard in range(store.shards)
        ]
        self._unkeyed = Batcher(self._send_unkeyed, most=SUBMIT_MAX)

    # -- creating -------------------------------------------------------------------------------

    async def submit(self, spec: TaskSpec) -> Created:
        """Create one task; concurrent calls share a script call. Raises KeyReused, RateLimited, Unavailable."""
        if spec.key is None:
            answer = await self._unkeyed.ask(spec)
        else:
            row = self._keyed_row(spec)
            answer = await self._keyed[_shard(row[0], self._store)].ask(row)
        if isinstance(answer, TaskschedError):
            raise answer
        return await self._with_existing(answer)

    async def submit_many(self, specs: Sequence[TaskSpec]) -> list[Created | TaskschedError]:
        """Create many, answers in order; what is wrong with one is its own answer.

        Unkeyed tasks go to shards in whole batches (of at most SUBMIT_MAX and BYTES_MAX). Two
        calls are in flight at a time. Raises Unavailable when Redis stays away: repeat with the
        same keys; unkeyed tasks of the failed call may have been created.
        """
        calls = self._calls(specs)
        answers: list[Created | TaskschedError | None] = [None] * len(specs)

        async def lane(mine: "itertools.chain[Any] | Any") -> None:
            for places, shard, rows in mine:
                for place, answer in zip(places, await self._send(shard, rows), strict=True):
                    answers[place] = answer

        pending = iter(calls)
        await asyncio.gather(lane(pending), lane(pending))
        done = [answer for answer in answers if answer is not None]
        assert len(done) == len(specs)
        if all(type(a) is Created and a.created for a in done):
            return done
        return [await self._with_existing(a) if isinstance(a, Created) else a for a in done]

    def _calls(self, specs: Sequence[TaskSpec]) -> list[tuple[list[int], int, list[Row]]]:
        """Places, shard and rows of each script call that the specs need."""
        now_ms, calls = clock.wall_ms(), []
        open_calls: dict[int, tuple[list[int], int, list[Row]]] = {}
        sizes: defaultdict[int, int] = defaultdict(int)
        for place, spec in enumerate(specs):
            # -1 collects what has no key: its shard is chosen per call, so that a burst spreads.
            row = self._keyed_row(spec) if spec.key is not None else None
            slot = -1 if row is None else _shard(row[0], self._store)
            size = len(spec.payload) + len(spec.options) + _EXTRA_BYTES
            call = open_calls.get(slot)
            if call is None or len(call[2]) == SUBMIT_MAX or sizes[slot] + size > BYTES_MAX:
                shard = self._next_shard() if row is None else slot
                call = open_calls[slot] = ([], shard, [])
                sizes[slot] = 0
                calls.append(call)
            sizes[slot] += size
            call[0].append(place)
            call[2].append(row or (ids.mint(call[1], now_ms), spec, ""))
        return calls

    def _next_shard(self) -> int:
        return next(self._turn) % self._store.shards

    def _keyed_row(self, spec: TaskSpec) -> Row:
        assert spec.key is not None
        return ids.keyed(spec.tenant, spec.key, self._store.shards), spec, fingerprint_of(spec)

    async def _send_unkeyed(self, specs: Sequence[TaskSpec]) -> list[Created | TaskschedError]:
        shard, now_ms = self._next_shard(), clock.wall_ms()
        return await self._send(shard, [(ids.mint(shard, now_ms), spec, "") for spec in specs])

    async def _send(self, shard: int, rows: Sequence[Row]) -> list[Created | TaskschedError]:
        refused = await self._doors.refused(rows)
        if not refused:
            return await self._create(shard, rows)
        rest = [row for n, row in enumerate(rows) if n not in refused]
        made = iter(await self._create(shard, rest) if rest else [])
        return [refused[n] if n in refused else next(made) for n in range(len(rows))]

    async def _create(self, shard: int, rows: Sequence[Row]) -> list[Created | TaskschedError]:
        sealed = [(task_id, self._sealed(spec, task_id), mark) for task_id, spec, mark in rows]
        try:
            made = await self._quota.submit(shard, sealed)
        except Overloaded as refusal:  # nothing was done: an answer, beside those of other calls
            return [refusal] * len(rows)
        answers: list[Created | TaskschedError] = []
        for (task_id, spec, fingerprint), (word, now_ms) in zip(rows, made, strict=True):
            if word == "reused":
                answers.append(KeyReused(pointer="/idempotency_key", task_id=task_id))
                continue
            if word in {"quota", "rate"}:
                answers.append(self._quota.refusal(spec.tenant, word))
                continue
            # An id without a key is known to this caller alone: finding it means that our own
            # first send was executed and its reply lost. That is the first answer, again.
            created = not word or not fingerprint
            due_ms = now_ms + (spec.delay_ms or 0) if spec.run_at_ms is None else spec.run_at_ms
            answers.append(Created(task_id, created, due_ms))
        return answers

    def _sealed(self, spec: TaskSpec, task_id: str) -> TaskSpec:
        if spec.notify:
            sealed = seal_receivers(self._bodies, spec.tenant, spec.notify)
            spec = msgspec.structs.replace(spec, notify=sealed)
        return self._bodies.seal_task(spec, task_id)

    async def _with_existing(self, answer: Created) -> Created:
        if answer.created:
            return answer
        task = await self.reads.task(answer.id)
        if task is None:
            return answer  # retention took it; its key is still remembered
        task = self._bodies.open_task(task)
        return msgspec.structs.replace(answer, task=task, version=task.version, due_ms=task.due_ms)

    # -- looking --------------------------------------------------------------------------------

    async def get(self, tenant: str, task_id: str, *, bodies: bool = True) -> Task:
        """The task. Raises NotFound; another tenant's task is not found either."""
        task = await self.reads.task(task_id, bodies=bodies)
        if task is None or task.tenant != tenant:
            raise NotFound(f"no task {task_id}", task_id=task_id)
        return self._bodies.open_task(task)

    async def get_many(self, tenant: str, task_ids: Sequence[str]) -> list[Task]:
        """Those of the tasks that are there, with their bodies."""
        found = await self.reads.tasks(task_ids, bodies=True)
        mine = [task for task in found if task is not None and task.tenant == tenant]
        return [self._bodies.open_task(task) for task in mine]

    async def attempts(self, tenant: str, task_id: str) -> list[Attempt]:
        return await self.reads.attempts(await self.get(tenant, task_id, bodies=False))

    async def wait(self, tenant: str, task_id: str, timeout_ms: int) -> Task:
        """The task once it is final, or as it stands when the time is over."""
        until_ms = clock.mono_ms() + timeout_ms
        with self._waiter.interest(task_id) as finished:
            while True:
                task = await self.get(tenant, task_id)
                left_ms = until_ms - clock.mono_ms()
                if task.status in FINAL or left_ms <= 0:
                    return task
                await finished.wait(left_ms)

    # -- changing -------------------------------------------------------------------------------

    async def cancel(self, tenant: str, task_id: str, *, version: int | None = None) -> Changed:
        """Word ``cancelled`` (final now, or before) or ``requested`` (it runs). Conflict if finished."""
        shard = self._shard(task_id)
        changed = await self._store.cancel(shard, task_id, tenant, version)
        return _agreed(changed, task_id, "finished", "has finished and cannot be cancelled")

    async def run_now(self, tenant: str, task_id: str, *, version: int | None = None) -> Changed:
        """Due at once. Conflict unless it waits."""
        changed = await self._store.run_now(self._shard(task_id), task_id, tenant, version)
        return _agreed(changed, task_id, "state", "does not wait any more")

    async def redrive(
        self,
        tenant: str,
        task_id: str,
        changes: Changes | None = None,
        *,
        version: int | None = None,
    ) -> Changed:
        """A new life for a FAILED or CANCELLED task, changed on the way. Conflict for any other."""
        why = "is neither failed nor cancelled"
        if changes is None:
            changed = await self._store.redrive(self._shard(task_id), task_id, tenant, version)
            return _agreed(changed, task_id, "state", why)
        if isinstance(changes.expires_at_ms, int):
            raise Invalid("a task expires before its first life's first start only", "/expires_at")
        amending = self._amend(self._store.redrive, tenant, task_id, changes, version)
        return _agreed(await amending, task_id, "state", why)

    async def edit(
        self, tenant: str, task_id: str, changes: Changes, *, version: int | None = None
    ) -> Changed:
        """Change a waiting task, atomically against a starting worker."""
        amending = self._amend(self._store.edit, tenant, task_id, changes, version)
        return _agreed(await amending, task_id, "state", "does not wait any more")

    async def _amend(
        self, verb: _Amend, tenant: str, task_id: str, changes: Changes, version: int | None
    ) -> Changed:
        """Fields that are stored together are read, merged and written under the version read; a
        change in between is tried again, unless the caller named a version.
        """
        if changes.payload is not UNSET:
            place = task_place(tenant, task_id, "payload")
            sealed = self._bodies.seal(changes.payload, place)
            changes = msgspec.structs.replace(changes, payload=sealed)
        if changes.notify is not UNSET:
            receivers = seal_receivers(self._bodies, tenant, changes.notify)
            changes = msgspec.structs.replace(changes, notify=receivers)
        for _ in range(EDIT_TRIES):
            task = await self.get(tenant, task_id, bodies=False)
            expected = task.version if version is None else version
            edit = edit_of(task, changes)
            changed = await verb(self._shard(task_id), task_id, tenant, expected, edit)
            if changed.word != "version" or version is not None:
                return changed
        raise Conflict(f"task {task_id} changes faster than it can be edited", task_id=task_id)

    async def reach(self, task_id: str, level: Level) -> Level:
        """The durability that the last change of this task has now: ``level``, or less."""
        return await self._durability.reach(self._shard(task_id), level)

    async def close(self) -> None:
        await self._waiter.close()

    def _shard(self, task_id: str) -> int:
        shard = ids.shard_of(task_id, self._store.shards)
        if shard is None:
            raise NotFound(f"no task {task_id}", task_id=task_id)
        return shard


def _shard(task_id: str, store: Store) -> int:
    shard = ids.shard_of(task_id, store.shards)
    assert shard is not None, task_id
    return shard


def fingerprint_of(spec: TaskSpec) -> str:
    """Equal exactly for equal normalised commands, however they came, and in whatever trace."""
    payload = codec.decode(spec.payload) if spec.payload else None
    fields = msgspec.to_builtins(msgspec.structs.replace(spec, payload=b"", key=None))
    del fields["traceparent"]
    fields["retry"] = spec.retry.to_json()
    return codec.fingerprint([fields, bool(spec.payload), payload])


def edit_of(task: Task, changes: Changes) -> Edit:
    """The edit that turns the task into what ``changes`` ask for."""

    def new(value: Any, old: Any) -> Any:
        return old if value is UNSET else value

    target = new(changes.target, task.target)
    concurrency = edited_concurrency(
        task.concurrency, changes.concurrency_key, changes.concurrency_limit
    )
    notify = with_secrets(new(changes.notify, task.notify), task.notify)
    _require_sender(task, changes)
    queue, priority = new(changes.queue, task.queue), new(changes.priority, task.priority)
    if changes.run_at_ms is not UNSET and changes.delay_ms is not UNSET:
        raise Invalid("give run_at or delay, not both", "/delay")
    due = None
    if changes.run_at_ms is not UNSET:
        due = str(changes.run_at_ms)
    elif changes.delay_ms is not UNSET:
        due = f"+{changes.delay_ms}"
    expires = changes.expires_at_ms
    return Edit(
        lane=f"{queue}:{priority}:{task.tenant}:{target.route}",
        due=due,
        payload=None if changes.payload is UNSET else changes.payload,
        options=encode_options(
            Options(
                http=target if isinstance(target, HttpTarget) else None,
                retry=new(changes.retry, task.retry),
                timeout_ms=new(changes.timeout_ms, task.timeout_ms),
                tags=new(changes.tags, task.tags),
                notify=notify,
                delivery=task.delivery,
                concurrency=concurrency,
                traceparent=task.traceparent,
                cause=target.cause if isinstance(target, NoticeTarget) else None,
            )
        ),
        wants=None if changes.notify is UNSET else words_of(notify),
        expires_at_ms=expires if isinstance(expires, int) else None,
        expires_never=expires is None,
        lease_ms=None if changes.lease_ms is UNSET else changes.lease_ms,
        concurrency=None
        if concurrency == task.concurrency
        else permit_key_of(task.tenant, concurrency),
    )


def _require_sender(task: Task, changes: Changes) -> None:
    """What tells of events stays what it is: elsewhere it would raise events of its own."""
    if task.queue != QUEUE:
        return
    for name in ("queue", "target", "notify"):
        if getattr(changes, name) is not UNSET:
            raise Conflict(f"the {name} of a notification does not change", task_status=task.status)


def _agreed(changed: Changed, task_id: str, refused: str, why: str) -> Changed:
    """The change itself, or the error its word stands for."""
    if changed.word == "missing":
        raise NotFound(f"no task {task_id}", task_id=task_id)
    if changed.word == "version":
        raise PreconditionFailed(
            f"the version is {changed.version}", version=changed.version, task_status=changed.state
        )
    if changed.word == refused:
        raise Conflict(f"task {task_id} {why}: it is {changed.state}", task_status=changed.state)
    return changed
