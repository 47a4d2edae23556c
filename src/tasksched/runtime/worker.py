"""Worker: takes tasks for its free slots and runs them. It owns slots, and nothing else.

Messages on the shards' ``wake`` channels say where work may be; flagged shards are asked in turn, one
call per shard at a time, each with a number of its own: a call whose reply was lost is repeated under
the same number and answered with the same grants, so no grant goes astray. One look per second at one
shard, by our own timer, repairs a lost message. A slot is free again when its handler has ended, not
when the verdict is settled; taking pauses while too many verdicts wait. Leases are the heartbeat
thread's, verdicts the completer's, what happens in a handler the executor's. No outage of Redis ends
a worker.
"""

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from tasksched import clock, log
from tasksched.errors import TaskschedError, Unavailable
from tasksched.model.outcome import Outcome
from tasksched.model.task import HTTP_ROUTE
from tasksched.runtime.completer import Completer
from tasksched.runtime.context import Run
from tasksched.runtime.egress import Egress
from tasksched.runtime.executor import RELEASED, Executor
from tasksched.runtime.heartbeat import ANNOUNCE_TTL_MS, Heartbeat
from tasksched.runtime.http_target import HttpTargets
from tasksched.runtime.registry import Registry
from tasksched.runtime.threads import Threads
from tasksched.settings import Settings
from tasksched.store.beats import SyncBeats
from tasksched.store.connect import Unannounced
from tasksched.store.protocol import BATCH_MAX, Grant, Store
from tasksched.store.scripts import Arg
from tasksched.store.wake import Listener

TAKES_MAX = 4  # calls in flight, over different shards
TAKE_FIRST = 16  # slots asked for on a mere hint; doubled as long as a shard has more
HELD_MAX = 8 * BATCH_MAX  # verdicts on their way, above which nothing is taken
LOOK_S = 1.0
REST_S = 0.05
OUTAGE_REST_S = 0.5
REFUSED_REST_S = 2.0
LET_GO_S = 1.0  # for a handler that was told to stop because the worker does
SETTLE_S = 5.0  # for the last verdicts
LEAVE_S = 2.0

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_log = log.get("worker")


def make_name() -> str:
    """host-pid-random, within the grammar of names."""
    host = _NO_NAME.sub("-", socket.gethostname()).strip("-._")[:40] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Worker:
    """One worker. ``run_until(stop)`` is its whole life; ``start`` and ``drain`` are its two ends."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        *,
        name: str | None = None,
        open_sync: Callable[[], SyncBeats],
    ) -> None:
        self.name = name or make_name()
        self._store = store
        self._settings = settings
        self._slots = settings.concurrency
        self._routes = [*registry.routes, HTTP_ROUTE]
        self._serves = [
            *(f"route:{route}" for route in self._routes),
            *(f"queue:{queue}" for queue in settings.queues),
        ]
        self._threads = Threads(self._slots)
        self._http = HttpTargets(
            Egress(settings.http_allow),
            response_bytes_max=settings.http_response_bytes_max,
            result_bytes_max=settings.result_bytes_max,
        )
        self._executor = Executor(
            registry,
            self._threads,
            http=self._http,
            http_timeout_ms=settings.http_timeout_ms,
            result_bytes_max=settings.result_bytes_max,
        )
        self._executor.abandon = self._give
        self._completer = Completer(store, self._answered)
        self._heartbeat = Heartbeat(
            open_sync,
            self.name,
            self._serves,
            shards=store.shards,
            hear=self._told,
            describe=self._describe,
        )
        self._executor.pulse = self._heartbeat.hurry
        channels = [keys.wake for keys in store.keys]
        self._listener = Listener(store.gateway, channels, self._heard, self._flag_all)
        self._runs: dict[str, Run] = {}
        self._flagged: dict[int, None] = {}  # shards that may have work, the next to ask first
        self._takes: dict[int, asyncio.Task[None]] = {}
        self._reserved = 0  # slots that calls in flight may fill
        self._calls = [0] * store.shards
        self._want = [TAKE_FIRST] * store.shards
        self._filling = False
        self._draining = False
        self._hurried = False
        self._still = asyncio.Event()
        self._looks = 0
        self._since_ms = clock.wall_ms()
        self.started = 0
        self.leases_lost = 0

    # -- life ---------------------------------------------------------------------------------------

    async def run_until(self, stop: asyncio.Event) -> None:
        """Works until ``stop`` is set, then drains with the grace time of the settings."""
        starting = asyncio.create_task(self.start())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await stopping
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.drain()

    async def start(self) -> None:
        """Begins to work. Returns when every shard knows the worker, however long Redis is away."""
        self._loop = asyncio.get_running_loop()
        self._heartbeat.start()
        self._listener.start()
        self._looking = self._loop.call_later(LOOK_S, self._look)
        _log.info("worker.start", worker=self.name, slots=self._slots, routes=self._routes)
        await asyncio.gather(*(self._announce(shard) for shard in range(self._store.shards)))
        self._flag_all()

    async def drain(self, grace_ms: int | None = None) -> None:
        """Takes no more, lets run what ends within the grace time, hands the rest back, leaves.

        A second call (or ``hurry``) meanwhile ends the patience; the first call then returns soon.
        """
        if self._draining:
            self.hurry()
            return
        self._draining = True
        grace = self._settings.grace_ms if grace_ms is None else grace_ms
        _log.info("worker.drain", worker=self.name, running=len(self._runs), grace_ms=grace)
        self._looking.cancel()
        await self._wait_still(grace / 1000)
        for run in list(self._runs.values()):
            if not run.why:
                run.interrupt("release")
        await self._wait_still(LET_GO_S)
        for run in list(self._runs.values()):
            self._give(run, RELEASED)
        await self._close()

    def hurry(self) -> None:
        """No more patience with handlers: what runs is handed back now."""
        self._hurried = True
        self._still.set()

    def statistics(self) -> dict[str, int]:
        """What this worker did since its start, and what it does."""
        completer = self._completer
        return {
            "slots": self._slots,
            "running": len(self._runs),
            "started": self.started,
            "held": completer.held,
            "settled": completer.settled,
            "released": completer.released,
            "stale": completer.stale,
            "conflicts": completer.conflicts,
            "refused": completer.refused,
            "leases_lost": self.leases_lost,
            "renewed": self._heartbeat.renewed,
        }

    async def _wait_still(self, patience_s: float) -> None:
        """Until nothing runs and no call is open; not longer than the patience."""
        if self._hurried or not (self._runs or self._takes):
            return
        self._still.clear()
        try:
            async with asyncio.timeout(patience_s):
                await self._still.wait()
        except TimeoutError:
            pass

    async def _close(self) -> None:
        takes = list(self._takes.values())
        for take in takes:
            take.cancel()
        await asyncio.gather(*takes, return_exceptions=True)
        try:
            async with asyncio.timeout(LEAVE_S if self._hurried else SETTLE_S):
                await self._completer.flush()
        except TimeoutError:
            await self._completer.abort()
            _log.error("worker.unsettled", worker=self.name, held=self._completer.held)
        await self._heartbeat.stop(LEAVE_S)
        await self._listener.stop()
        await self._http.close()
        self._threads.close()
        _log.info("worker.stop", worker=self.name, **self.statistics())

    async def _announce(self, shard: int) -> None:
        while True:
            try:
                await self._store.announce(shard, self.name, ANNOUNCE_TTL_MS, self._serves)
                return
            except TaskschedError as error:
                _log.warning("announce.failed", shard=shard, error=str(error))
            await asyncio.sleep(OUTAGE_REST_S)

    def _describe(self) -> Mapping[str, Arg]:
        """Read by the heartbeat thread."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": ",".join(self._settings.queues),
            "routes": ",".join(self._routes),
            "slots": self._slots,
            "running": len(self._runs),
            "since": self._since_ms,
            "version": version("tasksched"),
        }

    # -- hints --------------------------------------------------------------------------------------

    def _heard(self, shard: int, message: str) -> None:
        if message == "work":
            self._flag(shard)
        elif message.startswith("cancel ") and (run := self._runs.get(message[7:])):
            self._cancel(run)

    def _flag(self, shard: int) -> None:
        self._flagged[shard] = None
        self._fill_soon()

    def _flag_all(self) -> None:
        self._flagged = dict.fromkeys([*self._flagged, *range(self._store.shards)])
        self._fill_soon()

    def _look(self) -> None:
        self._looks = (self._looks + 1) % self._store.shards
        self._flag(self._looks)
        self._looking = self._loop.call_later(LOOK_S, self._look)

    # -- taking -------------------------------------------------------------------------------------

    def _fill_soon(self) -> None:
        """Many slots that become free in one turn of the loop are one call."""
        if not self._filling:
            self._filling = True
            self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        self._filling = False
        while not self._draining and self._completer.held <= HELD_MAX:
            free = self._slots - len(self._runs) - self._reserved
            shard = next((each for each in self._flagged if each not in self._takes), None)
            if shard is None or len(self._takes) >= TAKES_MAX:
                return
            # Beside a call in flight another is worth its price for a good batch only: many small
            # ones would stay small, each asking for what the one before has freed.
            if free < (min(self._want[shard], max(1, self._slots // 2)) if self._takes else 1):
                return
            del self._flagged[shard]
            asked = min(free, self._want[shard])
            self._reserved += asked
            self._takes[shard] = self._loop.create_task(self._take(shard, asked))

    async def _take(self, shard: int, asked: int) -> None:
        self._calls[shard] += 1
        since = clock.mono()
        more, grants = True, list[Grant]()
        try:
            more, grants = await self._granted(shard, asked)
        finally:
            self._reserved -= asked
            del self._takes[shard]
        self._begin([self._run_of(grant, shard, since) for grant in grants])
        self._want[shard] = min(self._want[shard] * 2, BATCH_MAX) if more and grants else TAKE_FIRST
        if more and grants:
            self._flagged[shard] = None
        elif more:  # nothing may start just now: no spinning
            self._loop.call_later(REST_S, self._flag, shard)
        self._fill_soon()
        self._tell_if_still()

    async def _granted(self, shard: int, asked: int) -> tuple[bool, list[Grant]]:
        """The answer to the current call of this shard, however often it has to be asked."""
        while True:
            try:
                _, more, grants = await self._store.take(
                    shard,
                    self.name,
                    call=self._calls[shard],
                    slots=asked,
                    lease_ms=self._settings.lease_ms,
                )
                return more, grants
            except Unannounced:
                await self._announce(shard)
            except Unavailable as error:
                _log.warning("take.unavailable", shard=shard, error=str(error))
                await asyncio.sleep(OUTAGE_REST_S)
            except TaskschedError as error:
                _log.error("take.refused", shard=shard, error=str(error))
                await asyncio.sleep(REFUSED_REST_S)
                return True, []

    # -- running ------------------------------------------------------------------------------------

    def _run_of(self, grant: Grant, shard: int, since: float) -> Run:
        return Run(grant, shard, grant.lease_ms or self._settings.lease_ms, since)

    def _begin(self, runs: list[Run]) -> None:
        self._heartbeat.watch(runs)
        if self._draining:  # granted while we were told to stop
            for run in runs:
                self._give(run, RELEASED)
            return
        self.started += len(runs)
        spawn = self._loop.create_task
        for run in runs:
            if run.key in self._runs:
                self._rename(self._runs[run.key])
            self._runs[run.key] = run
            run.task = spawn(self._execute(run))

    def _rename(self, older: Run) -> None:
        """It lost its lease and runs on here, where the task has started again: that has the name."""
        older.key = f"{older.grant.id}#{older.grant.fence}"
        self._runs[older.key] = older

    async def _execute(self, run: Run) -> None:
        try:
            outcome = await self._executor.run(run)
        finally:
            del self._runs[run.key]
            self._fill_soon()
        self._give(run, outcome)
        self._tell_if_still()

    def _give(self, run: Run, outcome: Outcome) -> None:
        """The outcome of a run, whoever knows it first: its handler's end, or who gave up on it."""
        if not run.ended:
            run.ended = True
            self._completer.put(run, outcome)

    def _answered(self, runs: Sequence[Run]) -> None:
        """The server knows how these runs ended."""
        self._heartbeat.forget(runs)
        if self._flagged:
            self._fill_soon()

    def _cancel(self, run: Run) -> None:
        if not run.why and not run.ended:
            _log.info("task.cancel", task_id=run.grant.id)
            run.interrupt("cancel")

    def _told(self, run: Run, word: str) -> None:
        """What a heartbeat was answered."""
        if run.ended:
            return
        if word == "cancel":
            self._cancel(run)
        elif not run.lease_lost:
            run.lease_lost = True
            self.leases_lost += 1
            _log.warning("lease.lost", task_id=run.grant.id, fence=run.grant.fence)
            if self._settings.abort_on_lease_loss:
                run.interrupt("lease")

    def _tell_if_still(self) -> None:
        if self._draining and not self._runs and not self._takes:
            self._still.set()
