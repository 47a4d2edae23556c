"""Keys with real processes: where an API may start, how soon a revocation acts, and what logs hold."""

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import ServerProcess
from tests.stack.kit import Api, Stack, free_port, handler, until
from tests.users import denials, user_url

pytestmark = pytest.mark.stack

REVOKED_S = 3.0


@pytest.fixture
def stack(spawn: Callable[..., ServerProcess], tmp_path: Path) -> Iterator[Stack]:
    found = Stack(tmp_path, spawn("valkey", "--appendonly", "yes"))
    yield found
    found.close()


def tasksched(stack: Stack, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tasksched", *argv], env={**stack.env, **env}, capture_output=True,
        text=True, timeout=30, check=False,
    )  # fmt: skip


def make_key(stack: Stack, *argv: str) -> dict[str, Any]:
    done = tasksched(stack, "keys", "create", *argv, "--json")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def status(api: Api, path: str, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return api.call("GET", path, headers=headers).status


def test_a_revoked_key_is_refused_within_seconds_by_every_process(stack: Stack):
    apis = [stack.api()[0] for _ in range(2)]
    assert [status(api, "/tasks") for api in apis] == [200, 200]
    made = make_key(stack, "--scope", "tasks:read,tasks:write")
    until(lambda: [status(api, "/tasks") for api in apis] == [401, 401], "closed", REVOKED_S)
    assert [status(api, "/tasks", made["key"]) for api in apis] == [200, 200]
    tasksched(stack, "keys", "revoke", made["key_id"], "--yes")
    began = time.monotonic()
    until(lambda: [status(api, "/tasks", made["key"]) for api in apis] == [401, 401], "revoked")
    assert time.monotonic() - began < REVOKED_S


def test_strangers_are_served_only_with_keys(stack: Stack):
    for host in ("::", "192.0.2.1", "0.0.0.0"):
        port = free_port()
        refused = stack.start("api", "--host", host, "--port", str(port))
        assert refused.wait() == 1
        assert "make the first key with `tasksched keys create`" in refused.said()
    made = make_key(stack, "--scope", "tasks:read")
    stack.start("api", "--host", host, "--port", str(port))
    api = Api(port)
    until(api.is_ready, "ready")
    assert status(api, "/tasks") == 401
    assert status(api, "/tasks", made["key"]) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_served_without_and_with_keys(stack: Stack, host: str):
    port = free_port()
    stack.start("api", "--host", host, "--port", str(port))
    api = Api(port)
    until(api.is_ready, "ready")
    assert status(api, "/tasks") == 200
    made = make_key(stack)
    until(lambda: status(api, "/tasks") == 401, "closed", REVOKED_S)
    assert status(api, "/tasks", made["key"]) == 200


LINES = (
    "GET http://localhost/livez/../tasks", "GET http://x/tasks", "GET //tasks", "GET /%2e%2e/tasks",
    "GET /livez/..%2ftasks", "GET /TASKS", "GET /tasks/", "GET /livez%3f/../tasks", "GET *",
    "GET /v1//tasks", "OPTIONS *", "GET /tasks#/livez", "GET /tasks?/livez",
)  # fmt: skip


def test_no_spelling_of_a_request_line_gets_past(stack: Stack):
    made = make_key(stack)
    api, _ = stack.api()
    assert status(api, "/tasks", made["key"]) == 200
    for line in LINES:
        for host in ("a/livez?x=", "localhost", "localhost/livez", "evil.example"):
            request = f"{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            assert raw(api.port, request) in {400, 401}, (line, host)


def raw(port: int, request: str) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(request.encode())
        answer = http.client.HTTPResponse(plain)
        answer.begin()
        return answer.status


def test_no_process_tells_a_key(stack: Stack):
    made = make_key(stack, "root", "--scope", "admin")
    env = {"TASKSCHED_API_KEY": made["key"], "TASKSCHED_LOG_LEVEL": "debug"}
    api, process = stack.api(**env)
    at_api = {"TASKSCHED_URL": f"http://127.0.0.1:{api.port}", **env}
    task_id = tasksched(stack, "submit", "add", "1", **at_api)
    assert task_id.returncode == 0, task_id.stderr
    dones = [
        tasksched(stack, *argv, **at_api)
        for argv in (
            ["get", task_id.stdout.strip()], ["audit"], ["config", "show"], ["get", "nothing"],
            ["stats", "--traceback"], ["keys", "list"], ["workers"], ["doctor"],
        )
    ]  # fmt: skip
    dones.append(
        tasksched(
            stack,
            "get",
            "x",
            **{**at_api, "TASKSCHED_URL": "http://127.0.0.1:1", "TASKSCHED_PATIENCE": "0s"},
        )
    )
    assert dones[-1].returncode == 6
    for path in ("/nothing", "/tasks/x", "/metrics", "/audit", "/health"):
        answer = api.call("GET", path, headers={"Authorization": f"Bearer {made['key']}"})
        assert made["key"] not in f"{answer}"
    api.call("POST", "/tasks", handler("x"), headers={"Authorization": f"Bearer {made['key']}x"})
    assert stack.server is not None
    stack.server.kill()
    status(api, "/tasks", made["key"])
    assert process.end() == 0
    secret = made["key"].split("_", 2)[2]
    for said in (process.said(), *(each.stdout + each.stderr for each in dones)):
        assert secret not in said
        assert secret[:20] not in said


def test_without_a_key_the_command_line_ends_with_its_own_code(stack: Stack):
    reader = make_key(stack, "--scope", "tasks:read")
    api, _ = stack.api()
    at_api = {"TASKSCHED_URL": f"http://127.0.0.1:{api.port}"}
    assert tasksched(stack, "get", "x", **at_api).returncode == 5
    keyed = {**at_api, "TASKSCHED_API_KEY": reader["key"]}
    assert tasksched(stack, "get", "x", **keyed).returncode == 3
    refused = tasksched(stack, "submit", "add", **keyed)
    assert refused.returncode == 5
    assert "tasks:write" in refused.stderr


def test_the_redis_users_of_their_roles_are_enough(stack: Stack):
    producer, users = user_url(stack.url, "producer"), user_url(stack.url, "api")
    done = tasksched(stack, "keys", "create", "--scope", "admin", "--json", TASKSCHED_URL=producer)
    assert done.returncode == 0, done.stderr
    key = json.loads(done.stdout)["key"]
    api, _ = stack.api(TASKSCHED_URL=users)
    assert status(api, "/audit", key) == 200
    assert api.call("POST", "/pause", headers={"Authorization": f"Bearer {key}"}).status == 200
    listed = tasksched(stack, "keys", "list", "--json", TASKSCHED_URL=producer)
    assert json.loads(listed.stdout)["items"][0]["last_used_at"] is not None
    assert denials(stack.url) == []
