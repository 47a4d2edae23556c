"""Live over HTTP: lines and event streams that begin where the last one ended, and end when they must."""

import asyncio
import json
from typing import Any, NamedTuple, Self

import httpx2
import pytest
from tests.http.conftest import BROKEN, Rig, assert_problem, open_rig
from tests.servers import ServerProcess

from tasksched.errors import Unavailable
from tasksched.http import live as live_module
from tasksched.http.api import make_api
from tasksched.model.ids import shard_of
from tasksched.store.protocol import Beat

pytestmark = pytest.mark.anyio

PATIENCE_S = 10.0


class Event(NamedTuple):
    event: str
    data: Any
    id: str = ""


class Listener:
    """One request to the application itself, whose answer is read while it is made."""

    def __init__(self, rig: Any, path: str, **headers: str) -> None:
        path, _, query = path.partition("?")
        names = {"accept": "text/event-stream", "host": "localhost:8000"} | {
            name.lower().replace("_", "-"): value for name, value in headers.items()
        }
        self._scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": path, "root_path": "",
            "raw_path": path.encode(), "query_string": query.encode(), "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in names.items()],
        }  # fmt: skip
        self._app = make_api(rig.services)
        self._leaving = asyncio.Event()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._asked = False
        self._left = b""
        self.status = 0
        self.place = ""

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self._app(self._scope, self._receive, self._said.put))
        start = await asyncio.wait_for(self._said.get(), PATIENCE_S)
        self.status, self.headers = start["status"], dict(start["headers"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """The client goes away; what served it must end by itself."""
        self._leaving.set()
        await asyncio.wait_for(self.task, PATIENCE_S)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def next(self) -> Event | None:
        """The next event with a name; None at the end."""
        while True:
            block, found, rest = self._left.partition(b"\n\n")
            if not found:
                message = await asyncio.wait_for(self._said.get(), PATIENCE_S)
                self._left += message.get("body", b"")
                if not message.get("more_body") and b"\n\n" not in self._left:
                    return None
                continue
            self._left = rest
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if line)
            self.place = fields.get("id", self.place)
            if "event" in fields:
                data = json.loads(fields["data"])
                return Event(fields["event"], data, fields.get("id", ""))

    async def some(self, count: int) -> list[Event | None]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[Event]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


async def say(rig: Rig, shard: int, grant: Any, *texts: str, first: int = 1) -> None:
    rows = [(grant.id, grant.fence, n, text) for n, text in enumerate(texts, first)]
    await rig.session.store.lines(shard, rows)


async def talking(rig: Rig, *texts: str) -> tuple[str, int, Any]:
    """A task that runs and has said this."""
    task_id = await rig.make()
    ((shard, grant),) = await rig.start()
    await say(rig, shard, grant, *texts)
    return task_id, shard, grant


# -- the log --------------------------------------------------------------------------------------


async def test_the_log_is_a_list_that_goes_on_after_a_line(rig: Rig):
    task_id, *_ = await talking(rig, "a", "b", "c")
    page = (await rig.ask("GET", f"/tasks/{task_id}/log?limit=2")).json()
    assert ["a", "b"] == [line["text"] for line in page["items"]]
    assert [1, 1] == [line["attempt"] for line in page["items"]]
    assert page["items"][-1]["id"] == page["next_cursor"]
    rest = (await rig.ask("GET", f"/tasks/{task_id}/log?after={page['next_cursor']}")).json()
    assert (["c"], None) == ([line["text"] for line in rest["items"]], rest["next_cursor"])


@pytest.mark.parametrize("path", ["log?after=x", "log?after=1-1'", "log?limit=0", "log?limit=201"])
async def test_a_place_that_is_none_is_refused(rig: Rig, path: str):
    task_id = await rig.make()
    assert_problem(await rig.ask("GET", f"/tasks/{task_id}/{path}"), 400, 422)
    if "after" in path:
        stream = {"Accept": "text/event-stream"}
        assert_problem(await rig.ask("GET", f"/tasks/{task_id}/{path}", **stream), 400)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_the_log_of_anothers_task_is_not_found(rig: Rig, accept: str):
    task_id = await rig.make()
    headers = {"Tasksched_Tenant": "other", "Accept": accept}
    assert_problem(await rig.ask("GET", f"/tasks/{task_id}/log", **headers), 404)
    assert_problem(await rig.ask("GET", f"/tasks/{'0' * 23}/log", Accept=accept), 404)


async def test_a_task_is_followed_to_its_end(rig: Rig):
    task_id = await rig.make()
    async with Listener(rig, f"/tasks/{task_id}/log") as listener:
        assert (200, b"text/event-stream") == (
            listener.status, listener.headers[b"content-type"],
        )  # fmt: skip
        begin = {"status": "PENDING", "attempt": 0, "cancel_requested": False}
        assert Event("state", begin) == await listener.next()
        ((shard, grant),) = await rig.start()
        assert Event("state", {**begin, "status": "RUNNING", "attempt": 1}) == await listener.next()

        await say(rig, shard, grant, "hello")
        line = await listener.next()
        assert ("line", "hello", 1, line.data["id"]) == (
            line.event, line.data["text"], line.data["attempt"], line.id,
        )  # fmt: skip
        beat = Beat(grant.id, grant.fence, 30_000, progress='{"at":0.5,"message":"half"}')
        await rig.session.store.heartbeat(shard, [beat])
        assert Event("progress", {"at": 0.5, "message": "half"}) == await listener.next()

        await say(rig, shard, grant, "bye", first=2)
        await rig.finish([(shard, grant)], BROKEN)
        last = await listener.rest()
        assert [("line", "bye"), ("state", "FAILED")] == [
            (each.event, each.data.get("text") or each.data["status"]) for each in last
        ]
        await asyncio.wait_for(listener.task, PATIENCE_S)


async def test_a_stream_goes_on_after_the_last_line_without_gap_or_double(rig: Rig):
    task_id, shard, grant = await talking(rig, "1", "2", "3")
    async with Listener(rig, f"/tasks/{task_id}/log") as listener:
        first = await listener.some(2)
    await say(rig, shard, grant, "4", "5", first=4)
    async with Listener(rig, f"/tasks/{task_id}/log", Last_Event_ID=first[-1].id) as listener:
        second = await listener.some(3)
        await say(rig, shard, grant, "6", first=6)
        await rig.finish([(shard, grant)])
        second += await listener.rest()
    texts = [each.data["text"] for each in first + second if each.event == "line"]
    assert ["1", "2", "3", "4", "5", "6"] == texts


async def test_a_finished_task_tells_its_log_and_ends(rig: Rig):
    task_id, shard, grant = await talking(rig, "x")
    await rig.finish([(shard, grant)])
    async with Listener(rig, f"/tasks/{task_id}/log") as listener:
        assert ["line", "state"] == [each.event for each in await listener.rest()]
    answer = await rig.ask("HEAD", f"/tasks/{task_id}/log", Accept="text/event-stream")
    assert (200, b"") == (answer.status_code, answer.content)


# -- the ends of a stream -------------------------------------------------------------------------


async def test_a_reader_that_leaves_leaves_nothing_behind(rig: Rig):
    task_id = await rig.make(delay="1h")
    before = len(asyncio.all_tasks())
    for path in (f"/tasks/{task_id}/log", "/events"):
        listeners = [Listener(rig, path) for _ in range(3)]
        for each in listeners:
            await each.__aenter__()
        assert 3 == rig.services.streams.open
        for each in listeners:
            await each.leave()
        assert 0 == rig.services.streams.open
    # The one task that is new is the subscription all followers share.
    assert len(asyncio.all_tasks()) <= before + 1


async def test_a_stream_ends_when_the_process_does(rig: Rig):
    task_id = await rig.make(delay="1h")
    async with Listener(rig, f"/tasks/{task_id}/log") as one, Listener(rig, "/events") as other:
        rig.system.draining = True
        assert ["state"] == [each.event for each in await one.rest()]
        assert [] == await other.rest()
        await asyncio.wait_for(asyncio.gather(one.task, other.task), PATIENCE_S)


async def test_a_task_that_is_removed_ends_its_stream(rig: Rig):
    task_id = await rig.make(delay="1h")
    async with Listener(rig, f"/tasks/{task_id}/log") as listener:
        await listener.next()
        keys = rig.session.store.keys[shard_of(task_id, 4)]
        await rig.session.gateway.command("DEL", keys.task(task_id))
        assert [] == await listener.rest()
        await asyncio.wait_for(listener.task, PATIENCE_S)


async def test_so_many_streams_and_no_more(valkey_server: ServerProcess):
    valkey_server.flush()
    rig, session = await open_rig(valkey_server.url, sse_connections_max=2)
    async with Listener(rig, "/events"):
        async with Listener(rig, "/events"):
            answer = await rig.ask("GET", "/events")
            assert_problem(answer, 429)
            assert 0 < int(answer.headers["retry-after"])
        async with Listener(rig, "/events") as again:
            assert 200 == again.status
    await rig.http.aclose()
    await session.close()


async def test_silence_is_broken_by_comments(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_module, "COMMENT_EVERY_MS", 0)
    async with Listener(rig, "/events") as listener:
        comments = [await asyncio.wait_for(listener._said.get(), PATIENCE_S) for _ in range(3)]
    assert all(b": \n" in each["body"] and b"event" not in each["body"] for each in comments)


# -- events ---------------------------------------------------------------------------------------


def told(events: list[Event | None]) -> list[tuple[str, str, str]]:
    return [(each.event, each.data["task_id"], each.data["status"]) for each in events]


async def begun(listener: Listener) -> None:
    """The stream has its place: what happens from now on is told."""
    while not listener.place:
        message = await asyncio.wait_for(listener._said.get(), PATIENCE_S)
        for line in message["body"].decode().split("\n"):
            if line.startswith("id: "):
                listener.place = line[4:]


async def test_the_life_of_a_task_is_told_to_its_tenant_alone(rig: Rig):
    async with (
        Listener(rig, "/events") as mine,
        Listener(rig, "/events", Tasksched_Tenant="other") as foreign,
    ):
        await begun(mine)
        await begun(foreign)
        task_id = await rig.make(retry={"max_attempts": 2, "backoff": {"initial": 0}})
        await rig.finish(await rig.start(), BROKEN)
        await rig.ask("POST", f"/tasks/{task_id}/retry")
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
        expected = [
            ("task.created", task_id, "PENDING"),
            ("task.queued", task_id, "QUEUED"),
            ("task.started", task_id, "RUNNING"),
            ("task.failed", task_id, "FAILED"),
            ("task.redriven", task_id, "PENDING"),
            ("task.cancelled", task_id, "CANCELLED"),
        ]
        assert expected == told(await mine.some(6))

        headers = {"Tasksched_Tenant": "other"}
        body = {"target": {"type": "handler", "name": "charge"}, "delay": "1h", "queue": "q"}
        theirs = (await rig.ask("POST", "/tasks", body, **headers)).json()["task_id"]
        first = await foreign.next()
        assert ("task.created", {"task_id": theirs, "queue": "q"}) == (
            first.event, {name: first.data[name] for name in ("task_id", "queue")},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("queue=mail", [("task.created", 1)]),
        ("status=CANCELLED", [("task.cancelled", 0)]),
        ("status=PENDING,CANCELLED&queue=default", [("task.created", 0), ("task.cancelled", 0)]),
    ],
)
async def test_filters(rig: Rig, query: str, kept):
    async with Listener(rig, f"/events?{query}") as listener:
        await begun(listener)
        made = [await rig.make(delay="1h"), await rig.make(delay="1h", queue="mail")]
        await rig.ask("POST", f"/tasks/{made[0]}/cancel")
        found = await listener.some(len(kept))
        assert [(kind, made[n]) for kind, n in kept] == [
            (each.event, each.data["task_id"]) for each in found
        ]


async def test_one_task_can_be_listened_to(rig: Rig):
    task_id = await rig.make(delay="1h")
    async with Listener(rig, f"/events?task_id={task_id}") as listener:
        await begun(listener)
        await rig.make()
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
        assert [("task.cancelled", task_id, "CANCELLED")] == told([await listener.next()])


async def test_after_each_event_the_stream_goes_on_with_the_next(rig: Rig):
    """Also within one entry of the log, which tells of a whole batch."""
    async with Listener(rig, "/events") as listener:
        await begun(listener)
        items = [{"target": {"type": "handler", "name": "charge"}, "delay": "1h"}] * 12
        await rig.ask("POST", "/tasks/batch", items)
        for _ in range(4):
            await rig.make()
        everything = await listener.some(16)
    assert 16 == len({(each.event, each.data["task_id"]) for each in everything})
    for n, event in enumerate(everything[:-1]):
        async with Listener(rig, "/events", Last_Event_ID=event.id) as again:
            rest = await again.some(len(everything) - n - 1)
        seen = told(everything[: n + 1]) + told(rest)
        assert sorted(told(everything)) == sorted(seen), n


async def test_a_log_that_was_cut_says_so(rig: Rig):
    task_id = await rig.make(delay="1h")
    async with Listener(rig, "/events") as listener:
        await begun(listener)
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
        event = await listener.next()
    await rig.ask("POST", f"/tasks/{task_id}/retry")
    await rig.ask("POST", f"/tasks/{task_id}/cancel")
    for keys in rig.session.store.keys:
        await rig.session.gateway.command("XTRIM", keys.events, "MAXLEN", 1)
    async with Listener(rig, "/events", Last_Event_ID=event.id) as listener:
        first, second = await listener.some(2)
        assert (("gap", {"reason": "trimmed"}), "task.cancelled") == (first[:2], second.event)
        place = second.id
    async with Listener(rig, "/events", Last_Event_ID=place) as listener:
        await rig.ask("POST", f"/tasks/{task_id}/retry")
        assert "task.redriven" == (await listener.next()).event


@pytest.mark.parametrize("place", ["x", "kw", "gJE", "k5CQAA", "A" * 40_000, "é"])
async def test_a_place_in_the_events_that_is_none_is_refused(rig: Rig, place: str):
    answer: httpx2.Response = await rig.ask(
        "GET",
        "/events",
        Last_Event_ID=place.encode(),  # type: ignore[arg-type]  # bytes pass
    )
    assert_problem(answer, 400)


async def test_streams_outlast_an_outage(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    """A browser whose reconnect is answered 503 gives up: so they stay, and lose nothing."""
    monkeypatch.setattr(live_module, "OUTAGE_REST_S", 0.01)
    refused, feed, reads = [], rig.services.live._feed, rig.services.live._reads
    after, task_of = feed.after, reads.task

    async def away(*_: object, **__: object) -> None:
        refused.append(1)
        raise Unavailable("away")

    task_id = await rig.make(delay="1h")
    async with (
        Listener(rig, "/events") as events,
        Listener(rig, f"/tasks/{task_id}/log") as log,
    ):
        await begun(events)
        await log.next()
        monkeypatch.setattr(feed, "after", away)
        monkeypatch.setattr(reads, "task", away)
        async with asyncio.timeout(PATIENCE_S):
            while len(refused) < 10:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(feed, "after", after)
        monkeypatch.setattr(reads, "task", task_of)
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
        told_of = await events.next()
        assert ("task.cancelled", task_id) == (told_of.event, told_of.data["task_id"])
        assert "CANCELLED" == (await log.rest())[-1].data["status"]
    monkeypatch.setattr(reads, "task", away)
    assert_problem(await rig.ask("GET", f"/tasks/{task_id}/log", Accept="text/event-stream"), 503)
