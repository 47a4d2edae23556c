"""checkpoint: the last value of the run in force is kept for the next attempt, and leaves with the task."""

import pytest
from tests.protocol.kit import BOOKKEEPING, DONE, LEASE_MS, Kit, lost, retry_in

from tasksched.model.states import STATES, State
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio


async def keep(kit: Kit, task_id: str, value: bytes, fence: str = "") -> bool:
    return await kit.store.checkpoint(0, task_id, fence or kit.fence(task_id), value)


async def kept(kit: Kit, task_id: str) -> bytes | None:
    return await Reads(kit.store).checkpoint(task_id)


@pytest.mark.parametrize("state", STATES)
async def test_in_every_state_only_what_runs_keeps(kit: Kit, state: State):
    task_id = await kit.task_in(state)
    before = kit.dump(without=BOOKKEEPING)
    assert (state == "RUNNING") is await keep(kit, task_id, b"\x00\xff")
    if state == "RUNNING":
        assert b"\x00\xff" == await kept(kit, task_id)
    else:
        assert before == kit.dump(without=BOOKKEEPING)


async def test_the_same_again_changes_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await keep(kit, task_id, b"abc")
    after = kit.dump(without=BOOKKEEPING)
    assert True is await keep(kit, task_id, b"abc")
    assert after == kit.dump(without=BOOKKEEPING)


@pytest.mark.parametrize("end", ["settled", "lost"])
async def test_the_next_attempt_finds_it(kit: Kit, end: str):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    await keep(kit, task_id, b"page 7")
    if end == "settled":
        await kit.settle((task_id, fence), retry_in(0))
    else:
        await kit.wait(LEASE_MS)
        await kit.store.reap(0, [(task_id, fence, lost(0))])
    await kit.start(task_id)
    assert b"page 7" == await kept(kit, task_id)
    assert False is await keep(kit, task_id, b"late", fence)
    assert b"page 7" == await kept(kit, task_id)
    assert True is await keep(kit, task_id, b"page 8")
    assert b"page 8" == await kept(kit, task_id)


async def test_its_bytes_follow_its_size_and_go_with_the_task(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    for size in (1_000, 10, 10, 500):
        await keep(kit, task_id, b"x" * size)
        assert str(size) == kit.record(task_id)["extra"]
    await kit.store.lines(0, [(task_id, kit.fence(task_id), 1, "12345")])
    assert "505" == kit.record(task_id)["extra"]
    await kit.settle((task_id, kit.fence(task_id)), DONE)
    assert 400 + 1 + 505 == int(kit.plain.hget(kit.keys.counts, "bytes:default"))
    words = await kit.store.purge(0, "default", [(task_id, None)], keyed_ms=0, unkeyed_ms=0)
    assert ["purged"] == words
    assert 0 == kit.plain.exists(kit.keys.checkpoint(task_id), kit.keys.lines(task_id))


async def test_a_checkpoint_survives_a_redrive(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await keep(kit, task_id, b"half")
    await kit.store.cancel(0, task_id, "default", None)
    await kit.settle((task_id, kit.fence(task_id)), retry_in(0))
    assert "redriven" == (await kit.store.redrive(0, task_id, "default", None)).word
    await kit.start(task_id)
    assert b"half" == await kept(kit, task_id)
