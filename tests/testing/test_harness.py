"""The harness itself: order, jumps, kills, HTTP answers, and nothing left behind."""

import asyncio
import threading
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasksched import App, Ctx, Discard, Invalid, Retry, RetryLater, TaskFailed
from tasksched.model import codec
from tasksched.model.outcome import Failure, error_info
from tasksched.model.task import HttpTarget, TaskSpec
from tasksched.pytest_plugin import tasksched_harness  # noqa: F401 - installed, it is there
from tasksched.settings import Settings
from tasksched.testing import Harness, harness

pytestmark = pytest.mark.anyio
START = "2026-03-28T12:00:00Z"
SLOWLY = Retry(max_attempts=3, initial="10s", factor=2, jitter="none")


@pytest.fixture
def app() -> App:
    made = App(settings=Settings(url="redis://nowhere"))

    @made.task
    async def note(text: str) -> str:
        return text

    @made.task
    async def flaky(ctx: Ctx, good_at: int) -> int:
        if ctx.attempt < good_at:
            raise ConnectionError(f"attempt {ctx.attempt}")
        return ctx.attempt

    @made.task
    def thread() -> str:
        return threading.current_thread().name

    return made


def outcomes(h: Harness) -> list[tuple[str, str, str]]:
    return [(run.started_at[11:19], run.handler, run.outcome) for run in h.runs()]


async def test_time_stands_still_until_it_is_told_to_pass(app: App):
    async with harness(app, start=START) as h:
        assert (h.now, h.now_ms) == ("2026-03-28T12:00:00.000Z", 1_774_699_200_000)
        task = await app.submit("note", "now")
        assert (await task.refresh()).status == "QUEUED"  # a worker could take it
        await h.advance("0s")
        assert await task.result(0) == "now"
        await h.advance_to("2026-03-28T13:00:00+00:00")
        await h.advance_to(START)  # the past is where it was
        assert h.now == "2026-03-28T13:00:00.000Z"
        with pytest.raises(Invalid):
            await h.advance("-1s")


async def test_everything_happens_in_the_order_of_time(app: App):
    async with harness(app, start=START, shards=4) as h:
        for seconds in (50, 10, 30, 20, 40):
            await app.named("note").options(delay=seconds).submit(f"{seconds}")
        await h.advance("35s")
        assert [run.result for run in h.runs()] == ["10", "20", "30"]
        assert [run.started_ms - h.now_ms for run in h.runs()] == [-25_000, -15_000, -5_000]
        await h.advance("1d")
        assert [run.result for run in h.runs()] == ["10", "20", "30", "40", "50"]
        assert len(h.runs("note")) == 5
        assert h.runs("flaky") == []


async def test_retries_wait_for_their_time(app: App):
    async with harness(app, start=START) as h:
        task = await app.named("flaky").options(retry=SLOWLY).submit(3)
        await h.advance("1m")
        assert outcomes(h) == [
            ("12:00:00", "flaky", "FAILED"),
            ("12:00:10", "flaky", "FAILED"),
            ("12:00:30", "flaky", "SUCCEEDED"),
        ]
        assert await task.result(0) == 3
        lost = await app.named("flaky").options(retry=SLOWLY).submit(9)
        await h.advance("5m")
        with pytest.raises(TaskFailed, match="ConnectionError"):
            await lost.result(0)
        assert h.runs()[-1].error is not None


async def test_what_a_handler_submits_is_done_too(app: App):
    @app.task
    async def parent(left: int) -> None:
        if left:
            await app.named("parent").options(delay="1h").submit(left - 1)
            await app.submit("note", f"{left}")

    async with harness(app, start=START, shards=4) as h:
        await parent.submit(5)
        await h.advance("1d")
        assert len(h.runs(parent)) == 6
        assert [run.result for run in h.runs("note")] == ["5", "4", "3", "2", "1"]


async def test_a_handler_may_submit_from_its_thread(app: App):
    @app.task
    def sync_parent() -> None:
        app.submit_sync("note", "from a thread")

    async with harness(app, start=START) as h:
        await sync_parent.submit()
        await app.submit("thread")
        await h.advance("1s")
        assert [run.result for run in h.runs("note")] == ["from a thread"]
        assert h.runs("thread")[0].result != threading.current_thread().name
        with pytest.raises(RuntimeError, match="await the other"):
            app.submit_sync("note", "it would wait for itself")


async def test_a_handler_sees_the_trace_of_its_task(app: App):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    @app.task
    async def traced(ctx: Ctx) -> str | None:
        return ctx.traceparent

    async with harness(app, start=START) as h:
        await traced.options(traceparent=trace).submit()
        await traced.options(delay="1s").submit()
        await h.advance("1s")
        assert [run.result for run in h.runs(traced)] == [trace, None]


async def test_handlers_decide_themselves(app: App):
    @app.task
    async def later(ctx: Ctx) -> datetime | str:
        if ctx.attempt == 1:
            raise RetryLater("2h")
        if ctx.attempt == 2:
            raise Discard("no use")
        return ""

    async with harness(app, start=START) as h:
        await later.submit()
        await h.advance("1d")
        assert outcomes(h)[1][0] == "14:00:00"
        assert len(h.runs(later)) == 2


async def test_a_killed_worker_loses_what_it_runs(app: App):
    async with harness(app, start=START) as h:
        task = await app.submit("note", "again")
        await h.kill_worker()
        assert [run.outcome for run in h.runs()] == ["LOST"]
        assert (await task.refresh()).status == "RUNNING"
        await h.advance("10s")
        assert len(h.runs()) == 1  # the lease still holds
        await h.advance("5m")
        assert [run.outcome for run in h.runs()] == ["LOST", "SUCCEEDED"]
        assert [(run.attempt, run.task_id) for run in h.runs()] == [(1, task.id), (2, task.id)]


async def test_a_cancelled_task_never_starts(app: App):
    async with harness(app, start=START) as h:
        task = await app.named("note").options(delay="1h").submit("never")
        await task.cancel()
        late = await app.named("note").options(expires="1m").submit("in time")
        await h.advance("2h")
        assert [run.task_id for run in h.runs()] == [late.id]


async def test_http_targets_are_answered_by_the_test(app: App):
    asked = []

    async def answer(grant):
        asked.append(grant.options.http.url)
        if len(asked) == 1:
            return Failure(error=error_info("ConnectionError", "no route"))
        return codec.encode({"status": 200})

    async with harness(app, start=START, http=answer) as h:
        spec = TaskSpec(target=HttpTarget("https://example.com/hook"))
        made = await (await app._link.backend()).submit(spec)
        await h.advance("1h")
        assert asked == ["https://example.com/hook"] * 2
        assert await app.task_handle(made.id).result(0) == {"status": 200}
        assert [run.handler for run in h.runs()] == ["http", "http"]


async def test_a_namespace_is_its_own_and_is_gone_afterwards(app: App):
    async with harness(app, start=START) as one:
        await app.submit("note", "x")
        await one.advance("1s")
        gateway = one._session.gateway
        url, names = one._session.settings.url, one._store.namespace
        other = App(settings=Settings(url="redis://nowhere"))
        other.task(name="note")(lambda text: text)
        async with harness(other, start=START, url=url) as two:
            await two.advance("1d")
            assert two.runs() == []
        assert [k for k in await gateway.command("KEYS", "*") if names.encode() in k]
    async with harness(app, start=START, url=url) as last:
        keys = await last._session.gateway.command("KEYS", "*")
        assert [k for k in keys if names.encode() in k] == []


async def test_the_apps_requests_go_back_where_they_went(app: App):
    class Broken(Exception):
        pass

    with pytest.raises(Broken):
        async with harness(app, start=START):
            raise Broken
    assert app._link._instead is None


async def test_a_long_quiet_time_costs_nothing(app: App):
    async with harness(app, start=START) as h:
        await app.named("note").options(at=datetime(2035, 1, 1, tzinfo=UTC)).submit("patience")
        await asyncio.wait_for(h.advance("3650d"), 5)
        assert [run.started_at for run in h.runs()] == ["2035-01-01T00:00:00.000Z"]


def test_the_package_brings_a_plugin():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tasksched": "tasksched.pytest_plugin"}


async def test_the_fixture_is_there(app: App, tasksched_harness):  # noqa: F811 - as installed
    async with tasksched_harness(app, start=START) as h:
        await app.submit("note", "x")
        await h.advance("1s")
        assert len(h.runs("note")) == 1


async def test_what_webhooks_send_is_answered_by_the_test(app: App):
    sent = []

    async def answer(grant):
        body = codec.decode(grant.payload)
        sent.append((grant.options.http.url, body["type"], body["data"]["task_id"]))
        return codec.encode({"status": 200})

    url = "https://example.com/hook"
    async with harness(app, start=START, http=answer) as h:
        await app.webhooks.create(url, ["task.succeeded"])
        own = {"url": f"{url}/own", "events": ["task.succeeded"]}
        task = await app.named("note").options(notify=[own]).submit("x")
        await h.advance("1s")
        assert sorted(sent) == [
            (url, "task.succeeded", task.id),
            (f"{url}/own", "task.succeeded", task.id),
        ]
        assert sorted(run.handler for run in h.runs()) == ["http", "http", "note"]
