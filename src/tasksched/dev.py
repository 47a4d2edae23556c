"""dev: everything in one process tree, on a durable embedded server. Ends cleanly, dies whole.

The supervisor owns the server and the children: one process for API and scheduler, and worker
processes, which are started again when they die (a handler that kills its process must not take the
rest along). Children die with the supervisor, by the kernel's hand where it can; the server too, and
its lock sees to it that no second one ever opens the same data (``tasksched.embedded``).
"""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tasksched import embedded, log
from tasksched.children import LOOK_S, Child, Stop, end_all
from tasksched.errors import Conflict
from tasksched.settings import Settings

READY_S = 15.0
PORT_S = 4.0
SERVER_REST_S = 0.2

_log = log.get("dev")


def run_dev(settings: Settings, *, app: str | None, workers: int, data_dir: Path) -> int:
    """Blocks until SIGTERM or SIGINT; returns the exit code."""
    children = _children(settings, app, workers)
    stop = Stop(children)
    _check_port(settings)
    server = embedded.start(data_dir)
    environment = _environment(settings, server.url)
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
                server = _start_again(server, data_dir)
    finally:
        # Workers drain while API and scheduler still run; then these; the server comes last.
        end_all(children[1:], settings.grace_ms)
        end_all(children[:1], settings.grace_ms)
        server.stop()
    return 0


def _start_again(dead: embedded.RunningServer, data_dir: Path) -> embedded.RunningServer:
    """Another server on the same data and socket: the children find it by themselves."""
    dead.stop()
    time.sleep(SERVER_REST_S)  # a server that dies at once must not be started in a spin
    return embedded.start(data_dir)


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
    """Targets on this machine are open to the tasks of ``dev``: one tries one's own servers."""
    open_to = (*settings.http_allow, "127.0.0.0/8", "::1/128", "localhost")
    return settings.with_flags(url=url, http_allow=open_to).to_environment()


def _children(settings: Settings, app: str | None, workers: int) -> list[Child]:
    api = ["api", "--scheduler", "--host", settings.host, "--port", str(settings.port)]
    worker = ["worker", *([app] if app else [])]
    numbered = [Child(f"worker-{n}", worker) for n in range(1, workers + 1)]
    return [Child("api", api), *numbered]


def _await_ready(
    settings: Settings,
    children: Sequence[Child],
    environment: dict[str, str],
    stop: Stop,
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
