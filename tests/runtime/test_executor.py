"""One attempt, and every way in which it can end."""

import asyncio
import contextvars
import datetime as dt
import functools
import math
import threading
import time

import pytest
from tests.runtime.kit import Rig, until

from tasksched.errors import Invalid
from tasksched.model import codec
from tasksched.model.control import Discard, RetryLater
from tasksched.model.retry import Retry
from tasksched.model.states import OUTCOMES
from tasksched.runtime.context import Ctx, Run

pytestmark = pytest.mark.anyio

FAST = Retry(3, initial="1s", jitter="none")


def in_both_modes(raises):
    """The same body as a coroutine and as a thread's function."""

    async def coroutine(*args, **kwargs):
        return raises(*args, **kwargs)

    def function(*args, **kwargs):
        return raises(*args, **kwargs)

    return [pytest.param(coroutine, id="async"), pytest.param(function, id="thread")]


def throw(error):
    def body(*_, **__):
        raise error

    return body


# -- success ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", in_both_modes(lambda *a, **k: [list(a), k]))
@pytest.mark.parametrize(
    ("payload", "called"),
    [
        (..., [[], {}]),
        (b"", [[], {}]),
        ({"a": 1, "b c": None}, [[], {"a": 1, "b c": None}]),
        ({}, [[], {}]),
        ([1, [2]], [[1, [2]], {}]),
        ([], [[], {}]),
        ("text", [["text"], {}]),
        (None, [[None], {}]),
        (0, [[0], {}]),
        (False, [[False], {}]),
        (2.5, [[2.5], {}]),
    ],
)
async def test_a_payload_becomes_the_arguments_it_describes(function, payload, called):
    outcome = await Rig(function).run(payload)

    assert "SUCCEEDED" == outcome.kind
    assert called == codec.decode(outcome.result)


@pytest.mark.parametrize("function", in_both_modes(lambda: None))
async def test_no_result_is_a_null(function):
    assert b"\xc0" == (await Rig(function).run()).result


async def test_a_tuple_comes_back_as_a_list():
    async def fn():
        return (1, (2,))

    assert [1, [2]] == codec.decode((await Rig(fn).run()).result)


# -- results that cannot be kept --------------------------------------------------------------------

recursive: list = []
recursive.append(recursive)


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime.now(dt.UTC), {1, 2}, b"\xff", math.nan, math.inf, object(), recursive,
        threading.Lock(), 2**64, "\ud800", {1: 2}, Exception("x"), functools.reduce(lambda a, _: [a], range(50), 1),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("as_thread", [False, True])
async def test_a_result_that_is_not_json_is_a_final_failure(value, as_thread):
    """payload-result-003"""

    async def coroutine():
        return value

    outcome = await Rig((lambda: value) if as_thread else coroutine).run()

    assert ("FAILED", "result_not_serialisable", None) == (
        outcome.kind, outcome.reason, outcome.retry_ms,
    )  # fmt: skip


async def test_a_result_over_the_limit_is_a_final_failure():
    async def fn(length):
        return "x" * length

    rig = Rig(fn, result_bytes_max=100)
    assert "SUCCEEDED" == (await rig.run(98)).kind
    outcome = await rig.run(99)
    assert ("FAILED", "result_too_large", None) == (outcome.kind, outcome.reason, outcome.retry_ms)


# -- failures ---------------------------------------------------------------------------------------


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), KeyError("k"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(),
        StopIteration(1), StopAsyncIteration(), asyncio.CancelledError(), TimeoutError(), MemoryError(),
        RecursionError(), BaseException("base"), BrokenError(), ExceptionGroup("g", [ValueError()]),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), Invalid("mine"), TypeError("inside"),
        ValueError("\ud800 \0 " + "x" * 100_000),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("as_thread", [False, True])
async def test_whatever_a_handler_raises_is_a_failure_to_be_retried(error, as_thread):
    async def coroutine():
        raise error

    outcome = await Rig(throw(error) if as_thread else coroutine).run(retry=FAST)

    assert ("FAILED", 1000) == (outcome.kind, outcome.retry_ms)
    name = (
        "RuntimeError" if type(error) is StopIteration and not as_thread else type(error).__name__
    )
    assert name == outcome.error.type
    assert len(outcome.error.message.encode() + outcome.error.traceback.encode()) <= 8 * 1024


@pytest.mark.parametrize(("attempt", "retry_ms"), [(1, 1000), (2, 2000), (3, None), (4, None)])
async def test_the_last_attempt_ends_it(attempt, retry_ms):
    outcome = await Rig(throw(ValueError())).run(attempt=attempt, retry=FAST)

    reason = "" if retry_ms else "attempts_exhausted"
    assert (retry_ms, reason) == (outcome.retry_ms, outcome.reason)


async def test_attempts_that_were_handed_back_do_not_count():
    outcome = await Rig(throw(ValueError())).run(attempt=5, uncounted=3, retry=FAST)

    assert 2000 == outcome.retry_ms


@pytest.mark.parametrize("function", in_both_modes(throw(RetryLater("90s", "busy"))))
async def test_a_handler_may_ask_for_a_later_attempt_exactly_then(function):
    outcome = await Rig(function).run(retry=Retry(3, initial="1h", jitter="none"))

    assert (90_000, "RetryLater", "busy") == (
        outcome.retry_ms, outcome.error.type, outcome.error.message,
    )  # fmt: skip


async def test_asking_for_a_later_attempt_makes_no_more_of_them():
    outcome = await Rig(throw(RetryLater("1s"))).run(attempt=3, retry=FAST)

    assert (None, "attempts_exhausted") == (outcome.retry_ms, outcome.reason)


@pytest.mark.parametrize("function", in_both_modes(throw(Discard("gone"))))
async def test_a_handler_may_discard_the_task(function):
    outcome = await Rig(function).run()

    assert ("FAILED", None, "not_retryable", "gone") == (
        outcome.kind, outcome.retry_ms, outcome.reason, outcome.error.message,
    )  # fmt: skip


@pytest.mark.parametrize(("error", "final"), [(KeyError(), True), (LookupError(), False)])
async def test_errors_that_the_handler_never_retries_are_final(error, final):
    outcome = await Rig(throw(error), retry=Retry(never=(KeyError,))).run(retry=FAST)

    assert final == (outcome.reason == "not_retryable")


async def test_the_traceback_begins_in_the_handler_and_shows_no_values():
    async def fn():
        secret = "hunter2"
        return len(secret) / 0

    traceback = (await Rig(fn).run()).error.traceback

    assert "ZeroDivisionError" in traceback
    assert ", in fn" in traceback
    assert "hunter2" not in traceback
    assert "tasksched/runtime" not in traceback
    assert "tasksched/runtime" not in (await Rig(throw(ValueError())).run()).error.traceback


# -- payloads that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [b"\xff\xfe\x00\x9d", b"\xc1", b"\x81\x01\x02", b"\x92\x01", b"\xa1\xff"]
)
async def test_a_payload_that_cannot_be_read_is_a_final_failure(payload):
    called = []
    outcome = await Rig(lambda *a: called.append(a)).run(payload)

    assert ("FAILED", "payload_not_readable", None) == (
        outcome.kind, outcome.reason, outcome.retry_ms,
    )  # fmt: skip
    assert [] == called


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


async def pair(a, b):
    return a + b


async def with_ctx(ctx: Ctx, a):
    return a


@pytest.mark.parametrize(
    ("function", "payload"),
    [
        (pair, ...),
        (pair, [1]),
        (pair, [1, 2, 3]),
        (pair, {"a": 1}),
        (pair, {"a": 1, "b": 2, "c": 3}),
        (pair, "text"),
        (with_ctx, ...),
        (with_ctx, {"ctx": 1, "a": 2}),
        (lambda a: a, {}),
        (lambda: 1, [1]),
        (wrapped(lambda a: a), {"b": 1}),
    ],
)
async def test_arguments_that_do_not_fit_the_signature_are_a_final_failure(function, payload):
    outcome = await Rig(function).run(payload)

    assert ("FAILED", "payload_not_readable", None) == (
        outcome.kind, outcome.reason, outcome.retry_ms,
    )  # fmt: skip


async def call_wrongly(a):
    return wrapped(lambda: 1)(a)


@pytest.mark.parametrize(
    "function",
    [call_wrongly, lambda a: a + "x", wrapped(lambda a: a()), lambda a: wrapped(lambda b: b)()],
)
async def test_a_type_error_inside_a_rightly_called_handler_is_an_ordinary_failure(function):
    outcome = await Rig(function).run([1], retry=FAST)

    assert ("FAILED", 1000) == (outcome.kind, outcome.retry_ms)


async def test_an_unknown_route_is_handed_back():
    assert "RELEASED" == (await Rig(pair).run(lane="q:normal:t:other")).kind


# -- time -------------------------------------------------------------------------------------------


async def test_a_coroutine_that_takes_too_long_is_cancelled():
    async def fn():
        await asyncio.sleep(30)

    started = time.monotonic()
    outcome = await Rig(fn).run(timeout_ms=50, retry=FAST)

    assert ("TIMED_OUT", 1000, "TimedOut") == (outcome.kind, outcome.retry_ms, outcome.error.type)
    assert time.monotonic() - started < 2
    assert ", in fn" in outcome.error.traceback


async def test_the_handlers_own_timeout_counts_where_the_task_has_none():
    async def fn():
        await asyncio.sleep(30)

    assert "TIMED_OUT" == (await Rig(fn, timeout_ms=20).run()).kind


async def test_what_comes_after_the_timeout_is_no_success():
    async def fn():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "late"

    assert "TIMED_OUT" == (await Rig(fn).run(timeout_ms=20)).kind


async def test_a_thread_may_notice_that_its_time_is_over():
    def fn(ctx: Ctx):
        while not ctx.cancelled:
            time.sleep(0.005)
        raise ValueError("stopped")

    outcome = await Rig(fn).run(timeout_ms=30, retry=FAST)

    assert ("TIMED_OUT", 1000) == (outcome.kind, outcome.retry_ms)


@pytest.mark.parametrize("stubborn", ["async", "thread"])
async def test_a_handler_that_does_not_let_go_is_given_up(stubborn):
    release = threading.Event()

    async def coroutine():
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    rig = Rig(coroutine if stubborn == "async" else lambda: release.wait(20))
    run = rig.start(timeout_ms=20, lease_ms=600, retry=FAST)
    await until(lambda: rig.abandoned != [])

    assert ["TIMED_OUT"] == [outcome.kind for outcome in rig.abandoned]
    assert not run.task.done()
    release.set()
    await run.task


async def test_a_handlers_own_timeout_error_is_an_ordinary_failure():
    async def fn():
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)

    outcome = await Rig(fn).run(timeout_ms=5_000)

    assert ("FAILED", "TimeoutError") == (outcome.kind, outcome.error.type)


# -- interruptions ----------------------------------------------------------------------------------


async def interrupted(rig: Rig, why) -> object:
    run = rig.start()
    await until(lambda: run.entered)
    await asyncio.sleep(0.01)
    run.interrupt(why)
    return await run.task


ENDINGS = [("cancel", "CANCELLED"), ("release", "RELEASED"), ("lease", "CANCELLED")]


@pytest.mark.parametrize(("why", "kind"), ENDINGS)
async def test_an_interrupted_coroutine_is_cancelled(why, kind):
    cleaned = []

    async def fn():
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)

    assert kind == (await interrupted(Rig(fn), why)).kind
    assert [1] == cleaned


@pytest.mark.parametrize(("why", "kind"), ENDINGS)
async def test_an_interrupted_thread_may_notice(why, kind):
    def fn(ctx: Ctx):
        while not ctx.cancelled:
            time.sleep(0.002)
        raise RuntimeError("stopped half-way")

    assert kind == (await interrupted(Rig(fn), why)).kind


@pytest.mark.parametrize("why", ["cancel", "release", "lease"])
async def test_a_handler_that_finishes_all_the_same_has_succeeded(why):
    async def fn():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "done"

    outcome = await interrupted(Rig(fn), why)

    assert ("SUCCEEDED", "done") == (outcome.kind, codec.decode(outcome.result))


async def test_an_error_while_being_cancelled_is_a_cancellation():
    async def fn():
        try:
            await asyncio.sleep(30)
        finally:
            raise ValueError

    assert "CANCELLED" == (await interrupted(Rig(fn), "cancel")).kind


@pytest.mark.parametrize(("why", "kind"), ENDINGS)
async def test_a_run_interrupted_before_its_handler_began_never_calls_it(why, kind):
    called = []
    run = Rig(lambda: called.append(1)).start()
    run.interrupt(why)

    assert kind == (await run.task).kind
    assert [] == called


async def test_the_cancellation_of_the_worker_itself_escapes():
    async def fn():
        await asyncio.sleep(30)

    run = Rig(fn).start()
    await until(lambda: run.entered)
    run.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run.task


# -- the context ------------------------------------------------------------------------------------


async def test_a_handler_is_told_what_it_may_want_to_know():
    seen = {}

    async def fn(ctx: Ctx, x):
        seen.update(
            {
                name: getattr(ctx, name)
                for name in dir(ctx)
                if not name.startswith(("_", "heartbeat"))
            }
        )
        return x

    outcome = await Rig(fn).run({"x": 1}, attempt=2, tags=("a", "b"), timeout_ms=5_000)

    assert "SUCCEEDED" == outcome.kind
    assert (2, 451584000000000, "acme", "default", ("a", "b")) == (
        seen["attempt"], seen["fence"], seen["tenant"], seen["queue"], seen["tags"],
    )  # fmt: skip
    assert dt.datetime(2025, 11, 24, 16, 0, tzinfo=dt.UTC) == seen["due_at"]
    assert 0 < seen["deadline"] - time.monotonic() < 5.1
    assert (False, False) == (seen["cancelled"], seen["lease_lost"])
    seen["log"].debug("hello", x=1)


@pytest.mark.parametrize("as_thread", [False, True])
async def test_progress_goes_with_the_next_beat(as_thread):
    async def coroutine(ctx: Ctx):
        await ctx.heartbeat(0.25, "quarter")

    def function(ctx: Ctx):
        ctx.heartbeat_sync(0.25, "quarter")

    rig = Rig(function if as_thread else coroutine)
    await rig.run()

    run: Run = rig.pulsed[0]
    assert '{"at":0.25,"message":"quarter"}' == run.progress


async def test_progress_that_is_no_number_is_the_handlers_error():
    async def fn(ctx: Ctx):
        await ctx.heartbeat(math.nan)

    assert "ValueError" == (await Rig(fn).run()).error.type


async def test_context_variables_reach_threads():
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    def fn():
        return variable.get()

    assert "mine" == codec.decode((await Rig(fn).run()).result)


async def test_threads_are_reused_and_bounded():
    def fn():
        time.sleep(0.001)
        return threading.current_thread().ident

    rig = Rig(fn)
    outcomes = await asyncio.gather(*(rig.run() for _ in range(50)))

    assert len({codec.decode(outcome.result) for outcome in outcomes}) <= 4
    rig.close()


async def test_no_outcome_is_of_a_kind_that_nobody_knows():
    assert {"SUCCEEDED", "FAILED", "TIMED_OUT", "RELEASED", "CANCELLED", "LOST"} == set(OUTCOMES)
