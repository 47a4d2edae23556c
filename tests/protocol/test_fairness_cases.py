"""The corpus on priorities: order inside of a class, no starvation, a slot is waited for."""

import pytest
from tests.protocol.kit import DONE, Kit, spec

pytestmark = pytest.mark.anyio


async def starts(kit: Kit, number: int) -> list[str]:
    """The tasks that one worker with one slot starts, each ended before the next."""
    found = []
    for _ in range(number):
        await kit.dispatch()
        for grant in await kit.take(1):
            found.append(grant.id)
            await kit.settle(grant, DONE)
    return found


async def test_priority_fairness_001_a_high_task_waits_for_a_slot_and_is_next(valkey: Kit):
    """There are no reserved slots: all four are taken by long low tasks, and the high one is next."""
    await valkey.announce()
    await valkey.submit_many(8, spec(priority="low"))
    await valkey.dispatch()
    low = await valkey.take(4)
    high = await valkey.submit(spec(priority="high"))
    await valkey.dispatch()
    await valkey.settle(low[0], DONE)
    assert [high] == [grant.id for grant in await valkey.take(1)]


async def test_priority_fairness_002_by_due_time_then_by_creation(valkey: Kit):
    begin_ms = valkey.now_ms
    due = {"t1": 0, "t2": -1_000, "t3": 0, "t4": 0}
    made = {}
    for name, offset_ms in due.items():
        priority = "high" if name == "t4" else "normal"
        made[name] = await valkey.submit(spec(priority=priority, run_at_ms=begin_ms + offset_ms))
    valkey.leap(1_000)
    await valkey.announce()
    order = await starts(valkey, 4)
    assert ["t4", "t2", "t1", "t3"] == [
        next(name for name, task_id in made.items() if task_id == each) for each in order
    ]


async def test_priority_fairness_003_endless_high_tasks_do_not_starve_a_low_one(valkey: Kit):
    """Weights 9 : 3 : 1, so the low one comes within two rounds of 13."""
    await valkey.announce()
    await valkey.submit_many(40, spec(priority="high"))
    await valkey.submit_many(40, spec())
    low = await valkey.submit(spec(priority="low"))
    assert low in await starts(valkey, 26)
