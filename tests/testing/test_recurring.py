"""Recurring tasks under the harness: whole weeks, clock changes, lost workers."""

from datetime import UTC, datetime

import pytest

from tasksched import App, Cron, Ctx, Delay, Retry, TaskschedError
from tasksched.settings import Settings
from tasksched.testing import Harness, harness

pytestmark = pytest.mark.anyio
START = "2026-03-28T12:00:00Z"


@pytest.fixture
def app() -> App:
    return App(settings=Settings(url="redis://nowhere"))


def starts(h: Harness, handler: object = None) -> list[str]:
    return [run.started_at[5:19] for run in h.runs(handler)]


async def test_declared_crons_run(app: App):
    seen = []

    @app.task(cron=Cron("30 2 * * *", tz="Europe/Paris"))
    async def nightly(ctx: Ctx) -> None:
        seen.append(ctx.nominal_at)

    async with harness(app, start=START) as h:
        await h.advance("1d")
        assert starts(h, nightly) == ["03-29T01:00:00"]  # 02:30 does not exist that night
        await h.advance("1d")
        assert starts(h, nightly) == ["03-29T01:00:00", "03-30T00:30:00"]
        assert seen == [
            datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        ]  # fmt: skip
        assert h.runs()[0].nominal_ms == h.runs()[0].due_ms
        assert [s.id async for s in app.find_recurring()] == ["nightly"]


async def test_what_is_declared_can_be_left_out(app: App):
    app.task(name="h", every="1h")(lambda: None)
    async with harness(app, start=START, declared=False) as h:
        await h.advance("1d")
        assert h.runs() == []


async def test_what_is_declared_and_over_is_told(app: App):
    app.task(name="h", cron=Cron("@daily", end_at="2020-01-01T00:00:00Z"))(lambda: None)
    with pytest.raises(TaskschedError, match="never fires"):
        async with harness(app, start=START):
            pass


async def test_a_week_of_an_hourly_cron_takes_few_calls(app: App):
    @app.task(cron="0 * * * *")
    async def hourly() -> None: ...

    async with harness(app, start=START) as h:

        async def calls() -> int:
            stats = await h._session.gateway.command("INFO", "commandstats")
            scripts = stats["cmdstat_evalsha"]["calls"]
            return int(scripts)

        before = await calls()
        await h.advance("7d")
        assert len(h.runs(hourly)) == 168
        # It is these that take the time: about 0.1 ms each where nobody else uses the machine.
        assert await calls() - before <= 168 * 8 + 20
        (ledger,) = [await s.runs() async for s in app.find_recurring()]
        assert {entry.outcome for entry in ledger} == {"fired"}
        assert {entry.lateness_ms for entry in ledger} == {0}


async def test_a_retry_crosses_the_clock_change(app: App):
    @app.task(
        cron=Cron("59 1 * * *", tz="Europe/Paris"),
        retry=Retry(max_attempts=5, initial="30m", factor=1, jitter="none"),
    )
    async def report(ctx: Ctx) -> str:
        if ctx.attempt < 3:
            raise ConnectionError
        return f"{ctx.nominal_at:%H:%M}"

    async with harness(app, start=START) as h:
        await h.advance("20h")
        # 01:59 in Paris, then half an hour of real time each, whatever the clock on the wall does.
        assert starts(h) == ["03-29T00:59:00", "03-29T01:29:00", "03-29T01:59:00"]
        assert [run.attempt for run in h.runs()] == [1, 2, 3]
        assert len({run.task_id for run in h.runs()}) == 1
        assert h.runs()[-1].result == "00:59"


async def test_a_killed_worker_loses_one_run_and_no_nominal_time(app: App):
    @app.task(every="1h", schedule_options={"overlap": "allow"})
    async def hourly() -> None: ...

    async with harness(app, start=START) as h:
        await h.advance("59m59s")
        h._store.now_ms += 1_000
        await h.kill_worker()
        await h.advance("3h")
        assert [(run.outcome, run.attempt) for run in h.runs()] == [
            ("LOST", 1), ("SUCCEEDED", 2), ("SUCCEEDED", 1), ("SUCCEEDED", 1), ("SUCCEEDED", 1),
        ]  # fmt: skip
        assert {run.nominal_ms for run in h.runs()[:2]} == {h.runs()[0].due_ms}


async def test_a_fixed_delay_counts_from_the_verdict(app: App):
    @app.task(
        every=Delay("10m"), retry=Retry(max_attempts=2, initial="1m", factor=1, jitter="none")
    )
    async def chain(ctx: Ctx) -> None:
        if ctx.attempt == 1 and ctx.due_at.minute == 10:
            raise ConnectionError

    async with harness(app, start=START) as h:
        await h.advance("45m")
        assert starts(h) == [f"03-28T12:{minute}:00" for minute in (10, 11, 21, 31, 41)]
        s = app.recurring("chain")
        await s.refresh()
        assert [fire.local[11:16] for fire in s.next_fires()] == ["12:51"]


async def test_a_chain_that_waits_for_success_is_blocked_and_resumed(app: App):
    broken = [True]

    @app.task(retry=Retry(max_attempts=1))
    async def step() -> None:
        if broken:
            raise ConnectionError(broken.pop())

    async with harness(app, start=START) as h:
        s = await step.every(Delay("10m"), id="steps", after="success").create()
        await h.advance("1h")
        assert (await s.refresh()).status == "BLOCKED"
        assert len(h.runs(step)) == 1
        await s.resume()
        await h.advance("1h")
        assert len(h.runs(step)) > 4


async def test_overlap_and_misfire_are_on_the_ledger(app: App):
    @app.task(retry=Retry(max_attempts=2, initial="90m", max="90m", jitter="none"))
    async def slow(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            raise ConnectionError

    async with harness(app, start=START) as h:
        s = await slow.every("1h", id="slow").create()
        await h.advance("3h")
        assert starts(h) == ["03-28T13:00:00", "03-28T14:30:00", "03-28T15:00:00"]
        assert [entry.outcome for entry in await s.runs()] == ["fired", "skipped_overlap", "fired"]


async def test_triggers_backfills_and_pauses(app: App):
    @app.task
    async def job(ctx: Ctx) -> str:
        return f"{ctx.nominal_at:%H:%M}"

    async with harness(app, start=START) as h:
        s = await job.every("1h", id="job").create()
        await h.advance("150m")
        await s.pause()
        await h.advance("2h")
        assert len(h.runs(job)) == 2
        await s.trigger()
        await h.advance("1s")
        assert h.runs()[-1].result == "16:30"
        made = await s.backfill("2026-03-28T14:30:00Z", "2026-03-28T16:30:00Z", rate=1)
        await h.advance("10s")
        assert (made.count, [run.result for run in h.runs()[-2:]]) == (2, ["15:00", "16:00"])
        await s.resume()
        await h.advance("1h")
        assert h.runs()[-1].result == "17:00"
        await s.delete()
        await h.advance("1d")
        assert len(h.runs()) == 6
