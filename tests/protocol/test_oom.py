"""Out of memory: nothing new is accepted and nothing is left behind; what was accepted goes on."""

import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    BROKEN,
    DAY_MS,
    DONE,
    LEASE_MS,
    Kit,
    lost,
    retry_in,
    spec,
)

from tasksched.errors import Unavailable
from tasksched.store.protocol import Beat, Edit, Release

pytestmark = pytest.mark.anyio


@pytest.fixture
async def full(kit: Kit):
    """A shard with a task in every stage of its life, whose server then runs out of memory."""
    await kit.announce()
    made = {name: await kit.task_in("RUNNING") for name in ("settle", "retry", "release", "reap")}
    made["cancel running"] = await kit.task_in("RUNNING")
    made["cancel"] = await kit.task_in("PENDING")
    made["run_now"] = await kit.task_in("PENDING")
    made["due"] = await kit.submit(spec(delay_ms=1))
    made["expires"] = await kit.task_in("PENDING", expires_at_ms=kit.now_ms + 1)
    made["done"] = await kit.task_in("SUCCESS")
    made["failed"] = await kit.task_in("FAILED")
    kit.leap(1)
    kit.plain.config_set("maxmemory", "1mb")
    yield made
    kit.plain.config_set("maxmemory", 0)


async def test_nothing_new_is_accepted_and_nothing_is_left_behind(kit: Kit, full: dict[str, str]):
    before = kit.dump()
    rows = [(kit.new_id(), spec(payload=b"x" * size), "") for size in (1, 5_000)]
    with pytest.raises(Unavailable, match="out of memory"):
        await kit.store.submit(0, rows)
    with pytest.raises(Unavailable, match="out of memory"):
        await kit.store.edit(0, full["due"], "default", None, Edit(payload=b"x" * 5_000))
    with pytest.raises(Unavailable, match="out of memory"):
        await kit.store.redrive(0, full["failed"], "default", None)
    assert before == kit.dump()


async def test_what_was_accepted_is_dispatched_run_and_finished(kit: Kit, full: dict[str, str]):
    await kit.announce()  # workers must be able to stay, or everything would be parked
    done = await kit.dispatch()
    assert (1, 1) == (done.moved, kit.expired)
    (grant,) = await kit.take()
    assert full["due"] == grant.id
    assert ["ok"] == await kit.store.heartbeat(
        0, [Beat(grant.id, grant.fence, LEASE_MS, None, '{"at":1}')]
    )
    assert "SUCCESS" == await kit.settle(grant, DONE)
    assert "FAILED" == kit.state(full["expires"])


async def test_verdicts_retries_and_releases_are_recorded(kit: Kit, full: dict[str, str]):
    runs = {name: (task_id, kit.fence(task_id)) for name, task_id in full.items()}
    assert "SUCCESS" == await kit.settle(runs["settle"], DONE)
    assert "PENDING" == await kit.settle(runs["retry"], retry_in(5))
    assert ["PENDING"] == await kit.store.release(0, [runs["release"]])
    assert "cancelled" == (await kit.store.cancel(0, full["cancel"], "default", None)).word
    changed = await kit.store.cancel(0, full["cancel running"], "default", None)
    assert "requested" == changed.word
    assert "CANCELLED" == await kit.settle(runs["cancel running"], BROKEN)
    assert "edited" == (await kit.store.run_now(0, full["run_now"], "default", None)).word


async def test_leases_are_reaped_and_finished_tasks_leave(kit: Kit, full: dict[str, str]):
    await kit.wait(LEASE_MS)
    task_id = full["reap"]
    assert task_id in [run.id for run in (await kit.store.overdue(0))[1]]
    assert ["PENDING"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(0))])
    await kit.store.sweep(0, "default:normal:charge", "-")
    await kit.store.reclaim(0, [full["due"]])
    removed, _ = await kit.store.prune(
        0, "default", done_ms=0, dead_ms=0, count_max=0, bytes_max=0,
        keyed_ms=DAY_MS, unkeyed_ms=DAY_MS, limit=100,
    )  # fmt: skip
    assert 2 == removed
    key = kit.store.global_keys.schedulers
    assert ["s"] == await kit.store.enlist(key, "s", 4_000)


async def test_a_run_goes_on_elsewhere_says_what_it_says_and_ends(kit: Kit, full: dict[str, str]):
    task_id = full["settle"]
    fence = kit.fence(task_id)
    assert ["ok"] == await kit.store.lines(0, [(task_id, fence, 1, "line")])
    assert True is await kit.store.checkpoint(0, task_id, fence, b"half")
    assert ["RUNNING"] == await kit.store.defer(0, [(task_id, fence, 60_000)])
    assert ["PENDING"] == await kit.store.release(
        0, [Release(full["release"], kit.fence(full["release"]), 5_000, "host_busy")]
    )
    assert "SUCCESS" == await kit.settle((task_id, fence), DONE)


async def test_when_there_is_memory_again_the_same_call_goes_through(
    kit: Kit, full: dict[str, str]
):
    rows = [(kit.new_id(), spec(), "f")]
    with pytest.raises(Unavailable):
        await kit.store.submit(0, rows)
    kit.plain.config_set("maxmemory", 0)
    assert {} == (await kit.store.submit(0, rows))[1]
    assert kit.dump(without=BOOKKEEPING)
