"""Operator: works on the bulk operations of a namespace; each scheduler process runs one.

A record is taken with a lease by compare-and-set, and done batch by batch: what was planned is done,
then the counts and the next plan are written together. Whoever dies leaves a plan that another one does
again, under the same names, when the lease is over. A stop is seen at the next write. Invariant: no
task is touched that is not in a written plan, and no plan is written but under the version read.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from collections import Counter
from typing import Final

import msgspec

from tasksched import clock, log
from tasksched.commands import walk
from tasksched.commands.removal import Memory
from tasksched.commands.verbs import Ends, Verbs, tally_of
from tasksched.ending import end
from tasksched.errors import TaskschedError, Unavailable
from tasksched.model.operation import Operation
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.records import Kept, Records

LEASE_MS: Final = 10_000
LOOK_S: Final = 2.0
OUTAGE_REST_S: Final = 1.0
BATCH_MAX: Final = 200
BATCHES_A_SECOND: Final = 10
CATCH_UP_MS: Final = 200
"""A batch that came late by up to so much is made good for; the rate is never exceeded by more."""

JOBS_MAX: Final = 32
"""Operations that one process works on at a time."""

OF_TENANT_MAX: Final = 4
"""Of one tenant; the others of its operations wait, and those of other tenants do not."""

KEPT_MS: Final = 24 * 3_600_000
"""How long a finished operation can be looked at."""

SAVE_TRIES: Final = 5
ERROR_MAX: Final = 500

_log = log.get("operator")


def new_name() -> str:
    """Of one who works on operations."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def records_of(store: Store) -> Records[Operation]:
    return Records(store, store.global_keys.operations, Operation)


class Job:
    """One operation under our lease."""

    def __init__(
        self, store: Store, verbs: Verbs, kept: Kept[Operation], *, paced: bool = True
    ) -> None:
        self._reads = Reads(store)
        self._records = records_of(store)
        self._verbs = verbs
        self._kept = kept
        self._owner = kept.value.owner
        self._paced = paced
        self._again = bool(kept.value.batch)
        self._ends: Ends = {}  # of the batch that is not told yet
        self._next_ms = 0.0

    @property
    def operation(self) -> Operation:
        """As it was last written or read."""
        return self._kept.value

    async def step(self) -> float | None:
        """The next batch, if it is its time; ms until the one after, None when nothing is left to us."""
        now_ms = await self._reads.now_ms()
        if self._paced and self._next_ms > now_ms:
            return self._next_ms - now_ms
        operation = self.operation
        if now_ms >= operation.until_ms and not await self._renew(now_ms):
            return None
        await self._verbs.apply(operation, self._ends, again=self._again)
        self._again = False
        size = sum(tally_of(self._ends))
        self._next_ms = max(self._next_ms, now_ms - CATCH_UP_MS) + size * 1_000 / operation.rate
        planned = self._counted(await self._planned(operation))
        changed = msgspec.structs.replace(planned, updated_ms=now_ms, until_ms=now_ms + LEASE_MS)
        if changed.walked and not changed.batch:
            changed = _ended(changed, "DONE", now_ms)
        is_ours = await self._save(changed)
        self._ends = {}
        if not is_ours or changed.state != "RUNNING":
            return None
        return max(0.0, self._next_ms - now_ms) if self._paced else 0.0

    async def run(self) -> None:
        """Steps until nothing is left to us; outages are waited for, what else goes wrong is recorded."""
        while True:
            began = clock.mono_ms()
            try:
                wait_ms = await self.step()
            except Unavailable as error:
                _log.warning("operation.delayed", id=self.operation.id, error=str(error))
                self._again = True
                wait_ms = clock.mono_ms() - began + OUTAGE_REST_S * 1_000
            except TaskschedError as error:
                await self._fail(error.code, error.detail)
                return
            except Exception as error:
                # A fault of ours: tried again by each process in turn, it would never end.
                await self._fail(TaskschedError.code, repr(error))
                raise
            if wait_ms is None:
                return
            await asyncio.sleep(max(0.0, wait_ms - (clock.mono_ms() - began)) / 1_000)

    async def release(self) -> None:
        """Whoever comes next may go on at once."""
        await self._save(msgspec.structs.replace(self.operation, owner="", until_ms=0))

    async def _planned(self, operation: Operation) -> Operation:
        if operation.walked:
            return msgspec.structs.replace(operation, batch=())
        plan = walk.Plan(
            tenant=operation.tenant,
            filter=operation.filter,
            phases=walk.WALKS[operation.kind],
            before_ms=operation.created_ms,
        )
        most = max(1, min(BATCH_MAX, operation.rate // BATCHES_A_SECOND))
        found = await walk.next_batch(self._reads, plan, operation.cursor, most)
        return msgspec.structs.replace(
            operation,
            batch=tuple((task.id, task.version) for task in found.tasks),
            cursor=found.cursor,
            walked=found.cursor is None,
        )

    async def _renew(self, now_ms: int) -> bool:
        """We slept through our lease: it is ours only if nobody took it."""
        longer = msgspec.structs.replace(self.operation, until_ms=now_ms + LEASE_MS)
        self._again = True
        return await self._save(longer)

    async def _save(self, changed: Operation) -> bool:
        """Writes it under the version we know; False where it is not ours any more."""
        answer = await self._records.put(changed.id, changed, expected=self._kept.version)
        if answer.word == "kept":
            self._kept = Kept(answer.version, changed)
            return True
        for _ in range(SAVE_TRIES):
            stored = await self._records.get(changed.id)
            if stored is None or stored.value.owner != self._owner:
                return False
            if stored.value.state == "RUNNING" or stored.value.batch != self.operation.batch:
                return False  # it was written by ourselves, and the answer was lost
            # It was stopped while we did the batch: what is done is counted, nothing follows.
            counted = self._counted(stored.value)
            told = msgspec.structs.replace(counted, batch=(), owner="", until_ms=0)
            answer = await self._records.put(told.id, told, expected=stored.version)
            if answer.word == "kept":
                self._kept = Kept(answer.version, told)
                return False
        return False

    def _counted(self, operation: Operation) -> Operation:
        """With what is done of the batch, be it the half of it."""
        tally = tally_of(self._ends)
        return msgspec.structs.replace(
            operation,
            done=operation.done + tally.done,
            skipped=operation.skipped + tally.skipped,
        )

    async def _fail(self, code: str, detail: str) -> None:
        _log.error("operation.failed", id=self.operation.id, code=code, error=detail)
        with contextlib.suppress(TaskschedError):
            now_ms = await self._reads.now_ms()
            ended = _ended(self._counted(self.operation), "FAILED", now_ms)
            await self._save(msgspec.structs.replace(ended, error=f"{code}: {detail}"[:ERROR_MAX]))


class Operator:
    """Finds operations that nobody works on, and works on them."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self.name = new_name()
        self._store = store
        self._verbs = Verbs(store, memory)
        self._reads = Reads(store)
        self._records = records_of(store)
        self._jobs: dict[Job, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Works until ``stop`` is set; no outage ends it. One command a look where there is nothing."""
        try:
            while not stop.is_set():
                self._jobs = {job: task for job, task in self._jobs.items() if not task.done()}
                try:
                    for job in await self.look(JOBS_MAX - len(self._jobs)):
                        self._jobs[job] = asyncio.create_task(job.run())
                except TaskschedError as error:
                    _log.warning("look.failed", error=str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await stop.wait()
        finally:
            await self._leave()

    async def look(self, most: int = JOBS_MAX) -> list[Job]:
        """Takes operations whose lease is free, and removes those that ended long ago."""
        found, _ = await self._records.readable()
        if not found:
            return []
        now_ms = await self._reads.now_ms()
        jobs: list[Job] = []
        of_tenant = Counter(job.operation.tenant for job in self._jobs)
        for name, kept in sorted(found.items(), key=lambda item: item[1].value.created_ms):
            operation = kept.value
            if operation.finished_ms is not None and operation.finished_ms <= now_ms - KEPT_MS:
                await self._records.remove(name, expected=kept.version)
            elif (
                operation.state == "RUNNING"
                and operation.until_ms <= now_ms
                and len(jobs) < most
                and of_tenant[operation.tenant] < OF_TENANT_MAX
            ):
                mine = msgspec.structs.replace(
                    operation, owner=self.name, until_ms=now_ms + LEASE_MS
                )
                answer = await self._records.put(name, mine, expected=kept.version)
                if answer.word == "kept":
                    job = Job(self._store, self._verbs, Kept(answer.version, mine))
                    jobs.append(job)
                    of_tenant[operation.tenant] += 1
        return jobs

    async def _leave(self) -> None:
        await end(self._jobs.values())
        for job in self._jobs:
            if job.operation.state == "RUNNING":
                with contextlib.suppress(TaskschedError):
                    await job.release()


def _ended(operation: Operation, state: str, now_ms: int) -> Operation:
    return msgspec.structs.replace(operation, state=state, finished_ms=now_ms, owner="", until_ms=0)
