"""Reporting for runs elsewhere, and following tasks, over either transport."""

import asyncio
from typing import Any

import httpx2
import pytest
from tests.client.conftest import BROKEN, Stage, done, remote

from tasksched import Conflict, Invalid, NotFound, TaskFailed
from tasksched.client import live as live_module
from tasksched.client.live import follow, listen
from tasksched.commands.live import EventQuery
from tasksched.errors import Stale, TooLarge, Unavailable
from tasksched.model.callback import callback_token
from tasksched.model.ids import mint
from tasksched.model.live import Gap, Happened, LineSaid, Progressed, StateSeen
from tasksched.store.protocol import Beat

pytestmark = pytest.mark.anyio


async def running(stage: Stage) -> tuple[Any, dict[str, Any]]:
    """A task whose run was let go of, and what speaks for the attempt."""
    task = await stage.charge.submit("inv_1", 1)
    ((shard, fence, task_id),) = await stage.start_all()
    await stage.session.store.defer(shard, [(task_id, fence, 60_000)])
    token = callback_token(stage.session.store.secret, task_id, fence)
    return task, {"fence": int(fence), "token": token}


async def say(stage: Stage, task_id: str, fence: int, *texts: str) -> None:
    rows = [(task_id, str(fence), n, text) for n, text in enumerate(texts, 1)]
    for shard in range(stage.session.store.shards):
        await stage.session.store.lines(shard, rows)


# -- reporting ------------------------------------------------------------------------------------


async def test_a_run_is_completed_with_what_it_was_given(stage: Stage):
    task, mine = await running(stage)
    for _ in range(2):
        assert "SUCCESS" == await stage.app.complete(task.id, **mine, result={"paid": [1, None]})
    assert {"paid": [1, None]} == await task.result("5s")
    with pytest.raises(Conflict):
        await stage.app.fail(task.id, **mine, error="no")
    with pytest.raises(Stale):
        await stage.app.heartbeat(task.id, **mine)


async def test_a_run_fails_with_what_is_told(stage: Stage):
    for error, expected in (
        (ValueError("no luck"), ("ValueError", "no luck", "")),
        ("no luck", ("Error", "no luck", "")),
        ({"type": "Bank", "message": "shut", "details": [1]}, ("Bank", "shut", "[1]")),
    ):
        task, mine = await running(stage)
        assert "FAILED" == await stage.app.fail(
            task.id, **mine, error=error, retryable=False, retry_after="1h"
        )
        with pytest.raises(TaskFailed) as failed:
            await task.result("5s")
        told = failed.value.error
        assert told is not None
        assert expected == (told.type, told.message, told.traceback)


async def test_a_wait_that_is_asked_for_is_kept(stage: Stage):
    task, mine = await running(stage)
    assert "PENDING" == await stage.app.fail(task.id, **mine, error="later", retry_after="2h")
    record = await task.refresh()
    (attempt,) = await task.attempts()
    assert 7_200_000 == record.due_ms - attempt.ended_ms


async def test_a_heartbeat_renews_and_brings_the_cancel(stage: Stage):
    task, mine = await running(stage)
    heard = await stage.app.heartbeat(task.id, **mine, lease="1h", progress=0.5, message="half")
    assert False is heard.cancel_requested
    record = await task.refresh()
    assert ({"at": 0.5, "message": "half"}, True) == (record.progress, record.is_deferred)
    await task.cancel()
    again = await stage.app.heartbeat(task.id, **mine)
    assert (True, heard.lease_until_ms) == (again.cancel_requested, again.lease_until_ms)
    assert "CANCELLED" == await stage.app.fail(task.id, **mine, error="stopped")


async def test_who_has_not_the_token_knows_no_task(stage: Stage):
    task, mine = await running(stage)
    for wrong in ({**mine, "token": "x"}, {**mine, "fence": mine["fence"] + 1}):
        with pytest.raises(NotFound):
            await stage.app.complete(task.id, **wrong)
    with pytest.raises(NotFound):
        await stage.app.heartbeat(mint(0, 1), **mine)
    assert "RUNNING" == (await task.refresh()).status


async def test_what_cannot_be_reported_leaves_the_run_open(stage: Stage):
    task, mine = await running(stage)
    with pytest.raises(TooLarge):
        await stage.app.complete(task.id, **mine, result="x" * 70_000)
    with pytest.raises(Invalid):
        await stage.app.complete(task.id, **mine, result={1, 2})
    with pytest.raises(Invalid):
        await stage.app.heartbeat(task.id, **mine, lease="100ms")
    with pytest.raises(Invalid):
        await stage.app.fail(task.id, **mine, error={"type": "no message"})
    with pytest.raises(Invalid):
        await stage.app.complete(task.id, fence="x", token=mine["token"])
    assert "SUCCESS" == await stage.app.complete(task.id, **mine)


async def test_the_same_without_an_event_loop(stage: Stage):
    task, mine = await running(stage)

    def reports() -> list[Any]:
        return [
            stage.app.heartbeat_sync(task.id, **mine).cancel_requested,
            stage.app.fail_sync(task.id, **mine, error="no", retryable=False),
            task.log_sync(),
        ]

    assert [False, "FAILED", []] == await asyncio.to_thread(reports)
    task, mine = await running(stage)
    assert "SUCCESS" == await asyncio.to_thread(
        lambda: stage.app.complete_sync(task.id, **mine, result=1)
    )


# -- following ------------------------------------------------------------------------------------


async def test_the_log_is_what_was_said(stage: Stage):
    task, mine = await running(stage)
    await say(stage, task.id, mine["fence"], "a", "b")
    assert [(1, "a"), (1, "b")] == [(line.attempt, line.text) for line in await task.log()]
    with pytest.raises(NotFound):
        await stage.app.task_handle(mint(0, 1)).log()


async def test_a_task_is_followed_to_its_end(stage: Stage):
    task, mine = await running(stage)
    await say(stage, task.id, mine["fence"], "a", "b")
    beat = Beat(task.id, str(mine["fence"]), 60_000, progress='{"at":null,"message":"m"}')
    for shard in range(stage.session.store.shards):
        await stage.session.store.heartbeat(shard, [beat])
    await stage.app.complete(task.id, **mine)

    found = [each async for each in task.follow()]
    assert ["line", "line", "progress", "state"] == [each.kind for each in found]
    assert (Progressed(message="m"), StateSeen(status="SUCCESS", attempt=1)) == tuple(found[2:])
    assert "SUCCESS" == task.status
    rest = [each async for each in task.follow(after=found[0].id)]
    assert found[1:] == rest
    with pytest.raises(NotFound):
        [each async for each in stage.app.task_handle(mint(0, 1)).follow()]


async def test_a_follower_sees_what_happens_meanwhile(direct: Stage):
    task = await direct.charge.submit("inv_1", 1)
    seen: list[Any] = []
    async for each in task.follow():
        seen.append(each)
        if each == StateSeen(status="QUEUED", attempt=0) or (
            isinstance(each, StateSeen) and each.status == "PENDING"
        ):
            await direct.run(BROKEN)
    assert "FAILED" == seen[-1].status


async def test_who_stops_following_leaves_nothing_behind(direct: Stage):
    task = await direct.charge.options(delay="1h").submit("inv_1", 1)
    async for each in task.follow():
        assert "PENDING" == each.status
        break
    async with asyncio.timeout(5):  # the loop closes what nobody iterates over any more
        while direct.session.live._waiter._interests:
            await asyncio.sleep(0.01)


async def test_events_of_the_tenant_over_redis(direct: Stage):
    events = listen(direct.backend.live, EventQuery(tenant=direct.app.tenant))
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.1)  # it has its place
    task = await direct.charge.submit("inv_1", 1)
    await direct.run(done(1))
    found = [await first] + [await anext(events) for _ in range(3)]
    assert ["task.created", "task.queued", "task.started", "task.succeeded"] == [
        each.kind for each in found
    ]
    assert {task.id} == {each.task_id for each in found}
    again = listen(direct.backend.live, EventQuery(tenant=direct.app.tenant, after=found[1].id))
    rest = [await anext(again) for _ in range(2)]
    assert [(e.kind, e.task_id) for e in found[2:]] == [(e.kind, e.task_id) for e in rest]
    await events.aclose()
    await again.aclose()


# -- a stream that breaks off ---------------------------------------------------------------------


def stream(*parts: str) -> httpx2.Response:
    headers = {"Content-Type": "text/event-stream"}
    return httpx2.Response(200, headers=headers, content="".join(parts).encode())


def line(number: int) -> str:
    data = f'{{"id":"{number}-0","at":"2026-01-01T00:00:00.000Z","attempt":1,"text":"{number}"}}'
    return f"id: {number}-0\nevent: line\ndata: {data}\n\n"


def state(status: str) -> str:
    data = f'{{"status":"{status}","attempt":1,"cancel_requested":false}}'
    return f"event: state\ndata: {data}\n\n"


class Script:
    """A transport that answers what stands next."""

    def __init__(self, *answers: httpx2.Response) -> None:
        self.answers = list(answers)
        self.places: list[str | None] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.places.append(request.headers.get("last-event-id"))
        return self.answers.pop(0)


async def test_a_stream_that_breaks_off_goes_on_after_what_was_told(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(live_module, "PAUSE_S", 0)
    script = Script(
        stream("retry: 1000\n: \n\n", state("RUNNING"), line(1), line(2)),
        httpx2.Response(503),
        stream(line(3), state("RUNNING"), ": \n\n", "event: news\ndata: {}\n\n"),
        stream(state("SUCCESS")),
    )
    backend = remote(httpx2.MockTransport(script))
    found = [each async for each in follow(backend.live, "default", mint(0, 1))]
    assert ["state", "line", "line", "line", "state"] == [each.kind for each in found]
    assert ["1", "2", "3"] == [each.text for each in found if isinstance(each, LineSaid)]
    assert [None, "2-0", "2-0", "3-0"] == script.places


async def test_events_go_on_after_the_last_one_and_tell_of_gaps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_module, "PAUSE_S", 0)
    data = '{"task_id":"t","status":"PENDING","queue":"q","at":"2026-01-01T00:00:00.000Z"}'
    event = f"event: task.created\ndata: {data}\n\n"
    script = Script(
        stream(f"id: a\n{event}", "id: b\n: \n\n"),
        stream('id: b\nevent: gap\ndata: {"reason":"trimmed"}\n\n', f"id: c\n{event}"),
    )
    events = listen(remote(httpx2.MockTransport(script)).live, EventQuery(tenant="default"))
    found = [await anext(events) for _ in range(3)]
    assert [Happened, Gap, Happened] == [type(each) for each in found]
    assert (["a", "b", "c"], [None, "b"]) == ([each.id for each in found], script.places)
    await events.aclose()


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_module, "PAUSE_S", 0)
    monkeypatch.setattr(live_module, "PATIENCE_MS", -1)
    backend = remote(httpx2.MockTransport(Script(stream(state("RUNNING")))))
    with pytest.raises(Unavailable):
        [each async for each in follow(backend.live, "default", mint(0, 1))]
