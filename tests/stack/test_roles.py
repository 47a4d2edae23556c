"""One installation, each role under a Redis user of its own: everything works, and nobody is denied."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers import NAMES, ServerProcess
from tests.stack.kit import Api, Stack, handler, until
from tests.stack.targets import Target
from tests.users import PASSWORD, QUOTED, denials, user_url

pytestmark = pytest.mark.stack

APP = f"{Path(__file__).parent / 'roles_app.py'}:app"


KEYS = f"k:{base64.b64encode(bytes(32)).decode()}"


def tasksched(stack: Stack, roles: str, *argv: str, status: int = 0, keys: str = "") -> str:
    env = {**stack.env, "TASKSCHED_URL": user_url(stack.url, roles)}
    env["TASKSCHED_ENCRYPTION_KEYS"] = keys
    done = subprocess.run(
        [sys.executable, "-m", "tasksched", *argv], env=env, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert QUOTED not in done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def done(api: Api, method: str, path: str, body: Any = None, *, status: int = 200, **headers: str):
    answer = api.call(method, path, body, headers=headers)
    assert answer.status == status, (path, answer)
    return answer.body


def operated(api: Api, path: str, body: Any) -> int:
    """How many tasks the bulk operation did; a short one is over before it is answered."""
    begun = api.call("POST", path, body)
    assert begun.status in {200, 202}, begun
    path = f"/operations/{begun.body['operation_id']}"
    until(lambda: api.get(path)["status"] == "DONE", path)
    return api.get(path)["done"]


# The whole story takes a minute and more: on one server, and on all with the suite under ACL users.
SERVERS = NAMES if os.environ.get("TASKSCHED_TEST_ACL") else ("valkey",)


@pytest.fixture(params=SERVERS)
def roles(request: pytest.FixtureRequest, spawn: Callable[..., ServerProcess], tmp_path: Path):
    stack = Stack(tmp_path, spawn(request.param, "--appendonly", "yes"))
    yield stack
    stack.close()


def test_every_role_under_its_own_user(roles: Stack):
    stack, target = roles, Target()
    try:
        api, _ = stack.api(TASKSCHED_URL=user_url(stack.url, "api"))
        stack.start("scheduler", TASKSCHED_URL=user_url(stack.url, "scheduler"))
        worker = user_url(stack.url, "worker")
        stack.start("worker", APP, TASKSCHED_URL=worker, TASKSCHED_RETENTION_COUNT_MAX="1")
        until(lambda: api.get("/workers")["items"], "a worker is announced")
        until(lambda: api.get("/health")["schedulers"] == 1, "a scheduler is enlisted")
        single_tasks(stack, api)
        many_tasks(stack, api)
        recurring_tasks(api)
        notifications(stack, api, target)
        lists(api)
        command_line(stack, api)
        for process in stack.processes:
            assert process.end() == 0, process.said()
            assert PASSWORD not in process.said()
            assert '"level":"error"' not in process.said().replace(" ", "")
        assert denials(stack.url) == []
    finally:
        target.close()


def single_tasks(stack: Stack, api: Api) -> None:
    body = handler("talk", [3])
    task = api.task(done(api, "POST", "/tasks", body, status=201)["task_id"], wait_s=15)
    assert (task["status"], task["result"], task["attempts"]) == ("SUCCESS", 3, 2)
    assert len(api.get(f"/tasks/{task['task_id']}/log")["items"]) == 6
    assert len(api.get(f"/tasks/{task['task_id']}/attempts")["items"]) == 2
    for level in ("memory", "replicated", "fsync"):
        done(api, "POST", "/tasks", handler("talk", [0]), status=201, Durability=level)
    big = handler("talk", ["x" * 5_000], delay="1h")
    waiting = done(api, "POST", "/tasks", big, status=201, **{"Idempotency-Key": "k"})["task_id"]
    done(api, "POST", "/tasks", big, **{"Idempotency-Key": "k"})
    done(api, "PATCH", f"/tasks/{waiting}", {"delay": "2h"})
    done(api, "POST", f"/tasks/{waiting}/run-now")
    failed = done(api, "POST", "/tasks", handler("broken"), status=201)["task_id"]
    assert api.task(failed, wait_s=15)["status"] == "FAILED"
    done(api, "POST", f"/tasks/{failed}/retry")
    assert api.task(failed, wait_s=15)["status"] == "FAILED"
    done(api, "DELETE", f"/tasks/{failed}")
    later = done(api, "POST", "/tasks", handler("talk", [1], delay="1h"), status=201)["task_id"]
    done(api, "POST", f"/tasks/{later}/cancel")
    parked = done(api, "POST", "/tasks", handler("nobody"), status=201)["task_id"]
    until(lambda: b"no_worker" in api.call("GET", "/metrics").body, "it is parked")
    done(api, "POST", f"/tasks/{parked}/cancel")


def many_tasks(stack: Stack, api: Api) -> None:
    done(api, "POST", "/tasks/batch", [handler("broken") for _ in range(30)])
    until(lambda: api.get("/tasks/count")["by_status"]["FAILED"] == 30, "all have failed")
    groups = api.get("/dead-letters/groups")["items"]
    assert sum(group["count"] for group in groups) == 30
    assert operated(api, "/dead-letters/redrive", {"all": True}) == 30
    until(lambda: api.get("/tasks/count")["by_status"]["FAILED"] == 30, "they failed again")
    assert operated(api, "/dead-letters/purge", {"all": True}) == 30
    done(api, "POST", "/tasks/batch", [handler("talk", [0], delay="1h") for _ in range(5)])
    waiting = {"status": "PENDING", "handler": "talk"}
    body = {"filter": waiting, "changes": {"delay": "3h"}}
    assert operated(api, "/tasks/edit", body) == 5
    assert operated(api, "/tasks/cancel", {"filter": waiting}) == 5
    done(api, "PUT", "/tenants/default", {"retention": {"count": 4}})
    # A quota of less than one a shard is one a shard.
    until(lambda: sum(api.get("/tasks/count")["by_status"].values()) <= 8, "retention has worked")


def recurring_tasks(api: Api) -> None:
    until(lambda: api.get("/recurring-tasks")["items"], "the declared one is there")
    rule = {"id": "tick", "interval": "1s", **handler("talk", [0])}
    done(api, "POST", "/recurring-tasks", rule, status=201)
    until(lambda: len(api.get("/recurring-tasks/tick/runs")["items"]) > 0, "it has run")
    done(api, "POST", "/recurring-tasks/tick/trigger", status=201)
    version = done(api, "POST", "/recurring-tasks/tick/pause")["version"]
    done(api, "POST", "/recurring-tasks/tick/resume")
    api.get("/recurring-tasks/tick/next")
    assert version > 1
    done(api, "DELETE", "/recurring-tasks/tick", **{"If-Match": "*"})


def notifications(stack: Stack, api: Api, target: Target) -> None:
    body = {"url": f"{target.base}/status/200", "events": ["task.failed"]}
    made = done(api, "POST", "/webhooks", body, status=201)
    done(api, "POST", "/tasks", handler("broken"), status=201)
    until(lambda: target.of("/status/200"), "the hook was called")
    api.get(f"/webhooks/{made['webhook_id']}/deliveries")
    done(api, "POST", f"/webhooks/{made['webhook_id']}/test", status=202)
    until(lambda: len(target.of("/status/200")) > 1, "the test was sent")
    done(api, "POST", "/webhooks/rotate-tenant-secret")
    done(api, "DELETE", f"/webhooks/{made['webhook_id']}", **{"If-Match": "*"})


def lists(api: Api) -> None:
    for name in ("tasks", "queues", "workers", "stats", "health", "dead-letters", "operations"):
        api.get(f"/{name}")


def command_line(stack: Stack, api: Api) -> None:
    url_key = "TASKSCHED_URL"
    assert url_key in tasksched(stack, "reader", "config", "show")
    submitted = tasksched(stack, "producer", "submit", "talk", "1", "--wait", "15s", "--json")
    task_id = json.loads(submitted)["task_id"]
    for argv in (("list",), ("get", task_id), ("stats",), ("queues",), ("workers",),
                 ("wait", task_id), ("explain", task_id), ("tail", task_id), ("recurring", "list"), ("dead", "list")):  # fmt: skip
        assert tasksched(stack, "reader", *argv)
    told = tasksched(stack, "reader", "doctor")
    assert "enough for reader" in told
    refused = tasksched(stack, "reader", "submit", "talk", "1", status=1)
    assert "so submit was not begun" in refused
    tasksched(stack, "admin", "reencrypt", keys=KEYS)
    # A role refuses to start as somebody else, and says what is missing.
    early = stack.start("worker", TASKSCHED_URL=user_url(stack.url, "reader"))
    assert early.wait() == 1
    stack.processes.remove(early)
    assert "may not do what worker needs in namespace ts: " in early.said()
    assert "XREADGROUP" in early.said()
