"""The operator's loop: it costs next to nothing when idle, takes up what is left, and leaves in order."""

import asyncio

import pytest
from tests.protocol.kit import BROKEN, DAY_MS, HOUR_MS, Kit, open_kit
from tests.servers import ServerProcess

from tasksched.commands.operations import Operations, Request
from tasksched.commands.operator import Operator
from tasksched.commands.removal import Memory
from tasksched.model.filters import Filter

pytestmark = pytest.mark.anyio

MEMORY = Memory(DAY_MS, HOUR_MS)


@pytest.fixture
async def kit(valkey_server: ServerProcess):
    valkey_server.flush()
    made = await open_kit(valkey_server.url)
    yield made
    assert [] == made.audit()
    await made.close()


async def redrive(kit: Kit, count: int):
    await kit.announce()
    await kit.submit_many(count)
    while True:
        await kit.dispatch()
        grants = await kit.take()
        if not grants:
            break
        await kit.store.settle(0, [(grant.id, grant.fence, BROKEN) for grant in grants])
    return await Operations(kit.store, MEMORY).start(
        Request(kind="redrive", tenant="default", filter=Filter(), rate=1_000)
    )


async def test_a_look_at_nothing_is_one_command(kit: Kit):
    operator = Operator(kit.store, MEMORY)
    await operator.look()
    before = kit.plain.info("stats")["total_commands_processed"]
    await operator.look()
    assert 2 == kit.plain.info("stats")["total_commands_processed"] - before  # INFO is the other


async def test_who_is_told_to_stop_leaves_the_rest_to_the_next_one_at_once(kit: Kit):
    """The clock stands still, so its second batch never comes."""
    begun = await redrive(kit, 300)
    stop, operations = asyncio.Event(), Operations(kit.store, MEMORY)
    running = asyncio.create_task(Operator(kit.store, MEMORY).run(stop))
    async with asyncio.timeout(10):
        while (await operations.get("default", begun.id)).done < 100:
            await asyncio.sleep(0.01)
    stop.set()
    await running
    left = await operations.get("default", begun.id)
    assert ("RUNNING", "", 0) == (left.state, left.owner, left.until_ms)

    (job,) = await Operator(kit.store, MEMORY).look()
    while (wait_ms := await job.step()) is not None:
        kit.leap(int(wait_ms) + 1)
    assert ("DONE", 300, 0) == (job.operation.state, job.operation.done, job.operation.skipped)
