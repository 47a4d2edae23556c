"""submit: each task exactly once, durable at once, handed over where nobody is overtaken."""

import asyncio

import pytest
from tests.protocol.kit import BEGIN_MS, DAY_MS, HOUR_MS, LEASE_MS, Kit, lost, open_kit, spec

from tasksched.model import ids

pytestmark = pytest.mark.anyio


async def submit(kit: Kit, task_id: str, mark: str = "", **fields) -> str:
    _, words = await kit.store.submit(0, [(task_id, spec(**fields), mark)])
    return words.get(0, "created")


async def test_a_new_task_waits_in_its_lane_until_its_time(kit: Kit):
    task_id = await kit.submit(spec(queue="mail", priority="high", tenant="acme", delay_ms=5_000))

    record = kit.record(task_id)
    assert {
        "state": "PENDING",
        "lane": "mail:high:acme:charge",
        "due_ms": str(kit.now_ms + 5_000),
        "created_ms": str(kit.now_ms),
    } == record  # what is at its default is not stored


async def test_a_due_task_is_handed_over_at_once_to_a_live_route(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    assert "QUEUED" == kit.state(task_id)


async def test_a_due_task_without_a_worker_waits(kit: Kit):
    task_id = await kit.submit()
    assert "PENDING" == kit.state(task_id)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [("f1", "f1", "exists"), ("", "", "exists"), ("f1", "f2", "reused"), ("f1", "", "reused"),
     ("", "f1", "reused")],
)  # fmt: skip
async def test_the_same_id_again_is_told_by_its_fingerprint(
    kit: Kit, before: str, after: str, word: str
):
    """idempotency-005, idempotency-006: a replay is answered, another command is refused."""
    task_id = kit.new_id()
    await submit(kit, task_id, before)
    stored = kit.dump()

    assert word == await submit(kit, task_id, after, payload=b"other", delay_ms=7)

    assert stored == kit.dump()


async def test_the_same_id_twice_in_one_call_is_one_task(kit: Kit):
    task_id = kit.new_id()
    rows = [(task_id, spec(payload=b"1"), "f"), (task_id, spec(payload=b"2"), "f")]
    rows.append((task_id, spec(), "g"))

    _, words = await kit.store.submit(0, rows)

    assert {1: "exists", 2: "reused"} == words
    assert "1" == kit.record(task_id)["payload"]


async def test_fifty_at_once_make_one(kit: Kit):
    """idempotency-008: nobody overwrites, one is told that it created."""
    task_id = kit.new_id()
    words = await asyncio.gather(
        *(submit(kit, task_id, "f", payload=bytes([n])) for n in range(50))
    )
    assert sorted(words) == ["created"] + ["exists"] * 49


async def test_keys_of_two_tenants_never_meet(kit: Kit):
    """idempotency-002: the tenant is part of what an id is made of."""
    mine, theirs = ids.keyed("a", "K", 1), ids.keyed("b", "K", 1)
    assert mine != theirs
    assert ["created", "created"] == [
        await submit(kit, mine, "f", tenant="a"),
        await submit(kit, theirs, "f", tenant="b"),
    ]


async def test_a_refused_batch_uses_no_key_up(kit: Kit):
    task_id = kit.new_id()
    good = (task_id, "default:normal:default:charge", "+0", b"", "", "f", "", "", "", "")
    with pytest.raises(Exception, match="BADARG row 2"):
        await kit.raw(
            "submit", {}, [good, (kit.new_id(), "no lane", "+0", b"", "", "", "", "", "", "")]
        )

    assert "created" == await submit(kit, task_id, "f")


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 65_536, 262_144])
async def test_payloads_of_every_size_come_back_as_they_were(kit: Kit, size: int):
    """Up to 1024 bytes they live in the record, which so keeps its compact encoding."""
    payload = bytes(n % 251 for n in range(size))
    await kit.announce()
    task_id = await kit.submit(spec(payload=payload))

    key = kit.keys.task(task_id)
    assert (size > 1024) == bool(kit.plain.exists(kit.keys.body(task_id)))
    assert b"listpack" == kit.plain.object("ENCODING", key)
    (grant,) = await kit.take()
    assert (payload or None) == grant.payload


async def test_two_hundred_large_ones_in_one_call(kit: Kit):
    rows = [(kit.new_id(), spec(payload=b"x" * 5_000), "") for _ in range(200)]
    _, words = await kit.store.submit(0, rows)
    assert {} == words


@pytest.mark.parametrize("run_at_ms", [0, -1, 1, BEGIN_MS - 1, 7_258_118_400_000])
async def test_any_time_is_accepted(kit: Kit, run_at_ms: int):
    """A past one is due at once and keeps its time, so that its lateness can be told."""
    task_id = await kit.submit(spec(run_at_ms=run_at_ms))
    assert str(run_at_ms) == kit.record(task_id)["due_ms"]


# ── nobody is overtaken ──────────────────────────────────────────────────────────────────────────


async def test_nothing_is_handed_over_while_something_due_waits(kit: Kit):
    await kit.announce()
    first = await kit.submit(spec(delay_ms=5))
    kit.leap(5)

    second = await kit.submit()

    assert ("PENDING", "PENDING") == (kit.state(first), kit.state(second))
    await kit.dispatch()
    assert [first, second] == [grant.id for grant in await kit.take()]


async def test_what_waits_for_a_full_window_is_not_overtaken_when_room_appears(kit: Kit):
    """Room that a cancel makes belongs to the task that has waited for it."""
    await kit.announce()
    kit.plain.hset(kit.keys.window, "default:normal:charge", 1)
    first = await kit.submit()
    waits = await kit.submit(spec(run_at_ms=BEGIN_MS - HOUR_MS))
    await kit.dispatch()
    await kit.store.cancel(0, first, "default", None)

    late = await kit.submit()

    assert ("PENDING", "PENDING") == (kit.state(waits), kit.state(late))
    await kit.dispatch()
    assert [waits] == [grant.id for grant in await kit.take()]


async def test_a_parked_stream_gets_nothing_directly(kit: Kit):
    """The route is live again but its stream has not come back yet: what waits there is first."""
    first = await kit.submit()
    await kit.dispatch()
    assert kit.plain.zscore(kit.keys.parked, "default:normal:charge")
    kit.plain.zadd(kit.keys.routes, {"charge": kit.now_ms + HOUR_MS})

    second = await kit.submit()

    assert ("PENDING", "PENDING") == (kit.state(first), kit.state(second))


async def test_direct_hand_over_stops_at_the_window(kit: Kit):
    await kit.announce()
    made = await kit.submit_many(100)
    states = [kit.state(task_id) for task_id in made]
    assert ["QUEUED"] * 64 + ["PENDING"] * 36 == states


async def test_a_task_that_is_expired_already_never_starts(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(expires_at_ms=BEGIN_MS - 1))
    await kit.dispatch()
    assert [] == await kit.take()
    assert "expired" == kit.record(task_id)["reason"]


# ── what is told ─────────────────────────────────────────────────────────────────────────────────


async def test_an_earlier_due_time_wakes_the_schedulers_and_a_later_one_does_not(valkey: Kit):
    listener = valkey.plain.pubsub()
    listener.ssubscribe(valkey.keys.wake)
    for delay_ms in (5_000, 9_000, 1_000):
        await valkey.submit(spec(delay_ms=delay_ms))
    await valkey.announce()
    await valkey.submit(spec(delay_ms=0))

    heard = []
    while (message := listener.get_sharded_message(timeout=0.2)) is not None:
        heard.append(message["data"])
    listener.close()
    now = valkey.now_ms
    assert [1, f"due {now + 5_000}".encode(), f"due {now + 1_000}".encode(), b"work"] == heard


async def test_one_event_a_call_tells_what_moved(valkey: Kit):
    await valkey.announce()
    made = await valkey.submit_many(3)
    ((_, fields),) = valkey.plain.xrange(valkey.keys.events)
    told = " ".join(made).encode()
    now, mine = b"%d" % valkey.now_ms, b"default:default:"
    assert {b"ms": now, mine + b"CREATED": told, mine + b"QUEUED": told} == fields


async def test_a_shard_is_as_good_as_another(valkey: Kit):
    """Scripts find all their keys from the clock's: nothing is tied to shard 0."""
    kit = await open_kit(valkey.url, shards=3)
    for shard in (1, 2):
        await kit.store.announce(shard, "w", DAY_MS, ["queue:*", "route:charge"])
        task_id = kit.new_id(shard)
        await kit.store.submit(shard, [(task_id, spec(), "")])
        _, _, (grant,) = await kit.store.take(shard, "w", call=1, slots=1, lease_ms=LEASE_MS)
        assert task_id == grant.id
        kit.leap(LEASE_MS * 3)
        assert ["alive"] == await kit.store.reap(shard, [(task_id, grant.fence, lost())])
    assert [] == kit.audit()
    assert all(key.startswith(("{ts:1}:", "{ts:2}:")) for key in kit.dump())
    await kit.close()
