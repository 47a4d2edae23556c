"""Fixtures of the stories. A failed one shows the end of what each of its processes said."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import ServerProcess
from tests.stack.kit import Stack


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", action="store_true", help="the nemesis rages for minutes")
    parser.addoption("--seed", type=int, default=None, help="of the nemesis; printed by each run")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    values = getattr(item, "funcargs", {}).values()
    for stack in values if report.failed else ():
        if isinstance(stack, Stack):
            report.sections += [(f"output of {name}", text) for name, text in stack.tails()]
    return report


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> bool:
    """Whether there is time for the long forms."""
    return bool(request.config.getoption("--chaos", default=False))


@pytest.fixture
def durable(spawn: Callable[..., ServerProcess]) -> ServerProcess:
    """A server whose data survive its death, as the embedded one is configured."""
    return spawn("valkey", "--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture
def stack(durable: ServerProcess, tmp_path: Path) -> Iterator[Stack]:
    """An installation on a server of its own; nothing of it runs yet."""
    made = Stack(tmp_path, durable)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Stack]:
    """An installation without a server: ``dev`` brings its own."""
    made = Stack(tmp_path)
    yield made
    made.close()
