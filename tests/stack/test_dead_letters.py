"""Dead letters in real processes: a redrive that outlives the scheduler that worked on it."""

from collections import Counter

import pytest
from tests.stack.kit import Api, Stack, handler, until

pytestmark = pytest.mark.stack

TASKS = 2_000
ONCE = {"max_attempts": 1}


def create(stack: Stack, api: Api, count: int) -> None:
    body = handler("flaky", {"failures": 1}, retry=ONCE)
    for _ in range(count // 1_000):
        answer = api.call("POST", "/tasks/batch", [body] * 1_000)
        assert answer.status == 200, answer
        stack.accepted |= {item["task_id"] for item in answer.body["items"]}


def test_a_redrive_goes_on_when_its_scheduler_is_killed(stack: Stack):
    """Two thousand failed; each is redriven once, runs once more, and succeeds."""
    api, _ = stack.api()
    first = stack.scheduler()
    stack.worker()
    create(stack, api, TASKS)
    until(
        lambda: api.call("GET", "/tasks/count").body["by_status"]["FAILED"] == TASKS,
        "all have failed",
        60,
    )
    (group,) = api.call("GET", "/dead-letters/groups").body["items"]
    assert (group["count"], group["type"]) == (TASKS, "RuntimeError")

    body = {"filter": {"fingerprint": group["fingerprint"]}, "rate": 400}
    begun = api.call("POST", "/dead-letters/redrive", body)
    assert (begun.status, begun.body["status"]) == (202, "RUNNING")
    path = begun.headers["location"]
    until(lambda: api.call("GET", path).body["done"] >= 400, "well under way")
    stack.kill(first)
    assert api.call("GET", path).body["done"] < TASKS
    stack.scheduler()
    until(lambda: api.call("GET", path).body["status"] != "RUNNING", "the redrive has ended", 60)

    ended = api.call("GET", path).body
    assert (ended["status"], ended["done"], ended["skipped"]) == ("DONE", TASKS, 0)
    stack.audit(60)
    starts = Counter(Counter(start["id"] for start in stack.seen()).values())
    assert starts == {2: TASKS}
    counts = api.call("GET", "/tasks/count").body["by_status"]
    assert counts["SUCCESS"] == TASKS
    assert api.call("GET", "/dead-letters/groups").body["items"] == []
