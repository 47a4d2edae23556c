"""Long runs with real processes: a callback needs no worker, and none that comes is no verdict."""

import http.server
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stack.kit import Api, Process, Stack, free_port, handler, until

from tasksched import App
from tasksched.settings import Settings

pytestmark = pytest.mark.stack

HANDLERS = f"{Path(__file__).parent / 'long_handlers.py'}:app"
QUICK = {"max_attempts": 3, "backoff": {"initial": "50ms", "max": "50ms"}}


class AsyncTarget:
    """Answers every request with 202, and remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[dict[str, str]] = []
        target = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()
                target.given.append({k.lower(): v for k, v in self.headers.items()})

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/start"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def report(self, api: Api, verb: str, given: dict[str, str], **body: Any) -> Any:
        """What the target says of the run it was given."""
        fence, token = given["tasksched-fence"], given["tasksched-callback-token"]
        return api.call(
            "POST",
            f"/tasks/{given['tasksched-task-id']}/{verb}",
            {"fence": fence, **body},
            headers={"Tasksched-Callback-Token": token},
        )


@pytest.fixture
def target() -> Iterator[AsyncTarget]:
    made = AsyncTarget()
    yield made
    made.close()


def up(stack: Stack, **env: str) -> tuple[Api, Process]:
    """An API with a scheduler, and a worker of the app of these stories."""
    api = Api(free_port())
    first = stack.start("api", "--port", str(api.port), "--scheduler", **env)
    worker = stack.start("worker", HANDLERS, **env)
    stack.await_ready(api, first)
    return api, worker


def is_deferred(api: Api, task_id: str) -> bool:
    return api.task(task_id)["deferred"]


def asked(target: AsyncTarget, **fields: Any) -> dict[str, Any]:
    made = {"type": "http", "url": target.url, "async": True}
    return {"target": made, "retry": QUICK, **fields}


def test_a_target_completes_after_the_worker_that_asked_it_was_killed(
    stack: Stack, target: AsyncTarget
):
    api, worker = up(stack)
    task_id = stack.submit(api, asked(target, payload={"n": 1}))
    until(lambda: is_deferred(api, task_id), "the run goes on elsewhere")
    stack.kill(worker)
    time.sleep(3)  # longer than a lease: nobody misses the worker
    (given,) = target.given

    heard = target.report(api, "heartbeat", given, progress=0.5, lease="1m")
    assert (200, False) == (heard.status, heard.body["cancel_requested"])
    assert {"at": 0.5, "message": ""} == api.task(task_id)["progress"]
    for _ in range(2):
        assert 200 == target.report(api, "complete", given, result={"ok": True}).status
    done = api.task(task_id)
    assert ("SUCCESS", {"ok": True}, 1) == (done["status"], done["result"], done["attempts"])
    assert ["SUCCEEDED"] == api.outcomes(task_id)
    assert 409 == target.report(api, "fail", given, error={"message": "no"}).status

    secret = given["tasksched-callback-token"]
    for process in stack.processes:
        assert secret not in process.said()
    assert secret not in json.dumps([done, api.get(f"/tasks/{task_id}/attempts")])


def test_a_target_that_never_calls_back_is_asked_again(stack: Stack, target: AsyncTarget):
    api, _ = up(stack, TASKSCHED_CALLBACK_LEASE="1s")
    task_id = stack.submit(api, asked(target))
    until(lambda: len(target.given) == 2, "it is asked again")
    first, second = target.given
    assert int(first["tasksched-fence"]) < int(second["tasksched-fence"])
    assert first["tasksched-callback-token"] != second["tasksched-callback-token"]
    late = target.report(api, "complete", first)
    assert (409, "STALE") == (late.status, late.body["code"])
    until(lambda: is_deferred(api, task_id), "the second attempt")
    assert 200 == target.report(api, "complete", second, result=2).status
    assert ["TIMED_OUT", "SUCCEEDED"] == api.outcomes(task_id)
    assert ("SUCCESS", 2) == (api.task(task_id)["status"], api.task(task_id)["result"])


def test_what_a_handler_hands_over_is_completed_by_a_program_while_its_worker_leaves(stack: Stack):
    api, worker = up(stack)
    body = handler("elsewhere", {"lease": "10m"})
    task_ids = [stack.submit(api, body) for _ in range(3)]
    for task_id in task_ids:
        until(lambda task_id=task_id: is_deferred(api, task_id), "handed over")
    assert 0 == worker.end()
    for task_id in task_ids:
        assert True is is_deferred(api, task_id)
    app = App(settings=Settings(url=stack.url, namespace="ts"))
    over_http = App(settings=Settings(url=f"http://127.0.0.1:{api.port}"))
    for task_id, client in zip(task_ids, (app, over_http, app), strict=True):
        (given,) = stack.seen(task_id)
        mine = {"fence": given["fence"], "token": given["token"]}
        assert False is client.heartbeat_sync(task_id, **mine).cancel_requested
        assert "SUCCESS" == client.complete_sync(task_id, **mine, result=given["attempt"])
        done = api.task(task_id)
        assert (1, ["SUCCEEDED"]) == (done["result"], api.outcomes(task_id))
        (line,) = api.get(f"/tasks/{task_id}/log")["items"]
        assert "attempt 1 goes elsewhere" == line["text"]
    app.close_sync()
    over_http.close_sync()


def test_a_task_is_followed_over_http_and_on_the_command_line(stack: Stack):
    api, _ = up(stack)
    late = stack.submit(api, handler("talk", {"lines": 3}, delay="5s"))  # a command starts slowly

    tail = subprocess.Popen(
        [sys.executable, "-m", "tasksched", "tail", late, "--json"],
        env={**stack.env, "TASKSCHED_URL": f"http://127.0.0.1:{api.port}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = tail.communicate(timeout=40)
    events = [json.loads(line) for line in said.splitlines()]
    assert 0 == tail.returncode
    assert ["line 0", "line 1", "line 2"] == [e["text"] for e in events if e["event"] == "line"]
    assert [1.0] == [e["at"] for e in events if e["event"] == "progress"]
    states = [e["status"] for e in events if e["event"] == "state"]
    assert ("PENDING", "SUCCESS") == (states[0], states[-1])


def test_streams_end_with_the_server_and_leave_nothing_when_their_readers_go(stack: Stack):
    api = Api(free_port())
    process = stack.start("api", "--port", str(api.port), TASKSCHED_SSE_CONNECTIONS_MAX="3")
    stack.await_ready(api, process)

    def stream() -> socket.socket:
        made = socket.create_connection(("127.0.0.1", api.port), timeout=20)
        made.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert made.recv(4096).startswith(b"HTTP/1.1 200")
        return made

    gone = [stream() for _ in range(3)]
    assert 429 == api.call("GET", "/events").status
    for each in gone:
        each.close()
    left = until(lambda: _opened(stream), "the places are free again")
    assert 0 == process.end()
    while left.recv(4096):
        pass  # to the end of the stream
    left.close()


def _opened(stream: Any) -> Any:
    try:
        return stream()
    except AssertionError:
        return None
