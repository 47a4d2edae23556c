"""Desk: what the runs of one worker have to say, brought to Redis.

Lines are collected for a moment and sent in batches by shard; before a verdict is reported, what its
run said is sent (``flush``), since a task that has ended takes no more lines. Invariant: nothing here
keeps a handler waiting but its own checkpoint, and no outage ends a run: lines that cannot be sent
are dropped, oldest first.
"""

import asyncio
from collections.abc import Callable, Iterable

from tasksched import log
from tasksched.errors import Conflict, TaskschedError
from tasksched.model.callback import callback_token
from tasksched.model.seal import Bodies
from tasksched.runtime.context import Run
from tasksched.store.protocol import BATCH_MAX, Store
from tasksched.store.reads import Reads

SEND_EVERY_S = 0.2

_log = log.get("desk")


class StoreDesk:
    """``pulse``: see ``runtime.heartbeat``."""

    def __init__(self, store: Store, bodies: Bodies, pulse: Callable[[Run], None]) -> None:
        self._store = store
        self._reads = Reads(store)
        self._bodies = bodies
        self._loop: asyncio.AbstractEventLoop | None = None
        self._speakers: set[Run] = set()
        self._sending: asyncio.Task[None] | None = None
        self._turns = [asyncio.Lock() for _ in range(store.shards)]
        self.pulse = pulse
        self.dropped = 0

    def start(self) -> None:
        """In the loop, before anything runs."""
        self._loop = asyncio.get_running_loop()

    def say(self, run: Run) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._note, run)

    async def checkpoint(self, run: Run, value: bytes) -> None:
        grant = run.grant
        sealed = self._bodies.seal_checkpoint(value, grant.tenant, grant.id)
        if not await self._store.checkpoint(run.shard, grant.id, grant.fence, sealed):
            raise Conflict(f"another run has task {grant.id} by now", task_id=grant.id)

    async def restore(self, run: Run) -> bytes | None:
        grant = run.grant
        found = await self._reads.checkpoint(grant.id)
        return found and self._bodies.open_checkpoint(found, grant.tenant, grant.id)

    def token(self, run: Run) -> str:
        return callback_token(self._store.secret, run.grant.id, run.grant.fence)

    async def flush(self, runs: Iterable[Run]) -> None:
        """Until what these runs have said is sent; what cannot be sent is dropped."""
        by_shard: dict[int, list[Run]] = {}
        for run in runs:
            if run.said:
                by_shard.setdefault(run.shard, []).append(run)
        for shard, speakers in by_shard.items():
            await self._send(shard, speakers)

    def _note(self, run: Run) -> None:
        self._speakers.add(run)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_soon())

    async def _send_soon(self) -> None:
        try:
            while self._speakers:
                await asyncio.sleep(SEND_EVERY_S)
                speakers, self._speakers = self._speakers, set()
                await self.flush(speakers)
        finally:
            self._sending = None

    async def _send(self, shard: int, speakers: list[Run]) -> None:
        async with self._turns[shard]:  # one after the other: lines stay in order, verdicts behind
            rows = [
                (run.grant.id, run.grant.fence, seq, text)
                for run in speakers
                for seq, text in run.take_lines()
            ]
            try:
                for first in range(0, len(rows), BATCH_MAX):
                    await self._store.lines(shard, rows[first : first + BATCH_MAX])
            except TaskschedError as error:
                self.dropped += len(rows)
                _log.warning("lines.dropped", lines=len(rows), error=str(error))
