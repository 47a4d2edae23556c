"""take: attempt, fence and lease in one step; the classes by weight; the same call, the same grants."""

from collections import Counter

import pytest
from tests.protocol.kit import (
    BROKEN,
    DAY_MS,
    DONE,
    LEASE_MS,
    STOPPED,
    WORKER,
    Kit,
    lost,
    retry_in,
    spec,
)

from tasksched.store.connect import Unannounced

pytestmark = pytest.mark.anyio

STREAM = "default:normal:charge"
CLASSES = ("critical", "high", "normal", "low")


async def settle_all(kit: Kit, grants) -> None:
    if grants:
        await kit.store.settle(0, [(g.id, g.fence, DONE) for g in grants])


# ── a start ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_grant_carries_what_a_run_needs(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(payload=b"\x81", lease_ms=9_000, timeout_ms=77, tags=("t",)))
    kit.leap(3)

    (grant,) = await kit.take()

    now = kit.now_ms
    assert (task_id, 1, 1, now - 3, now - 3, now) == (
        grant.id, grant.attempt, grant.attempts, grant.due_ms, grant.created_ms, grant.started_ms,
    )  # fmt: skip
    assert (b"\x81", 9_000, 77, ("t",)) == (
        grant.payload, grant.lease_ms, grant.options.timeout_ms, grant.options.tags,
    )  # fmt: skip
    assert ("default:normal:default:charge", "charge") == (grant.lane, grant.route)
    assert now + 9_000 == kit.plain.zscore(kit.keys.watch, task_id)


async def test_the_lease_is_the_tasks_own_or_the_workers_usual_one(kit: Kit):
    await kit.announce()
    own, usual = await kit.submit(spec(lease_ms=5_000)), await kit.submit()
    await kit.take(lease_ms=40_000)
    assert {own: kit.now_ms + 5_000, usual: kit.now_ms + 40_000} == {
        k.decode(): v for k, v in kit.plain.zrange(kit.keys.watch, 0, -1, withscores=True)
    }


@pytest.mark.parametrize("slots", [0, -5])
async def test_a_worker_without_free_slots_gets_nothing(kit: Kit, slots: int):
    await kit.announce()
    task_id = await kit.submit()
    assert [] == await kit.take(slots)
    assert "QUEUED" == kit.state(task_id)


async def test_no_more_than_the_free_slots_are_started(kit: Kit):
    await kit.announce()
    await kit.submit_many(10)
    now_ms, more, grants = await kit.store.take(0, WORKER, call=1, slots=4, lease_ms=LEASE_MS)
    assert (kit.now_ms, True, 4) == (now_ms, more, len(grants))
    now_ms, more, grants = await kit.store.take(0, WORKER, call=2, slots=100, lease_ms=LEASE_MS)
    assert (False, 6) == (more, len(grants))


async def test_one_call_starts_128_at_most(kit: Kit):
    await kit.announce()
    for queue in ("a", "b", "c"):
        await kit.submit_many(60, spec(queue=queue))
    assert 128 == len(await kit.take(1_000))


async def test_nothing_starts_before_it_is_due(kit: Kit):
    """An entry that came early (the dispatcher may be ahead) goes back to its lane."""
    await kit.announce()
    task_id = await kit.submit()
    kit.plain.hset(kit.keys.task(task_id), "due_ms", kit.now_ms + 10)

    assert [] == await kit.take()
    assert "PENDING" == kit.state(task_id)
    kit.leap(10)
    assert kit.now_ms == (await kit.start(task_id)).started_ms


# ── who may ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_nobody_knows_is_told_to_announce_itself(kit: Kit):
    await kit.announce(ttl_ms=1_000)
    await kit.take()
    kit.leap(1_000)
    for worker in (WORKER, "stranger"):
        with pytest.raises(Unannounced):
            await kit.take(worker=worker)


@pytest.mark.parametrize(
    ("serves", "starts"),
    [
        (("queue:*", "route:charge"), {"mail:charge", "bulk:charge"}),
        (("queue:mail", "route:charge", "route:refund"), {"mail:charge", "mail:refund"}),
        (("queue:mail", "queue:bulk", "route:refund"), {"mail:refund", "bulk:refund"}),
        (("queue:mai", "route:charge"), set()),
        (("queue:*", "route:charg"), set()),
        (("queue:*",), set()),
        (("route:charge",), set()),
    ],
)
async def test_a_worker_gets_only_what_it_serves(kit: Kit, serves, starts: set[str]):
    await kit.announce("all", "queue:*", "route:charge", "route:refund")
    for queue in ("mail", "bulk"):
        for route in ("charge", "refund"):
            await kit.submit(spec(queue=queue, route=route))
    await kit.announce(WORKER, *serves)

    grants = await kit.take()

    assert starts == {f"{grant.lane.split(':')[0]}:{grant.route}" for grant in grants}


async def test_a_version_is_another_route(kit: Kit):
    await kit.announce("all", "queue:*", "route:charge@1", "route:charge@2")
    await kit.submit(spec("charge@1"))
    second = await kit.submit(spec("charge@2"))
    await kit.announce(WORKER, "queue:*", "route:charge@2")
    assert [second] == [grant.id for grant in await kit.take()]


# ── the same call again ──────────────────────────────────────────────────────────────────────────


async def test_the_same_call_number_gets_the_same_grants(kit: Kit):
    """Its reply was lost: what it started must not be lost with it, nor started twice."""
    await kit.announce()
    await kit.submit_many(3, spec(payload=b"p" * 2_000))
    first = await kit.take_call(7, 2)
    before = kit.dump(without=["clock"])
    kit.leap(3)

    again = await kit.take_call(7, 2)

    assert [g._replace(started_ms=0) for g in first] == [g._replace(started_ms=0) for g in again]
    assert before == kit.dump(without=["clock"])
    assert 1 == len(await kit.take_call(8, 2))


async def test_a_repeated_call_leaves_out_what_ended_meanwhile(kit: Kit):
    await kit.announce()
    await kit.submit_many(3)
    one, two, three = await kit.take_call(1, 3)
    await kit.settle(one, DONE)
    await kit.settle(two, retry_in(0))
    await kit.dispatch()
    await kit.announce("w2")
    (other,) = await kit.take(worker="w2")
    assert two.id == other.id

    assert [three.id] == [grant.id for grant in await kit.take_call(1, 3)]


async def test_call_numbers_are_each_workers_own(kit: Kit):
    await kit.submit_many(0)
    await kit.announce("a")
    await kit.announce("b")
    await kit.submit_many(4)
    first, second = await kit.take_call(1, 2, "a"), await kit.take_call(1, 2, "b")
    assert 4 == len({grant.id for grant in first + second})


# ── classes ──────────────────────────────────────────────────────────────────────────────────────


async def feed(kit: Kit, classes=CLASSES, *, count: int = 64, **fields) -> None:
    for priority in classes:
        await kit.submit_many(count, spec(priority=priority, **fields))
    await kit.dispatch()


@pytest.mark.parametrize("slots", [1, 3, 10, 40])
async def test_classes_share_by_27_9_3_1(valkey: Kit, slots: int):
    """Under contention, whatever the number of slots a call: so a small worker is as fair."""
    await valkey.announce()
    await feed(valkey)
    had: Counter[str] = Counter()
    while had.total() < 400:
        grants = await valkey.take(slots)
        had.update(grant.lane.split(":")[1] for grant in grants)
        await settle_all(valkey, grants)
        for priority in CLASSES:
            await valkey.submit_many(
                sum(g.lane.split(":")[1] == priority for g in grants), spec(priority=priority)
            )
        await valkey.dispatch()
    total = had.total()
    for priority, weight in zip(CLASSES, (27, 9, 3, 1), strict=True):
        assert had[priority] == pytest.approx(total * weight / 40, rel=0.15, abs=6), had


async def test_nothing_starves_with_one_slot(kit: Kit):
    """A flood of critical ones: the low one is the 41st at the latest."""
    await kit.announce()
    await feed(kit)
    seen = []
    for _ in range(41):
        grants = await kit.take(1)
        seen += [grant.lane.split(":")[1] for grant in grants]
        await settle_all(kit, grants)
    assert set(CLASSES) == set(seen)


async def test_a_class_that_was_idle_is_not_paid_for_it(kit: Kit):
    """It starts level with the others, a turn ahead at most."""
    await kit.announce()
    await feed(kit, ("normal", "low"))
    for _ in range(60):
        await settle_all(kit, await kit.take(1))
        await feed(kit, ("normal", "low"), count=1)
    await feed(kit, ("critical",))

    seen = Counter()
    for _ in range(62):
        grants = await kit.take(1)
        seen.update(grant.lane.split(":")[1] for grant in grants)
        await settle_all(kit, grants)
    assert seen["normal"] >= 3, seen
    assert seen["low"] >= 1, seen


async def test_an_empty_stream_does_not_halve_the_share_of_its_class(kit: Kit):
    """Streams of one class are read round after round, as long as one of them gives."""
    await kit.announce()
    for call in range(4):
        await kit.submit(spec(queue="b"))
        await kit.submit_many(8, spec(queue="a"))
        assert 9 == len(await kit.take(9)), call


async def test_queues_of_one_class_take_turns(kit: Kit):
    await kit.announce()
    for queue in ("a", "b", "c"):
        await kit.submit_many(20, spec(queue=queue))
    had = Counter()
    for _ in range(30):
        grants = await kit.take(1)
        had.update(grant.lane.split(":")[0] for grant in grants)
    assert {"a", "b", "c"} == set(had)
    assert min(had.values()) >= 5, had


async def test_a_stream_is_reached_however_many_others_hold_work(valkey: Kit):
    """600 streams of nobody's business come first by name; ours is found by turning the window."""
    for first in range(0, 600, 50):
        routes = [f"route:a{n:03}" for n in range(first, first + 50)]
        await valkey.announce("all", "queue:*", *routes)
    for n in range(600):
        await valkey.submit(spec(f"a{n:03}"))
    await valkey.announce(WORKER, "queue:*", "route:z")
    mine = await valkey.submit(spec("z"))

    started = []
    for _ in range(4):
        started += [grant.id for grant in await valkey.take()]
    assert [mine] == started


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_attempt_before_moves_to_the_log_when_the_next_starts(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    first = kit.fence(task_id)
    await kit.settle((task_id, first), retry_in(10))
    assert 0 == kit.plain.llen(kit.keys.attempts(task_id))
    kit.leap(10)
    second = await kit.start(task_id)

    (entry,) = kit.plain.lrange(kit.keys.attempts(task_id), 0, -1)
    assert f'"fence":"{first}"' in entry.decode()
    assert '"outcome":"FAILED"' in entry.decode()
    assert (2, 2) == (second.attempt, second.attempts)
    assert not {"outcome", "ended_ms"} & kit.record(task_id).keys()


@pytest.mark.parametrize("end", ["done", "stop", "release"])
async def test_the_error_of_an_attempt_is_not_that_of_the_next(kit: Kit, end: str):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(0))
    assert "later" in kit.record(task_id)["error"]  # shown while it waits for its retry
    grant = await kit.start(task_id)
    match end:
        case "done":
            await kit.settle(grant, DONE)
        case "stop":
            await kit.settle(grant, STOPPED)
        case "release":
            await kit.store.release(0, [(task_id, grant.fence)])
    assert "error" not in kit.record(task_id)
    (entry,) = kit.plain.lrange(kit.keys.attempts(task_id), 0, -1)
    assert b"later" in entry


async def test_a_happy_attempt_costs_no_key_of_its_own(kit: Kit):
    task_id = await kit.task_in("SUCCESS")
    assert 0 == kit.plain.exists(kit.keys.attempts(task_id))


async def test_the_log_of_attempts_is_bounded(valkey: Kit):
    await valkey.announce()
    task_id = await valkey.submit()
    for _ in range(105):
        grant = await valkey.start(task_id)
        await valkey.store.release(0, [(task_id, grant.fence)])
    assert 100 == valkey.plain.llen(valkey.keys.attempts(task_id))
    assert 105 == int(valkey.record(task_id)["attempt"])


# ── fences ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_fence_is_the_time_times_256_or_one_more_than_before(kit: Kit):
    """Exact to the last digit: they are above 10^14, where Lua's own conversion rounds."""
    task_id = await kit.task_in("RUNNING")
    first = int(kit.fence(task_id))
    assert kit.now_ms * 256 == first
    await kit.settle((task_id, str(first)), retry_in(0))
    assert first + 1 == int((await kit.start(task_id)).fence)  # within the same millisecond
    kit.leap(1)
    await kit.settle((task_id, kit.fence(task_id)), retry_in(0))
    assert first + 256 == int((await kit.start(task_id)).fence)


async def test_a_fence_grows_even_when_the_record_is_ahead_of_the_clock(kit: Kit):
    """After a failover to a server whose clock lags."""
    await kit.announce()
    task_id = await kit.submit()
    ahead = kit.now_ms * 256 + 999_999
    kit.plain.hset(kit.keys.task(task_id), "fence", ahead)
    assert ahead + 1 == int((await kit.take())[0].fence)


async def test_fences_grow_over_every_kind_of_end(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    fences = []
    for end in ("retry", "release", "lost", "fail", "cancel", "retry"):
        grant = await kit.start(task_id)
        fences.append(int(grant.fence))
        match end:
            case "retry":
                await kit.settle(grant, retry_in(0))
            case "release":
                await kit.store.release(0, [(task_id, grant.fence)])
            case "lost":
                await kit.wait(LEASE_MS)
                assert "PENDING" == await kit.reap(grant, lost(0))
            case "fail":
                await kit.settle(grant, BROKEN)
                await kit.store.redrive(0, task_id, "default", None)
            case "cancel":
                await kit.store.cancel(0, task_id, "default", None)
                assert "CANCELLED" == await kit.settle(grant, BROKEN)
                await kit.store.redrive(0, task_id, "default", None)
    assert sorted(set(fences)) == fences


# ── strays ───────────────────────────────────────────────────────────────────────────────────────


async def test_an_entry_that_disagrees_with_its_task_is_acknowledged_and_counted(kit: Kit):
    """cancel-race-001: the message is still there, the worker must drop it."""
    done = await kit.task_in("SUCCESS")
    task_id = await kit.submit()
    for stray in (done, "0nobody", task_id):
        kit.plain.xadd(kit.keys.ready(STREAM), {"id": stray})

    assert [] == [grant.id for grant in await kit.take() if grant.id != task_id]

    assert 3 == kit.stats()["stray:entry"]
    assert "SUCCESS" == kit.state(done)


async def test_an_entry_of_a_task_that_was_dispatched_by_another_one_is_stale(kit: Kit):
    """Only the entry that the record names may start it, or two entries would be two starts."""
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=5))
    kit.plain.xadd(kit.keys.ready(STREAM), {"id": task_id})
    kit.leap(5)
    await kit.dispatch()

    assert [task_id] == [grant.id for grant in await kit.take()]
    assert 1 == kit.stats()["stray:entry"]


async def test_a_group_that_came_after_its_first_entries_misses_none(kit: Kit):
    """redis-faults-010: it begins at 0."""
    await kit.announce()
    made = await kit.submit_many(5)
    kit.plain.xgroup_destroy(kit.keys.ready(STREAM), "workers")

    assert made == [grant.id for grant in await kit.take()]


async def test_a_full_stream_that_has_room_again_wakes_the_dispatchers(valkey: Kit):
    await valkey.announce()
    await valkey.submit_many(80)
    await valkey.dispatch()
    listener = valkey.plain.pubsub()
    listener.ssubscribe(valkey.keys.wake)
    listener.get_sharded_message(timeout=1)
    await valkey.take(1)
    assert b"due 0" == listener.get_sharded_message(timeout=1)["data"]
    listener.close()


# ── another server ───────────────────────────────────────────────────────────────────────────────


async def test_after_a_failover_nothing_starts_for_two_seconds(kit: Kit):
    """What the lost server granted last may not be repeated, so its time must have passed."""
    await kit.announce()
    await kit.take()  # the shard knows the server
    task_id = await kit.submit()
    kit.store.gateway.server = "promoted"

    assert [] == await kit.take()
    kit.leap(1_999)
    assert [] == await kit.take()
    kit.leap(1)
    assert [task_id] == [grant.id for grant in await kit.take()]


async def test_after_a_failover_leases_get_one_more(kit: Kit):
    """Renewals may have been lost with the old server."""
    task_id = await kit.task_in("RUNNING")
    (grant,) = await kit.take_call(kit._calls[WORKER])
    await kit.wait(LEASE_MS - 1_000)
    kit.store.gateway.server = "promoted"
    await kit.take()
    await kit.wait(2_000)
    assert "alive" == await kit.reap(grant)
    await kit.wait(LEASE_MS)
    assert "PENDING" == await kit.reap(grant)
    assert "PENDING" == kit.state(task_id)


async def test_the_first_server_a_shard_sees_is_no_failover(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    assert [task_id] == [grant.id for grant in await kit.take()]


async def test_a_worker_that_starts_late_finds_what_was_there_before(kit: Kit):
    made = await kit.submit_many(5)
    kit.leap(DAY_MS)
    await kit.dispatch()
    await kit.announce()
    await kit.dispatch()
    assert set(made) == {grant.id for grant in await kit.take()}
