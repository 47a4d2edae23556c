"""Worker: owns the slots in which tasks run, and nothing else.

The taker fills free slots with granted tasks, the executor knows what happens in a handler, the
completer brings verdicts home, the heartbeat keeps the leases; here they meet. A slot is free again
when its handler has ended, not when the verdict is settled; taking pauses while too many verdicts
wait. Told to stop, a worker takes no more at once, goes on keeping its leases, lets end what ends
within the grace time and hands the rest back, not counted. No outage of Redis ends a worker.
"""

import asyncio
import contextlib
import os
import random
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from msgspec import structs

from tasksched import clock, log
from tasksched.ending import end
from tasksched.errors import TaskschedError
from tasksched.model.callback import callback_token
from tasksched.model.notify import NOTIFY_ROUTE, QUEUE
from tasksched.model.outcome import Outcome, judge
from tasksched.model.seal import PLAIN, Bodies
from tasksched.model.task import HTTP_ROUTE
from tasksched.runtime.cells import Cells
from tasksched.runtime.completer import Completer
from tasksched.runtime.context import Run
from tasksched.runtime.desk import StoreDesk
from tasksched.runtime.egress import Egress
from tasksched.runtime.executor import CANCELLED, RELEASED, failure_of
from tasksched.runtime.heartbeat import ANNOUNCE_TTL_MS, Heartbeat
from tasksched.runtime.hosts import Hosts
from tasksched.runtime.http_target import Hooks, HttpTargets
from tasksched.runtime.notices import Notices, Secrets
from tasksched.runtime.registry import Registry
from tasksched.runtime.sealing import executor_of
from tasksched.runtime.taker import Taker
from tasksched.runtime.threads import Threads
from tasksched.settings import Settings
from tasksched.store.beats import SyncBeats
from tasksched.store.protocol import BATCH_MAX, Grant, Store
from tasksched.store.scripts import Arg
from tasksched.store.wake import Listener

HELD_MAX = 8 * BATCH_MAX  # verdicts on their way, above which nothing is taken
ANNOUNCE_REST_S = 0.5
LET_GO_S = 1.0  # for a handler that was told to stop because the worker does
SETTLE_S = 5.0  # for the last verdicts
LEAVE_S = 2.0

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_log = log.get("worker")


def make_name() -> str:
    """host-pid-random, within the grammar of names."""
    host = _NO_NAME.sub("-", socket.gethostname()).strip("-._")[:40] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


def _http_of(settings: Settings, store: Store, signing: Secrets) -> HttpTargets:
    def token(grant: Grant) -> str:
        return callback_token(store.secret, grant.id, grant.fence)

    return HttpTargets(
        Egress(settings.http_allow, settings.http_deny),
        hooks=Hooks(secrets=signing, token=token, gone=signing.gone),
        hosts=Hosts(
            concurrency=settings.http_host_concurrency,
            failures=settings.http_breaker_failures,
            open_ms=settings.http_breaker_open_ms,
        ),
        callback_lease_ms=settings.callback_lease_ms,
        response_bytes_max=settings.http_response_bytes_max,
        result_bytes_max=settings.result_bytes_max,
    )


class Worker:
    """One worker. ``run_until(stop)`` is its whole life; ``start`` and ``drain`` are its two ends.

    ``target``: the app that its processes for single runs load; without it all run in place.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        *,
        name: str | None = None,
        open_sync: Callable[[], SyncBeats],
        target: str | None = None,
        bodies: Bodies = PLAIN,
    ) -> None:
        self.name = name or make_name()
        self._store = store
        self._settings = settings
        self._registry = registry
        self._slots = settings.concurrency
        self._routes = [*registry.routes, HTTP_ROUTE]
        # Notifications belong to no queue of users: every worker helps to send them.
        self._serves = [
            *(f"route:{route}" for route in (*self._routes, NOTIFY_ROUTE)),
            *(f"queue:{queue}" for queue in dict.fromkeys((*settings.queues, QUEUE))),
        ]
        self._threads = Threads(self._slots)
        self._http = _http_of(settings, store, Secrets(store, bodies))
        self._executor = executor_of(
            bodies,
            registry,
            self._threads,
            http=self._http,
            notify=Notices(store, bodies),
            http_timeout_ms=settings.http_timeout_ms,
            result_bytes_max=settings.result_bytes_max,
        )
        self._executor.abandon = self._give
        self._cells = Cells(target, settings.cells or os.cpu_count() or 1) if target else None
        self._executor.cells = self._cells
        self._heartbeat = Heartbeat(
            open_sync,
            self.name,
            self._serves,
            shards=store.shards,
            hear=self._told,
            describe=self._describe,
        )
        self._desk = StoreDesk(store, bodies, self._heartbeat.hurry)
        self._executor.desk = self._desk
        self._completer = Completer(store, self._answered, self._desk.flush)
        self._taker = Taker(store, self, slots=self._slots, lease_ms=settings.lease_ms)
        channels = [keys.wake for keys in store.keys]
        self._listener = Listener(store.gateway, channels, self._heard, self._taker.flag_all)
        self._runs: dict[str, Run] = {}
        self._draining = False
        self._hurried = False
        self._still = asyncio.Event()
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
            if starting.done():
                await starting  # a failure to start is an error of ours: it ends the worker
            await stopping
        finally:
            await self.drain()
            await end([starting, stopping])

    async def start(self) -> None:
        """Begins to work. Returns when every shard knows the worker, however long Redis is away."""
        self._loop = asyncio.get_running_loop()
        self._desk.start()
        self._heartbeat.start()
        self._listener.start()
        self._taker.start()
        _log.info("worker.start", worker=self.name, slots=self._slots, routes=self._routes)
        await asyncio.gather(*(self.announce(shard) for shard in range(self._store.shards)))
        self._taker.flag_all()

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
        self._taker.stop()
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
            "deferred": completer.deferred,
            "stale": completer.stale,
            "conflicts": completer.conflicts,
            "refused": completer.refused,
            "leases_lost": self.leases_lost,
            "renewed": self._heartbeat.renewed,
        }

    async def _wait_still(self, patience_s: float) -> None:
        """Until nothing runs and no call is open; not longer than the patience."""
        if self._hurried or self._is_still:
            return
        self._still.clear()
        try:
            async with asyncio.timeout(patience_s):
                await self._still.wait()
        except TimeoutError:
            pass

    async def _close(self) -> None:
        await self._taker.close(LET_GO_S)
        try:
            async with asyncio.timeout(LEAVE_S if self._hurried else SETTLE_S):
                await self._completer.flush()
        except TimeoutError:
            await self._completer.abort()
            _log.error("worker.unsettled", worker=self.name, held=self._completer.held)
        # Its end is waited for in a thread of the loop's, and handlers may hold all of those.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._heartbeat.stop(LEAVE_S)
        await self._listener.stop()
        await self._http.close()
        self._threads.close()
        if self._cells is not None:
            await self._cells.close()
        _log.info("worker.stop", worker=self.name, **self.statistics())

    async def announce(self, shard: int) -> None:
        """Tell the shard what we serve, as soon as it can be told."""
        while not self._draining:
            try:
                await self._store.announce(shard, self.name, ANNOUNCE_TTL_MS, self._serves)
                return
            except TaskschedError as error:
                _log.warning("announce.failed", shard=shard, error=str(error))
            await asyncio.sleep(ANNOUNCE_REST_S)

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

    # -- running ------------------------------------------------------------------------------------

    def free(self) -> int:
        """Slots the taker may fill."""
        if self._draining or self._completer.held > HELD_MAX:
            return 0
        return self._slots - len(self._runs)

    def begin(self, shard: int, grants: list[Grant], since: float) -> None:
        """Run what was granted; or, told to stop meanwhile, hand it back."""
        lease_ms = self._settings.lease_ms
        runs = [Run(grant, shard, grant.lease_ms or lease_ms, since) for grant in grants]
        self._heartbeat.watch(runs)
        if self._draining:
            for run in runs:
                self._give(run, RELEASED)
        else:
            self._spawn(runs)
        self._tell_if_still()

    def _spawn(self, runs: list[Run]) -> None:
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
        outcome: Outcome | None = None
        try:
            outcome = await self._executor.run(run)
        except GeneratorExit:  # the loop is gone, and whoever could be told
            raise
        except BaseException as error:  # noqa: BLE001 - a run without an outcome would never end
            outcome = self._escaped(run, error)
        finally:
            del self._runs[run.key]
            self._taker.fill_soon()
            if outcome is not None:
                self._give(run, outcome)
            elif not run.ended:
                self._heartbeat.forget([run])  # its lease runs out, and the reaper takes it back
            self._tell_if_still()

    def _escaped(self, run: Run, error: BaseException) -> Outcome:
        """What the executor lets through: a cancellation that nobody asked for, or a fault of ours."""
        if run.ended or run.why == "release":
            return RELEASED
        grant = run.grant
        _log.error("run.escaped", task_id=grant.id, fence=grant.fence, error=repr(error))
        if run.why in {"cancel", "lease"}:
            return CANCELLED
        handler = self._registry.get(grant.route)
        failure = failure_of(error, handler.retry.never if handler else ())
        if run.why:
            failure = structs.replace(failure, kind="TIMED_OUT")
        return judge(failure, grant.options.retry, attempts=grant.attempts, rng=random.random)

    def _give(self, run: Run, outcome: Outcome) -> None:
        """The outcome of a run, whoever knows it first: its handler's end, or who gave up on it."""
        if not run.ended:
            run.ended = True
            self._completer.put(run, outcome)

    def _answered(self, runs: Sequence[Run]) -> None:
        """The server knows how these runs ended."""
        self._heartbeat.forget(runs)
        self._taker.fill_soon()

    def _heard(self, shard: int, message: str) -> None:
        """A message on a shard's channel."""
        if message == "work":
            self._taker.flag(shard)
        elif message.startswith("cancel ") and (run := self._runs.get(message[7:])):
            self._cancel(run)

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
            if self._cells is not None:
                self._cells.tell_lease_lost(run)
            if self._settings.abort_on_lease_loss:
                run.interrupt("lease")

    @property
    def _is_still(self) -> bool:
        return not self._runs and self._taker.is_still

    def _tell_if_still(self) -> None:
        if self._draining and self._is_still:
            self._still.set()
