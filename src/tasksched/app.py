"""The composition root: settings in, running roles out. The one module that knows everybody.

Each ``run_*`` blocks until SIGTERM or SIGINT and returns an exit code; a second signal ends at
once. A role that cannot reach Redis at its start keeps trying, and none ends because Redis does. What
handlers leave behind, in the loop or in its threads, keeps no process from ending.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from tasksched import embedded, log
from tasksched.client.app import App
from tasksched.client.declared import sync_declared
from tasksched.commands.access import Access
from tasksched.commands.audit import Audit
from tasksched.commands.bulk import Bulk
from tasksched.commands.endpoints import Endpoints
from tasksched.commands.operator import Operator
from tasksched.commands.queues import Queues
from tasksched.commands.recurring import Recurring
from tasksched.commands.removal import Memory
from tasksched.commands.session import Session, open_session, tls_of
from tasksched.commands.system import System
from tasksched.commands.tenants import Tenants
from tasksched.errors import Conflict, TaskschedError, Unavailable, Unsafe
from tasksched.http.api import Services, make_api
from tasksched.loading import load_app
from tasksched.model.seal import Codec, codec_of
from tasksched.pool import run_pool
from tasksched.runtime.janitor import BUDGET_SHARE, Retention
from tasksched.runtime.registry import Registry
from tasksched.runtime.scheduler import Scheduler
from tasksched.runtime.worker import Worker
from tasksched.settings import Settings
from tasksched.store.acl import roles_of
from tasksched.store.address import is_loopback
from tasksched.store.beats import SyncBeats
from tasksched.store.checks import require_safe
from tasksched.store.connect import PATIENCE_MS

RETRY_S = 1.0
API_PATIENCE_MS = 2_000  # a caller that waits is told 503 soon, and may ask again
GC_THRESHOLD = 20_000
CONNECTIONS_GRACE_S = 3
LEFT_S = 1.0  # for what handlers left behind, when all else has ended
EMBEDDED = "embedded:"

_log = log.get("app")

Role = Callable[[Session, asyncio.Event], Awaitable[None]]
Connect = Callable[[], Awaitable[Session]]


def run_api(settings: Settings, *, with_scheduler: bool = False) -> int:
    """The HTTP API, with a scheduler in the same process where asked for."""

    async def role(session: Session, stop: asyncio.Event) -> None:
        jobs = [_serve(session, stop)]
        if with_scheduler:
            jobs.append(_schedule(session, stop))
        await asyncio.gather(*jobs)

    name = "api+scheduler" if with_scheduler else "api"
    return _run(settings, role, name, patience_ms=API_PATIENCE_MS)


def run_scheduler(settings: Settings) -> int:
    """A scheduler: dispatch, leases, retention."""
    return _run(settings, _schedule, "scheduler")


def run_worker(target: str | None, settings: Settings, *, prune: bool = False) -> int:
    """A worker for the handlers of ``module:app`` (None: for HTTP targets alone).

    It brings the recurring tasks that the app declares up to date; ``prune`` also removes those
    that it declared once and does not any more.
    """
    if settings.processes > 1:
        return run_pool(target, settings, *(["--prune"] if prune else []))
    app = load_app(target) if target else None
    # What is loaded stays: the collector need not walk it again and again beside short-lived runs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)

    async def role(session: Session, stop: asyncio.Event) -> None:
        worker = Worker(
            session.store,
            app.registry if app else Registry(),
            settings,
            open_sync=lambda: SyncBeats(session.settings.url, session.store, tls_of(settings)),
            target=target,
            bodies=session.bodies,
        )
        jobs = [worker.run_until(stop)]
        if app and (app.declared or prune):
            jobs.append(_declare(app, session, stop, prune=prune))
        await asyncio.gather(*jobs)

    return _run(settings, role, "worker", codec=app.codec if app else None)


async def _declare(app: App, session: Session, stop: asyncio.Event, *, prune: bool) -> None:
    """Syncs what the app declares, as soon as Redis lets it. The worker works meanwhile."""
    settings = session.settings
    is_told = settings.sources.get("tenant") == "flag"
    recurring = Recurring(session.store, session.bodies)
    while not stop.is_set():
        try:
            tenant = settings.tenant if is_told else app.tenant
            report = await sync_declared(app, recurring, tenant, prune=prune)
        except TaskschedError as error:
            _log.warning("declared.delayed", error=str(error))
        else:
            say = _log.warning if report.failed or report.foreign else _log.info
            say("declared.synced", owner=app.owner, tenant=tenant, **msgspec.to_builtins(report))
            return
        await _pause(stop)


async def _require_keys(session: Session, stop: asyncio.Event) -> None:
    """Raises Unsafe where strangers could reach us and no key was ever made."""
    host = session.settings.host
    if is_loopback(host):
        return
    access = Access(session.store)
    while not stop.is_set():
        try:
            if await access.is_open():
                raise Unsafe(
                    f"without API keys only loopback is served, not {host}: make the first key with "
                    "`tasksched keys create`"
                )
        except Unavailable as error:
            _log.warning("keys.delayed", error=str(error))
            await _pause(stop)
        else:
            return


def retention_of(settings: Settings) -> Retention:
    return Retention(
        success_ms=settings.retention_success_ms,
        failed_ms=settings.retention_failed_ms,
        count_max=settings.retention_count_max,
        bytes_max=settings.retention_bytes_max or settings.memory_budget // BUDGET_SHARE,
        key_memory_ms=settings.key_memory_ms,
        id_memory_ms=settings.id_memory_ms,
    )


async def _schedule(session: Session, stop: asyncio.Event) -> None:
    settings = session.settings
    scheduler = Scheduler(
        session.store, lease_ms=settings.lease_ms, retention=retention_of(settings)
    )
    operator = Operator(session.store, Memory.of(settings))
    await asyncio.gather(scheduler.run(stop), operator.run(stop))


async def _serve(session: Session, stop: asyncio.Event) -> None:
    settings = session.settings
    await _require_keys(session, stop)
    if stop.is_set():
        return
    system = System(session.store, settings)
    access = Access(
        session.store,
        needs_keys=not is_loopback(settings.host),
        waiting_max=settings.api_waiting_max,
        slow_ms=settings.api_slow_ms,
    )
    with contextlib.suppress(Unavailable):
        await access.is_open()
    services = Services(
        tasks=session.tasks,
        admission=session.admission,
        recurring=Recurring(session.store, session.bodies),
        endpoints=Endpoints(session.store, session.bodies),
        system=system,
        settings=settings,
        callbacks=session.callbacks,
        live=session.live,
        bulk=Bulk.of(session.store, settings),
        tenants=Tenants(session.store),
        queues=Queues(session.store),
        access=access,
        audit=Audit(session.store),
    )
    server = _Server(
        uvicorn.Config(
            make_api(services),
            host=settings.host,
            port=settings.port,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=CONNECTIONS_GRACE_S,
        )
    )
    serving = asyncio.create_task(server.serve())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()  # a server that could not bind its port ends the process
    system.draining = True
    server.should_exit = True
    await serving
    await access.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours (``_until_signalled``): one place decides when everything ends."""
        yield


def _run(
    settings: Settings,
    role: Role,
    name: str,
    *,
    patience_ms: int = PATIENCE_MS,
    codec: Codec | None = None,
) -> int:
    codec_of(settings.encryption_keys)  # whoever cannot read them does not start

    async def connect() -> Session:
        return await open_session(
            reachable,
            keeps_lease=True,
            patience_ms=patience_ms,
            codec=codec,
            roles=roles_of(name),
        )

    with contextlib.ExitStack() as ends:
        reachable = ends.enter_context(_reachable(settings))
        last = _Last(ends.close)
        try:
            return uvloop.run(last.after(_main(reachable, role, connect)))
        finally:
            last.cancel()


class _Last:
    """The end of a process whose loop does not end: it waits without bound for a coroutine that
    swallows its cancellation, and for each of its threads. ``close`` is called before.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._timer: threading.Timer | None = None

    async def after(self, main: Awaitable[int]) -> int:
        """The status of ``main``, with which the process ends a while later at the latest."""
        status = await main
        self._timer = threading.Timer(LEFT_S, self._exit, (status, asyncio.get_running_loop()))
        self._timer.daemon = True
        self._timer.start()
        return status

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _exit(self, status: int, loop: asyncio.AbstractEventLoop) -> None:
        try:
            threads = sum(not each.daemon for each in threading.enumerate()) - 1  # the main thread
            tasks = sum(not each.done() for each in asyncio.all_tasks(loop))
            _log.warning("process.left_over", tasks=tasks, threads=threads, status=status)
            self._close()
            logging.shutdown()
            sys.stdout.flush()
        finally:
            os._exit(status)


@contextlib.contextmanager
def _reachable(settings: Settings) -> Iterator[Settings]:
    """The settings with a URL that can be connected to; an embedded server lives as long as we."""
    if not settings.url.startswith(EMBEDDED):
        yield settings
        return
    directory = Path(settings.url.removeprefix(EMBEDDED))
    server = _attached(directory)
    try:
        yield settings.with_flags(url=server.url)
    finally:
        server.stop()


def _attached(directory: Path) -> embedded.RunningServer:
    """The server of the directory, running or started; somebody may start it between the two."""
    if running := embedded.attach(directory):
        return running
    try:
        return embedded.start(directory)
    except Conflict:
        running = embedded.attach(directory)
        if running is None:
            raise
        return running


async def _main(settings: Settings, role: Role, connect: Connect) -> int:
    stop = asyncio.Event()
    _stop_on_signal(stop)
    session = await _connected(connect, stop)
    if session is None:
        return 0
    try:
        for finding in await require_safe(session.gateway, unsafe=settings.unsafe_redis):
            _log.warning("redis.check", name=finding.name, finding=finding.text)
        await role(session, stop)
    finally:
        await session.close()
    return 0


def _stop_on_signal(stop: asyncio.Event) -> None:
    def signalled() -> None:
        if stop.is_set():
            os._exit(1)  # the second signal: now
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)


async def _connected(connect: Connect, stop: asyncio.Event) -> Session | None:
    """A session, as soon as Redis answers; None when we were told to stop before."""
    while not stop.is_set():
        try:
            return await connect()
        except Unavailable as error:
            _log.warning("redis.unavailable", error=str(error))
        await _pause(stop)
    return None


async def _pause(stop: asyncio.Event) -> None:
    """A while, or until we are told to stop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETRY_S):
            await stop.wait()
