"""purge: finished tasks leave by hand; what was their idempotency key stays used."""

import pytest
from tests.protocol.kit import BOOKKEEPING, BROKEN, DAY_MS, DONE, HOUR_MS, Kit, retry_in, spec

from tasksched.model import ids
from tasksched.model.states import FINAL, STATES

pytestmark = pytest.mark.anyio

NOBODY = ids.mint(0, 1)


async def purge(kit: Kit, *task_ids: str, tenant: str = "default", op: str = "") -> list[str]:
    rows = [(task_id, None) for task_id in task_ids]
    return await kit.store.purge(0, tenant, rows, keyed_ms=DAY_MS, unkeyed_ms=HOUR_MS, op=op)


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_what_has_finished_is_removed(kit: Kit, state: str):
    task_id = await kit.task_in(state)
    other = await kit.task_in(state)
    assert ["purged"] == await purge(kit, task_id)
    assert ({}, state) == (kit.record(task_id), kit.state(other))


@pytest.mark.parametrize("state", sorted(set(STATES) - FINAL))
async def test_what_has_not_finished_stays(kit: Kit, state: str):
    task_id = await kit.task_in(state)
    before = kit.dump(without=BOOKKEEPING)
    assert ["state"] == await purge(kit, task_id)
    assert before == kit.dump(without=BOOKKEEPING)


async def test_everything_of_a_task_goes_with_it(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(payload=b"p" * 5_000))
    await kit.settle(await kit.start(task_id), retry_in(0))
    grant = await kit.start(task_id)
    await kit.store.lines(0, [(task_id, grant.fence, 1, "a line")])
    await kit.store.checkpoint(0, task_id, grant.fence, b"\x01")
    await kit.settle(grant, DONE)
    await purge(kit, task_id)
    left = [key for key in kit.dump() if task_id in key]
    assert [kit.keys.stub(task_id)] == left


async def test_only_the_version_that_is_meant(kit: Kit):
    task_id = await kit.task_in("FAILED")
    meant = kit.version(task_id)
    await kit.store.redrive(0, task_id, "default", meant, op="r")
    await kit.settle(await kit.start(task_id), BROKEN)
    memory = {"keyed_ms": DAY_MS, "unkeyed_ms": HOUR_MS}
    assert ["version"] == await kit.store.purge(0, "default", [(task_id, meant)], **memory)
    assert kit.state(task_id) == "FAILED"
    now = kit.version(task_id)
    assert ["purged"] == await kit.store.purge(0, "default", [(task_id, now)], **memory)


async def test_another_tenants_task_is_missing(kit: Kit):
    theirs = await kit.task_in("FAILED", tenant="acme")
    before = kit.dump(without=BOOKKEEPING)
    assert ["missing", "missing"] == await purge(kit, theirs, NOBODY)
    assert before == kit.dump(without=BOOKKEEPING)
    assert ["purged"] == await purge(kit, theirs, tenant="acme")


async def test_a_call_whose_reply_was_lost_is_answered_again(kit: Kit):
    done, waits = await kit.task_in("SUCCESS"), await kit.task_in("PENDING")
    first = await purge(kit, done, waits, NOBODY, op="a")
    after = kit.dump(without=BOOKKEEPING)
    assert ["purged", "state", "missing"] == first
    assert first == await purge(kit, done, waits, NOBODY, op="a")
    assert after == kit.dump(without=BOOKKEEPING)
    assert "missing" == (await purge(kit, done, op="b"))[0]


async def test_a_repeated_row_is_removed_once(kit: Kit):
    task_id = await kit.task_in("FAILED")
    assert ["purged", "purged"] == await purge(kit, task_id, task_id)


async def test_the_memory_of_a_call_goes_by_itself(kit: Kit):
    await purge(kit, await kit.task_in("FAILED"), op="a")
    assert 0 < kit.plain.pttl(kit.keys.purged("a")) <= 60_000


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_key_stays_used(kit: Kit, state: str):
    await kit.announce()
    task_id = await kit.submit(spec(), mark="f")
    if state == "CANCELLED":
        await kit.store.cancel(0, task_id, "default", None)
    else:
        outcome = {"SUCCESS": DONE, "FAILED": BROKEN}[state]
        await kit.settle(await kit.start(task_id), outcome)
    await purge(kit, task_id)

    async def again(mark: str) -> str:
        _, words = await kit.store.submit(0, [(task_id, spec(), mark)])
        return words.get(0, "created")

    assert ["gone", "reused"] == [await again("f"), await again("g")]
    kit.leap(DAY_MS)
    assert "created" == await again("f")


async def test_counters_agree_after_each_of_many(kit: Kit):
    """The audit after each test recounts; here it does so after each call."""
    made = [await kit.task_in(state) for state in ("SUCCESS", "FAILED", "CANCELLED", "FAILED")]
    for task_id in made:
        await purge(kit, task_id)
        assert [] == kit.audit()
    assert {} == {
        name: number
        for name, number in kit.plain.hgetall(kit.keys.counts).items()
        if int(number) != 0
    }


async def test_a_purged_task_can_be_neither_redriven_nor_settled(kit: Kit):
    task_id = await kit.task_in("FAILED")
    fence = kit.fence(task_id)
    await purge(kit, task_id)
    assert "missing" == (await kit.store.redrive(0, task_id, "default", None)).word
    assert "stale" == await kit.settle((task_id, fence), DONE)
