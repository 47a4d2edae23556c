"""What an App does to the process it lives in: embedded servers, forks, Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.servers import ServerProcess

from tasksched import embedded

EMBEDDED = """
import asyncio, sys
from tasksched import App, embedded
first, second = App("embedded:" + sys.argv[1]), App("embedded:" + sys.argv[1])
first.submit_sync("x")
asyncio.run(second.submit("x"))
assert len(first.find_sync()) == 2
print(embedded.attach(sys.argv[1]).pid)
"""

FORKED = """
import os, sys
from tasksched import App
app = App()
app.submit_sync("parent")
child = os.fork()
if child == 0:
    app.submit_sync("child")
    app.close_sync()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sorted(task.record.target.name for task in app.find_sync()))
app.close_sync()
"""


def run(program: str, *args: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, *args],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def test_an_embedded_server_lives_as_long_as_the_process_that_started_it(tmp_path: Path):
    data = tmp_path / "data"
    assert int(run(EMBEDDED, str(data))) > 0
    assert embedded.attach(data) is None

    run(EMBEDDED.replace("== 2", "== 4"), str(data))  # what was stored is still there


def test_a_forked_child_has_a_thread_and_connections_of_its_own(valkey_server: ServerProcess):
    namespace = f"fork{os.getpid()}"
    environment = {"TASKSCHED_URL": valkey_server.url, "TASKSCHED_NAMESPACE": namespace}
    assert run(FORKED, **environment) == "['child', 'parent']"


def test_ctrl_c_ends_a_wait_with_130(valkey_server: ServerProcess):
    environment = {
        **os.environ,
        "TASKSCHED_URL": valkey_server.url,
        "TASKSCHED_NAMESPACE": f"int{os.getpid()}",
    }
    waiting = subprocess.Popen(
        [sys.executable, "-m", "tasksched", "submit", "nobody", "--wait", "1m"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert waiting.stderr is not None
    assert len(waiting.stderr.readline().strip()) == 23  # the id: it was created, and now it waits
    waiting.send_signal(signal.SIGINT)
    stdout, stderr = waiting.communicate(timeout=20)

    assert (waiting.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
