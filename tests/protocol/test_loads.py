"""What happens when there is much of it: bounded calls, exact retention, storms of schedules."""

import pytest
from tests.protocol.kit import DAY_MS, DONE, HOUR_MS, Kit, open_kit, retry_in, spec
from tests.users import is_asked_for

from tasksched.commands.recurring import Recurring
from tasksched.model.recurring import ScheduleSpec
from tasksched.model.schedule import Cron
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.store.schedules import FIRE_MAX, firing_of

pytestmark = pytest.mark.anyio

LIMITS = {
    "done_ms": 60_000,
    "dead_ms": 60_000,
    "count_max": 1_000_000,
    "bytes_max": 1 << 40,
    "keyed_ms": 0,
    "unkeyed_ms": 0,
    "limit": 128,
}


async def finish_all(kit: Kit) -> int:
    """Takes and settles until nothing waits."""
    finished = 0
    while True:
        await kit.dispatch()
        grants = await kit.take()
        if not grants:
            return finished
        await kit.store.settle(0, [(grant.id, grant.fence, DONE) for grant in grants])
        finished += len(grants)


async def test_finished_tasks_leave_no_trace_after_their_time(valkey):
    """retention-listing-001"""
    await valkey.announce()
    await valkey.submit_many(1)
    await finish_all(valkey)
    await valkey.wait(61_000)
    await valkey.store.prune(0, "default", **LIMITS)
    baseline = set(valkey.plain.keys())

    await valkey.submit_many(3_000)
    assert 3_000 == await finish_all(valkey)
    await valkey.wait(61_000)
    more = True
    while more:
        _, more = await valkey.store.prune(0, "default", **LIMITS)

    # What a stream's window has come to stays as long as the stream (sweep).
    assert baseline == set(valkey.plain.keys()) - {valkey.keys.window.encode()}


async def test_retention_by_count_also_respects_bytes(valkey):
    """retention-listing-002: large payloads, many allowed by count, few by bytes."""
    await valkey.announce()
    size, bytes_max = 20_000, 1_000_000
    for _ in range(10):
        await valkey.submit_many(20, spec(payload=b"x" * size))
    assert 200 == await finish_all(valkey)

    await valkey.store.prune(0, "default", **{**LIMITS, "bytes_max": bytes_max})
    await valkey.store.prune(0, "default", **{**LIMITS, "bytes_max": bytes_max})

    kept = valkey.plain.zcard(valkey.keys.done("default"))
    assert bytes_max // (2 * size) < kept <= bytes_max // size


async def test_looking_at_many_pending_entries_is_bounded(valkey):
    """redis-faults-001: however many run, one call looks at a bounded number of them."""
    await valkey.announce()
    await valkey.submit_many(2_000)
    taken = 0
    while taken < 2_000:
        await valkey.dispatch()
        taken += len(await valkey.take())
    await valkey.wait(valkey.store.shards * HOUR_MS // 60)  # past every lease

    _, overdue = await valkey.store.overdue(0)
    assert 128 == len(overdue)
    stream = "default:normal:charge"
    swept, calls = await valkey.store.sweep(0, stream, "-"), 1
    while swept.next:
        swept = await valkey.store.sweep(0, stream, swept.next)
        calls += 1
    assert 2_000 // 128 <= calls <= 2_000 // 128 + 2


async def test_a_thousand_schedules_of_one_hour_fire_once_each_whoever_fires_them(valkey):
    """load-shape-001, duplicate-schedulers-004: two schedulers with the same plans."""
    recurring = Recurring(valkey.store)
    schedules = recurring.schedules
    template = TaskSpec(target=HandlerTarget("charge"))
    count = 1_000 // valkey.store.shards
    for n in range(count):
        await recurring.put(ScheduleSpec(id=f"s{n}", template=template, rule=Cron("0 * * * *")))
    await valkey.wait(HOUR_MS)

    fired, stale = 0, 0
    for shard in range(valkey.store.shards):
        while True:
            now_ms, owed, _ = await schedules.owed(shard)
            if not owed:
                break
            plans = [firing_of(one, now_ms) for one in owed]
            assert len(plans) <= FIRE_MAX
            words = await schedules.fire(shard, plans) + await schedules.fire(shard, plans)
            fired, stale = fired + words.count("fired"), stale + words.count("stale")

    made = valkey.plain.keys("*:task:r*")
    assert (count, count, count) == (fired, stale, len(made))


@pytest.mark.skipif(is_asked_for(), reason="its users end with a server")
async def test_a_restart_of_the_server_moves_no_retry(spawn):
    """retry-backoff-007"""
    server = spawn("valkey", "--appendonly", "yes", "--appendfsync", "always")
    kit = await open_kit(server.url)
    await kit.announce()
    task_id = await kit.submit()
    (grant,) = await kit.take()
    await kit.store.settle(0, [(task_id, grant.fence, retry_in(30_000))])
    due_ms = kit.now_ms + 30_000

    server.kill()
    server.restart()
    await kit.wait(29_000)
    await kit.dispatch()
    assert [] == await kit.take()
    await kit.wait(4_000)  # the new server first waits for the old one's clock to be past
    await kit.dispatch()
    (again,) = await kit.take()

    assert (due_ms, 2) == (again.due_ms, again.attempt)
    await kit.store.settle(0, [(task_id, again.fence, DONE)])
    await kit.close()


async def test_a_day_of_waiting_costs_nothing_to_look_at(valkey):
    """A future task is looked at by nobody: one call a look, whatever waits."""
    await valkey.submit_many(1_000, spec(delay_ms=2 * DAY_MS))
    before = valkey.plain.info("stats")["total_commands_processed"]
    done = await valkey.dispatch()
    after = valkey.plain.info("stats")["total_commands_processed"]
    assert done.moved == 0
    assert after - before < 40
