"""dispatch: what is due, in order, within the windows, shared by weight; nothing early, nothing lost."""

from collections import Counter

import pytest
from tests.protocol.kit import (
    BEGIN_MS,
    BROKEN,
    DAY_MS,
    DONE,
    HOUR_MS,
    LEASE_MS,
    STOPPED,
    Kit,
    retry_in,
    spec,
)

pytestmark = pytest.mark.anyio

STREAM = "default:normal:charge"


async def drain(kit: Kit, batch: int = 128) -> list[str]:
    """Dispatch, take and settle until nothing is due; the ids in the order of their starts."""
    order: list[str] = []
    while True:
        moved = (await kit.dispatch()).moved
        grants = await kit.take(batch)
        if not grants and not moved:
            return order
        order += [grant.id for grant in grants]
        if grants:
            await kit.store.settle(0, [(g.id, g.fence, DONE) for g in grants])


# ── order and time ───────────────────────────────────────────────────────────────────────────────


async def test_tasks_start_in_the_order_of_their_due_times(kit: Kit):
    await kit.announce()
    made = {}
    for delay_ms in (900, 100, 500, 300, 700):
        made[delay_ms] = await kit.submit(spec(delay_ms=delay_ms))
    kit.leap(1_000)

    assert [made[delay_ms] for delay_ms in sorted(made)] == await drain(kit)


async def test_tasks_due_at_the_same_time_start_in_the_order_of_their_creation(kit: Kit):
    await kit.announce()
    made = []
    for _ in range(10):
        made.append(await kit.submit(spec(run_at_ms=BEGIN_MS + 60_000)))
        kit.leap(1)
    kit.leap(60_000)

    assert made == await drain(kit)


async def test_a_task_is_moved_at_its_due_time_and_never_before(kit: Kit):
    """clock-006: a timer that wakes a millisecond early moves nothing, and nothing twice."""
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=50))
    for passed, moved in ((49, 0), (1, 1), (1, 0)):
        kit.leap(passed)
        assert moved == (await kit.dispatch()).moved
    assert "QUEUED" == kit.state(task_id)


async def test_time_does_not_go_back_when_the_clock_does(kit: Kit):
    """clock-002, clock-004: what is due stays due, and nothing in the future fires."""
    await kit.announce()
    due = await kit.submit(spec(delay_ms=1_000))
    later = await kit.submit(spec(delay_ms=10_000))
    kit.leap(2_000)
    await kit.dispatch()
    seen_ms = kit.now_ms
    kit.leap(-HOUR_MS)

    assert seen_ms == (await kit.dispatch()).now_ms
    assert [due] == [grant.id for grant in await kit.take()]
    assert "PENDING" == kit.state(later)


async def test_a_task_of_two_days_ago_starts_at_once(kit: Kit):
    """clock-001: the machine slept over it; it is due, and its lateness can be told."""
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=5_000))
    kit.leap(2 * DAY_MS)

    await kit.dispatch()
    (grant,) = await kit.take()

    assert task_id == grant.id
    assert 2 * DAY_MS - 5_000 == grant.started_ms - grant.due_ms


async def test_a_lane_far_in_the_future_holds_no_copy_and_no_lease(valkey: Kit):
    """lease-007: due in two hours, a lease of one; one delivery, at its time."""
    await valkey.announce()
    task_id = await valkey.submit(spec(delay_ms=2 * HOUR_MS, lease_ms=HOUR_MS))
    starts = []
    for _ in range(130):
        valkey.leap(60_000)
        await valkey.dispatch()
        starts += [(valkey.now_ms, grant.id) for grant in await valkey.take()]
        assert len(valkey.plain.zrange(valkey.keys.watch, 0, -1)) == len(starts)
    ((started_ms, started),) = starts
    assert task_id == started
    assert started_ms >= int(valkey.record(task_id)["due_ms"])


async def test_it_says_when_to_call_again(kit: Kit):
    now = kit.now_ms
    await kit.announce()
    assert -1 == (await kit.dispatch()).again_ms
    await kit.submit(spec(delay_ms=9_000))
    await kit.submit(spec(delay_ms=5_000))
    await kit.submit(spec(delay_ms=20_000, expires_at_ms=now + 4_000))
    done = await kit.dispatch()
    assert (now + 5_000, now + 4_000) == (done.again_ms, done.expiry_ms)
    kit.leap(4_000)
    done = await kit.dispatch()
    assert (1, now + 5_000, -1) == (kit.expired, done.again_ms, done.expiry_ms)
    kit.leap(1_000)
    done = await kit.dispatch()
    assert (1, now + 9_000, now + 35_000) == (done.moved, done.again_ms, done.watch_ms)


async def test_the_limit_bounds_a_call_and_the_rest_follows_at_once(kit: Kit):
    await kit.announce()
    for queue in ("a", "b", "c"):
        await kit.submit_many(20, spec(queue=queue, delay_ms=1))
    kit.leap(1)

    moved = []
    while (done := await kit.dispatch(25)).moved:
        moved.append(done.moved)
        assert (len(moved) < 3) == (done.again_ms == done.now_ms)
    assert [25, 25, 10] == moved


# ── the window ───────────────────────────────────────────────────────────────────────────────────


async def test_the_window_bounds_what_waits_and_a_take_reopens_it(kit: Kit):
    await kit.announce()
    await kit.submit_many(200, spec(delay_ms=1))
    kit.leap(1)

    assert 64 == (await kit.dispatch()).moved
    assert {STREAM.encode()} == kit.plain.smembers(kit.keys.full)
    assert 0 == (await kit.dispatch()).moved
    await kit.take(10)
    assert set() == kit.plain.smembers(kit.keys.full)
    assert 10 == (await kit.dispatch()).moved


async def test_a_running_task_takes_no_room_in_the_window(kit: Kit):
    await kit.announce()
    kit.plain.hset(kit.keys.window, STREAM, 2)
    await kit.submit_many(5, spec(delay_ms=1))
    kit.leap(1)
    assert 2 == (await kit.dispatch()).moved
    for _ in range(3):
        assert 1 == len(await kit.take(1))
        assert 1 == (await kit.dispatch()).moved


async def test_room_that_a_cancel_or_an_expiry_made_is_found_without_a_signal(kit: Kit):
    await kit.announce()
    kit.plain.hset(kit.keys.window, STREAM, 2)
    first, _, third = await kit.submit_many(2) + await kit.submit_many(1)
    await kit.dispatch()
    assert "PENDING" == kit.state(third)

    await kit.store.cancel(0, first, "default", None)
    await kit.dispatch()

    assert "QUEUED" == kit.state(third)


# ── fairness ─────────────────────────────────────────────────────────────────────────────────────


def tenants_of(kit: Kit, order: list[str]) -> list[str]:
    return [kit.record(task_id)["lane"].split(":")[2] for task_id in order]


async def test_a_flood_of_one_tenant_delays_another_by_a_few_turns(valkey: Kit):
    """10,000 of one tenant wait; a task of another is among the next that get into the window."""
    await valkey.announce()
    await valkey.submit_many(10_000, spec(tenant="flood", delay_ms=1))
    valkey.leap(1)
    await valkey.dispatch()
    await valkey.take(63)
    await valkey.dispatch()
    quiet = await valkey.submit(spec(tenant="quiet"))

    ahead = 0
    while valkey.state(quiet) != "RUNNING":
        grants = await valkey.take(16)
        ahead += sum(grant.id != quiet for grant in grants)
        await valkey.store.settle(0, [(g.id, g.fence, DONE) for g in grants if g.id != quiet])
        await valkey.dispatch()
    assert ahead <= 64 + 2 * 8  # the window that was full, and a turn or two


@pytest.mark.parametrize(("weights", "share"), [((1, 1), 1.0), ((3, 1), 3.0), ((0.5, 2), 0.25)])
async def test_tenants_share_a_stream_by_weight(
    kit: Kit, weights: tuple[float, float], share: float
):
    for tenant, weight in zip("ab", weights, strict=True):
        kit.plain.hset(kit.keys.conf, f"tenant:{tenant}", f"1 weight={weight}")
        await kit.submit_many(400, spec(tenant=tenant, delay_ms=1))
    await kit.announce()
    kit.leap(1)

    order: list[str] = []
    while len(order) < 320:
        await kit.dispatch()
        grants = await kit.take(16)
        order += [grant.id for grant in grants]
        await kit.store.settle(0, [(g.id, g.fence, DONE) for g in grants])

    had = Counter(tenants_of(kit, order))
    assert had["a"] / had["b"] == pytest.approx(share, rel=0.15)


async def test_idling_earns_nothing(kit: Kit):
    """A tenant that was away is served level with those that were not, not before them all."""
    await kit.announce()
    await kit.submit_many(300, spec(tenant="busy", delay_ms=1))
    kit.leap(1)
    for _ in range(10):
        await kit.dispatch()
        grants = await kit.take(16)
        await kit.store.settle(0, [(g.id, g.fence, DONE) for g in grants])
    await kit.submit_many(100, spec(tenant="idler"))

    order = await drain(kit, 16)

    after = tenants_of(kit, order)[64:128]  # the first window was full before the idler came
    assert 20 <= after.count("idler") <= 44


async def test_many_tenants_all_get_a_turn(kit: Kit):
    await kit.announce()
    for n in range(30):
        await kit.submit_many(20, spec(tenant=f"t{n:02}", delay_ms=1))
    kit.leap(1)

    order = await drain(kit, 32)

    assert 600 == len(set(order))
    assert 30 == len(set(tenants_of(kit, order)[: 30 * 8 + 64]))


async def test_streams_of_different_queues_do_not_block_each_other(kit: Kit):
    """One queue whose window is full costs the other nothing."""
    await kit.announce()
    await kit.submit_many(500, spec(queue="slow", delay_ms=1))
    kit.leap(1)
    await kit.dispatch()
    task_id = await kit.submit(spec(queue="fast", delay_ms=0))
    await kit.dispatch()
    assert "QUEUED" == kit.state(task_id)


# ── parked ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_without_a_worker_is_parked_with_its_reason(kit: Kit):
    task_id = await kit.submit(spec(route="charge@2"))

    done = await kit.dispatch()

    assert (0, kit.now_ms + 15_000) == (done.moved, done.again_ms)
    assert {b"default:normal:charge@2": b"no_worker route:charge@2"} == kit.plain.hgetall(
        kit.keys.parked_why
    )
    assert "PENDING" == kit.state(task_id)


async def test_a_worker_that_announces_the_route_brings_it_back_at_once(kit: Kit):
    task_id = await kit.submit(spec(route="charge@2"))
    await kit.dispatch()
    assert 0 == await kit.announce("other", "queue:*", "route:charge@1")

    assert 1 == await kit.announce("new", "queue:*", "route:charge@2")

    await kit.dispatch()
    (grant,) = await kit.take(worker="new")
    assert task_id == grant.id


async def test_a_lost_signal_parks_nothing_for_ever(kit: Kit):
    """The route lives, but nobody said so to the parked streams: the look after 15 s does."""
    task_id = await kit.submit()
    await kit.dispatch()
    kit.plain.zadd(kit.keys.routes, {"charge": kit.now_ms + HOUR_MS})
    await kit.dispatch()
    assert "PENDING" == kit.state(task_id)

    kit.leap(15_000)
    again_ms = (await kit.dispatch()).again_ms

    assert kit.now_ms == again_ms
    await kit.dispatch()
    assert "QUEUED" == kit.state(task_id)


async def test_a_route_whose_workers_died_is_parked_again(kit: Kit):
    await kit.announce(ttl_ms=1_000)
    await kit.submit_many(70)  # six more than the window takes
    kit.leap(1_001)
    first = await kit.submit(spec(queue="other"))
    await kit.dispatch()

    assert "PENDING" == kit.state(first)
    assert b"other:normal:charge" in kit.plain.zrange(kit.keys.parked, 0, -1)


def commands(kit: Kit) -> int:
    """How many commands the server has run, those inside scripts included."""
    return sum(each["calls"] for each in kit.plain.info("commandstats").values())


async def test_a_thousand_parked_streams_cost_the_dispatcher_nothing(valkey: Kit):
    await valkey.announce()
    await valkey.dispatch()
    before = commands(valkey)
    await valkey.dispatch()
    alone = commands(valkey) - before

    for n in range(1_000):
        await valkey.submit(spec(route=f"nobody{n}"))
    for _ in range(40):
        await valkey.dispatch()
    assert 1_000 == valkey.plain.zcard(valkey.keys.parked)
    before = commands(valkey)
    await valkey.dispatch()

    assert alone == commands(valkey) - before


async def test_parked_streams_are_looked_at_a_hundred_a_call(valkey: Kit):
    for n in range(250):
        await valkey.submit(spec(route=f"nobody{n}"))
    for _ in range(10):
        await valkey.dispatch()
    valkey.leap(15_000)
    before = commands(valkey)
    await valkey.dispatch()
    assert commands(valkey) - before < 550
    waiting = valkey.plain.zcount(valkey.keys.parked, "-inf", valkey.now_ms)
    assert 150 == waiting


async def test_a_parked_stream_whose_tasks_are_gone_goes_too(kit: Kit):
    """Else every version that was ever deployed would leave one behind."""
    made = []
    for tenant in ("a", "b"):
        made.append((tenant, await kit.submit(spec("charge@1", tenant=tenant))))
    await kit.dispatch()
    for tenant, task_id in made:
        await kit.store.cancel(0, task_id, tenant, None)
    kit.leap(15_000)
    for _ in range(3):
        assert kit.now_ms == (await kit.dispatch()).again_ms or not kit.plain.exists(
            kit.keys.parked
        )
    left = [key for key in kit.dump() if any(word in key for word in ("parked", "turns", "index"))]
    assert [] == left


async def test_one_that_has_another_tenant_stays_parked(kit: Kit):
    gone = await kit.submit(spec("charge@1", tenant="a"))
    stays = await kit.submit(spec("charge@1", tenant="b"))
    await kit.dispatch()
    await kit.store.cancel(0, gone, "a", None)
    kit.leap(15_000)
    for _ in range(3):
        await kit.dispatch()
    assert "PENDING" == kit.state(stays)
    assert 1 == await kit.announce("new", "queue:*", "route:charge@1")
    await kit.dispatch()
    assert "QUEUED" == kit.state(stays)


async def test_room_that_an_expiry_makes_is_used_at_once(kit: Kit):
    await kit.announce()
    kit.plain.hset(kit.keys.window, STREAM, 1)
    first = await kit.submit(spec(expires_at_ms=kit.now_ms + 5))
    second = await kit.submit()
    await kit.dispatch()
    kit.leap(5)
    assert (1, 1) == ((await kit.dispatch()).moved, kit.expired)
    assert ("FAILED", "QUEUED") == (kit.state(first), kit.state(second))


# ── expiry ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["lane", "due lane", "stream", "full", "parked"])
async def test_a_task_expires_wherever_it_waits(kit: Kit, where: str):
    delays = {"lane": HOUR_MS, "due lane": 5_000}
    if where != "parked":
        await kit.announce()
    if where == "full":
        kit.plain.hset(kit.keys.window, STREAM, 1)
        await kit.submit()
    task_id = await kit.submit(
        spec(delay_ms=delays.get(where, 0), expires_at_ms=kit.now_ms + 5_000)
    )
    await kit.dispatch()
    kit.leap(4_999)
    await kit.dispatch()
    assert kit.state(task_id) in {"PENDING", "QUEUED"}

    kit.leap(1)
    await kit.dispatch()

    record = kit.record(task_id)
    assert ("FAILED", "expired") == (record["state"], record["reason"])
    assert kit.plain.zscore(kit.keys.dead("default"), task_id) == kit.now_ms
    await kit.announce()
    assert task_id not in [grant.id for grant in await kit.take()]


async def test_a_take_that_comes_before_the_dispatcher_sees_the_expiry_too(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(expires_at_ms=kit.now_ms + 5_000))
    kit.leap(5_000)
    assert [] == await kit.take()
    assert "PENDING" == kit.state(task_id)
    await kit.dispatch()
    assert "expired" == kit.record(task_id)["reason"]


async def test_many_expire_in_bounded_batches(kit: Kit):
    await kit.submit_many(250, spec(delay_ms=HOUR_MS, expires_at_ms=kit.now_ms + 1))
    kit.leap(1)
    expired = []
    while await kit.dispatch() and kit.expired:
        expired.append(kit.expired)
    assert [100, 100, 50] == expired


async def test_a_redriven_task_does_not_expire_again(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=HOUR_MS, expires_at_ms=kit.now_ms + 1))
    kit.leap(1)
    await kit.dispatch()
    await kit.store.redrive(0, task_id, "default", None)
    assert "expires_ms" not in kit.record(task_id)
    assert task_id == (await kit.start(task_id)).id


# ── retries and strays ───────────────────────────────────────────────────────────────────────────


async def test_a_retry_waits_its_time_and_keeps_its_place_by_due_time(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(5_000))
    kit.leap(4_999)
    assert 0 == (await kit.dispatch()).moved
    kit.leap(1)
    assert 1 == (await kit.dispatch()).moved


async def test_a_due_entry_that_disagrees_with_its_task_is_stale_and_counted(kit: Kit):
    await kit.announce()
    done = await kit.task_in("SUCCESS")
    lane = "default:normal:default:charge"
    kit.plain.zadd(kit.keys.due(lane), {done: kit.now_ms, "0nobody": kit.now_ms})
    kit.plain.zadd(kit.keys.lanes, {lane: kit.now_ms})

    assert 0 == (await kit.dispatch()).moved

    assert 2 == kit.stats()["stray:due"]
    assert "SUCCESS" == kit.state(done)


async def test_two_dispatchers_on_one_shard_are_harmless(kit: Kit):
    await kit.announce()
    await kit.submit_many(40, spec(delay_ms=1))
    kit.leap(1)
    first, second = await kit.dispatch(), await kit.dispatch()
    assert (40, 0) == (first.moved, second.moved)
    assert 40 == len(await kit.take())


@pytest.mark.parametrize("outcome", [DONE, BROKEN, STOPPED])
async def test_a_finished_task_never_comes_back_when_its_lease_is_over(kit: Kit, outcome):
    """lease-001, lease-011: a late clean-up moves nothing that has its verdict."""
    task_id = await kit.task_in("RUNNING", lease_ms=LEASE_MS)
    fence = kit.fence(task_id)
    await kit.settle((task_id, fence), outcome)
    after = kit.record(task_id)
    for _ in range(5):
        await kit.wait(LEASE_MS)
        await kit.dispatch()
        assert (False, []) == await kit.store.overdue(0)
        assert [] == await kit.take()
    assert after == kit.record(task_id)
