"""A rolling deployment: two versions of a program, one after the other and side by side."""

import time
from pathlib import Path

import pytest
import redis
from tests.stack.kit import PATIENCE_S, Api, Process, Stack, handler, until

pytestmark = pytest.mark.stack

HERE = Path(__file__).parent / "rolling"
OLD = handler("charge", {"euros": 3}, version="1")
NEW = handler("charge", {"cents": 500}, version="2")
PARKED = 1_000
LOOK_S = 3.0


def start(stack: Stack, version: str, **env: str) -> Process:
    """A worker of that version, taking tasks."""
    root = str(Path(__file__).parents[2])
    worker = stack.start("worker", f"{HERE / version}.py:app", PYTHONPATH=root, **env)
    until(lambda: str(worker.pid) in said_by(stack), worker.name)
    return worker


def said_by(stack: Stack) -> str:
    with redis.Redis.from_url(stack.url, socket_timeout=PATIENCE_S) as plain:
        return str(plain.zrange("ts:workers", 0, -1))


def scripts_in(stack: Stack, seconds: float) -> int:
    """Scripts that the server runs in that time."""
    with redis.Redis.from_url(stack.url, socket_timeout=PATIENCE_S) as plain:

        def calls() -> int:
            return plain.info("commandstats")["cmdstat_evalsha"]["calls"]

        before = calls()
        time.sleep(seconds)
        return calls() - before


def reasons(api: Api, task_id: str) -> list[str]:
    return [why["reason"] for why in api.task(task_id)["why_waiting"]]


def test_a_rolling_replacement_runs_every_task_by_code_that_knows_its_version(stack: Stack):
    api, _ = stack.api("--scheduler")
    first = start(stack, "v1")
    with stack.load([api], [OLD, NEW]) as load:
        until(lambda: len(stack.seen(what="v1")) > 20, "the old one works")
        assert stack.seen(what="v2") == []
        second = start(stack, "v2", ACCEPTS="1")
        until(lambda: len(stack.seen(what="v2")) > 20, "the new one works")
        assert first.end() == 0
        done = len(stack.seen(what="v2"))
        until(lambda: len(stack.seen(what="v2")) > done + 20, "the new one works alone")
    assert load.troubles == []
    books = stack.audit()
    assert {record["state"] for record in books.records.values()} == {"SUCCESS"}
    assert set(books.records) == stack.accepted
    for ran in stack.seen(what="v1"):
        assert books.records[ran["id"]]["lane"].endswith(":charge@1")
    for task_id, record in books.records.items():
        cents = api.task(task_id)["result"][1]
        assert cents == (300 if record["lane"].endswith("@1") else 500)
    assert second.end() == 0


def test_what_no_worker_accepts_waits_at_no_cost_until_one_does(stack: Stack):
    api, _ = stack.api("--scheduler")
    start(stack, "v2")
    assert api.task(stack.submit(api, NEW), wait_s=10)["result"] == ["v2", 500]
    at_rest = scripts_in(stack, LOOK_S)
    waiting = [create(stack, api, 200) for _ in range(PARKED // 200)]
    ids = [task_id for each in waiting for task_id in each]
    until(lambda: all(reasons(api, i) == ["no_worker_for_handler"] for i in ids[:20]), "parked")
    why = api.task(ids[0])["why_waiting"][0]
    assert why["detail"] == "no live worker serves charge@1; served now: charge@2"
    with_parked = scripts_in(stack, LOOK_S)
    print(f"{at_rest} scripts in {LOOK_S} s at rest, {with_parked} with {PARKED} parked tasks")
    assert with_parked < at_rest * 1.25 + 10
    metrics = api.call("GET", "/metrics").body
    text = metrics.decode() if isinstance(metrics, bytes) else metrics
    assert f'tasksched_tasks_without_worker{{route="charge@1"}} {PARKED}.0' in text
    assert 'tasksched_parked_streams{reason="no_worker"}' in text
    assert api.task(stack.submit(api, NEW), wait_s=10)["status"] == "SUCCESS"  # others go on
    assert [api.task(i)["attempts"] for i in ids[:20]] == [0] * 20
    start(stack, "v2", ACCEPTS="1")
    for task_id in ids:
        assert api.task(task_id, wait_s=10)["result"] == ["v2", 300]
    text = str(api.call("GET", "/metrics").body)
    assert "charge@1" not in text
    stack.audit()


def create(stack: Stack, api: Api, number: int) -> list[str]:
    answer = api.call("POST", "/tasks/batch", [OLD] * number)
    assert answer.status in {200, 201, 207}, answer
    ids = [item["task_id"] for item in answer.body["items"]]
    stack.accepted |= set(ids)
    return ids
