"""``each`` runs a test on every server, ``one`` (for the heavy ones) on one. Both audit at the end."""

from collections.abc import AsyncIterator

import pytest
from tests.protocol.schedules.kit import SchedulesKit, open_schedules_kit
from tests.servers import ServerProcess


async def _kit(server: ServerProcess) -> AsyncIterator[SchedulesKit]:
    kit = await open_schedules_kit(server.url)
    yield kit
    found = kit.audit() if kit.audited else []
    await kit.close()
    assert [] == found


@pytest.fixture
async def each(redis_server: ServerProcess) -> AsyncIterator[SchedulesKit]:
    async for kit in _kit(redis_server):
        yield kit


@pytest.fixture
async def one(valkey_server: ServerProcess) -> AsyncIterator[SchedulesKit]:
    valkey_server.flush()
    async for kit in _kit(valkey_server):
        yield kit
