"""announce and enlist: who works and what it serves, for as long as it says so."""

import pytest
from tests.protocol.kit import BOOKKEEPING, DAY_MS, HOUR_MS, WORKER, Kit, spec

from tasksched.store.connect import Unannounced

pytestmark = pytest.mark.anyio


async def test_a_route_lives_as_long_as_its_longest_announcement(kit: Kit):
    await kit.announce("a", "queue:*", "route:charge", ttl_ms=9_000)
    await kit.announce("b", "queue:*", "route:charge", ttl_ms=1_000)
    assert kit.now_ms + 9_000 == kit.plain.zscore(kit.keys.routes, "charge")
    kit.leap(8_999)
    assert "QUEUED" == kit.state(await kit.submit())
    kit.leap(1)
    assert "PENDING" == kit.state(await kit.submit())


async def test_the_last_word_about_what_a_worker_serves_counts(kit: Kit):
    await kit.announce(WORKER, "queue:*", "route:charge", "route:refund")
    await kit.submit(spec("charge"))
    refund = await kit.submit(spec("refund"))
    await kit.announce(WORKER, "queue:*", "route:refund")
    assert [refund] == [grant.id for grant in await kit.take()]


async def test_announced_twice_is_announced_once(kit: Kit):
    await kit.announce()
    after = kit.dump(without=BOOKKEEPING)
    assert 0 == await kit.announce()
    assert after == kit.dump(without=BOOKKEEPING)


async def test_an_announcement_does_not_forget_the_last_call(kit: Kit):
    """Else the grants whose reply was lost could not be asked for again."""
    await kit.announce()
    await kit.submit_many(2)
    first = await kit.take_call(1, 1)
    await kit.announce()
    assert first == await kit.take_call(1, 1)


async def test_who_takes_leave_gets_nothing_more_and_leaves_no_key(kit: Kit):
    await kit.announce()
    await kit.announce(ttl_ms=0)
    with pytest.raises(Unannounced):
        await kit.take()
    assert 0 == kit.plain.exists(kit.keys.worker(WORKER), kit.keys.serves(WORKER))


async def test_what_a_dead_worker_left_goes_by_itself(kit: Kit):
    await kit.announce(ttl_ms=30 * DAY_MS)
    await kit.take()
    for key in (kit.keys.worker(WORKER), kit.keys.serves(WORKER)):
        assert 0 < kit.plain.pttl(key) <= HOUR_MS


async def test_two_thousand_routes_can_be_announced_at_once(valkey: Kit):
    serves = [f"route:r{n}" for n in range(2_000)]
    await valkey.announce(WORKER, "queue:*", *serves)
    assert 2_001 == valkey.plain.scard(valkey.keys.serves(WORKER))
    assert 2_000 == valkey.plain.zcard(valkey.keys.routes)


async def test_it_says_how_many_streams_came_back(kit: Kit):
    for queue in ("a", "b"):
        await kit.submit(spec(queue=queue))
        await kit.submit(spec("refund", queue=queue))
    await kit.dispatch()
    assert 4 == kit.plain.zcard(kit.keys.parked)
    assert 2 == await kit.announce(WORKER, "queue:a", "route:charge")
    assert {b"a:normal:refund", b"b:normal:refund"} == set(kit.plain.zrange(kit.keys.parked, 0, -1))


async def test_a_route_that_died_long_ago_is_forgotten(kit: Kit):
    await kit.announce("old", "queue:*", "route:charge@1", ttl_ms=1_000)
    kit.leap(HOUR_MS)
    await kit.announce("new", "queue:*", "route:charge@2")
    assert {b"charge@1", b"charge@2"} == set(kit.plain.zrange(kit.keys.routes, 0, -1))
    kit.leap(1_000)
    await kit.announce("new", "queue:*", "route:charge@2")
    assert [b"charge@2"] == kit.plain.zrange(kit.keys.routes, 0, -1)


# ── enlist ───────────────────────────────────────────────────────────────────────────────────────


async def test_members_live_until_their_word_is_too_old(kit: Kit):
    key = kit.store.global_keys.schedulers
    assert ["a"] == await kit.store.enlist(key, "a", 4_000)
    kit.leap(2_000)
    assert ["a", "b"] == await kit.store.enlist(key, "b", 4_000)
    kit.leap(1_999)
    assert ["a", "b"] == await kit.store.enlist(key, "b", 4_000)
    kit.leap(1)
    assert ["b"] == await kit.store.enlist(key, "b", 4_000)
    assert [] == await kit.store.enlist(key, "b", 0)
