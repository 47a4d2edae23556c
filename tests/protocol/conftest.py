"""``kit`` runs a test on every server, ``valkey`` (for the heavy ones) on one. Both audit at the end."""

from collections.abc import AsyncIterator

import pytest
from tests.protocol.kit import Kit, open_kit
from tests.servers import ServerProcess
from tests.users import denials, is_asked_for


async def _kit(server: ServerProcess) -> AsyncIterator[Kit]:
    if is_asked_for():
        denials(server.url)
    kit = await open_kit(server.url)
    yield kit
    found = kit.audit() if kit.audited else []
    await kit.close()
    assert [] == found
    if is_asked_for():  # a script may swallow an error
        assert [] == denials(server.url)


@pytest.fixture
async def kit(redis_server: ServerProcess) -> AsyncIterator[Kit]:
    async for each in _kit(redis_server):
        yield each


@pytest.fixture
async def valkey(valkey_server: ServerProcess) -> AsyncIterator[Kit]:
    valkey_server.flush()
    async for each in _kit(valkey_server):
        yield each
