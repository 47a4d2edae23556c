"""tail: a task to its end, the tenant's events until somebody has seen enough; and --async."""

import json
import os
import select
import signal
import subprocess
import sys

import pytest
from tests.cli.test_cli import Shell
from tests.servers import ServerProcess

NAMESPACE = f"tail{os.getpid()}"


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Shell:
    return Shell(
        TASKSCHED_URL=valkey_server.url, TASKSCHED_NAMESPACE=NAMESPACE, TASKSCHED_SHARDS="2"
    )


def test_a_task_that_has_ended_is_told_as_text_and_as_json(shell: Shell):
    task_id = shell.ok("submit", "add", "--delay", "1h", "-q").strip()
    shell.ok("cancel", task_id)
    assert "CANCELLED  attempt 0  (cancel requested)\n" == shell.ok("tail", task_id)
    expected = {
        "event": "state", "status": "CANCELLED", "attempt": 0, "cancel_requested": True,
    }  # fmt: skip
    assert expected == json.loads(shell.ok("tail", task_id, "--json"))


def test_events_come_until_it_is_interrupted(shell: Shell):
    environment = {**os.environ, **{k: v for k, v in shell.environment.items() if v}}
    tail = subprocess.Popen(
        [sys.executable, "-m", "tasksched", "tail", "--queue", "mail"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tail.stdout is not None
    assert tail.stderr is not None
    assert tail.stderr.readline().startswith("waiting for events")
    made: list[str] = []
    line = ""
    while not line:  # its place is taken a moment after it says that it waits
        shell.ok("submit", "add", "--delay", "1h", "--queue", "other", "-q")
        made.append(shell.ok("submit", "add", "--delay", "1h", "--queue", "mail", "-q").strip())
        line = _within_a_while(tail)
    when, kind, told, queue = line.split()
    assert ("task.created", "mail") == (kind, queue)
    assert told in made
    assert when.endswith("Z")
    tail.send_signal(signal.SIGINT)
    assert 130 == tail.wait(20)
    tail.stdout.close()
    tail.stderr.close()


def _within_a_while(process: "subprocess.Popen[str]") -> str:

    ready, _, _ = select.select([process.stdout], [], [], 3)
    return process.stdout.readline() if ready and process.stdout is not None else ""


@pytest.mark.parametrize(
    "args",
    [("tail", "x", "--queue", "q"), ("tail", "--status", "NONE"), ("submit", "a", "--async")],
)
def test_wrong_usage(shell: Shell, args: tuple[str, ...]):
    assert 2 == shell.run(*args).exit_code


def test_who_is_not_there_cannot_be_followed(shell: Shell):
    assert 3 == shell.run("tail", "nobody").exit_code


def test_an_asynchronous_target(shell: Shell):
    task_id = shell.ok("submit", "--async", "--http", "https://example.com/x", "-q").strip()
    task = shell.json("get", task_id)
    assert (True, False) == (task["target"]["async"], task["deferred"])
