"""dev: everything in one process tree, on a durable embedded server. Ends cleanly, dies whole.

The supervisor owns the server and the children: one process for API and scheduler, and worker
processes, which are started again when they die (a handler that kills its process must not take the
rest along). Children die with the supervisor, by the kernel's hand where it can; the server too, and
its lock sees to it that no second one ever opens the same data (``tasksched.embedded``).
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasksched import embedded, log
from tasksched.embedded import die_with_parent
from tasksched.errors import Conflict
from tasksched.settings import Settings

READY_S = 15.0
PORT_S = 4.0
LOOK_S = 0.05
RESTART_S = (0.1, 5.0)  # first and longest pause before a child that died starts again
QUICK_S = 5.0  # a child that lived shorter than this died at its start
GRACE_EXTRA_S = 5.0

_log = log.get("dev")


@dataclass(slots=True)
class Child:
    """One child and its history."""

    name: str
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = RESTART_S[0]
    again_s: float = field(default=0.0)

    def start(self, environment: dict[str, str]) -> None:
        argv = [sys.executable, "-m", "tasksched", *self.arguments]
        # A group of its own: Ctrl-C in a terminal reaches the supervisor alone, which drains.
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            die_with_parent(argv), env=environment, start_new_session=True
        )
        self.started_s = time.monotonic()

    def look(self, environment: dict[str, str]) -> None:
        """Starts it again when it has died, later each time it dies at its start."""
        now_s = time.monotonic()
        if self.process is None:
            if now_s >= self.again_s:
                self.start(environment)
            return
        status = self.process.poll()
        if status is None:
            return
        _log.warning("child.died", child=self.name, status=status)
        lived_s = now_s - self.started_s
        self.pause_s = RESTART_S[0] if lived_s > QUICK_S else min(self.pause_s * 2, RESTART_S[1])
        self.process, self.again_s = None, now_s + self.pause_s

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, until_s: float) -> None:
        """Until it ended; killed when the time is over."""
        if self.process is None:
            return
        try:
            self.process.wait(max(until_s - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run_dev(settings: Settings, *, app: str | None, workers: int, data_dir: Path) -> int:
    """Blocks until SIGTERM or SIGINT; returns the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _check_port(settings)
    with embedded.start(data_dir) as server:
        environment = _environment(settings, server.url)
        children = _children(settings, app, workers)
        try:
            for child in children:
                child.start(environment)
            if _await_ready(settings, children, environment, stop):
                _greet(settings, app, server.port, data_dir)
            while not stop.wait(LOOK_S):
                for child in children:
                    child.look(environment)
                if (status := server.poll()) is not None:
                    _log.error("server.died", status=status)
                    return 1
        finally:
            _end(children, settings)
    return 0


def _check_port(settings: Settings) -> None:
    """Raises Conflict while somebody else listens there; a tree that was just killed may yet end."""
    until_s = time.monotonic() + PORT_S
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, settings.port))
            except OSError as error:
                if time.monotonic() > until_s:
                    raise Conflict(f"port {settings.port} is taken: {error}") from error
            else:
                return
        time.sleep(LOOK_S)


def _environment(settings: Settings, url: str) -> dict[str, str]:
    return {
        **os.environ,
        "TASKSCHED_URL": url,
        "TASKSCHED_HTTP_ALLOW": ",".join(
            (*settings.http_allow, "127.0.0.0/8", "::1/128", "localhost")
        ),
    }


def _children(settings: Settings, app: str | None, workers: int) -> list[Child]:
    api = ["api", "--scheduler", "--host", settings.host, "--port", str(settings.port)]
    worker = ["worker", *([app] if app else [])]
    numbered = [Child(f"worker-{n}", worker) for n in range(1, workers + 1)]
    return [Child("api", api), *numbered]


def _await_ready(
    settings: Settings,
    children: Sequence[Child],
    environment: dict[str, str],
    stop: threading.Event,
) -> bool:
    """Whether the API answered that it is ready."""
    until_s = time.monotonic() + READY_S
    url = f"http://{settings.host}:{settings.port}/readyz"
    while time.monotonic() < until_s and not stop.wait(LOOK_S):
        for child in children:
            child.look(environment)
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            continue
    return False


def _greet(settings: Settings, app: str | None, redis_port: int, data_dir: Path) -> None:
    base = f"http://{settings.host}:{settings.port}"
    target = (
        '{"type": "handler", "name": "hello"}'
        if app
        else (f'{{"type": "http", "url": "{base}/livez", "method": "GET"}}')
    )
    payload = ', "payload": {"name": "world"}' if app else ""
    print(  # noqa: T201 - what `dev` says to the person who started it
        f"tasksched is ready.\n"
        f"  API    {base}  (docs: {base}/docs, health: {base}/health)\n"
        f"  data   {data_dir}  (redis-cli -p {redis_port})\n"
        f"  try    curl -s '{base}/tasks?wait=10' -H 'Content-Type: application/json' \\\n"
        f"           -d '{{\"target\": {target}{payload}}}'",
        flush=True,
    )


def _end(children: Sequence[Child], settings: Settings) -> None:
    """Workers drain while API and scheduler still run; then these; the server comes last."""
    grace_s = settings.grace_ms / 1000 + GRACE_EXTRA_S
    for group in (
        [c for c in children if c.name != "api"],
        [c for c in children if c.name == "api"],
    ):
        until_s = time.monotonic() + grace_s
        for child in group:
            child.end()
        for child in group:
            child.wait(until_s)
