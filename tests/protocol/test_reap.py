"""reap and overdue: leases that ran out, told from outages; nothing runs for ever."""

import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    DAY_MS,
    DONE,
    HOUR_MS,
    LEASE_MS,
    WORKER,
    Kit,
    lost,
    spec,
)

from tasksched.store.protocol import Beat

pytestmark = pytest.mark.anyio


async def overdue_ids(kit: Kit) -> list[str]:
    return [run.id for run in (await kit.store.overdue(0))[1]]


async def beat(kit: Kit, task_id: str, **fields) -> str:
    beats = [Beat(task_id, kit.fence(task_id), LEASE_MS, **fields)]
    return (await kit.store.heartbeat(0, beats))[0]


async def test_a_lease_that_ran_out_is_overdue_and_not_a_millisecond_earlier(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    grant = (task_id, kit.fence(task_id), lost(1_000))
    await kit.wait(LEASE_MS - 1)
    assert [] == await overdue_ids(kit)
    assert ["alive"] == await kit.store.reap(0, [grant])

    kit.leap(1)
    held, (run,) = await kit.store.overdue(0)

    assert (False, task_id, "RUNNING", grant[1], 1, 0, WORKER) == (
        held, run.id, run.state, run.fence, run.attempts, run.lost, run.worker,
    )  # fmt: skip
    assert ["PENDING"] == await kit.store.reap(0, [grant])
    record = kit.record(task_id)
    assert (str(kit.now_ms + 1_000), "LOST", "1") == (
        record["due_ms"], record["outcome"], record["lost"],
    )  # fmt: skip
    assert [] == await overdue_ids(kit)


async def test_the_last_lost_attempt_fails_the_task(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.wait(LEASE_MS)
    assert ["FAILED"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost())])
    assert "worker_lost" == kit.record(task_id)["reason"]


async def test_a_lost_run_that_was_to_be_cancelled_is(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.store.cancel(0, task_id, "default", None)
    await kit.wait(LEASE_MS)
    assert ["CANCELLED"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])


@pytest.mark.parametrize("retry_ms", [0, None])
async def test_reaped_twice_is_reaped_once(kit: Kit, retry_ms: int | None):
    """Two schedulers, or one whose reply was lost: answered again, nothing changes."""
    task_id = await kit.task_in("RUNNING")
    row = (task_id, kit.fence(task_id), lost(retry_ms))
    await kit.wait(LEASE_MS)
    first = await kit.store.reap(0, [row, row])
    assert [first[0], "stale"] == first
    after = kit.dump(without=BOOKKEEPING)
    assert first[:1] == await kit.store.reap(0, [row])
    assert after == kit.dump(without=BOOKKEEPING)


async def test_data_read_before_the_verdict_reaps_nothing(kit: Kit):
    """lease-011: the success came between the look and the reaper's call."""
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    await kit.wait(LEASE_MS)
    assert [task_id] == await overdue_ids(kit)
    await kit.settle((task_id, fence), DONE)
    assert ["stale"] == await kit.store.reap(0, [(task_id, fence, lost(5))])
    assert ("SUCCESS", "1") == (kit.state(task_id), kit.record(task_id)["attempt"])


async def test_data_read_before_a_heartbeat_reaps_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.wait(LEASE_MS)
    assert [task_id] == await overdue_ids(kit)
    assert "ok" == await beat(kit, task_id)
    assert ["alive"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])


async def test_a_long_run_with_healthy_heartbeats_is_never_started_again(kit: Kit):
    """lease-002: 47 minutes on a lease of 30 s."""
    task_id = await kit.task_in("RUNNING")
    for _ in range(47 * 6):
        kit.leap(10_000)
        assert "ok" == await beat(kit, task_id)
        assert [] == await overdue_ids(kit)
    assert 0 == (await kit.dispatch()).moved
    assert "SUCCESS" == await kit.settle((task_id, kit.fence(task_id)), DONE)
    assert "1" == kit.record(task_id)["attempt"]


# ── outages ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_outage_costs_no_live_run_its_attempt(kit: Kit):
    """Nothing could renew it while the server was away: each lease gets one more."""
    task_id = await kit.task_in("RUNNING")
    kit.leap(HOUR_MS)
    await kit.dispatch()

    assert (True, [task_id]) == (
        (await kit.store.overdue(0))[0],
        await overdue_ids(kit),
    )
    assert ["alive"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])
    await kit.wait(LEASE_MS - 1)
    assert ["alive"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])
    assert "ok" == await beat(kit, task_id)
    assert "SUCCESS" == await kit.settle((task_id, kit.fence(task_id)), DONE)


async def test_whoever_died_in_the_outage_is_reaped_one_lease_later(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    kit.leap(HOUR_MS)
    await kit.dispatch()
    await kit.wait(LEASE_MS)
    held, (run,) = await kit.store.overdue(0)
    assert (False, task_id) == (held, run.id)
    assert ["PENDING"] == await kit.store.reap(0, [(task_id, run.fence, lost(5))])


@pytest.mark.parametrize(("gap_ms", "held"), [(9_000, False), (10_000, False), (10_001, True)])
async def test_an_outage_is_a_third_of_a_lease_without_any_script(
    kit: Kit, gap_ms: int, held: bool
):
    await kit.dispatch()
    kit.leap(gap_ms)
    await kit.dispatch()
    assert held == (await kit.store.overdue(0))[0]


async def test_the_namespaces_own_lease_decides_how_long_that_is(kit: Kit):
    kit.plain.hset(kit.keys.clock, "lease_ms", 3_000)
    await kit.dispatch()
    kit.leap(1_500)
    await kit.dispatch()
    assert b"%d" % (kit.now_ms + 3_000) == kit.plain.hget(kit.keys.clock, "hold_ms")


async def test_a_reap_that_is_the_first_script_after_the_outage_holds_too(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    kit.leap(HOUR_MS)
    assert ["alive"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])


async def test_a_shard_that_lives_is_never_held(kit: Kit):
    """Looks every five seconds, as schedulers make them, are told from an outage for days."""
    await kit.dispatch()
    await kit.wait(10 * 60_000)
    assert None is kit.plain.hget(kit.keys.clock, "hold_ms")


async def test_a_clock_that_leapt_ahead_is_an_outage(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    kit.leap(DAY_MS)
    await kit.dispatch()
    assert ["alive"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])


# ── what was lost is found ───────────────────────────────────────────────────────────────────────


async def test_a_run_whose_lease_entry_vanished_is_found_by_the_sweep(kit: Kit):
    """lease-009: only the watch entry is gone, and the worker is dead."""
    task_id = await kit.task_in("RUNNING")
    kit.plain.zrem(kit.keys.watch, task_id)
    await kit.wait(2 * LEASE_MS)
    assert [] == await overdue_ids(kit)

    assert 1 == (await kit.store.sweep(0, "default:normal:charge", "-")).watched
    await kit.wait(LEASE_MS)

    assert [task_id] == await overdue_ids(kit)
    assert ["PENDING"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(0))])
    assert task_id == (await kit.start(task_id)).id


@pytest.mark.parametrize("loss", ["entry", "group", "stream"])
async def test_a_run_whose_entry_vanished_is_reaped_by_its_lease(kit: Kit, loss: str):
    """redis-faults-011: pending, the entry deleted, the worker dies."""
    task_id = await kit.task_in("RUNNING")
    key = kit.keys.ready("default:normal:charge")
    match loss:
        case "entry":
            kit.plain.xdel(key, kit.record(task_id)["entry"])
        case "group":
            kit.plain.xgroup_destroy(key, "workers")
        case "stream":
            kit.plain.delete(key)
    await kit.take()  # the worker's loop does not stumble
    await kit.wait(LEASE_MS)

    assert [task_id] == await overdue_ids(kit)
    assert ["PENDING"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(0))])
    assert task_id == (await kit.start(task_id)).id
    assert 1 == kit.plain.xpending(key, "workers")["pending"]


async def test_overdue_is_bounded_and_begins_with_the_oldest(kit: Kit):
    await kit.announce()
    made = []
    for _ in range(5):
        made.append(await kit.submit())
        await kit.take()
        kit.leap(10)
    await kit.wait(LEASE_MS)
    _, found = await kit.store.overdue(0, 3)
    assert made[:3] == [run.id for run in found]


async def test_overdue_tells_of_a_watched_task_without_a_record(kit: Kit):
    kit.plain.zadd(kit.keys.watch, {"0nobody": 1})
    _, (run,) = await kit.store.overdue(0)
    assert ("0nobody", "", 0) == (run.id, run.state, run.attempts)
    assert ["stray"] == await kit.store.reclaim(0, ["0nobody"])


async def test_a_hundred_lost_at_once_are_reaped_in_one_call(kit: Kit):
    await kit.announce()
    await kit.submit_many(64)
    await kit.submit_many(64, spec(queue="b"))
    grants = await kit.take()
    await kit.wait(LEASE_MS)
    words = await kit.store.reap(0, [(g.id, g.fence, lost(0)) for g in grants])
    assert ["PENDING"] * 128 == words
