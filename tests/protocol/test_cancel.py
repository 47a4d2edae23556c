"""cancel: final before a start, a request to what runs, and no start after it was acknowledged."""

import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    BROKEN,
    DAY_MS,
    DONE,
    HOUR_MS,
    LEASE_MS,
    Kit,
    lost,
    retry_in,
    spec,
)

pytestmark = pytest.mark.anyio


async def cancel(kit: Kit, task_id: str) -> tuple[str, str]:
    changed = await kit.store.cancel(0, task_id, "default", None)
    assert changed.version == kit.version(task_id)
    return changed.word, changed.state


async def test_a_dispatched_task_that_is_cancelled_never_starts(kit: Kit):
    """cancel-race-001: its message is gone from the stream with it."""
    task_id = await kit.task_in("QUEUED")
    assert ("cancelled", "CANCELLED") == await cancel(kit, task_id)
    assert [] == await kit.take()
    key = kit.keys.ready("default:normal:charge")
    assert (0, 0) == (kit.plain.xlen(key), kit.plain.xpending(key, "workers")["pending"])


async def test_cancelled_before_any_worker_came_it_never_runs(valkey: Kit):
    """cancel-race-005, a hundred times."""
    await valkey.announce()
    for task_id in await valkey.submit_many(100):
        await cancel(valkey, task_id)
    await valkey.dispatch()
    assert [] == await valkey.take()


async def test_a_message_that_outlived_its_task_is_dropped(kit: Kit):
    """The same race, where the deletion of the entry was lost."""
    task_id = await kit.task_in("QUEUED")
    await cancel(kit, task_id)
    kit.plain.xadd(kit.keys.ready("default:normal:charge"), {"id": task_id})
    kit.plain.zadd(kit.keys.unread, {"default:normal:charge": 0})
    assert [] == await kit.take()
    assert "CANCELLED" == kit.state(task_id)


async def test_cancelled_twice_is_cancelled_once_and_finished_is_finished(kit: Kit):
    """cancel-race-002."""
    task_id = await kit.task_in("PENDING")
    assert ("cancelled", "CANCELLED") == await cancel(kit, task_id)
    after = kit.dump(without=BOOKKEEPING)
    kit.leap(HOUR_MS)
    assert ("cancelled", "CANCELLED") == await cancel(kit, task_id)
    assert after == kit.dump(without=BOOKKEEPING)
    for state in ("SUCCESS", "FAILED"):
        assert ("finished", state) == await cancel(kit, await kit.task_in(state))


async def test_a_running_task_is_asked_once(valkey: Kit):
    task_id = await valkey.task_in("RUNNING")
    listener = valkey.plain.pubsub()
    listener.ssubscribe(valkey.keys.wake)
    listener.get_sharded_message(timeout=1)
    version = valkey.version(task_id)
    for _ in range(2):
        assert ("requested", "RUNNING") == await cancel(valkey, task_id)
    assert version + 1 == valkey.version(task_id)
    assert f"cancel {task_id}".encode() == listener.get_sharded_message(timeout=1)["data"]
    assert None is listener.get_sharded_message(timeout=0.1)
    listener.close()


@pytest.mark.parametrize("end", ["retry", "fail", "release", "lost"])
async def test_after_the_request_there_is_no_other_start(kit: Kit, end: str):
    task_id = await kit.task_in("RUNNING")
    run = (task_id, kit.fence(task_id))
    await cancel(kit, task_id)
    match end:
        case "retry":
            await kit.settle(run, retry_in(0))
        case "fail":
            await kit.settle(run, BROKEN)
        case "release":
            await kit.store.release(0, [run])
        case "lost":
            await kit.wait(LEASE_MS)
            await kit.store.reap(0, [(*run, lost(0))])
    assert "CANCELLED" == kit.state(task_id)
    await kit.wait(HOUR_MS)
    await kit.dispatch()
    assert [] == await kit.take()


async def test_a_task_that_waits_for_its_retry_can_be_cancelled(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(DAY_MS))
    assert ("cancelled", "CANCELLED") == await cancel(kit, task_id)


async def test_the_reply_that_was_lost_is_given_again_also_with_if_match(kit: Kit):
    waiting, running = await kit.task_in("PENDING"), await kit.task_in("RUNNING")
    for task_id, word in ((waiting, "cancelled"), (running, "requested")):
        version = kit.version(task_id)
        first = await kit.store.cancel(0, task_id, "default", version, op="a")
        after = kit.dump(without=BOOKKEEPING)
        kit.leap(5)
        assert first == await kit.store.cancel(0, task_id, "default", version, op="a")
        assert after == kit.dump(without=BOOKKEEPING)
        assert (word, version + 1) == (first.word, first.version)
        again = await kit.store.cancel(0, task_id, "default", version, op="b")
        assert "version" == again.word
    await kit.settle((running, kit.fence(running)), DONE)
    late = await kit.store.cancel(0, running, "default", version, op="a")
    assert ("requested", "SUCCESS") == (late.word, late.state)


@pytest.mark.parametrize("state", ["PENDING", "QUEUED"])
async def test_a_cancelled_task_does_not_expire_later(kit: Kit, state: str):
    task_id = await kit.task_in(state, expires_at_ms=kit.now_ms + 5_000)
    await cancel(kit, task_id)
    assert 0 == kit.plain.zcard(kit.keys.expiry)
    kit.leap(5_000)
    await kit.dispatch()
    assert 0 == kit.expired
    assert "CANCELLED" == kit.state(task_id)


async def test_room_that_a_cancel_makes_in_a_full_window_wakes_the_dispatchers(valkey: Kit):
    """No take would say so, when all that was dispatched is cancelled."""
    await valkey.announce()
    made = await valkey.submit_many(80)
    await valkey.dispatch()
    listener = valkey.plain.pubsub()
    listener.ssubscribe(valkey.keys.wake)
    listener.get_sharded_message(timeout=1)
    await valkey.store.cancel(0, made[0], "default", None)
    assert b"due 0" == listener.get_sharded_message(timeout=1)["data"]
    listener.close()


async def test_many_lanes_of_many_tenants_empty_without_a_trace(kit: Kit):
    await kit.announce()
    made = []
    for tenant in ("a", "b"):
        for delay_ms in (0, 5_000):
            made.append((tenant, await kit.submit(spec(tenant=tenant, delay_ms=delay_ms))))
    for tenant, task_id in made:
        await kit.store.cancel(0, task_id, tenant, None)
    kit.leap(5_000)
    await kit.dispatch()
    await kit.dispatch()
    left = [k for k in kit.dump() if ":due:" in k or ":turns:" in k or ":index:" in k]
    assert [] == left
    assert -1 == (await kit.dispatch()).again_ms
