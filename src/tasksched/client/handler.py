"""Handlers as a producer sees them: something to submit to, with the handler's own arguments.

``Submitter[P, R]`` takes the arguments P and leads to a ``Task[R]``. Decorating a function makes one
that can still be called as the plain function, which is how it is unit-tested: four classes, because
a function may be a coroutine or not and may want its Ctx or not, and only the call differs.
Options never mix with arguments: ``charge.options(delay="1h").submit("inv_1", 100)``.
"""

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from tasksched.client.link import Link
from tasksched.client.options import Options, concurrency_in, expires_ms, parsed, wire
from tasksched.client.payload import AnyArguments, Arguments
from tasksched.client.recurring import Repeat
from tasksched.client.schedule_options import ScheduleOptions, When, rule_of, spec_of
from tasksched.client.task import Task
from tasksched.errors import Invalid
from tasksched.model.durations import Duration
from tasksched.model.instants import Instant
from tasksched.model.names import Priority
from tasksched.model.receivers import Notify
from tasksched.model.retry import Retry
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.runtime import registry
from tasksched.runtime.context import Ctx

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
U = TypeVar("U", bound=registry.Upgrade)

_replace = msgspec.structs.replace


class Call(Generic[R_co]):
    """A prepared submit for ``submit_many``: checked, encoded, not sent."""

    __slots__ = ("spec",)

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec


class Submitter(Generic[P, R]):
    """Submits tasks of one handler with certain options."""

    def __init__(
        self,
        link: Link,
        arguments: Arguments,
        template: TaskSpec | None,
        expires: Instant | Duration | None = None,
    ) -> None:
        self._link = link
        self._arguments = arguments
        self._template = template
        self._expires = expires

    async def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Creates the task. Raises TypeError for wrong arguments, KeyReused, Unavailable."""
        spec = self._spec(args, kwargs)
        backend = await self._link.backend()
        return Task(self._link, spec.tenant, await backend.submit(spec))

    def submit_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """As ``submit``, without an event loop."""
        return self._link.run(self.submit(*args, **kwargs))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The same prepared and not sent, for ``App.submit_many``."""
        return Call(self._spec(args, kwargs))

    def options(
        self,
        *,
        at: Instant | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        queue: str | None = None,
        priority: Priority | None = None,
        tenant: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        expires: Instant | Duration | None = None,
        tags: Sequence[str] | None = None,
        notify: Notify | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        traceparent: str | None = None,
    ) -> "Submitter[P, R]":
        """The same handler with these options; what is not given stays as it was.

        ``at`` or ``delay``: when it is due. ``key``: the idempotency key. ``expires``: no first
        start after it; a duration counts from the due time. ``notify``: who is told of its end.
        ``concurrency_key``: of the tenant's tasks with the same one only ``concurrency_limit`` (1) run at a time.
        ``traceparent``: the trace it belongs to, for spans that link to it.
        """
        return self.with_options(
            Options(
                at=at, delay=delay, key=key, queue=queue, priority=priority, tenant=tenant,
                retry=retry, timeout=timeout, expires=expires, tags=tags, notify=notify,
                concurrency_key=concurrency_key, concurrency_limit=concurrency_limit,
                traceparent=traceparent,
            )
        )  # fmt: skip

    def with_options(self, options: Options) -> "Submitter[P, R]":
        """As ``options``, from one value."""
        fields = parsed(options)
        concurrency = concurrency_in(fields, self.template.concurrency)
        expires = fields.pop("expires", self._expires)
        if "delay_ms" in fields:
            fields["run_at_ms"] = None
        elif "run_at_ms" in fields:
            fields["delay_ms"] = None
        template = _replace(self.template, concurrency=concurrency, **fields)
        return Submitter(self._link, self._arguments, template, expires)

    def every(self, when: When, /, **options: Unpack[ScheduleOptions]) -> Repeat[P, R]:
        """The same handler again and again, under an ``id``: ``every("15m", id="q").create(1)``.

        ``when`` is a Cron, Every, Delay or RRule; or a cron expression; or a duration, which is an
        interval. Raises Invalid.
        """
        given: dict[str, Any] = {**options}
        if self._expires is not None:
            raise Invalid("a recurring task has no expires: its rule says when", "/expires")
        template = self.template
        if (tenant := given.pop("tenant", None)) is not None:
            template = _replace(template, **parsed(Options(tenant=tenant)))
        spec = spec_of(template, given.pop("id", None), rule_of(when), given)
        return Repeat(self._link, self._payload, spec)

    @property
    def template(self) -> TaskSpec:
        """The task without its payload. Made when first needed: it reads the App's settings."""
        if self._template is None:
            self._template = self._first_template()
        return self._template

    def _first_template(self) -> TaskSpec:
        raise NotImplementedError

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskSpec:
        spec = _replace(self._template or self.template, payload=self._payload(args, kwargs))
        if self._expires is not None:
            spec = _replace(spec, expires_at_ms=expires_ms(self._expires, spec))
        return spec

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self._arguments.encode(args, kwargs, self._link.settings.payload_bytes_max)


class Named(Submitter[..., Any]):
    """A handler of another program, known by its name; its arguments cannot be checked here."""

    def __init__(self, link: Link, target: HandlerTarget) -> None:
        super().__init__(link, AnyArguments(target.name), None)
        self._target = target

    def _first_template(self) -> TaskSpec:
        return TaskSpec(target=self._target, tenant=self._link.tenant)


class _Handled(Submitter[P, R]):
    """A decorated function. ``name`` is what workers know it by."""

    def __init__(self, link: Link, entry: registry.Handler) -> None:
        arguments = Arguments.of(entry.name, entry.function, wants_ctx=entry.wants_ctx)
        super().__init__(link, arguments, None)
        self.entry = entry
        functools.update_wrapper(self, entry.function)  # type: ignore[arg-type]  # it is callable in each subclass

    @property
    def name(self) -> str:
        return self.entry.name

    def _first_template(self) -> TaskSpec:
        return _replace(self.tenantless, tenant=self._link.tenant)

    @property
    def tenantless(self) -> TaskSpec:
        """The template of its tasks before anybody says whose they are: reads no settings."""
        entry = self.entry
        return TaskSpec(
            target=entry.target,
            queue=entry.queue,
            retry=wire(entry.retry),
            timeout_ms=entry.timeout_ms,
            lease_ms=entry.lease_ms,
            notify=entry.notify,
            concurrency=entry.concurrency,
        )

    def upgrade(self, version: str | None) -> Callable[[U], U]:
        """Decorates the function that makes of a payload of this version one of the next.

        Payloads are as they travel: a list of positional or a dict of named arguments, or one value.
        """

        def add(function: U) -> U:
            self.entry.add_upgrade(version, function)
            return function

        return add

    def require_no_arguments(self) -> None:
        """Raises TypeError where the handler cannot be called without arguments."""
        self._arguments.encode((), {}, 0)

    def __repr__(self) -> str:
        return f"<handler {self.entry.target.route}>"


class Handler(_Handled[P, R]):
    """``async def charge(invoice: str) -> R``"""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """The plain function, run here and now."""
        return self.entry.function(*args, **kwargs)  # type: ignore[no-any-return]


class CtxHandler(_Handled[P, R]):
    """``async def charge(ctx: Ctx, invoice: str) -> R``"""

    def __call__(self, ctx: Ctx, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """The plain function, run here and now with the given Ctx."""
        return self.entry.function(ctx, *args, **kwargs)  # type: ignore[no-any-return]


class SyncHandler(_Handled[P, R]):
    """``def charge(invoice: str) -> R``"""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The plain function, run here and now."""
        return self.entry.function(*args, **kwargs)  # type: ignore[no-any-return]


class SyncCtxHandler(_Handled[P, R]):
    """``def charge(ctx: Ctx, invoice: str) -> R``"""

    def __call__(self, ctx: Ctx, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The plain function, run here and now with the given Ctx."""
        return self.entry.function(ctx, *args, **kwargs)  # type: ignore[no-any-return]


AnyHandler = (
    Handler[..., Any] | CtxHandler[..., Any] | SyncHandler[..., Any] | SyncCtxHandler[..., Any]
)
