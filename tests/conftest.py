"""Fixtures every test may use: real servers, and the event loop."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.servers import NAMES, ServerPool, ServerProcess, spawn_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        default=",".join(NAMES),
        help="which servers the fixture redis_server runs over (default: %(default)s)",
    )


def pytest_configure() -> None:
    # Started in the background of a shell, SIGINT would be ignored here and by every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The same examples each time, or what lands would hang on luck; new ones are looked for by
    # `make chaos`, and whatever it finds becomes a test of its own.
    if not os.environ.get("TASKSCHED_EXPLORE"):
        settings.register_profile("repeatable", derandomize=True, database=None)
        settings.load_profile("repeatable")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the fixture ``redis_server`` runs once per server, unless it names its own."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "redis_server" not in metafunc.fixturenames or "redis_server" in chosen:
        return
    names = metafunc.config.getoption("servers").split(",")
    if unknown := set(names) - set(NAMES):
        raise pytest.UsageError(f"--servers: no {', '.join(unknown)}; there is {', '.join(NAMES)}")
    metafunc.parametrize("redis_server", names, indirect=True)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture
def redis_server(request: pytest.FixtureRequest, server_pool: ServerPool) -> ServerProcess:
    """Each server in turn, emptied. The process is shared by the session: do not kill it."""
    server = server_pool.get(request.param)
    server.flush()
    return server


@pytest.fixture(scope="session")
def valkey_server(server_pool: ServerPool) -> ServerProcess:
    """One real server, where which one does not matter. Not emptied: call ``flush``."""
    return server_pool.get("valkey")


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """``spawn("valkey", "--appendonly", "yes")``: a server of one's own, to kill and to freeze."""
    started: list[ServerProcess] = []

    def spawn_one(name: str, *arguments: str) -> ServerProcess:
        directory = tmp_path / f"server{len(started)}"
        directory.mkdir()
        started.append(spawn_server(name, directory, *arguments))
        return started[-1]

    yield spawn_one
    for server in started:
        server.close()
