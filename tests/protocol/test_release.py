"""release: a run handed back in time costs no attempt and starts elsewhere at once."""

import pytest
from tests.protocol.kit import BOOKKEEPING, BROKEN, DONE, LEASE_MS, Kit, lost, retry_in, spec

from tasksched.store.protocol import Release
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio


async def release(kit: Kit, task_id: str, fence: str) -> str:
    (word,) = await kit.store.release(0, [(task_id, fence)])
    return word


async def test_a_released_run_is_due_as_before_and_not_counted(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=5))
    kit.leap(5)
    first = await kit.start(task_id)

    assert "PENDING" == await release(kit, task_id, first.fence)
    assert str(first.due_ms) == kit.record(task_id)["due_ms"]
    second = await kit.start(task_id)
    assert (2, 1) == (second.attempt, second.attempts)


async def test_released_again_and_again_it_keeps_its_budget(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    for number in range(1, 8):
        grant = await kit.start(task_id)
        assert (number, 1) == (grant.attempt, grant.attempts)
        await release(kit, task_id, grant.fence)
    assert "PENDING" == kit.state(task_id)


async def test_a_release_between_failures_counts_the_failures_only(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    await kit.settle(await kit.start(task_id), retry_in(0))
    await release(kit, task_id, (await kit.start(task_id)).fence)
    assert 2 == (await kit.start(task_id)).attempts


async def test_a_released_run_that_was_to_be_cancelled_is(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.store.cancel(0, task_id, "default", None)
    fence = kit.fence(task_id)
    assert "CANCELLED" == await release(kit, task_id, fence)
    assert "CANCELLED" == await release(kit, task_id, fence)


async def test_released_twice_is_released_once(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    assert ["PENDING", "PENDING"] == await kit.store.release(0, [(task_id, fence)] * 2)
    after = kit.dump(without=BOOKKEEPING)
    assert "PENDING" == await release(kit, task_id, fence)
    assert after == kit.dump(without=BOOKKEEPING)
    assert "1" == kit.record(task_id)["uncounted"]


async def test_a_fence_that_is_not_in_force_releases_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    old = kit.fence(task_id)
    await kit.settle((task_id, old), retry_in(0))
    await kit.start(task_id)
    before = kit.dump(without=BOOKKEEPING)
    for fence in (old, "0", ""):
        assert "stale" == await release(kit, task_id, fence)
    assert before == kit.dump(without=BOOKKEEPING)


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_a_run_that_has_its_verdict_cannot_be_released(kit: Kit, outcome):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), outcome)
    assert "conflict" == await release(kit, task_id, kit.fence(task_id))


async def test_the_order_of_what_a_worker_hands_back_is_that_of_its_due_times(kit: Kit):
    await kit.announce()
    made = []
    for delay_ms in (1, 2, 3):
        made.append(await kit.submit(spec(delay_ms=delay_ms)))
    kit.leap(3)
    await kit.dispatch()
    grants = await kit.take()
    await kit.store.release(0, [(g.id, g.fence) for g in reversed(grants)])
    await kit.dispatch()
    assert made == [grant.id for grant in await kit.take()]


# -- postponed: a start that began nothing --------------------------------------------------------


async def postpone(kit: Kit, task_id: str, wait_ms: int = 60_000, why: str = "host_busy") -> str:
    (word,) = await kit.store.release(0, [Release(task_id, kit.fence(task_id), wait_ms, why)])
    return word


async def test_a_postponed_run_is_due_later_and_says_why(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    assert "PENDING" == await postpone(kit, task_id)
    assert "host_busy" == (await Reads(kit.store).task(task_id)).postponed
    await kit.wait(59_999)
    await kit.dispatch()
    assert [] == await kit.take()
    await kit.wait(1)
    again = await kit.start(task_id)
    assert (2, 1) == (again.attempt, again.attempts)


async def test_a_postponed_run_counts_for_nothing_and_is_in_no_log(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    for _ in range(3):
        await postpone(kit, task_id, 0)
        await kit.start(task_id)
    await kit.settle((task_id, kit.fence(task_id)), BROKEN)
    task = await Reads(kit.store).task(task_id)
    assert (1, None) == (task.attempts, task.postponed)
    assert ["FAILED"] == [each.outcome for each in await Reads(kit.store).attempts(task)]


async def test_a_postponed_suspect_stays_one(kit: Kit):
    """It lost its worker, and began nothing since: the next start is the suspect's still."""
    task_id = await kit.task_in("RUNNING")
    await kit.wait(LEASE_MS)
    await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(0))])
    await kit.start(task_id)
    await postpone(kit, task_id, 0)
    assert "1" == kit.record(task_id)["lost"]
    assert 1 == (await kit.start(task_id)).lost


async def test_postponed_twice_is_postponed_once(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await postpone(kit, task_id)
    kit.leap(5)
    after = kit.dump(without=BOOKKEEPING)
    assert "PENDING" == await postpone(kit, task_id, 90_000)
    assert after == kit.dump(without=BOOKKEEPING)
