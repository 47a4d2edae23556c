"""heartbeat: leases of live runs move forward, by the fence in force and no further than they may."""

import pytest
from tests.protocol.kit import BOOKKEEPING, LEASE_MS, Kit, lost, retry_in, spec

from tasksched.store.protocol import Beat

pytestmark = pytest.mark.anyio


async def beat(kit: Kit, task_id: str, fence: str = "", lease_ms: int = LEASE_MS, **more) -> str:
    beats = [Beat(task_id, fence or kit.fence(task_id), lease_ms, **more)]
    return (await kit.store.heartbeat(0, beats))[0]


async def test_a_beat_pushes_the_lease_forward(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    kit.leap(9_000)
    assert "ok" == await beat(kit, task_id)
    assert kit.now_ms + LEASE_MS == kit.plain.zscore(kit.keys.watch, task_id)


async def test_a_beat_changes_no_version(kit: Kit):
    """Else an edit with If-Match would race against every worker."""
    task_id = await kit.task_in("RUNNING")
    before = kit.record(task_id)
    await beat(kit, task_id)
    assert before == kit.record(task_id)


async def test_a_beat_brings_the_request_to_cancel(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.store.cancel(0, task_id, "default", None)
    assert "cancel" == await beat(kit, task_id)
    assert "cancel" == await beat(kit, task_id)


async def test_a_beat_with_a_fence_that_is_not_in_force_renews_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    old = kit.fence(task_id)
    await kit.settle((task_id, old), retry_in(0))
    kit.leap(1)
    await kit.start(task_id)
    kit.leap(1_000)
    before = kit.dump(without=BOOKKEEPING)
    for fence in (old, "0", "x"):
        assert "stale" == await beat(kit, task_id, fence, progress='{"at":1}')
    assert "stale" == await beat(kit, kit.new_id(), old)
    assert before == kit.dump(without=BOOKKEEPING)


async def test_a_beat_after_the_reaper_is_stale(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    await kit.wait(LEASE_MS)
    await kit.store.reap(0, [(task_id, fence, lost(5))])
    assert "stale" == await beat(kit, task_id, fence)


async def test_a_beat_that_comes_before_the_reaper_saves_a_late_run(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.wait(2 * LEASE_MS)
    assert "ok" == await beat(kit, task_id)
    assert (False, []) == await kit.store.overdue(0)


async def test_no_lease_reaches_past_the_timeout_of_the_attempt(kit: Kit):
    """A worker whose own timer failed cannot hold a task for ever: start + timeout + lease."""
    task_id = await kit.task_in("RUNNING")
    started_ms = kit.now_ms
    for _ in range(4):
        await kit.wait(5_000)
        await beat(kit, task_id, timeout_ms=12_000)
        end_ms = kit.plain.zscore(kit.keys.watch, task_id)
        assert min(kit.now_ms, started_ms + 12_000) + LEASE_MS == end_ms
    await kit.wait(LEASE_MS - 8_000)
    await beat(kit, task_id, timeout_ms=12_000)
    assert [task_id] == [run.id for run in (await kit.store.overdue(0))[1]]


async def test_progress_is_kept_and_an_empty_one_changes_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await beat(kit, task_id, progress='{"at":0.5}')
    await beat(kit, task_id)
    assert '{"at":0.5}' == kit.record(task_id)["progress"]


async def test_progress_belongs_to_its_attempt(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await beat(kit, task_id, progress='{"at":0.5}')
    await kit.settle((task_id, kit.fence(task_id)), retry_in(0))
    await kit.start(task_id)
    assert "progress" not in kit.record(task_id)


async def test_a_batch_is_answered_row_by_row(kit: Kit):
    await kit.announce()
    await kit.submit_many(3)
    await kit.submit(spec(delay_ms=1))
    grants = await kit.take()
    await kit.store.cancel(0, grants[1].id, "default", None)
    beats = [Beat(g.id, g.fence, LEASE_MS) for g in grants]
    beats.insert(2, Beat(kit.new_id(), "1", LEASE_MS))
    assert ["ok", "cancel", "stale", "ok"] == await kit.store.heartbeat(0, beats)
