"""``dev``: a whole tree of processes on its own data, that ends cleanly and dies whole."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import redis
from tests.embedding import servers_of
from tests.stack.kit import Stack, handler, is_running, tree_of, until
from tests.stack.targets import Target

from tasksched import embedded
from tasksched.embedded.datadir import DataDir

pytestmark = pytest.mark.stack

HELLO = f"{Path(__file__).parents[2] / 'examples' / 'hello.py'}:app"


@pytest.fixture
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


class Watch:
    """Counts the servers of a data directory, all the time."""

    def __init__(self, data: Path) -> None:
        self._data = data.resolve()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = self.most = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, len(servers_of(self._data)))
            self.looks += 1


def test_dev_runs_the_example_and_ends_cleanly_and_finds_everything_again(
    home: Stack, target: Target
):
    began = time.monotonic()
    api, dev = home.dev(HELLO)
    ready = time.monotonic() - began
    print(f"ready in {ready:.2f} s")
    assert ready < 8
    until(lambda: "tasksched is ready" in dev.said(), "it says so")

    now = api.call("POST", "/tasks?wait=10", handler("hello", {"name": "stack"}))
    assert (now.status, now.body["status"]) == (201, "SUCCESS"), now
    assert "stack" in now.body["result"]
    home.accepted.add(now.body["task_id"])
    late = home.submit(api, handler("hello", {"name": "later"}, delay="1s"))
    url = {"type": "http", "url": f"{target.base}/echo", "method": "POST"}
    called = home.submit(api, {"target": url, "payload": [1]})
    dropped = home.submit(api, handler("hello", delay="1h"))
    kept = home.submit(api, handler("hello", {"name": "kept"}, delay="1h"))
    assert api.call("POST", f"/tasks/{dropped}/cancel").body["status"] == "CANCELLED"
    done = api.task(late, wait_s=10)
    assert done["status"] == "SUCCESS"
    assert done["timestamps"]["started_at"] >= done["timestamps"]["run_at"]
    assert api.task(called, wait_s=10)["result"]["body"] == {"got": [1]}

    tree = tree_of(dev.pid)
    assert len(tree) >= 4  # supervisor, server, API, worker
    began = time.monotonic()
    assert dev.end() == 0
    print(f"ended in {time.monotonic() - began:.2f} s")
    assert [pid for pid in tree if is_running(pid)] == []
    assert not DataDir(home.data.resolve()).is_served()
    with embedded.start(home.data):  # nobody has the directory any more
        pass

    began = time.monotonic()
    api, dev = home.dev(HELLO)
    print(f"ready again in {time.monotonic() - began:.2f} s")
    assert api.task(now.body["task_id"])["result"] == now.body["result"]
    assert api.task(dropped)["status"] == "CANCELLED"
    assert api.task(kept)["status"] == "PENDING"
    assert api.call("POST", f"/tasks/{kept}/run-now").status == 200
    assert api.task(kept, wait_s=10)["status"] == "SUCCESS"
    home.audit()
    assert dev.end() == 0


def test_a_killed_supervisor_loses_no_accepted_task_and_leaves_no_second_server(home: Stack):
    """kill -9 of the supervisor under load, and the next one at once; twice."""
    api, dev = home.dev()
    port = api.port
    with home.load([api], handler("work", {"seconds": 0.05})) as load:
        for _ in range(2):
            target = load.created + 100
            until(lambda: load.created >= target, "load")  # noqa: B023
            before = tree_of(dev.pid)
            home.harmed |= set(before)
            dev.kill()
            killed = time.monotonic()
            with Watch(home.data) as watch:
                api, dev = home.dev(port=port)
            print(f"ready {time.monotonic() - killed:.2f} s after the kill")
            assert (watch.most, watch.looks > 10) == (1, True)
        until(lambda: load.created > target + 50, "load goes on")
    assert load.unanswered == set()
    until(lambda: not any(is_running(pid) for pid in before), "the old tree is gone", 40)
    home.audit()
    assert len(servers_of(home.data.resolve())) == 1


def test_a_killed_server_is_started_again_and_everything_is_there(home: Stack):
    """redis-faults-007: also a task whose 201 is five milliseconds old; nobody else is restarted."""
    api, dev = home.dev()
    before = set(tree_of(dev.pid))
    (server,) = servers_of(home.data.resolve())
    task_id = home.submit(api, handler("work", delay="1s"))
    time.sleep(0.005)
    os.kill(server, signal.SIGKILL)
    until(lambda: "server.died" in dev.said(), "dev notices")
    until(lambda: len(servers_of(home.data.resolve())) == 1, "another server runs", 20)
    until(api.is_ready, "the API is ready", 20)
    assert api.task(task_id, wait_s=10)["status"] == "SUCCESS"
    assert before - set(tree_of(dev.pid)) <= {server}
    home.audit()


def test_a_second_dev_is_told_why_and_a_second_signal_ends_the_first_at_once(home: Stack):
    api, dev = home.dev()
    task_id = home.submit(api, handler("work", {"seconds": 60}))
    other = home.directory / "other"
    same_data = home.start("dev", "--port", "0", "--data-dir", str(home.data))
    same_port = home.start("dev", "--port", str(api.port), "--data-dir", str(other))
    assert (same_data.wait(), same_port.wait()) == (4, 4)
    assert f"process {dev.pid} runs its server" in same_data.said()
    assert f"port {api.port} is taken" in same_port.said()
    assert "Traceback" not in same_data.said() + same_port.said()
    assert len(servers_of(home.data.resolve())) == 1
    assert servers_of(other.resolve()) == []

    home.await_start(task_id)
    tree = tree_of(dev.pid)
    dev.send(signal.SIGTERM)
    until(lambda: "worker.drain" in dev.said(), "it drains")
    began = time.monotonic()
    dev.send(signal.SIGINT)
    assert dev.wait() == 0
    assert time.monotonic() - began < 10
    assert [pid for pid in tree if is_running(pid)] == []


def test_at_rest_dev_asks_its_server_little(home: Stack):
    """At most ten commands a second and process; the aim is five."""
    home.env["TASKSCHED_LEASE"] = "30s"
    del home.env["TASKSCHED_SHARDS"]
    _, dev = home.dev()
    time.sleep(2)  # until starting is over
    with redis.Redis.from_url(home.url) as plain:
        before = calls(plain)
        time.sleep(5)
        after = calls(plain)
    asked = {name: after[name] - before.get(name, 0) for name in after}
    rate = sum(asked.values()) / 5
    print(f"{rate:.1f} commands a second at rest:", {n: c for n, c in asked.items() if c})
    assert rate <= 2 * 10  # API with scheduler, and one worker
    assert dev.end() == 0


def calls(plain: redis.Redis) -> dict[str, int]:
    """What clients asked; what scripts did inside goes by other names."""
    names = {"evalsha", "eval", "ping", "info", "smembers", "ssubscribe"}
    found = {n.removeprefix("cmdstat_"): s for n, s in plain.info("commandstats").items()}
    return {name: int(found[name]["calls"]) for name in names & set(found)}
