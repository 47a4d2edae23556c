"""reclaim and sweep: what was dispatched and never taken comes back; what is no task goes."""

import pytest
from tests.protocol.kit import DAY_MS, DONE, HOUR_MS, LEASE_MS, Kit, lost, spec

pytestmark = pytest.mark.anyio

STREAM = "default:normal:charge"
TAKE_BY_MS = 30_000


async def look(kit: Kit) -> dict[str, str]:
    """What a scheduler does with what is overdue; id → word."""
    _, overdue = await kit.store.overdue(0)
    waiting = [run.id for run in overdue if run.state != "RUNNING"]
    return dict(zip(waiting, await kit.store.reclaim(0, waiting), strict=True)) if waiting else {}


async def test_a_dispatched_task_that_nobody_took_yet_goes_on_waiting(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    await kit.wait(TAKE_BY_MS)
    assert {task_id: "waits"} == await look(kit)
    assert {} == await look(kit)
    await kit.wait(TAKE_BY_MS)
    assert {task_id: "waits"} == await look(kit)
    assert [task_id] == [grant.id for grant in await kit.take()]


@pytest.mark.parametrize("loss", ["entry", "stream", "taken by a stranger"])
async def test_a_dispatched_task_whose_entry_is_lost_comes_back(kit: Kit, loss: str):
    """redis-faults-008: whatever became of the stream, the record is the truth."""
    task_id = await kit.task_in("QUEUED")
    key = kit.keys.ready(STREAM)
    match loss:
        case "entry":
            kit.plain.xdel(key, kit.record(task_id)["entry"])
        case "stream":
            kit.plain.delete(key)
        case _:  # delivered, but the take that should have started it never came to that
            kit.plain.xreadgroup("workers", "dead", {key: ">"})
    await kit.wait(TAKE_BY_MS)

    assert {task_id: "PENDING"} == await look(kit)

    assert task_id == (await kit.start(task_id)).id


async def test_a_lost_group_is_made_again_from_the_beginning(kit: Kit):
    await kit.announce()
    made = await kit.submit_many(10)
    kit.plain.xgroup_destroy(kit.keys.ready(STREAM), "workers")
    assert made == [grant.id for grant in await kit.take()]


async def test_a_stream_that_was_deleted_while_tasks_arrive_loses_none(kit: Kit):
    """redis-faults-008: DEL, then ten more; all run within a minute."""
    await kit.announce()
    lost_ones = await kit.submit_many(3)
    kit.plain.delete(kit.keys.ready(STREAM))
    later = await kit.submit_many(10)
    started = {grant.id for grant in await kit.take()}
    assert set(later) == started

    await kit.wait(TAKE_BY_MS)
    assert dict.fromkeys(lost_ones, "PENDING") == await look(kit)
    await kit.dispatch()
    assert set(lost_ones) == {grant.id for grant in await kit.take()}


async def test_everything_derived_can_be_deleted_and_the_tasks_still_run(kit: Kit):
    """redis-faults-008, lease-009: streams and groups gone, and the list of what is unread."""
    await kit.announce()
    made = set(await kit.submit_many(5))
    for key in (kit.keys.ready(STREAM), kit.keys.unread, kit.keys.opened, kit.keys.full):
        kit.plain.delete(key)
    await kit.wait(TAKE_BY_MS)
    await look(kit)
    await kit.dispatch()
    assert made == {grant.id for grant in await kit.take()}


async def test_tasks_of_a_route_whose_workers_died_go_back_into_the_index(kit: Kit):
    """There they can be edited and listed, and wait without cost."""
    await kit.announce(ttl_ms=1_000)
    task_id = await kit.submit()
    await kit.wait(TAKE_BY_MS)
    assert {task_id: "PENDING"} == await look(kit)
    assert 0 == kit.plain.xlen(kit.keys.ready(STREAM))
    await kit.dispatch()
    assert kit.plain.zscore(kit.keys.parked, STREAM)

    await kit.announce()
    assert task_id == (await kit.start(task_id)).id


async def test_what_a_lost_hint_hid_is_found(kit: Kit):
    """The stream is not listed as unread, so no worker looks: the overdue look lists it again."""
    task_id = await kit.task_in("QUEUED")
    kit.plain.delete(kit.keys.unread)
    assert [] == await kit.take()
    await kit.wait(TAKE_BY_MS)
    assert {task_id: "waits"} == await look(kit)
    assert [task_id] == [grant.id for grant in await kit.take()]


async def test_reclaiming_a_running_task_leaves_it_alone(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    before = kit.record(task_id)
    await kit.wait(LEASE_MS)
    assert ["waits"] == await kit.store.reclaim(0, [task_id])
    assert before == kit.record(task_id)
    assert ["PENDING"] == await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(5))])


async def test_a_watched_task_that_waits_or_ended_is_a_stray(kit: Kit):
    made = [await kit.task_in(state) for state in ("PENDING", "SUCCESS", "CANCELLED", "FAILED")]
    kit.plain.zadd(kit.keys.watch, dict.fromkeys(made, 1))
    assert ["stray"] * 4 == await kit.store.reclaim(0, made)
    assert 0 == kit.plain.zcard(kit.keys.watch)


# ── sweep ────────────────────────────────────────────────────────────────────────────────────────


async def test_entries_without_a_task_behind_them_go(kit: Kit):
    running = await kit.task_in("RUNNING")
    done = await kit.task_in("SUCCESS")
    queued = await kit.task_in("QUEUED")
    key = kit.keys.ready(STREAM)
    for stray in (running, done, queued, "0nobody"):
        kit.plain.xadd(key, {"id": stray})

    swept = await kit.store.sweep(0, STREAM, "-")

    assert (4, 0, "") == (swept.removed, swept.watched, swept.next)
    assert 4 == kit.stats()["stray:entry"]
    assert 2 == kit.plain.xlen(key)


async def test_a_sweep_goes_on_where_it_stopped(kit: Kit):
    await kit.announce()
    await kit.submit_many(10)
    start, rounds = "-", 0
    while start:
        kit.plain.delete(kit.keys.watch)
        swept = await kit.store.sweep(0, STREAM, start, 4)
        start, rounds = swept.next, rounds + 1
        assert (4 if rounds < 3 else 2) == swept.watched
    assert 3 == rounds
    kit.plain.delete(kit.keys.watch)
    assert 10 == (await kit.store.sweep(0, STREAM, "-")).watched


async def test_a_dispatched_task_that_the_watch_lost_is_watched_again(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    kit.plain.zrem(kit.keys.watch, task_id)
    assert 1 == (await kit.store.sweep(0, STREAM, "-")).watched
    assert kit.now_ms + TAKE_BY_MS == kit.plain.zscore(kit.keys.watch, task_id)


async def test_a_sweep_postpones_no_lease(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.wait(LEASE_MS)
    assert 0 == (await kit.store.sweep(0, STREAM, "-")).watched
    assert [task_id] == [run.id for run in (await kit.store.overdue(0))[1]]


async def test_an_empty_stream_goes_and_comes_back_when_it_is_needed(kit: Kit):
    await kit.task_in("SUCCESS")
    assert kit.plain.exists(kit.keys.ready(STREAM))
    await kit.store.sweep(0, STREAM, "-")
    assert 0 == kit.plain.exists(kit.keys.ready(STREAM), kit.keys.opened, kit.keys.unread)
    await kit.task_in("RUNNING")


async def test_consumers_of_workers_that_left_go_unless_something_is_theirs(kit: Kit):
    await kit.announce("idle")
    await kit.take(worker="idle")
    busy = await kit.task_in("RUNNING", worker="busy")
    await kit.take(worker="idle")
    key = kit.keys.ready(STREAM)
    await kit.task_in("RUNNING", worker="idle")
    (grant,) = await kit.take_call(kit._calls["idle"], worker="idle")
    await kit.settle(grant, DONE)
    for worker in ("idle", "busy"):
        await kit.store.announce(0, worker, 0, ["queue:*"])

    assert 1 == (await kit.store.sweep(0, STREAM, "-")).consumers

    assert [b"busy"] == [each["name"] for each in kit.plain.xinfo_consumers(key, "workers")]
    await kit.wait(LEASE_MS)
    assert ["PENDING"] == await kit.store.reap(0, [(busy, kit.fence(busy), lost(DAY_MS))])
    swept = await kit.store.sweep(0, STREAM, "-")
    assert 0 == kit.plain.exists(key)
    assert "" == swept.next


async def test_a_stream_that_does_not_exist_is_swept_in_no_time(kit: Kit):
    assert ("", 0, 0, 0) == await kit.store.sweep(0, "never:low:was", "-")


async def test_a_future_task_is_no_stray(kit: Kit):
    task_id = await kit.submit(spec(delay_ms=HOUR_MS))
    assert ["stray"] == await kit.store.reclaim(0, [task_id])  # it was not watched: nothing to do
    assert "PENDING" == kit.state(task_id)
