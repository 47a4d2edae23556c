"""testing: the whole product on a fake clock, in one process, without sleeping.

::

    async with harness(app, start="2026-03-28T12:00:00Z") as h:
        await charge.options(delay="3d").submit("inv_1", 100)
        await h.advance("3d")
        assert h.runs(charge)[0].outcome == "SUCCEEDED"

The real scripts run on a real server (an embedded one, or ``url``), in a namespace of their own that
is gone afterwards; time is an argument of every script, so ``advance`` jumps from event to event
in the order of time. Handlers are called for real, one after the other; what they await for
themselves takes real time. Deliberately not here: other processes, and HTTP targets unless ``http``
says how to answer them.
"""

import atexit
import random
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from tasksched import embedded
from tasksched.client.app import App
from tasksched.client.backend import Backend
from tasksched.client.declared import sync_declared
from tasksched.client.direct import Direct
from tasksched.commands.recurring import Recurring
from tasksched.commands.session import Session, open_session
from tasksched.errors import TaskschedError
from tasksched.model import codec
from tasksched.model.durations import Duration, parse_duration
from tasksched.model.instants import Instant, format_instant, parse_instant
from tasksched.model.notify import NOTIFY_ROUTE
from tasksched.model.outcome import Outcome
from tasksched.model.seal import task_place
from tasksched.model.states import OutcomeName
from tasksched.model.task import HTTP_ROUTE, ErrorInfo
from tasksched.runtime.context import Run
from tasksched.runtime.desk import StoreDesk
from tasksched.runtime.executor import HttpCall
from tasksched.runtime.notices import Notices
from tasksched.runtime.reaper import reap_overdue
from tasksched.runtime.sealing import executor_of
from tasksched.runtime.threads import Threads
from tasksched.runtime.ticker import fire_owed
from tasksched.settings import Settings
from tasksched.store.limits import Limits
from tasksched.store.protocol import Grant, Release, Store
from tasksched.store.schedules import Schedules

START = "2026-01-01T00:00:00Z"
SHARDS = 2
SLOTS = 100
FOR_EVER_MS = 400 * 365 * 24 * 3_600_000
NEVER_MS = 1 << 62
ROUNDS_MAX = 100_000


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that the harness saw start. ``outcome`` LOST: its worker was killed.

    ``nominal_ms``: the nominal time that it stands for, of an occurrence of a recurring task.
    """

    task_id: str
    handler: str
    attempt: int
    started_at: str
    started_ms: int
    due_ms: int
    nominal_ms: int | None = None
    outcome: OutcomeName | Literal["DEFERRED"]
    result: Any = None
    error: ErrorInfo | None = None


class Harness:
    """The clock, the scheduler and the worker of one test."""

    def __init__(self, session: Session, app: App, http: HttpCall | None) -> None:
        self._session = session
        self._store: Store = session.store
        self._schedules = Schedules(session.store)
        self._limits = Limits(session.store)
        self._bodies = session.bodies
        notify = Notices(session.store, session.bodies) if http else None
        self._executor = executor_of(
            session.bodies, app.registry, Threads(SLOTS), http=http, notify=notify
        )
        self._executor.rng = random.Random(0).random
        self._desk = StoreDesk(session.store, session.bodies, lambda _run: None)
        self._executor.desk = self._desk
        self._routes = [*app.registry.routes, *([HTTP_ROUTE, NOTIFY_ROUTE] if http else [])]
        self._calls = 0
        self._worker = ""
        self._records: list[RunRecord] = []
        # When each shard has something to do next; what the app asks for may change it any time.
        self._planned_ms = [0] * session.store.shards
        self._touched = True

    @property
    def now_ms(self) -> int:
        """The time of the harness, ms since the epoch."""
        return self._store.now_ms

    @property
    def now(self) -> str:
        """The time of the harness, RFC 3339."""
        return format_instant(self.now_ms)

    async def advance(self, duration: Duration) -> None:
        """Lets so much time pass; everything that comes due on the way happens, in order."""
        await self._until(self.now_ms + parse_duration(duration, "/duration"))

    async def advance_to(self, instant: Instant) -> None:
        """As ``advance``, to an instant that is not past."""
        await self._until(max(parse_instant(instant, "/instant"), self.now_ms))

    def runs(self, handler: Any = None) -> list[RunRecord]:
        """The attempts so far, in the order of their starts: all, or those of one handler."""
        if handler is None:
            return list(self._records)
        name = handler if isinstance(handler, str) else handler.name
        return [record for record in self._records if record.handler == name]

    async def kill_worker(self) -> None:
        """The worker starts what is due now and dies; another one takes its place.

        What it had started is lost: found when the lease ends, and tried again as the policy says.
        """
        self._touched = True
        for _, grant in await self._start_due():
            self._note(grant, Outcome(kind="LOST"))
        await self.start()

    async def start(self) -> None:
        """A new worker announces itself."""
        self._touched = True
        self._desk.start()
        self._worker = f"harness-{secrets.token_hex(4)}"
        serves = [*(f"route:{route}" for route in self._routes), "queue:*"]
        for shard in range(self._store.shards):
            await self._store.announce(shard, self._worker, FOR_EVER_MS, serves)

    def touch(self) -> None:
        """Somebody uses the store: every shard may have something to do now."""
        self._touched = True

    # -- time -----------------------------------------------------------------------------------

    async def _until(self, target_ms: int) -> None:
        self._touched = True
        for _ in range(ROUNDS_MAX):
            next_ms = await self._settle_now()
            if next_ms > target_ms:
                break
            await self._set(next_ms)
        else:
            raise TaskschedError(f"{ROUNDS_MAX} events and no end before {target_ms}")
        await self._set(target_ms)
        await self._settle_now()

    async def _set(self, now_ms: int) -> None:
        """Time passes as if schedulers had looked all along: a jump is no outage."""
        self._store.now_ms = now_ms
        await self._store.gateway.pipeline(
            [("HSET", keys.clock, "seen_ms", now_ms) for keys in self._store.keys]
        )

    async def _settle_now(self) -> int:
        """Everything that is due happens; returns when the next thing will, NEVER_MS for not at all."""
        while True:
            grants = await self._start_due()
            for shard, grant in sorted(grants, key=lambda pair: pair[1].due_ms):
                await self._run(shard, grant)
            if not grants and not self._touched:
                return min(self._planned_ms)

    async def _start_due(self) -> list[tuple[int, Grant]]:
        """What schedulers do now, and what the worker takes, on the shards that have a reason."""
        if self._touched:
            self._planned_ms = [0] * self._store.shards
            self._touched = False
        grants: list[tuple[int, Grant]] = []
        for shard, planned_ms in enumerate(self._planned_ms):
            if planned_ms <= self.now_ms:
                self._planned_ms[shard] = await self._schedule(shard)
                grants += [(shard, grant) for grant in await self._take(shard)]
        return grants

    async def _schedule(self, shard: int) -> int:
        """What schedulers do now on a shard, until there is nothing left to do; when again."""
        is_reaped = False
        while True:
            done = await self._store.dispatch(shard)
            if 0 <= done.expiry_ms <= self.now_ms:
                await self._store.expire(shard)
                continue
            for ask in done.asks:
                await self._limits.meet(shard, ask)
            if 0 <= done.owed_ms <= self.now_ms and any(await fire_owed(self._schedules, shard)):
                continue
            if 0 <= done.watch_ms <= self.now_ms and not is_reaped:
                is_reaped = await reap_overdue(self._store, shard) == 0
                continue
            if (done.moved and 0 <= done.again_ms <= self.now_ms) or done.asks:
                continue
            planned = (done.again_ms, done.expiry_ms, done.watch_ms, done.owed_ms)
            return min((at_ms for at_ms in planned if at_ms > self.now_ms), default=NEVER_MS)

    # -- work -----------------------------------------------------------------------------------

    async def _take(self, shard: int) -> list[Grant]:
        self._calls += 1
        _, _, grants = await self._store.take(
            shard,
            self._worker,
            call=self._calls,
            slots=SLOTS,
            lease_ms=self._session.settings.lease_ms,
        )
        return grants

    async def _run(self, shard: int, grant: Grant) -> None:
        lease_ms = grant.lease_ms or self._session.settings.lease_ms
        run = Run(grant, shard, lease_ms, 0.0)
        outcome = await self._executor.run(run)
        await self._desk.flush([run])
        if outcome.kind == "RELEASED":
            back = Release(grant.id, grant.fence, outcome.retry_ms, outcome.reason)
            await self._store.release(shard, [back])
        elif outcome.kind == "DEFERRED":
            await self._store.defer(shard, [(grant.id, grant.fence, outcome.lease_ms)])
        else:
            await self._store.settle(shard, [(grant.id, grant.fence, outcome)])
        self._planned_ms[shard] = 0  # its verdict may have made something due
        self._note(grant, outcome)

    def _value_of(self, grant: Grant, result: bytes) -> Any:
        """What the handler returned."""
        place = task_place(grant.tenant, grant.id, "result")
        return codec.decode(self._bodies.open(result, place)) if result else None

    def _note(self, grant: Grant, outcome: Outcome) -> None:
        if grant.route == NOTIFY_ROUTE:
            return  # it only makes deliveries, which are runs of their own
        self._records.append(
            RunRecord(
                task_id=grant.id,
                handler=grant.route.partition("@")[0],
                attempt=grant.attempt,
                started_at=format_instant(grant.started_ms),
                started_ms=grant.started_ms,
                due_ms=grant.due_ms,
                nominal_ms=grant.nominal_ms,
                outcome=outcome.kind,
                result=self._value_of(grant, outcome.result),
                error=outcome.error,
            )
        )


class _Noticed:
    """A backend that tells when it is used."""

    def __init__(self, backend: Direct, touch: Callable[[], None]) -> None:
        self._backend = backend
        self._touch = touch

    def __getattr__(self, name: str) -> Any:
        self._touch()
        return getattr(self._backend, name)


@asynccontextmanager
async def harness(
    app: App,
    *,
    start: Instant = START,
    url: str | None = None,
    http: HttpCall | None = None,
    shards: int = SHARDS,
    declared: bool = True,
) -> AsyncIterator[Harness]:
    """A harness for the handlers of ``app``; meanwhile the app's requests go to it.

    ``url``: a real server to use instead of the embedded one; only its own namespace is touched.
    ``http``: answers HTTP targets, and what webhooks send, with an encoded result, or a Failure.
    ``declared``: begin with the recurring tasks that the app declares, created at ``start``.
    """
    namespace = f"harness-{secrets.token_hex(6)}"
    settings = Settings(url=url or _server_url(), namespace=namespace, shards=shards)
    session = await open_session(settings, codec=app.codec)
    session.store.now_ms = parse_instant(start, "/start")
    made = Harness(session, app, http)
    try:
        await made.start()
        if declared and app.declared:
            report = await sync_declared(app, Recurring(session.store, session.bodies), app.tenant)
            if report.failed:
                raise TaskschedError(f"declared and not possible: {report.failed}")
        with app.using(cast("Backend", _Noticed(Direct(session), made.touch))):
            yield made
    finally:
        await _forget(session)
        await session.close()


@cache
def _server_url() -> str:
    """One embedded server for all harnesses of this process; it ends with the process."""
    directory = Path(tempfile.mkdtemp(prefix="tasksched-"))
    server = embedded.start(directory)

    def end() -> None:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return server.url


async def _forget(session: Session) -> None:
    """Removes every key of the harness's namespace."""
    namespace = session.store.namespace
    for pattern in (f"{{{namespace}:*", f"{namespace}:*"):
        cursor = b"0"
        while True:
            cursor, keys = await session.gateway.command(
                "SCAN", cursor, "MATCH", pattern, "COUNT", 1000
            )
            if keys:
                await session.gateway.command("UNLINK", *keys)
            if int(cursor) == 0:
                break
