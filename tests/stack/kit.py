"""What a story is made of: real processes of the product, started by argv and ended by pid.

A ``Stack`` is one installation: a server, roles, the witness file of ``handlers.py``, and the ids of
what was accepted. Its ``audit`` reads the whole database when everything is at rest, and compares it
with what was accepted and with what was seen to run (``stack_audit.py``).
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import redis
from tests.embedding import servers_of
from tests.servers import ServerProcess
from tests.stack.books import Books
from tests.stack.targets import Target

from tasksched.embedded import die_with_parent

HANDLERS = f"{Path(__file__).parent / 'handlers.py'}:app"
PATIENCE_S = 20.0
TAIL_BYTES = 3_000
LEASE_S = 2.0
SHARDS = 4


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What the condition returns, as soon as it is true."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(0.02)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- processes ------------------------------------------------------------------------------------


class Process:
    """One process of the product, with its output in a file."""

    def __init__(self, name: str, argv: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                die_with_parent([sys.executable, "-m", "tasksched", *argv]),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit status."""
        self._process.terminate()
        return self.wait(patience_s)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        return self._process.wait(patience_s)


def tree_of(pid: int) -> list[int]:
    """The process and everything that descends from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


# -- the API --------------------------------------------------------------------------------------


class Silence(Exception):
    """No answer: what was asked may have happened or not."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


class Api:
    """The HTTP API at a port. A connection per request, so that no answer depends on an old one."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> Answer:
        """Raises Silence."""
        sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else {}
        raw = None if body is None else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, raw, sent or headers or {})
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise Silence(repr(error)) from error
        finally:
            connection.close()
        found = {name.lower(): value for name, value in reply.getheaders()}
        is_json = found.get("content-type", "").endswith("json")
        return Answer(reply.status, found, json.loads(text) if is_json and text else text)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.body

    def is_ready(self) -> bool:
        try:
            return self.call("GET", "/readyz", timeout_s=3.0).status == 200
        except Silence:
            return False

    def task(self, task_id: str, wait_s: float = 0) -> Any:
        return self.get(f"/tasks/{task_id}" + (f"?wait={wait_s:g}" if wait_s else ""))

    def outcomes(self, task_id: str) -> list[str]:
        return [each["outcome"] for each in self.get(f"/tasks/{task_id}/attempts")["items"]]


def handler(name: str, payload: Any = None, **fields: Any) -> dict[str, Any]:
    """The body that creates a task for a handler."""
    target = {"type": "handler", "name": name}
    if "version" in fields:
        target["version"] = fields.pop("version")
    return {"target": target, **({} if payload is None else {"payload": payload}), **fields}


Bodies = dict[str, Any] | list[dict[str, Any]]


# -- the installation -----------------------------------------------------------------------------


@dataclass
class Stack:
    """One installation. ``accepted``: the ids that were answered with 201 or 200."""

    directory: Path
    server: ServerProcess | None = None
    processes: list[Process] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    harmed: set[int] = field(default_factory=set)
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""

    def __post_init__(self) -> None:
        self.witness_file = self.directory / "witness.jsonl"
        self.witness_file.touch()
        self.data = self.directory / "data"
        if self.server is not None:
            self.url = self.server.url
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKSCHED_", "REDIS_"))}
        self.env = {
            **kept,
            "WITNESS": str(self.witness_file),
            **({"TASKSCHED_URL": self.url} if self.url else {}),
            "TASKSCHED_LEASE": f"{LEASE_S:g}s",
            "TASKSCHED_SHARDS": str(SHARDS),
            "TASKSCHED_HTTP_ALLOW": "127.0.0.0/8",
            **self.env,
        }

    # -- roles ------------------------------------------------------------------------------------

    def start(self, role: str, *argv: str, **env: str) -> Process:
        name = f"{role}-{len(self.processes)}"
        environment = {**self.env, **env}
        process = Process(name, [role, *argv], environment, self.directory / f"{name}.log")
        self.processes.append(process)
        return process

    def start_worker(self, *argv: str, **env: str) -> Process:
        """A worker of the stories' app, not waited for."""
        return self.start("worker", *argv, HANDLERS, **env)

    def worker(self, *argv: str, **env: str) -> Process:
        """A worker of the stories' app that takes tasks."""
        worker = self.start_worker(*argv, **env)
        with redis.Redis.from_url(self.url, socket_timeout=PATIENCE_S) as plain:
            mine = f"-{worker.pid}-".encode()
            until(
                lambda: any(mine in name for name in plain.zrange("ts:workers", 0, -1)), worker.name
            )
        return worker

    def scheduler(self) -> Process:
        return self.start("scheduler")

    def up(self, *argv: str, **env: str) -> tuple[Api, Process]:
        """An API with a scheduler, and a worker (``argv``, ``env``): started side by side."""
        api = Api(free_port())
        first = self.start("api", "--port", str(api.port), "--scheduler")
        worker = self.worker(*argv, **env)
        self.await_ready(api, first)
        return api, worker

    def dev(self, app: str = HANDLERS, *argv: str, port: int = 0) -> tuple[Api, Process]:
        """``dev`` with a data directory of this installation, ready."""
        api = Api(port or free_port())
        place = ("--port", str(api.port), "--data-dir", str(self.data))
        process = self.start("dev", app, *place, *argv)
        # Its own word: the API of a tree that was just killed may answer for a while.
        until(lambda: process.status is not None or "is ready" in process.said(), "dev is ready")
        assert process.status is None, f"dev ended with {process.status}"
        self.url = json.loads((self.data / "server.json").read_text())["socket"]
        self.url = f"unix://{self.url}"
        return api, process

    def api(self, *argv: str, **env: str) -> tuple[Api, Process]:
        """An API that is ready."""
        api = Api(free_port())
        process = self.start("api", "--port", str(api.port), *argv, **env)
        self.await_ready(api, process)
        return api, process

    def await_ready(self, api: Api, process: Process, patience_s: float = PATIENCE_S) -> float:
        """Seconds until it was ready."""
        began = time.monotonic()
        until(lambda: process.status is not None or api.is_ready(), "ready", patience_s)
        assert process.status is None, f"{process.name} ended with {process.status}"
        return time.monotonic() - began

    def kill(self, process: Process) -> None:
        """kill -9, noted as a cause of lost leases."""
        self.harmed |= set(tree_of(process.pid))
        process.kill()

    def close(self) -> None:
        """Ends what is left of every process tree that was started here."""
        for process in self.processes:
            tree = tree_of(process.pid) if process.status is None else []
            for pid in reversed(tree[1:]):
                send(pid, signal.SIGKILL)
            process.kill()

    def tails(self) -> Iterator[tuple[str, str]]:
        """The end of what each process said."""
        for process in self.processes:
            yield process.name, process.said()[-TAIL_BYTES:]

    # -- tasks ------------------------------------------------------------------------------------

    def submit(self, api: Api, body: dict[str, Any], **headers: str) -> str:
        """The id of the task that was created."""
        answer = api.call("POST", "/tasks", body, headers=headers)
        assert answer.status == 201, answer
        self.accepted.add(answer.body["task_id"])
        return answer.body["task_id"]

    def seen(self, task_id: str = "", what: str = "start") -> list[dict[str, Any]]:
        """What the witness saw, in order."""
        lines = self.witness_file.read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [e for e in found if e["what"] == what and task_id in {"", e["id"]}]

    def await_start(self, task_id: str, starts: int = 1, patience_s: float = PATIENCE_S) -> float:
        """When (wall clock) that start was seen."""
        until(lambda: len(self.seen(task_id)) >= starts, f"start {starts} of {task_id}", patience_s)
        return self.seen(task_id)[starts - 1]["at"]

    def load(self, apis: list[Api], bodies: Bodies, **options: Any) -> "Load":
        return Load(self, apis, bodies, **options)

    def await_received(self, target: Target, path: str, requests: int) -> None:
        until(lambda: len(target.of(path)) >= requests, f"{requests} requests for {path}")

    # -- the end ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def at_a_standstill(self) -> Iterator[None]:
        """Everything but the server is frozen: what is read meanwhile belongs together."""
        servers = servers_of(self.data.resolve())
        living = [p for p in self.processes if p.status is None]
        pids = [pid for p in living for pid in tree_of(p.pid) if pid not in servers]
        try:
            for pid in pids:
                send(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                send(pid, signal.SIGCONT)

    def books(self) -> Books:
        assert self.url
        with (
            self.at_a_standstill(),
            redis.Redis.from_url(self.url, socket_timeout=PATIENCE_S) as plain,
        ):
            return Books(plain)

    def drain(self, patience_s: float = PATIENCE_S) -> None:
        """Until everything that was ever created is final."""
        with redis.Redis.from_url(self.url, socket_timeout=PATIENCE_S) as plain:
            until(lambda: Books.unfinished(plain) == {}, "everything final", patience_s)

    def audit(self, patience_s: float = PATIENCE_S) -> Books:
        """Drains, then: nothing lost, nothing doubled, nothing without a cause, counters true."""
        self.drain(patience_s)
        deadline = time.monotonic() + 3.0
        while True:  # a verdict may be told a moment before the last call has ended
            books = self.books()
            findings = books.findings(self.accepted, self.seen(), self.harmed)
            if not findings or time.monotonic() > deadline:
                assert not findings, "\n".join(findings[:20])
                return books
            time.sleep(0.3)


# -- load -----------------------------------------------------------------------------------------


class Load:
    """Creates tasks from several threads until told to stop. Each has a key, so that a request
    without an answer can be sent again: ``troubles`` are all answers and silences but success.
    """

    def __init__(
        self, stack: Stack, apis: list[Api], bodies: Bodies, *, threads: int = 2, rest_s=0.005
    ) -> None:
        self._stack, self._apis, self._rest_s = stack, apis, rest_s
        self._bodies = bodies if isinstance(bodies, list) else [bodies]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.created = 0
        self.troubles: list[str] = []
        self.unanswered: set[str] = set()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No new tasks; what had no answer yet is asked again until it has one, for a while."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, thread: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            body = self._bodies[number % len(self._bodies)]
            self._create(f"load-{thread}-{number}", body, self._apis[thread % len(self._apis)])
            time.sleep(self._rest_s)

    def _create(self, key: str, body: dict[str, Any], api: Api) -> None:
        deadline = None
        while True:
            try:
                answer = api.call(
                    "POST", "/tasks", body, headers={"Idempotency-Key": key}, timeout_s=20
                )
                said = f"{answer.status} {answer.body}"
            except Silence as silence:
                answer, said = None, str(silence)
            if answer is not None and answer.status in {200, 201}:
                with self._lock:
                    self._stack.accepted.add(answer.body["task_id"])
                    self.created += 1
                return
            with self._lock:
                self.troubles.append(said)
            if self._stop.is_set():
                deadline = deadline or time.monotonic() + PATIENCE_S
                if time.monotonic() > deadline:
                    self.unanswered.add(key)
                    return
            time.sleep(0.05)
