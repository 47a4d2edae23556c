"""Replies that are lost after the server did what was asked: nothing happens twice."""

import asyncio
import itertools
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.proxy import Proxy, Rule, When
from tests.stack.kit import HANDLERS, LEASE_S, Stack, handler, until

from tasksched.store.scripts import script

pytestmark = pytest.mark.stack


class Between:
    """A proxy in a thread of its own, between one role and the server."""

    def __init__(self, upstream: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.proxy = self._do(self._open(upstream))
        self.url = self.proxy.url

    async def _open(self, upstream: str) -> Proxy:
        return await Proxy(upstream).__aenter__()

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def lose(self, when: When, times: int | None = None) -> Rule:
        return self.proxy.drop_reply(when, times)

    def close(self) -> None:
        self._do(self.proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def between(stack: Stack) -> Iterator[Callable[[], Between]]:
    made: list[Between] = []

    def put() -> Between:
        made.append(Between(stack.url))
        return made[-1]

    yield put
    stack.close()  # first: nobody shall connect through a proxy that closes
    for each in made:
        each.close()


def calls_of(*names: str, every: int = 1) -> When:
    """Every so-manieth call of these scripts, by digest or by source."""
    wanted = {text.encode() for name in names for text in (script(name).sha, script(name).source)}
    turn = itertools.count(1)

    def when(words: list[bytes]) -> bool:
        is_one = len(words) > 1 and words[0] in {b"EVALSHA", b"EVAL"} and words[1] in wanted
        return is_one and next(turn) % every == 0

    return when


def all_scripts(*, every: int) -> When:
    turn = itertools.count(1)
    return lambda words: words[0] in {b"EVALSHA", b"EVAL"} and next(turn) % every == 0


def test_a_create_whose_reply_was_lost_makes_one_task_and_answers_201(stack: Stack, between):
    line = between()
    api, _ = stack.api("--scheduler", TASKSCHED_URL=line.url)
    stack.start("worker", HANDLERS)
    rule = line.lose(calls_of("submit", every=2))
    ids = {stack.submit(api, handler("work")) for _ in range(10)}
    assert (len(ids), rule.hits >= 5) == (10, True)
    for n in range(10):
        keyed = {"Idempotency-Key": f"key-{n}"}
        answers = [api.call("POST", "/tasks", handler("work"), headers=keyed) for _ in range(2)]
        # A first answer that was lost is given as a replay: the key knows no more than its task.
        assert {answer.status for answer in answers} <= {200, 201}
        (task_id,) = {answer.body["task_id"] for answer in answers}
        stack.accepted.add(task_id)
    books = stack.audit()
    assert set(books.records) == stack.accepted


def test_a_worker_that_loses_every_second_reply_runs_each_task_once(stack: Stack, between):
    """Of take, settle and heartbeat; the runs are longer than a lease."""
    line = between()
    api, _ = stack.up(TASKSCHED_URL=line.url)
    api.task(stack.submit(api, handler("work")), wait_s=10)
    rules = [line.lose(calls_of(name, every=2)) for name in ("take", "settle", "heartbeat")]
    seconds = (0.05, 1.5 * LEASE_S)
    tasks = [stack.submit(api, handler("work", {"seconds": s})) for s in seconds * 20]
    assert {api.task(each, wait_s=20)["status"] for each in tasks} == {"SUCCESS"}
    assert min(rule.hits for rule in rules) >= 2
    stack.audit()
    assert len(stack.seen()) == 1 + len(tasks)


def test_a_release_whose_reply_was_lost_hands_over_once(stack: Stack, between):
    line = between()
    stack.env["TASKSCHED_LEASE"] = "30s"
    api, first = stack.up("--grace", "100ms", TASKSCHED_URL=line.url)
    tasks = [stack.submit(api, handler("work", {"seconds": 1.5})) for _ in range(4)]
    for task_id in tasks:
        stack.await_start(task_id)
    rule = line.lose(calls_of("release", every=2))
    assert first.end() == 0
    assert rule.hits >= 1
    stack.worker()
    assert {api.task(each, wait_s=20)["status"] for each in tasks} == {"SUCCESS"}
    stack.audit()
    assert {tuple(api.outcomes(each)) for each in tasks} == {("RELEASED", "SUCCEEDED")}


def test_a_scheduler_that_loses_replies_moves_each_task_once(stack: Stack, between):
    """Dispatch, reap and reclaim: a lost lease costs one attempt, however often it is told."""
    line = between()
    api, _ = stack.api()
    stack.start("scheduler", TASKSCHED_URL=line.url)
    line.lose(calls_of("dispatch", "reap", "reclaim", "overdue", "enlist", every=3))
    first = stack.worker()
    held = [stack.submit(api, handler("work", {"seconds": 1})) for _ in range(8)]
    for task_id in held:
        stack.await_start(task_id)
    stack.kill(first)
    later = [stack.submit(api, handler("work", delay="500ms")) for _ in range(8)]
    stack.worker()
    assert {api.task(each, wait_s=20)["status"] for each in [*held, *later]} == {"SUCCESS"}
    assert {tuple(api.outcomes(each)) for each in held} == {("LOST", "SUCCEEDED")}
    stack.audit()


def test_under_load_every_seventh_lost_reply_of_any_script_is_invisible(stack: Stack, between):
    lines = [between() for _ in range(3)]
    api, _ = stack.api(TASKSCHED_URL=lines[0].url)
    stack.start("scheduler", TASKSCHED_URL=lines[1].url)
    stack.worker(TASKSCHED_URL=lines[2].url)
    api.task(stack.submit(api, handler("work")), wait_s=10)
    rules = [line.lose(all_scripts(every=7)) for line in lines]
    with stack.load([api], handler("work", {"seconds": 0.02}), rest_s=0.01) as load:
        until(lambda: load.created > 300 and min(r.hits for r in rules) > 10, "load", 15)
    print([rule.hits for rule in rules], "replies lost")
    assert load.troubles == []
    stack.audit()


def test_an_edit_and_a_cancel_whose_replies_were_lost_happen_once(stack: Stack, between):
    line = between()
    api, _ = stack.api("--scheduler", TASKSCHED_URL=line.url)
    task_id = stack.submit(api, handler("work", delay="1h"))
    api.call("PATCH", f"/tasks/{task_id}", {"delay": "2h"})
    line.lose(calls_of("edit", "cancel", "redrive"), times=3)
    changed = api.call("PATCH", f"/tasks/{task_id}", {"delay": "3h"})
    assert (changed.status, changed.body["version"]) == (200, 3)
    cancelled = api.call("POST", f"/tasks/{task_id}/cancel")
    assert (cancelled.status, cancelled.body["version"]) == (200, 4)
    again = api.call("POST", f"/tasks/{task_id}/retry")
    assert (again.status, again.body["version"]) == (200, 5)
    stack.worker()
    assert api.task(task_id, wait_s=10)["status"] == "SUCCESS"
    stack.audit()


def test_a_worker_is_not_disturbed_by_a_connection_that_goes_silent(stack: Stack, between):
    """Half-open: what is sent arrives nowhere, nobody is told; then everything arrives at once."""
    line = between()
    api, worker = stack.up(TASKSCHED_URL=line.url)
    task_id = stack.submit(api, handler("work", {"seconds": 1}))
    stack.await_start(task_id)
    stack.harmed.add(worker.pid)
    line.proxy.blackhole()
    stack.worker()
    stack.await_start(task_id, 2)
    line.proxy.blackhole(False)
    assert api.task(task_id, wait_s=20)["status"] == "SUCCESS"
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    stack.audit()
