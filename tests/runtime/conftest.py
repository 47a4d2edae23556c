"""``site`` is a namespace on a real server, empty at the beginning, without workers at the end."""

from collections.abc import AsyncIterator

import pytest
from tests.runtime.kit import Site
from tests.servers import ServerProcess


@pytest.fixture
async def site(valkey_server: ServerProcess) -> AsyncIterator[Site]:
    valkey_server.flush()
    async with Site(valkey_server.url) as each:
        yield each
