"""Runs that go on elsewhere, in the harness: completed by the app's own methods, or never."""

import pytest

from tasksched import App, Ctx, NotFound, Retry, TaskFailed
from tasksched.errors import Stale
from tasksched.model import codec
from tasksched.model.live import LineSaid
from tasksched.settings import Settings
from tasksched.testing import harness

pytestmark = pytest.mark.anyio

TWICE = Retry(max_attempts=2, initial="10s", jitter="none")


class Elsewhere:
    """An app whose handler hands its runs over, and what it handed over."""

    def __init__(self) -> None:
        self.app = App(settings=Settings(url="redis://nowhere"))
        self.given: list[dict[str, object]] = []

        @self.app.task(retry=TWICE)
        async def render(ctx: Ctx, film: str):
            ctx.line(f"rendering {film}")
            self.given.append({"fence": ctx.fence, "token": ctx.callback_token})
            return ctx.defer("1h")

        self.render = render


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


async def test_a_deferred_run_is_completed_by_the_app(elsewhere: Elsewhere):
    app = elsewhere.app
    async with harness(app) as h:
        task = await elsewhere.render.submit("Metropolis")
        await h.advance("30m")
        assert "DEFERRED" == h.runs(elsewhere.render)[0].outcome
        (mine,) = elsewhere.given
        heard = await app.heartbeat(task.id, **mine, lease="2h", progress=0.5)
        assert (False, h.now_ms + 7_200_000) == heard
        await h.advance("1h59m")
        record = await task.refresh()
        assert ("RUNNING", True, {"at": 0.5, "message": ""}) == (
            record.status, record.is_deferred, record.progress,
        )  # fmt: skip
        with pytest.raises(NotFound):
            await app.complete(task.id, fence=mine["fence"], token="guessed")
        assert "SUCCESS" == await app.complete(task.id, **mine, result=["done"])
        assert ["done"] == codec.decode((await task.refresh()).result)
        seen = [each async for each in task.follow() if isinstance(each, LineSaid)]
        assert ["rendering Metropolis"] == [line.text for line in seen]


async def test_what_fails_elsewhere_is_tried_again(elsewhere: Elsewhere):
    app = elsewhere.app
    async with harness(app) as h:
        task = await elsewhere.render.submit("Nosferatu")
        await h.advance("1s")
        assert "PENDING" == await app.fail(task.id, **elsewhere.given[0], error="out of film")
        await h.advance("9s")
        assert 1 == len(elsewhere.given)
        await h.advance("1s")
        first, second = elsewhere.given
        with pytest.raises(Stale):
            await app.complete(task.id, **first)
        assert "FAILED" == await app.fail(task.id, **second, error="no film")
        with pytest.raises(TaskFailed, match="no film"):
            await task.result(0)


async def test_what_is_never_heard_of_times_out(elsewhere: Elsewhere):
    async with harness(elsewhere.app) as h:
        task = await elsewhere.render.submit("Greed")
        await h.advance("3h")
        record = await task.refresh()
        assert ("FAILED", "attempts_exhausted") == (record.status, record.reason)
        assert ["TIMED_OUT", "TIMED_OUT"] == [each.outcome for each in await task.attempts()]
        starts = [run.started_ms for run in h.runs(elsewhere.render)]
        assert 3_610_000 == starts[1] - starts[0]
