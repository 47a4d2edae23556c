"""Callbacks: whoever was given the token of an attempt reports for it what a worker would.

The token decides, and nothing else: it belongs to one attempt of one task, so no tenant is asked for,
and a wrong one is answered like a task that does not exist. Invariant: a report counts only while its
attempt is in force; what is repeated is answered as the first time and changes nothing. It makes no
difference whether the worker has let go of the run already, or ever will.
"""

import random
from typing import NamedTuple

from tasksched.errors import Conflict, NotFound, Stale, TooLarge
from tasksched.model.callback import LEASE_MS, FailureReport, is_token
from tasksched.model.codec import RESULT_MAX
from tasksched.model.ids import shard_of
from tasksched.model.outcome import Failure, Outcome, error_info, judge
from tasksched.model.seal import PLAIN, Bodies
from tasksched.model.states import STATES, State
from tasksched.model.task import HttpTarget, Task
from tasksched.store.protocol import Beat, Store
from tasksched.store.reads import Reads


class CallbackRef(NamedTuple):
    """Which attempt is spoken for, and what proves it."""

    task_id: str
    fence: str
    token: str

    def __repr__(self) -> str:
        return f"CallbackRef({self.task_id!r}, {self.fence!r})"


class Heard(NamedTuple):
    """The answer to a heartbeat. ``lease_until_ms``: until then the run is left alone."""

    cancel_requested: bool
    lease_until_ms: int


class Callbacks:
    """The three reports. One per process; safe for concurrent use in one event loop."""

    def __init__(
        self,
        store: Store,
        bodies: Bodies = PLAIN,
        *,
        lease_ms: int = LEASE_MS,
        result_bytes_max: int = RESULT_MAX,
    ) -> None:
        """``lease_ms``: of a heartbeat that asks for none."""
        self._store = store
        self._reads = Reads(store)
        self._bodies = bodies
        self._lease_ms = lease_ms
        self._result_bytes_max = result_bytes_max

    async def heartbeat(
        self, ref: CallbackRef, *, lease_ms: int | None = None, progress: str = ""
    ) -> Heard:
        """The run lives: its lease lasts for ``lease_ms`` from now, or longer if it did before.

        ``progress``: JSON {at, message}; empty leaves it. Raises NotFound, Stale.
        """
        shard = self._shard(ref)
        beat = Beat(ref.task_id, ref.fence, lease_ms or self._lease_ms, progress=progress)
        (word,) = await self._store.heartbeat(shard, [beat])
        if word == "stale":
            await self._task(ref)
            raise _stale(ref)
        until_ms = await self._reads.lease_until_ms(ref.task_id)
        if until_ms is None:  # it ended between the two
            raise _stale(ref)
        return Heard(word == "cancel", until_ms)

    async def complete(self, ref: CallbackRef, result: bytes) -> State:
        """The run succeeded, with this encoded result; the state the task has now.

        Raises NotFound; Stale when the attempt is over by another's word; Conflict when it was
        reported otherwise before; TooLarge for the result, and the run stays open.
        """
        self._shard(ref)
        if len(result) > self._result_bytes_max:
            limit = f"{len(result)} bytes encoded; the limit is {self._result_bytes_max}"
            raise TooLarge(limit, "/result")
        task = await self._task(ref)
        sealed = self._bodies.seal_result(result, task.tenant, task.id)
        return await self._settle(ref, Outcome(kind="SUCCEEDED", result=sealed))

    async def fail(self, ref: CallbackRef, report: FailureReport) -> State:
        """The run failed; what follows is decided by the task's policy. Raises as ``complete``.

        The wait that is asked for counts as a handler's, or as the Retry-After of an HTTP target.
        """
        self._shard(ref)
        task = await self._task(ref)
        failure = Failure(
            error=error_info(report.type, report.message, report.details),
            retryable=report.retryable,
            retry_after_ms=report.retry_after_ms,
            at_least=isinstance(task.target, HttpTarget),
        )
        outcome = judge(failure, task.retry, attempts=task.attempts, rng=random.random)
        return await self._settle(ref, outcome)

    async def _settle(self, ref: CallbackRef, outcome: Outcome) -> State:
        (word,) = await self._store.settle(self._shard(ref), [(ref.task_id, ref.fence, outcome)])
        if word == "stale":
            raise _stale(ref)
        if word == "conflict":
            raise await self._conflict(ref)
        return next(state for state in STATES if state == word)

    async def _conflict(self, ref: CallbackRef) -> Conflict:
        """Its own earlier word, or that of somebody who ended the attempt without asking it."""
        task = await self._task(ref)
        last = task.last_attempt
        if last is None or str(last.fence) != ref.fence or last.outcome in _ENDED_BY_OTHERS:
            return _stale(ref)
        return Conflict(
            f"this attempt was reported as {last.outcome} before",
            task_id=ref.task_id,
            task_status=task.status,
        )

    def _shard(self, ref: CallbackRef) -> int:
        shard = shard_of(ref.task_id, self._store.shards)
        if shard is None or not is_token(self._store.secret, *ref):
            raise _unknown()
        return shard

    async def _task(self, ref: CallbackRef) -> Task:
        task = await self._reads.task(ref.task_id, bodies=False)
        if task is None:
            raise _unknown()
        return task


_ENDED_BY_OTHERS = frozenset({"LOST", "TIMED_OUT", "RELEASED"})


def _unknown() -> NotFound:
    return NotFound("no attempt of a task is known by this id, fence and token")


def _stale(ref: CallbackRef) -> Stale:
    return Stale("this attempt is over: stop, and do not repeat it", task_id=ref.task_id)
