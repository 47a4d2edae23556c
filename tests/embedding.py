"""Helpers for tests of the embedded server: use its data, count its processes, wait for facts."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import redis

WAIT_S = 10.0


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=WAIT_S)


def put(url: str, value: str) -> None:
    with client(url) as connected:
        connected.set("key", value)


def stored(url: str) -> bytes | None:
    with client(url) as connected:
        return connected.get("key")


def servers_of(data: Path) -> list[int]:
    """Every process whose command line names this directory, told by the kernel."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{data}/server.conf".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
