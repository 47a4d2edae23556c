"""Webhooks from verdict to receiver, through real processes: signed, told once, told to nobody else."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError
from tests.stack.kit import Api, Stack, handler, until
from tests.stack.targets import Received, Target

pytestmark = pytest.mark.stack

EVENTS = ["task.succeeded", "task.failed", "task.cancelled"]
TASKS = 60
KILLS = 3


@pytest.fixture
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


def endpoint(api: Api, url: str, *events: str, tenant: str = "default") -> dict[str, Any]:
    body = {"url": url, "events": list(events) or EVENTS}
    answer = api.call("POST", "/webhooks", body, headers={"Tasksched-Tenant": tenant})
    assert answer.status == 201, answer
    return answer.body


def deliveries(api: Api, made: dict[str, Any]) -> list[dict[str, Any]]:
    return api.get(f"/webhooks/{made['webhook_id']}/deliveries?limit=500")["items"]


def verify(secret: str, got: Received) -> Any:
    return Webhook(secret).verify(got.body, got.headers)


def test_events_reach_their_receivers(stack: Stack, target: Target):
    """One installation for all, since each story takes a moment. The worker serves one queue."""
    api, _ = stack.up("--queues", "default")
    the_tenant_next_door_hears_nothing(stack, api, target)
    a_receiver_that_fails_is_told_again(stack, api, target)
    one_that_answers_410_is_told_no_more(stack, api, target)
    a_replaced_secret_signs_along(stack, api, target)
    a_task_has_receivers_of_its_own(stack, api, target)
    stack.audit()


def the_tenant_next_door_hears_nothing(stack: Stack, api: Api, target: Target) -> None:
    endpoint(api, f"{target.base}/status/201", tenant="other")
    made = endpoint(api, f"{target.base}/status/200")
    task_id = stack.submit(api, handler("work"))
    stack.await_received(target, "/status/200", 1)
    api.task(task_id, wait_s=10)
    (got,) = target.of("/status/200")
    body = verify(made["secret"], got)
    assert (body["type"], body["data"]["task_id"]) == ("task.succeeded", task_id)
    assert body["data"]["tenant"] == "default"
    assert target.of("/status/201") == []
    removed = api.call("DELETE", f"/webhooks/{made['webhook_id']}", headers={"If-Match": "*"})
    assert removed.status == 200


def a_receiver_that_fails_is_told_again(stack: Stack, api: Api, target: Target) -> None:
    made = endpoint(api, f"{target.base}/fails/2", "task.failed")
    stack.submit(api, handler("flaky", [9], retry={"max_attempts": 1}))
    for requests in (1, 2):
        stack.await_received(target, "/fails/2", requests)
        (waiting,) = until(
            lambda: [d for d in deliveries(api, made) if d["status"] == "PENDING"], "a retry"
        )
        assert waiting["attempts"] == requests
        assert waiting["error"]["type"] == "HttpStatus"
        api.call("POST", f"/tasks/{waiting['delivery_id']}/run-now")  # the wait itself is known
    stack.await_received(target, "/fails/2", 3)
    until(lambda: deliveries(api, made)[0]["status"] == "SUCCESS", "delivered")
    received = target.of("/fails/2")
    assert len({got.headers["webhook-id"] for got in received}) == 1
    for got in received:
        assert verify(made["secret"], got)["data"]["error"]["type"] == "RuntimeError"
    api.call("POST", f"/webhooks/{made['webhook_id']}/disable")


def one_that_answers_410_is_told_no_more(stack: Stack, api: Api, target: Target) -> None:
    made = endpoint(api, f"{target.base}/status/410")
    path = f"/webhooks/{made['webhook_id']}"
    stack.submit(api, handler("work"))
    until(lambda: not api.get(path)["enabled"], "disabled")
    assert "410" in api.get(path)["disabled_reason"]
    until(lambda: deliveries(api, made)[0]["status"] == "FAILED", "the delivery failed")
    assert api.task(stack.submit(api, handler("work")), wait_s=10)["status"] == "SUCCESS"
    assert len(target.of("/status/410")) == 1
    replay = f"{path}/deliveries/{deliveries(api, made)[0]['delivery_id']}/replay"
    assert api.call("POST", replay).status == 409


def a_replaced_secret_signs_along(stack: Stack, api: Api, target: Target) -> None:
    """A delivery in flight while its endpoint's secret is replaced: either secret verifies it."""
    made = endpoint(api, f"{target.base}/first/503/200")
    path = f"/webhooks/{made['webhook_id']}"
    stack.submit(api, handler("work"))
    stack.await_received(target, "/first/503/200", 1)
    newer = api.call("POST", f"{path}/rotate-secret", {"overlap": "1h"}).body["secret"]
    (waiting,) = until(
        lambda: [d for d in deliveries(api, made) if d["status"] == "PENDING"], "a retry"
    )
    # A worker signs for a few seconds with what it has read.
    edited = api.call("PATCH", f"/tasks/{waiting['delivery_id']}", {"delay": "3500ms"})
    assert edited.status == 200
    stack.await_received(target, "/first/503/200", 2)
    first, second = target.of("/first/503/200")
    assert verify(made["secret"], first)
    with pytest.raises(WebhookVerificationError):
        verify(newer, first)
    assert verify(made["secret"], second) == verify(newer, second)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    until(lambda: deliveries(api, made)[0]["status"] == "SUCCESS", "delivered")
    api.call("DELETE", path, headers={"If-Match": "*"})


def a_task_has_receivers_of_its_own(stack: Stack, api: Api, target: Target) -> None:
    secret = api.call("POST", "/webhooks/rotate-tenant-secret").body["secret"]
    url = f"{target.base}/echo"
    body = handler("work", notify=[{"url": url, "events": ["task.cancelled"]}], delay="1h")
    task_id = stack.submit(api, body)
    api.call("POST", f"/tasks/{task_id}/cancel")
    stack.await_received(target, "/echo", 1)
    (got,) = target.of("/echo")
    assert verify(secret, got)["data"]["task_id"] == task_id


def test_workers_that_are_killed_tell_nothing_twice(stack: Stack, target: Target):
    """The fan-out and the deliveries break off anywhere: each receiver gets each message once.

    A request that a killed worker had sent is sent again under the same ``webhook-id``.
    """
    api, worker = stack.up()
    made = [endpoint(api, f"{target.base}/status/20{n}") for n in (0, 1)]
    tasks = []
    for number in range(TASKS):
        tasks.append(stack.submit(api, handler("work")))
        if number % (TASKS // KILLS) == TASKS // KILLS // 2:
            stack.kill(worker)
            worker = stack.worker()
    stack.audit(patience_s=60)
    for one, path in zip(made, ("/status/200", "/status/201"), strict=True):
        messages = defaultdict(set)
        for got in target.of(path):
            messages[json.loads(got.body)["data"]["task_id"]].add(got.headers["webhook-id"])
            verify(one["secret"], got)
        assert set(messages) == set(tasks)
        assert {len(ids) for ids in messages.values()} == {1}
        assert [d["status"] for d in deliveries(api, one)] == ["SUCCESS"] * TASKS
