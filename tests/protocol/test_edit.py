"""edit and run_now: what waits can be changed until it starts, atomically against a worker."""

import pytest
from tests.protocol.kit import BOOKKEEPING, HOUR_MS, Kit, retry_in, spec

from tasksched.model.notify import Receiver
from tasksched.store.protocol import Changed, Edit

pytestmark = pytest.mark.anyio

NOTIFY = (Receiver("https://example.com/", ("task.failed",)),)


async def edit(kit: Kit, task_id: str, **fields) -> Changed:
    tenant = kit.record(task_id)["lane"].split(":")[2]
    return await kit.store.edit(0, task_id, tenant, None, Edit(**fields))


@pytest.mark.parametrize("state", ["PENDING", "QUEUED"])
@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({"due": "+5000"}, {"due_ms": "+5000"}),
        ({"due": "1764000000000"}, {"due_ms": "1764000000000"}),
        ({"payload": b"new"}, {"payload": "new"}),
        ({"options": '{"tags":["t"]}'}, {"options": '{"tags":["t"]}'}),
        ({"expires_at_ms": 1_900_000_000_000}, {"expires_ms": "1900000000000"}),
        ({"lease_ms": 5_000}, {"lease_ms": "5000"}),
        ({"lane": "mail:high:default:refund@2"}, {"lane": "mail:high:default:refund@2"}),
        (
            {"lane": "mail:normal:default:charge", "due": "+1"},
            {"lane": "mail:normal:default:charge", "due_ms": "+1"},
        ),
        ({}, {}),
    ],
)
async def test_an_edit_changes_what_it_names_and_nothing_else(
    kit: Kit, state: str, fields: dict, stored: dict
):
    task_id = await kit.task_in(state, payload=b"old", lease_ms=9_000, tags=("x",))
    before = kit.record(task_id)

    changed = await edit(kit, task_id, **fields)

    now = {k: str(kit.now_ms + int(v)) if v[0] == "+" else v for k, v in stored.items()}
    after = kit.record(task_id)
    assert ("edited", "PENDING", kit.version(task_id)) == changed
    assert int(before.get("version", 1)) + 1 == changed.version
    for volatile in ("version", "state", "op"):
        before.pop(volatile, None)
        after.pop(volatile)
    assert before | now == after


async def test_what_is_set_can_be_unset(kit: Kit):
    task_id = await kit.task_in(
        "PENDING",
        payload=b"p",
        lease_ms=9_000,
        notify=NOTIFY,
        expires_at_ms=kit.now_ms + HOUR_MS,
        tags=("t",),
    )
    await kit.raw(
        "edit",
        {
            "id": task_id, "tenant": "default", "version": "", "lane": "", "due": "", "op": "a",
            "payload": "=", "options": "=", "expires": "=", "lease": "=",
            "wants": "=", "concurrency": "=",
        },
    )  # fmt: skip
    assert {"state", "version", "lane", "due_ms", "created_ms", "op"} == kit.record(task_id).keys()


@pytest.mark.parametrize("before", [0, 1, 1024, 1025, 50_000])
@pytest.mark.parametrize("after", [0, 1, 1024, 1025, 262_144])
async def test_a_payload_moves_in_and_out_of_the_record_by_its_size(
    valkey: Kit, before: int, after: int
):
    await valkey.announce()
    task_id = await valkey.submit(spec(payload=b"a" * before))
    await edit(valkey, task_id, payload=b"b" * after)
    assert (after > 1024) == valkey.plain.exists(valkey.keys.body(task_id))
    assert b"listpack" == valkey.plain.object("ENCODING", valkey.keys.task(task_id))
    assert (b"b" * after or None) == (await valkey.start(task_id)).payload


async def test_a_dispatched_task_goes_back_and_its_entry_is_gone(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    await edit(kit, task_id, due="+5000")
    assert 0 == kit.plain.xlen(kit.keys.ready("default:normal:charge"))
    assert [] == await kit.take()
    kit.leap(5_000)
    assert 5_000 + int(kit.record(task_id)["created_ms"]) == (await kit.start(task_id)).due_ms


async def test_an_edit_cannot_be_lost_between_dispatch_and_start(kit: Kit):
    """Either the worker gets the new payload or the edit is refused: never the old one silently."""
    task_id = await kit.task_in("QUEUED", payload=b"old")
    assert "edited" == (await edit(kit, task_id, payload=b"new")).word
    assert b"new" == (await kit.start(task_id)).payload
    assert ("state", "RUNNING") == (await edit(kit, task_id, payload=b"late"))[:2]


async def test_a_task_that_moved_to_a_route_without_workers_waits_there(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    await edit(kit, task_id, lane="default:normal:default:nobody")
    await kit.dispatch()
    assert kit.plain.zscore(kit.keys.parked, "default:normal:nobody")


async def test_the_gauges_follow_a_task_to_its_new_queue(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    await edit(kit, task_id, lane="mail:normal:default:charge")
    counts = {k: int(v) for k, v in kit.plain.hgetall(kit.keys.counts).items() if int(v)}
    assert {b"default:mail:PENDING": 1, b"p/default": 1} == counts


async def test_an_expiry_that_is_edited_decides(kit: Kit):
    await kit.announce()
    later = await kit.submit(spec(delay_ms=HOUR_MS, expires_at_ms=kit.now_ms + 5_000))
    sooner = await kit.submit(spec(delay_ms=HOUR_MS))
    await edit(kit, later, expires_at_ms=kit.now_ms + 50_000)
    await edit(kit, sooner, expires_at_ms=kit.now_ms + 5_000)
    kit.leap(5_000)
    await kit.dispatch()
    assert ("PENDING", "FAILED") == (kit.state(later), kit.state(sooner))
    await kit.store.edit(0, later, "default", None, Edit(expires_never=True))
    kit.leap(50_000)
    await kit.dispatch()
    assert "PENDING" == kit.state(later)


async def test_an_expiry_given_after_the_first_start_expires_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(HOUR_MS))
    await edit(kit, task_id, expires_at_ms=kit.now_ms + 1)
    kit.leap(5)
    await kit.dispatch()
    assert "PENDING" == kit.state(task_id)


async def test_an_edit_of_the_head_of_a_lane_leaves_the_next_one_reachable(kit: Kit):
    await kit.announce()
    head, other = await kit.submit(spec(delay_ms=5)), await kit.submit(spec(delay_ms=10))
    await edit(kit, head, due="+60000")
    kit.leap(10)
    await kit.dispatch()
    assert [other] == [grant.id for grant in await kit.take()]


async def test_an_edit_whose_reply_was_lost_is_answered_again(kit: Kit):
    """Without its name it would move the due time again, and with If-Match be refused."""
    task_id = await kit.task_in("PENDING")
    change = Edit(due="+5000", payload=b"new")
    first = await kit.store.edit(0, task_id, "default", 1, change, op="a")
    after = kit.dump(without=BOOKKEEPING)
    kit.leap(100)
    assert first == await kit.store.edit(0, task_id, "default", 1, change, op="a")
    assert after == kit.dump(without=BOOKKEEPING)
    assert "version" == (await kit.store.edit(0, task_id, "default", 1, change, op="b")).word
    assert 3 == (await kit.store.edit(0, task_id, "default", 2, change, op="b")).version


# ── run_now ──────────────────────────────────────────────────────────────────────────────────────


async def run_now(kit: Kit, task_id: str, **more) -> Changed:
    return await kit.store.run_now(0, task_id, "default", None, **more)


async def test_a_future_task_is_due_at_once(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=HOUR_MS))
    assert ("edited", "PENDING", 2) == await run_now(kit, task_id)
    assert kit.now_ms == (await kit.start(task_id)).due_ms


async def test_a_task_that_is_due_keeps_its_time(kit: Kit):
    """So that it does not lose its place, and its lateness stays true."""
    task_id = await kit.submit()
    due_ms = kit.record(task_id)["due_ms"]
    kit.leap(5_000)
    await run_now(kit, task_id)
    assert due_ms == kit.record(task_id)["due_ms"]


async def test_a_retry_need_not_wait(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(HOUR_MS))
    await run_now(kit, task_id)
    assert 2 == (await kit.start(task_id)).attempts


async def test_run_now_whose_reply_was_lost_is_answered_again(kit: Kit):
    task_id = await kit.task_in("PENDING")
    first = await run_now(kit, task_id, op="a")
    after = kit.dump(without=BOOKKEEPING)
    kit.leap(100)
    assert first == await run_now(kit, task_id, op="a")
    assert after == kit.dump(without=BOOKKEEPING)
