"""Completer: every outcome reaches the server, once, whatever happens in between.

One call per shard is in flight while the next collects: batches form by themselves and no timer
waits. Invariant: an outcome handed in is repeated until the server has answered for it, with the
state the task has now, ``stale`` (another fence is in force) or ``conflict``; an outage loses none.
A row that the server refuses as such is logged and dropped after it was tried alone, so that it
cannot hold up the others: its lease then runs out, as if the worker had died.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tasksched import log
from tasksched.ending import end
from tasksched.errors import TaskschedError, Unavailable
from tasksched.model.outcome import Outcome
from tasksched.runtime.context import Run
from tasksched.store.protocol import BATCH_MAX, Release, Store

BATCH_BYTES_MAX = 768 * 1024  # of results and errors; the rest of a row is small
ERROR_BYTES = 16 * 1024  # an error's text as JSON, at most
REST_S = 0.1
REST_MAX_S = 2.0
PATIENCE_MS = 2_000

_log = log.get("completer")

End = tuple[Run, Outcome]
Forget = Callable[[Sequence[Run]], None]
Prepare = Callable[[Sequence[Run]], Awaitable[None]]


class Completer:
    """``forget(runs)`` is called when the server has answered for them.

    ``prepare(runs)`` sends what they have said before their outcomes are reported.
    """

    def __init__(self, store: Store, forget: Forget, prepare: Prepare) -> None:
        self._store = store
        self._forget = forget
        self._prepare = prepare
        self._waiting: list[list[End]] = [[] for _ in range(store.shards)]
        self._sending: dict[int, asyncio.Task[None]] = {}
        self.held = 0  # handed in, not answered for
        self.settled = 0
        self.released = 0
        self.deferred = 0
        self.stale = 0
        self.conflicts = 0
        self.refused = 0
        self.outages = 0

    def put(self, run: Run, outcome: Outcome) -> None:
        """Record this outcome. Returns at once; ``held`` says how many are on their way."""
        self.held += 1
        self._waiting[run.shard].append((run, outcome))
        if run.shard not in self._sending:
            sending = asyncio.get_running_loop().create_task(self._send(run.shard))
            self._sending[run.shard] = sending

    async def flush(self) -> None:
        """Until everything handed in has been answered for."""
        while self._sending:
            await asyncio.wait(list(self._sending.values()))

    async def abort(self) -> None:
        """Stop repeating; what is held is lost to us, and reaped when its lease ends."""
        await end(list(self._sending.values()))

    async def _send(self, shard: int) -> None:
        try:
            while ends := self._cut(shard):
                await self._prepare([run for run, _ in ends if run.said])
                kinds = {outcome.kind for _, outcome in ends}
                if kinds.isdisjoint(_UNSETTLED):
                    await self._settle_all(shard, ends)
                    continue
                await self._settle_all(shard, [e for e in ends if e[1].kind not in _UNSETTLED])
                await self._release_all(shard, [e for e in ends if e[1].kind == "RELEASED"])
                await self._defer_all(shard, [e for e in ends if e[1].kind == "DEFERRED"])
        finally:
            del self._sending[shard]

    def _cut(self, shard: int) -> list[End]:
        """The next batch: at most BATCH_MAX rows and BATCH_BYTES_MAX bytes, at least one row."""
        waiting = self._waiting[shard]
        count = size = 0
        for _, outcome in waiting[:BATCH_MAX]:
            size += len(outcome.result) + (ERROR_BYTES if outcome.error is not None else 0)
            if count and size > BATCH_BYTES_MAX:
                break
            count += 1
        self._waiting[shard] = waiting[count:]
        return waiting[:count]

    async def _settle_all(self, shard: int, ends: list[End]) -> None:
        async def settle(part: Sequence[End]) -> list[str]:
            rows = [(run.grant.id, run.grant.fence, outcome) for run, outcome in part]
            return await self._store.settle(shard, rows, patience_ms=PATIENCE_MS)

        if ends:
            taken = await self._told(ends, settle)  # first: other shards add to it meanwhile
            self.settled += taken

    async def _release_all(self, shard: int, ends: list[End]) -> None:
        async def release(part: Sequence[End]) -> list[str]:
            rows = [
                Release(run.grant.id, run.grant.fence, outcome.retry_ms, outcome.reason)
                for run, outcome in part
            ]
            return await self._store.release(shard, rows)

        if ends:
            taken = await self._told(ends, release)
            self.released += taken

    async def _defer_all(self, shard: int, ends: list[End]) -> None:
        async def defer(part: Sequence[End]) -> list[str]:
            rows = [(run.grant.id, run.grant.fence, outcome.lease_ms) for run, outcome in part]
            return await self._store.defer(shard, rows)

        if ends:
            taken = await self._told(ends, defer)
            self.deferred += taken

    async def _told(
        self, ends: list[End], tell: Callable[[Sequence[End]], Awaitable[list[str]]]
    ) -> int:
        """Tells the server until it answers; how many of the rows it took."""
        words = await self._repeat(ends, tell)
        if words is None and len(ends) > 1:
            return sum([await self._told([end], tell) for end in ends])
        self.held -= len(ends)
        self._forget([run for run, _ in ends])
        words = words or ["refused"]
        if _MISSED.isdisjoint(words):
            return len(ends)
        missed = [(end, word) for end, word in zip(ends, words, strict=True) if word in _MISSED]
        for (run, outcome), word in missed:
            self._miss(run, outcome, word)
        return len(ends) - len(missed)

    async def _repeat(
        self, ends: list[End], tell: Callable[[Sequence[End]], Awaitable[list[str]]]
    ) -> list[str] | None:
        """The words, as soon as Redis answers; None if it refuses these rows whatever we do."""
        rest_s = REST_S
        while True:
            try:
                return await tell(ends)
            except Unavailable as error:
                self.outages += 1
                _log.warning("settle.unavailable", held=self.held, error=str(error))
            except TaskschedError as error:
                _log.error("settle.refused", rows=len(ends), error=str(error))
                return None
            await asyncio.sleep(rest_s)
            rest_s = min(rest_s * 2, REST_MAX_S)

    def _miss(self, run: Run, outcome: Outcome, word: str) -> None:
        match word:
            case "stale":
                self.stale += 1
            case "conflict":
                self.conflicts += 1
            case _:
                self.refused += 1
        _log.info(
            f"settle.{word}", task_id=run.grant.id, fence=run.grant.fence, outcome=outcome.kind
        )


_UNSETTLED = frozenset({"RELEASED", "DEFERRED"})
_MISSED = frozenset({"stale", "conflict", "refused"})
