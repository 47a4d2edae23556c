"""HTTP targets through a real worker."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.stack.kit import Api, Stack
from tests.stack.targets import Target

pytestmark = pytest.mark.stack

QUICK = {"max_attempts": 3, "backoff": {"initial": "50ms", "max": "50ms"}}


@pytest.fixture
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


def request(url: str, method: str = "POST", **fields: Any) -> dict[str, Any]:
    return {"target": {"type": "http", "url": url, "method": method}, "retry": QUICK, **fields}


def ended(stack: Stack, api: Api, body: dict[str, Any]) -> tuple[Any, list[str]]:
    """The finished task and the outcomes of its attempts."""
    task_id = stack.submit(api, body)
    return api.task(task_id, wait_s=15), api.outcomes(task_id)


def test_http_targets_end_as_documented(stack: Stack, target: Target):
    """One installation for all, since each story takes a few milliseconds."""
    api, _ = stack.up()
    the_answer_is_the_result(stack, api, target)
    a_server_error_is_retried(stack, api, target)
    a_client_error_and_a_redirect_are_final(stack, api, target)
    a_slow_target_times_out_and_is_tried_again(stack, api, target)
    retry_after_is_heeded(stack, api, target)
    what_cannot_be_connected_to_is_retried(stack, api)
    refused_addresses_end_the_task_at_once(stack, api)
    stack.audit()


def the_answer_is_the_result(stack: Stack, api: Api, target: Target) -> None:
    body = request(f"{target.base}/echo", payload={"n": 1, "text": "ü"})
    body["target"]["headers"] = {"X-Own": "kept"}
    done, outcomes = ended(stack, api, body)
    assert (done["status"], outcomes) == ("SUCCESS", ["SUCCEEDED"])
    assert done["result"] == {"status": 200, "body": {"got": {"n": 1, "text": "ü"}}}
    (got,) = target.of("/echo")
    assert got.method == "POST"
    said = got.headers
    assert said["content-type"] == "application/json"
    assert said["x-own"] == "kept"
    assert said["tasksched-task-id"] == done["task_id"]
    assert said["tasksched-attempt"] == "1"
    assert int(said["tasksched-fence"]) > 0
    assert said["tasksched-due"] == done["timestamps"]["run_at"]
    assert said["idempotency-key"] == f'"{done["task_id"]}"'


def a_server_error_is_retried(stack: Stack, api: Api, target: Target) -> None:
    done, outcomes = ended(stack, api, request(f"{target.base}/first/500/200"))
    assert (done["status"], outcomes) == ("SUCCESS", ["FAILED", "SUCCEEDED"])
    first, second = target.of("/first/500/200")
    assert [r.headers["tasksched-attempt"] for r in (first, second)] == ["1", "2"]
    assert int(first.headers["tasksched-fence"]) < int(second.headers["tasksched-fence"])
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    done, outcomes = ended(stack, api, request(f"{target.base}/status/503"))
    assert (done["status"], done["reason"]) == ("FAILED", "attempts_exhausted")
    assert outcomes == ["FAILED"] * 3


def a_client_error_and_a_redirect_are_final(stack: Stack, api: Api, target: Target) -> None:
    for path in ("/status/404", "/status/501", "/redirect"):
        done, outcomes = ended(stack, api, request(target.base + path, "GET"))
        assert (done["status"], outcomes) == ("FAILED", ["FAILED"]), path
        assert done["error"]["type"] == "HttpStatus"
        assert len(target.of(path)) == 1
    assert target.of("/status/200") == []  # not followed


def a_slow_target_times_out_and_is_tried_again(stack: Stack, api: Api, target: Target) -> None:
    retry = {**QUICK, "max_attempts": 2}
    body = request(f"{target.base}/slow/3", "GET", timeout="300ms", retry=retry)
    done, outcomes = ended(stack, api, body)
    assert (done["status"], outcomes) == ("FAILED", ["TIMED_OUT", "TIMED_OUT"])
    assert done["error"]["type"] == "HttpTimeout"


def retry_after_is_heeded(stack: Stack, api: Api, target: Target) -> None:
    done, outcomes = ended(
        stack,
        api,
        request(
            f"{target.base}/later/429/2",
            retry={"max_attempts": 3, "backoff": {"initial": "50ms", "max": "1m"}},
        ),
    )
    assert (done["status"], outcomes) == ("SUCCESS", ["FAILED", "SUCCEEDED"])
    first, second = target.of("/later/429/2")
    assert second.at - first.at > 1.9


def what_cannot_be_connected_to_is_retried(stack: Stack, api: Api) -> None:
    retry = {**QUICK, "max_attempts": 2}
    done, outcomes = ended(stack, api, request("http://127.0.0.1:1/", "GET", retry=retry))
    assert (done["status"], outcomes) == ("FAILED", ["FAILED", "FAILED"])
    assert done["error"]["type"] == "HttpConnection"


def refused_addresses_end_the_task_at_once(stack: Stack, api: Api) -> None:
    for url in ("http://169.254.169.254/latest", "http://10.0.0.1/", "http://[::1]:80/"):
        done, outcomes = ended(stack, api, request(url, "GET"))
        assert (done["status"], done["reason"], done["attempts"]) == (
            "FAILED",
            "target_not_allowed",
            1,
        )
        assert done["error"]["type"] == "target_not_allowed"
        assert outcomes == ["FAILED"]


def test_without_an_allow_list_loopback_is_refused(stack: Stack, target: Target):
    stack.env["TASKSCHED_HTTP_ALLOW"] = ""
    api, _ = stack.up()
    done, outcomes = ended(stack, api, request(f"{target.base}/echo"))
    assert (done["status"], done["reason"], outcomes) == (
        "FAILED",
        "target_not_allowed",
        ["FAILED"],
    )
    assert target.received == []
    stack.audit()


def test_a_killed_worker_asks_its_target_again_with_the_same_key(stack: Stack, target: Target):
    api, first = stack.up()
    task_id = stack.submit(api, request(f"{target.base}/slow/1.5"))
    stack.await_received(target, "/slow/1.5", 1)
    stack.kill(first)
    stack.worker()
    assert api.task(task_id, wait_s=15)["status"] == "SUCCESS"
    lost, done = target.of("/slow/1.5")
    assert lost.headers["idempotency-key"] == done.headers["idempotency-key"]
    assert int(lost.headers["tasksched-fence"]) < int(done.headers["tasksched-fence"])
    assert api.outcomes(task_id) == ["LOST", "SUCCEEDED"]
    stack.audit()
