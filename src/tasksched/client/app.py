"""App: the front door of the Python client. Handlers are declared on it, tasks go through it.

::

    app = App()                       # TASKSCHED_URL; or App("redis://…"), App("https://…")

    @app.task(queue="billing", timeout="30s")
    async def charge(ctx: Ctx, invoice: str, cents: int) -> str: ...

    task = await charge.submit("inv_1", 100)

Making an App connects to nothing and reads no environment; the first request does. It may be used
from several event loops and threads: each loop has a connection of its own. A worker reads the
handlers from ``app.registry``; producers over HTTP need no Redis.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from tasksched.client.backend import PAGE_MAX, Backend, Query
from tasksched.client.bulk import Managing
from tasksched.client.declared import OWNER, Declared, declare
from tasksched.client.handler import (
    AnyHandler,
    CtxHandler,
    Handler,
    Named,
    Submitter,
    SyncCtxHandler,
    SyncHandler,
)
from tasksched.client.limits import Limiting
from tasksched.client.link import Link, settings_of
from tasksched.client.live import Reporting
from tasksched.client.many import Calls, submit_many
from tasksched.client.options import Options, concurrency_of
from tasksched.client.patterns import matches, prefix_of
from tasksched.client.payload import takes_ctx
from tasksched.client.recurring import Recurring
from tasksched.client.schedule_options import DeclaredOptions, When
from tasksched.client.task import Task
from tasksched.client.webhooks import Webhooks
from tasksched.errors import Invalid
from tasksched.model.durations import Duration, parse_duration
from tasksched.model.instants import Instant
from tasksched.model.names import Priority, check_handler_name, check_name
from tasksched.model.receivers import Notify, check_receivers
from tasksched.model.recurring import ScheduleStatus
from tasksched.model.retry import Retry
from tasksched.model.schedule import Cron
from tasksched.model.seal import Codec
from tasksched.model.states import STATES, State
from tasksched.model.task import DEFAULT_RETRY, HandlerTarget
from tasksched.runtime import registry
from tasksched.runtime.context import Ctx
from tasksched.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")

LEASE_MIN_MS = 500


class Decorator(Protocol):
    """What ``app.task(…)`` returns. The special overloads stand first; they overlap on purpose."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /
    ) -> CtxHandler[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Ctx, P], R], /) -> SyncCtxHandler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncHandler[P, R]: ...


class App(Reporting, Managing, Limiting):
    """Handlers and the way to them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        tenant: str | None = None,
        api_key: str | None = None,
        name: str = OWNER,
        settings: Settings | None = None,
        codec: Codec | None = None,
    ) -> None:
        """``url``: ``redis://``, ``rediss://``, ``unix://``, ``embedded:DIR``, ``http(s)://``.

        What is not given comes from the environment at the first request. ``settings`` replaces
        the environment altogether. ``name`` owns the recurring tasks that are declared in the code.
        ``codec`` encrypts payloads and results in this process and in workers (``docs/encryption.md``).
        """
        self.codec = codec
        self.registry = registry.Registry()
        self.owner = check_name(name, "/name")
        self._declared: dict[str, Declared] = {}

        def read() -> Settings:
            if settings is None:
                return settings_of(url, namespace, tenant, api_key)
            return settings.with_flags(url=url, namespace=namespace, tenant=tenant, api_key=api_key)

        self._link = Link(read, codec)
        self.webhooks = Webhooks(self._link)

    # -- handlers -------------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /
    ) -> CtxHandler[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Handler[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Ctx, P], R], /) -> SyncCtxHandler[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncHandler[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        version: str | None = None,
        accepts: Sequence[str | None] = (),
        process: bool = False,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        notify: Notify = (),
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        cron: Cron | str | None = None,
        every: When | None = None,
        schedule_options: DeclaredOptions | None = None,
    ) -> Decorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        version: str | None = None,
        accepts: Sequence[str | None] = (),
        process: bool = False,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        notify: Notify = (),
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        cron: Cron | str | None = None,
        every: When | None = None,
        schedule_options: DeclaredOptions | None = None,
    ) -> Any:
        """Makes a function a handler, as ``@app.task`` or ``@app.task(queue="billing", …)``.

        ``name`` is the function's unless given. ``retry``, ``timeout`` (of one attempt) and ``lease``
        are its tasks' unless a submit says otherwise. ``accepts``: older versions that it runs too,
        the oldest first, None for tasks that name none. ``process``: it runs in a process of its own.
        ``notify``: who is told of their ends. ``concurrency_key``: of those with the same one only
        ``concurrency_limit`` (1) run at a time. With ``cron`` or ``every`` it is recurring (``declared``).
        """

        def decorate(function: Callable[..., Any]) -> AnyHandler:
            entry = registry.Handler(
                name=name if name is not None else function.__name__,
                function=function,
                mode="async" if inspect.iscoroutinefunction(function) else "thread",
                wants_ctx=takes_ctx(function),
                version=version,
                accepts=tuple(accepts),
                process=process,
                queue=queue,
                retry=DEFAULT_RETRY if retry is None else retry,
                timeout_ms=_optional_ms(timeout, "/timeout", least_ms=1),
                lease_ms=_optional_ms(lease, "/lease", least_ms=LEASE_MIN_MS),
                notify=check_receivers(notify),
                concurrency=concurrency_of(None, concurrency_key, concurrency_limit),
            )
            made = _CLASSES[entry.mode, entry.wants_ctx](self._link, entry)
            declared = declare(made.tenantless, cron, every, schedule_options)
            if declared is not None:
                made.require_no_arguments()
                if declared.id in self._declared:
                    raise Invalid(f"{declared.id!r} is declared already", "/id")
            self.registry.add(entry)
            if declared is not None:
                self._declared[declared.id] = declared
            return made

        return decorate if function is None else decorate(function)

    def named(self, name: str, *, version: str | None = None) -> Submitter[..., Any]:
        """A handler of another program, by its name; its arguments cannot be checked here."""
        check_handler_name(name, "/name")
        if version is not None:
            check_name(version, "/version")
        return Named(self._link, HandlerTarget(name, version))

    @property
    def declared(self) -> list[Declared]:
        """The recurring tasks that stand in the code, in their order."""
        return list(self._declared.values())

    # -- submitting -----------------------------------------------------------------------------

    async def submit(
        self,
        name: str,
        /,
        *args: Any,
        at: Instant | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        queue: str | None = None,
        priority: Priority | None = None,
        tenant: str | None = None,
        **kwargs: Any,
    ) -> Task[Any]:
        """Creates a task for a handler known by name. Other options: ``named(…).options(…)``.

        So do arguments of the handler that are called like an option here.
        """
        options = Options(
            at=at, delay=delay, key=key, queue=queue, priority=priority, tenant=tenant
        )
        return await self.named(name).with_options(options).submit(*args, **kwargs)

    def submit_sync(self, name: str, /, *args: Any, **kwargs: Any) -> Task[Any]:
        """As ``submit``, without an event loop."""
        return self._link.run(self.submit(name, *args, **kwargs))

    async def submit_many(self, calls: Calls[R]) -> list[Task[R]]:
        """Creates a task for each prepared ``handler.call(…)``; handles in the same order.

        Takes any iterable, asynchronous ones too, and may be given hundreds of thousands. Raises
        PartlyFailed when some were refused, Unavailable when the server stays away: then some may
        have been created, and keys make it safe to repeat.
        """
        return await submit_many(self._link, calls)

    def submit_many_sync(self, calls: Calls[R]) -> list[Task[R]]:
        """As ``submit_many``, without an event loop; the calls are made in another thread."""
        return self._link.run(self.submit_many(calls))

    # -- looking --------------------------------------------------------------------------------

    def task_handle(self, task_id: str) -> Task[Any]:
        """A handle without asking whether the task exists."""
        return Task.known(self._link, self._link.tenant, task_id)

    async def get(self, task_id: str) -> Task[Any]:
        """The task, read. Raises NotFound."""
        handle = self.task_handle(task_id)
        await handle.refresh()
        return handle

    def get_sync(self, task_id: str) -> Task[Any]:
        return self._link.run(self.get(task_id))

    async def find(
        self,
        *,
        status: State | None = None,
        handler: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Task[Any]]:
        """The tasks that match, page by page; their records come without payload and result.

        ``handler`` may be a pattern (``"billing.*"``). One status reads one index; without any,
        the waiting tasks come first, then the rest. ``limit``: at most so many.
        """
        if status is not None and status not in STATES:
            raise Invalid(f"a status is one of {', '.join(STATES)}", "/status")
        query = Query(
            tenant=self._link.tenant,
            status=status,
            queue=queue,
            handler=None if handler is None else prefix_of(handler),
            tag=tag,
            limit=PAGE_MAX if limit is None else max(1, min(limit, PAGE_MAX)),
        )
        left, cursor = limit, None
        while left is None or left > 0:
            page = await (await self._link.backend()).page(query, cursor)
            for record in page.items:
                if handler is not None and not matches(record.target, handler):
                    continue
                if left is not None:
                    if left == 0:
                        return
                    left -= 1
                found = Task.known(self._link, record.tenant, record.id)
                found.heard(record)
                yield found
            cursor = page.next_cursor
            if cursor is None:
                return

    def find_sync(self, **filters: Any) -> list[Task[Any]]:
        """As ``find``, all at once and without an event loop."""

        async def collect() -> list[Task[Any]]:
            return [task async for task in self.find(**filters)]

        return self._link.run(collect())

    def recurring(self, id: str) -> Recurring[Any]:  # noqa: A002 - the word users know it by
        """A handle on a recurring task, without asking whether it exists."""
        return Recurring(self._link, self._link.tenant, id)

    async def find_recurring(
        self, *, status: ScheduleStatus | None = None
    ) -> AsyncIterator[Recurring[Any]]:
        """The recurring tasks, those that run next first, with their records.

        One that runs in between moves to a later place, and may then come twice.
        """
        cursor = None
        while True:
            backend = (await self._link.backend()).recurring
            page = await backend.page(self._link.tenant, status, cursor, PAGE_MAX)
            for record in page.items:
                found = self.recurring(record.spec.id)
                found.heard(record)
                yield found
            cursor = page.next_cursor
            if cursor is None:
                return

    def find_recurring_sync(self, *, status: ScheduleStatus | None = None) -> list[Recurring[Any]]:
        """As ``find_recurring``, all at once and without an event loop."""

        async def collect() -> list[Recurring[Any]]:
            return [found async for found in self.find_recurring(status=status)]

        return self._link.run(collect())

    # -- lifecycle ------------------------------------------------------------------------------

    @property
    def tenant(self) -> str:
        """Whose tasks it submits unless an option says otherwise."""
        return self._link.tenant

    async def close(self) -> None:
        """Closes the connection of the running loop and the one behind the ``…_sync`` calls."""
        await self._link.close()

    def close_sync(self) -> None:
        """Closes the connection behind the ``…_sync`` calls."""
        self._link.close_sync()

    async def __aenter__(self) -> Self:
        await self._link.backend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def using(self, backend: Backend) -> AbstractContextManager[None]:
        """Sends every request to ``backend`` meanwhile, for tests."""
        return self._link.using(backend)


_CLASSES: dict[tuple[registry.Mode, bool], Callable[[Link, registry.Handler], AnyHandler]] = {
    ("async", False): Handler,
    ("async", True): CtxHandler,
    ("thread", False): SyncHandler,
    ("thread", True): SyncCtxHandler,
}


def _optional_ms(value: Duration | None, pointer: str, *, least_ms: int) -> int | None:
    return None if value is None else parse_duration(value, pointer, least_ms=least_ms)
