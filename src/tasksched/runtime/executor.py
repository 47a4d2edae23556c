"""Executor: one attempt is a pipe that ends in one Outcome.

resolve → decode → call → encode, or whatever went wrong → ``judge``. Invariant: ``run`` writes
nothing and raises nothing but the cancellation of the worker itself; a handler may raise SystemExit,
return a lock, swallow its cancellation or never return, and all of it becomes an Outcome. Who was
interrupted (``Run.why``) ends accordingly: a cancelled handler that still returns a value has
succeeded, one whose time was over has not. It is the hot path: what can be prepared per handler is.
"""

import asyncio
import functools
import inspect
import random
import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol

from tasksched import clock, log
from tasksched.errors import Invalid, TooLarge
from tasksched.model import codec
from tasksched.model.control import Deferred, Discard, RetryLater
from tasksched.model.notify import NOTIFY_ROUTE
from tasksched.model.outcome import Failure, Outcome, error_info, judge
from tasksched.model.task import HTTP_ROUTE, HTTP_TIMEOUT_MS
from tasksched.runtime import threads as threads_module
from tasksched.runtime import upgrades as upgrades_module
from tasksched.runtime.cells import Cells
from tasksched.runtime.context import Ctx, Desk, NoDesk, Run
from tasksched.runtime.frames import job_of
from tasksched.runtime.isolated import run_isolated
from tasksched.runtime.registry import Handler, Registry
from tasksched.runtime.threads import Ended
from tasksched.runtime.upgrades import UpgradeFailed, upgraded
from tasksched.store.protocol import Grant

FRAMES_MAX = 30
GIVE_UP_MS = 2_000

NULL = b"\xc0"
SUCCEEDED_NULL = Outcome(kind="SUCCEEDED", result=NULL)
RELEASED = Outcome(kind="RELEASED")
CANCELLED = Outcome(kind="CANCELLED")

_OWN_FILES = frozenset({__file__, threads_module.__file__, upgrades_module.__file__})
_log = log.get("executor")

Abandon = Callable[[Run, Outcome], None]


class HttpCall(Protocol):
    """Runs what is built in, the request of an HTTP task for one.

    The encoded result, or what went wrong; or how the attempt ends, where it says so itself.
    """

    async def __call__(self, grant: Grant) -> bytes | Failure | Outcome: ...


class Caller(Protocol):
    """Calls the functions of synchronous handlers: ``Threads``, or the main thread of a cell."""

    def run(self, function: Callable[[], Any]) -> Awaitable[Ended]: ...


class Plan:
    """A handler, prepared: what a run of it needs and nothing that has to be looked up."""

    __slots__ = (
        "function", "handler", "is_apart", "is_http", "is_older", "is_process", "never",
        "timeout_ms", "version", "wants_ctx",
    )  # fmt: skip

    def __init__(self, handler: Handler, version: str | None = None) -> None:
        self.function: Callable[..., Any] = handler.function
        self.handler = handler
        self.version = version
        self.is_older = version in handler.accepts
        self.is_process = handler.process
        self.is_apart = handler.mode == "thread"
        self.wants_ctx = handler.wants_ctx
        self.never = handler.retry.never
        self.timeout_ms = handler.timeout_ms
        self.is_http = False

    def arguments(self, payload: bytes | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the function is called with. Raises Invalid."""
        if self.is_older:
            return _spread(upgraded(self.handler, self.version, payload))
        return _arguments(payload)


def _http_plan(call: HttpCall, timeout_ms: int) -> Plan:
    plan = Plan(Handler(name="http.target", function=call, mode="async", wants_ctx=False))
    plan.is_apart = plan.is_http = True
    plan.timeout_ms = timeout_ms
    return plan


class Executor:
    """Runs grants. ``abandon`` is told the outcome of a run whose handler does not end in time;
    at the ``desk`` runs hand in what they have to say. ``notify`` tells the receivers of an event.
    """

    def __init__(
        self,
        registry: Registry,
        threads: Caller,
        *,
        http: HttpCall | None = None,
        notify: HttpCall | None = None,
        http_timeout_ms: int = HTTP_TIMEOUT_MS,
        result_bytes_max: int = codec.RESULT_MAX,
    ) -> None:
        self._threads = threads
        self._result_bytes_max = result_bytes_max
        self._plans = {
            route: Plan(handler, version)
            for handler in registry
            for route, version in handler.routes.items()
        }
        if http is not None:
            self._plans[HTTP_ROUTE] = _http_plan(http, http_timeout_ms)
        if notify is not None:
            self._plans[NOTIFY_ROUTE] = _http_plan(notify, http_timeout_ms)
        self.rng: Callable[[], float] = random.random
        self.abandon: Abandon = lambda _run, _outcome: None
        self.desk: Desk = NoDesk()
        self.cells: Cells | None = None
        self.keeps_time = True  # a cell's worker does it for the cell

    async def run(self, run: Run) -> Outcome:
        """Whatever happens becomes an Outcome; only the worker's own cancellation escapes."""
        grant = run.grant
        plan = self._plans.get(grant.lane[grant.lane.rindex(":") + 1 :])
        if plan is None:
            _log.error("task.unknown_route", task_id=grant.id, lane=grant.lane)
            return RELEASED
        if self.cells is not None and (plan.is_process or grant.lost > 0) and not plan.is_http:
            return await self._isolated(self.cells, run, plan)
        try:
            args, kwargs = plan.arguments(grant.payload)
        except Invalid as error:
            return self._final(run, error, "payload_not_readable")
        if run.why:
            return self._interrupted(run, None)
        run.entered = True
        timer = self._arm(run, plan)
        try:
            if plan.wants_ctx:
                args = (Ctx(run, self.desk), *args)
            if plan.is_apart:
                return await self._apart(run, plan, args, kwargs)
            value = await plan.function(*args, **kwargs)
        except BaseException as error:
            if run.why == "" and _is_our_end(error):
                raise
            return self._failed(run, plan, error)
        finally:
            if timer is not None:
                timer.cancel()
        return self._succeeded(run, value)

    async def _apart(
        self, run: Run, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        """What does not run in the event loop itself: a thread, or another host."""
        if plan.is_http:
            answer = await plan.function(run.grant)
            if isinstance(answer, Outcome):
                return answer
            if isinstance(answer, bytes):
                return Outcome(kind="SUCCEEDED", result=answer)
            return self._judged(run, answer)
        run.in_thread = True
        value, error = await self._threads.run(functools.partial(plan.function, *args, **kwargs))
        return self._succeeded(run, value) if error is None else self._failed(run, plan, error)

    async def _isolated(self, cells: Cells, run: Run, plan: Plan) -> Outcome:
        """In a process of its own: a suspect shall harm no neighbour."""
        if run.why:
            return self._interrupted(run, None)
        run.entered = True
        job = job_of(
            run.grant,
            lease_ms=run.lease_ms,
            timeout_ms=run.grant.options.timeout_ms or plan.timeout_ms,
            result_bytes_max=self._result_bytes_max,
        )
        arm = functools.partial(self._arm, run, plan)
        outcome = await run_isolated(cells, run, job, arm=arm, desk=self.desk, rng=self.rng)
        return outcome or self._interrupted(run, None)

    # -- time ---------------------------------------------------------------------------------------

    def _arm(self, run: Run, plan: Plan) -> asyncio.TimerHandle | None:
        timeout_ms = run.grant.options.timeout_ms or plan.timeout_ms
        if timeout_ms is None or not self.keeps_time:
            return None
        run.timeout_ms = timeout_ms
        run.deadline = clock.mono() + timeout_ms / 1000
        loop = asyncio.get_running_loop()
        return loop.call_later(timeout_ms / 1000, self._time_out, run)

    def _time_out(self, run: Run) -> None:
        if run.ended:
            return
        run.interrupt("timeout")
        # The lease of a run that is out of time is not renewed for ever (lua/heartbeat.lua): the
        # verdict must be there before it ends, also of a handler that does not let go.
        grace_ms = min(GIVE_UP_MS, run.lease_ms // 3)
        asyncio.get_running_loop().call_later(grace_ms / 1000, self._give_up, run)

    def _give_up(self, run: Run) -> None:
        if run.ended:
            return
        _log.warning("task.hangs", task_id=run.grant.id, timeout_ms=run.timeout_ms)
        self.abandon(run, self._interrupted(run, None))

    # -- endings ------------------------------------------------------------------------------------

    def _succeeded(self, run: Run, value: object) -> Outcome:
        if run.why == "timeout":
            return self._interrupted(run, None)
        if value is None:
            return SUCCEEDED_NULL
        if type(value) is Deferred:
            return Outcome(kind="DEFERRED", lease_ms=value.lease_ms)
        try:
            result = codec.encode(value, most=self._result_bytes_max)
        except TooLarge as error:
            return self._final(run, error, "result_too_large")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not JSON
            return self._final(run, error, "result_not_serialisable")
        return Outcome(kind="SUCCEEDED", result=result)

    def _failed(self, run: Run, plan: Plan, error: BaseException) -> Outcome:
        if run.why:
            return self._interrupted(run, error)
        if isinstance(error, TypeError) and not _fits(plan, run.grant, error):
            return self._final(run, error, "payload_not_readable")
        failure = failure_of(error, plan.never)
        match error:
            case RetryLater(after_ms=after_ms):
                failure = Failure(error=failure.error, retry_after_ms=after_ms, at_least=False)
            case Discard():
                failure = Failure(error=failure.error, retryable=False)
        return self._judged(run, failure)

    def _interrupted(self, run: Run, error: BaseException | None) -> Outcome:
        if run.why == "release":
            return RELEASED
        if run.why != "timeout":
            return CANCELLED
        word = "HttpTimeout" if run.grant.route == HTTP_ROUTE else "TimedOut"
        where = "" if error is None else traceback_of(error)
        info = error_info(word, f"not done within {run.timeout_ms} ms", where)
        return self._judged(run, Failure(error=info, kind="TIMED_OUT"))

    def _final(self, run: Run, error: Exception, reason: str) -> Outcome:
        cause = error.__cause__ if isinstance(error, UpgradeFailed) else None
        where = traceback_of(cause) if cause is not None else ""
        info = error_info(type(error).__name__, text_of(error), where)
        return self._judged(run, Failure(error=info, retryable=False, reason=reason))

    def _judged(self, run: Run, failure: Failure) -> Outcome:
        grant = run.grant
        return judge(failure, grant.options.retry, attempts=grant.attempts, rng=self.rng)


def _arguments(payload: bytes | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An object becomes keyword arguments, an array positional ones, anything else one argument."""
    if not payload:
        return (), {}
    return _spread(codec.decode(payload))


def _spread(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if type(value) is dict:
        return (), value
    if type(value) is list:
        return tuple(value), {}
    return (value,), {}


def _is_our_end(error: BaseException) -> bool:
    """Whether the worker's own task was cancelled, and not something inside the handler."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _fits(plan: Plan, grant: Grant, error: TypeError) -> bool:
    """Whether a TypeError came from inside a rightly called handler.

    Looked into after the fact, so that right calls pay nothing: where the traceback enters the
    function its arguments did fit; else its signature says whether they do.
    """
    code = getattr(inspect.unwrap(plan.function), "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    if code is not None and any(frame.f_code is code for frame, _ in frames):
        return True
    args, kwargs = plan.arguments(grant.payload)
    try:
        inspect.signature(plan.function).bind(*((None,) * plan.wants_ctx), *args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def failure_of(error: BaseException, never: tuple[type[BaseException], ...]) -> Failure:
    """An error as a failure, tried again unless it is one of ``never``."""
    info = error_info(type(error).__name__, text_of(error), traceback_of(error))
    return Failure(error=info, retryable=not isinstance(error, never))


def text_of(error: BaseException) -> str:
    """The message of an error, also of one that cannot say it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ is the handler's, and no reason to fail
        return f"<{type(error).__name__} cannot be printed>"


def traceback_of(error: BaseException) -> str:
    """Where it happened, from the handler's first frame on. Never any values of variables."""
    try:
        lines = traceback.format_exception(
            type(error), error, _handlers_part(error.__traceback__), limit=-FRAMES_MAX
        )
        return "".join(lines)
    except Exception:  # noqa: BLE001 - as text_of
        return ""


def _handlers_part(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename in _OWN_FILES:
        frames = frames.tb_next
    return frames
