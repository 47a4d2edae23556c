"""Callbacks over HTTP: the token decides, one report counts, and the run may still be its worker's."""

from base64 import b64encode

import pytest
from tests.http.conftest import BROKEN, DONE, Rig, open_rig
from tests.servers import ServerProcess

from tasksched.model.callback import callback_token
from tasksched.model.ids import shard_of
from tasksched.model.instants import parse_instant
from tasksched.runtime.reaper import reap_overdue

pytestmark = pytest.mark.anyio

NO_RETRY = {"max_attempts": 1}
ASYNC = {"type": "http", "url": "https://example.com/a", "async": True}


async def running(rig: Rig, *, is_deferred: bool = True, lease_ms: int = 60_000, **members):
    """A task that runs: its id, fence and the headers that speak for the attempt."""
    task_id = await rig.make(**members)
    started = await rig.start()
    if is_deferred:
        for shard, grant in started:
            await rig.session.store.defer(shard, [(grant.id, grant.fence, lease_ms)])
    (fence,) = [grant.fence for _, grant in started if grant.id == task_id]
    return task_id, fence, {"Tasksched_Callback_Token": token_of(rig, task_id, fence)}


def token_of(rig: Rig, task_id: str, fence: str) -> str:
    return callback_token(rig.session.store.secret, task_id, fence)


@pytest.mark.parametrize("is_deferred", [True, False])
async def test_a_run_is_completed_with_its_token_before_its_worker_let_go_and_after(
    rig: Rig, is_deferred: bool
):
    task_id, fence, token = await running(rig, is_deferred=is_deferred)
    body = {"fence": int(fence), "result": {"ok": [1, None]}}
    for _ in range(2):
        answer = await rig.ask("POST", f"/tasks/{task_id}/complete", body, **token)
        expected = {
            "task_id": task_id, "fence": fence, "status": "SUCCESS", "durability": "memory",
        }  # fmt: skip
        assert (200, expected) == (answer.status_code, answer.json())
    shown = await rig.show(task_id)
    assert ("SUCCESS", {"ok": [1, None]}, False) == (
        shown["status"], shown["result"], shown["deferred"],
    )  # fmt: skip


async def test_the_worker_that_lets_go_after_the_callback_changes_nothing(rig: Rig):
    task_id, fence, token = await running(rig, is_deferred=False)
    await rig.ask("POST", f"/tasks/{task_id}/complete", {"fence": fence}, **token)
    before = await rig.show(task_id)
    store = rig.session.store
    (word,) = await store.defer(shard_of(task_id, store.shards), [(task_id, fence, 1_000)])
    assert "SUCCESS" == word
    assert before == await rig.show(task_id)


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail"])
async def test_who_has_not_the_token_is_told_the_same_as_for_a_task_that_is_not(
    rig: Rig, verb: str
):
    task_id, fence, token = await running(rig)
    other, *_ = await running(rig)
    body = {"fence": fence, **({"error": {"message": "m"}} if verb == "fail" else {})}
    answers = [
        await rig.ask("POST", f"/tasks/{target}/{verb}", {**body, "fence": given}, **headers)
        for target, given, headers in (
            (task_id, fence, {}),
            (task_id, fence, {"Tasksched_Callback_Token": "x" * 32}),
            (task_id, fence, {"Tasksched_Callback_Token": b"\xc3\xa9"}),
            (task_id, str(int(fence) + 1), token),
            (other, fence, token),
            ("0" * 23, fence, token),
            ("nonsense", fence, token),
        )
    ]
    assert {404} == {answer.status_code for answer in answers}
    assert 1 == len({answer.json()["detail"] for answer in answers})
    assert "RUNNING" == (await rig.show(task_id))["status"]


async def test_an_attempt_that_is_over_is_stale(rig: Rig):
    task_id, fence, token = await running(rig, retry={"backoff": {"initial": 0}})
    failed = {"fence": fence, "error": {"message": "first"}}
    assert (
        "PENDING"
        == (await rig.ask("POST", f"/tasks/{task_id}/fail", failed, **token)).json()["status"]
    )
    await rig.start()
    for verb, body in (
        ("heartbeat", {"fence": fence}), ("complete", {"fence": fence}), ("fail", failed),
    ):  # fmt: skip
        answer = await rig.ask("POST", f"/tasks/{task_id}/{verb}", body, **token)
        assert (409, "STALE") == (answer.status_code, answer.json()["code"]), verb
    assert "RUNNING" == (await rig.show(task_id))["status"]


async def test_another_report_of_the_same_attempt_is_a_conflict(rig: Rig):
    task_id, fence, token = await running(rig)
    await rig.ask("POST", f"/tasks/{task_id}/complete", {"fence": fence, "result": 1}, **token)
    body = {"fence": fence, "error": {"message": "no"}}
    answer = await rig.ask("POST", f"/tasks/{task_id}/fail", body, **token)
    assert (409, "CONFLICT", "SUCCESS") == (
        answer.status_code, answer.json()["code"], answer.json()["task_status"],
    )  # fmt: skip
    beat = await rig.ask("POST", f"/tasks/{task_id}/heartbeat", {"fence": fence}, **token)
    assert (409, "STALE") == (beat.status_code, beat.json()["code"])


async def test_what_its_worker_reported_cannot_be_changed_by_a_callback(rig: Rig):
    task_id = await rig.make()
    started = await rig.start()
    await rig.finish(started, BROKEN)
    fence = started[0][1].fence
    token = {"Tasksched_Callback_Token": token_of(rig, task_id, fence)}
    answer = await rig.ask("POST", f"/tasks/{task_id}/complete", {"fence": fence}, **token)
    assert (409, "FAILED") == (answer.status_code, answer.json()["task_status"])


async def test_a_failure_ends_by_the_policy_of_the_task(rig: Rig):
    error = {"type": "Bank", "message": "closed", "details": {"code": 7}}
    for members, more, expected in (
        ({}, {}, ("PENDING", None)),
        ({}, {"retryable": False}, ("FAILED", "not_retryable")),
        ({"retry": NO_RETRY}, {}, ("FAILED", "attempts_exhausted")),
    ):
        task_id, fence, token = await running(rig, **members)
        body = {"fence": fence, "error": error, **more}
        answer = await rig.ask("POST", f"/tasks/{task_id}/fail", body, **token)
        shown = await rig.show(task_id)
        assert expected == (answer.json()["status"], shown["reason"])
        assert {"type": "Bank", "message": "closed", "traceback": '{"code":7}'} == shown["error"]


async def test_a_wait_that_is_asked_for_is_kept(rig: Rig):
    task_id, fence, token = await running(rig)
    body = {"fence": fence, "error": {"message": "later"}, "retry_after": "2h"}
    await rig.ask("POST", f"/tasks/{task_id}/fail", body, **token)
    times = (await rig.show(task_id))["timestamps"]
    attempts = (await rig.ask("GET", f"/tasks/{task_id}/attempts")).json()["items"]
    assert 7_200_000 == parse_instant(times["run_at"]) - parse_instant(attempts[0]["ended_at"])


async def test_a_heartbeat_renews_shows_progress_and_brings_the_cancel(rig: Rig):
    task_id, fence, token = await running(rig)
    body = {"fence": fence, "lease": "1h", "progress": 0.5, "message": "half"}
    answer = await rig.ask("POST", f"/tasks/{task_id}/heartbeat", body, **token)
    assert (200, False, fence) == (
        answer.status_code, answer.json()["cancel_requested"], answer.json()["fence"],
    )  # fmt: skip
    long_ago = answer.json()["lease_until"]
    shown = await rig.show(task_id)
    assert ({"at": 0.5, "message": "half"}, True) == (shown["progress"], shown["deferred"])

    await rig.ask("POST", f"/tasks/{task_id}/cancel")
    answer = await rig.ask(
        "POST", f"/tasks/{task_id}/heartbeat", {"fence": fence, "lease": "1s"}, **token
    )
    assert (True, long_ago) == (answer.json()["cancel_requested"], answer.json()["lease_until"])


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("complete", {"result": 1}, "SUCCESS"),
        ("fail", {"error": {"message": "stopped"}}, "CANCELLED"),
    ],
)
async def test_a_cancelled_run_ends_as_its_report_says(rig: Rig, verb: str, body, status: str):
    task_id, fence, token = await running(rig)
    assert 202 == (await rig.ask("POST", f"/tasks/{task_id}/cancel")).status_code
    for _ in range(2):
        answer = await rig.ask(
            "POST", f"/tasks/{task_id}/{verb}", {"fence": fence, **body}, **token
        )
        assert (200, status) == (answer.status_code, answer.json()["status"])
    assert (status, True) == (
        (await rig.show(task_id))["status"], (await rig.show(task_id))["cancel_requested"],
    )  # fmt: skip


async def test_a_result_over_the_limit_is_refused_and_the_run_stays_open(rig: Rig):
    task_id, fence, token = await running(rig)
    answer = await rig.ask(
        "POST", f"/tasks/{task_id}/complete", {"fence": fence, "result": "x" * 70_000}, **token
    )
    assert (413, "/result") == (answer.status_code, answer.json()["errors"][0]["pointer"])
    assert "RUNNING" == (await rig.show(task_id))["status"]
    answer = await rig.ask("POST", f"/tasks/{task_id}/complete", {"fence": fence}, **token)
    assert "SUCCESS" == answer.json()["status"]


@pytest.mark.parametrize(
    ("verb", "body", "pointers"),
    [
        ("heartbeat", {}, ["/fence"]),
        ("heartbeat", {"fence": True}, ["/fence"]),
        ("heartbeat", {"fence": "-1"}, ["/fence"]),
        ("heartbeat", {"fence": 1.5}, ["/fence"]),
        ("heartbeat", {"fence": "1", "lease": "100ms"}, ["/lease"]),
        ("heartbeat", {"fence": "1", "lease": "31d"}, ["/lease"]),
        ("heartbeat", {"fence": "1", "progress": "half", "message": 3}, ["/progress", "/message"]),
        ("complete", {"fence": "1", "results": 1}, ["/results"]),
        ("fail", {"fence": "1"}, ["/error"]),
        ("fail", {"fence": "1", "error": {}}, ["/error/message"]),
        ("fail", {"fence": "1", "error": "no"}, ["/error"]),
        ("fail", {"fence": "1", "error": {"message": "m"}, "retryable": 1}, ["/retryable"]),
        ("fail", {"fence": "1", "error": {"message": "m"}, "retry_after": -1}, ["/retry_after"]),
    ],
)
async def test_what_is_wrong_is_named(rig: Rig, verb: str, body, pointers):
    answer = await rig.ask("POST", f"/tasks/{'0' * 23}/{verb}", body)
    assert 422 == answer.status_code
    assert pointers == [each["pointer"] for each in answer.json()["errors"]]


async def test_no_answer_tells_a_token(rig: Rig, caplog: pytest.LogCaptureFixture):
    task_id, fence, token = await running(rig, lease_ms=1_000)
    secret = token["Tasksched_Callback_Token"]
    wrong = {"Tasksched_Callback_Token": secret[:-1] + "~"}
    answers = [
        await rig.ask("POST", f"/tasks/{task_id}/heartbeat", {"fence": fence}, **token),
        await rig.ask("POST", f"/tasks/{task_id}/heartbeat", {"fence": fence}, **wrong),
        await rig.ask("POST", f"/tasks/{task_id}/complete", {"fence": fence}, **token),
        await rig.ask("POST", f"/tasks/{task_id}/complete", {"fence": fence}, **token),
        await rig.ask("GET", f"/tasks/{task_id}"),
        await rig.ask("GET", f"/tasks/{task_id}/attempts"),
        await rig.ask("GET", f"/tasks/{task_id}/log"),
    ]
    for answer in answers:
        assert secret[:-1] not in answer.text + str(answer.headers)
    assert secret[:-1] not in caplog.text


async def test_an_async_target_is_shown_as_it_was_sent(rig: Rig):
    task_id = await rig.make(target=ASYNC)
    expected = {**ASYNC, "method": "POST", "headers": {}}
    assert expected == (await rig.show(task_id))["target"]
    answer = await rig.ask("POST", "/tasks", {"target": {**ASYNC, "async": "yes"}})
    assert (422, "/target/async") == (answer.status_code, answer.json()["errors"][0]["pointer"])
    plain = await rig.make(target={**ASYNC, "async": False})
    assert "async" not in (await rig.show(plain))["target"]


async def test_whether_an_answer_may_come_later_is_part_of_the_command(rig: Rig):
    first = await rig.ask("POST", "/tasks", {"target": ASYNC}, Idempotency_Key="k")
    assert 201 == first.status_code
    same = await rig.ask("POST", "/tasks", {"target": ASYNC}, Idempotency_Key="k")
    other = await rig.ask(
        "POST", "/tasks", {"target": {**ASYNC, "async": False}}, Idempotency_Key="k"
    )
    assert (200, 422) == (same.status_code, other.status_code)


async def test_a_run_that_never_called_back_has_timed_out(rig: Rig):
    task_id, fence, token = await running(rig, lease_ms=1_000, retry=NO_RETRY)
    store = rig.session.store
    now_ms = await rig.session.tasks.reads.now_ms()
    for keys in store.keys:  # as if schedulers had looked all along
        await rig.session.gateway.command("HSET", keys.clock, "seen_ms", now_ms + 40_000)
    store.now_ms = now_ms + 40_001
    for shard in range(store.shards):
        await reap_overdue(store, shard)
    store.now_ms = 0
    shown = await rig.show(task_id)
    assert ("FAILED", "attempts_exhausted", "CallbackTimeout") == (
        shown["status"], shown["reason"], shown["error"]["type"],
    )  # fmt: skip
    (attempt,) = (await rig.ask("GET", f"/tasks/{task_id}/attempts")).json()["items"]
    assert "TIMED_OUT" == attempt["outcome"]
    for verb, body in (("complete", {}), ("fail", {"error": {"message": "late"}})):
        answer = await rig.ask(
            "POST", f"/tasks/{task_id}/{verb}", {"fence": fence, **body}, **token
        )
        assert (409, "STALE") == (answer.status_code, answer.json()["code"])


async def test_deferred_is_shown_while_it_runs_only(rig: Rig):
    task_id, *_ = await running(rig)
    assert True is (await rig.show(task_id))["deferred"]
    other = await rig.make()
    await rig.finish(await rig.start(), DONE)
    assert False is (await rig.show(other))["deferred"]


async def test_a_result_is_sealed_where_there_is_a_key(valkey_server: ServerProcess):
    valkey_server.flush()
    key = b64encode(b"k" * 32).decode()
    rig, session = await open_rig(valkey_server.url, encryption_keys=f"k1:{key}")
    task_id, fence, token = await running(rig)
    body = {"fence": fence, "result": "secret words"}
    assert 200 == (await rig.ask("POST", f"/tasks/{task_id}/complete", body, **token)).status_code
    record = session.store.keys[shard_of(task_id, session.store.shards)].task(task_id)
    stored = await session.gateway.command("HGET", record, "result")
    assert (b"\xc1", False) == (stored[:1], b"secret words" in stored)
    assert "secret words" == (await rig.show(task_id))["result"]
    await rig.http.aclose()
    await session.close()


async def test_a_task_says_where_its_lines_are(rig: Rig):
    shown = await rig.show(await rig.make())
    assert {"items": [], "next_cursor": None} == (await rig.ask("GET", shown["log_url"])).json()
