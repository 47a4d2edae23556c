"""redrive: a new life for what failed or was cancelled: a new budget, the old attempts on record."""

import pytest
from tests.protocol.kit import BOOKKEEPING, BROKEN, DAY_MS, LEASE_MS, Kit, lost, retry_in, spec

from tasksched.store.protocol import Changed, Edit
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio


async def redrive(kit: Kit, task_id: str, due: str = "+0", **more) -> Changed:
    return await kit.store.redrive(0, task_id, "default", None, Edit(due=due), **more)


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
async def test_it_waits_again_as_if_it_were_new(kit: Kit, state: str):
    task_id = await kit.task_in(state)
    assert "redriven" == (await redrive(kit, task_id)).word
    record = kit.record(task_id)
    assert ("PENDING", "2", str(kit.now_ms)) == (record["state"], record["life"], record["due_ms"])
    assert not {"finished_ms", "reason", "cancel_requested", "lost"} & record.keys()
    assert 1 == (await kit.start(task_id)).attempts


async def test_a_new_life_has_a_new_budget_and_a_higher_fence(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    for attempts in (1, 2):
        grant = await kit.start(task_id)
        assert attempts == grant.attempts
        await kit.settle(grant, retry_in(0) if attempts < 2 else BROKEN)
    old = int(kit.fence(task_id))
    await redrive(kit, task_id)

    grant = await kit.start(task_id)

    assert (3, 1) == (grant.attempt, grant.attempts)
    assert int(grant.fence) > old


async def test_the_old_attempts_stay_on_record(kit: Kit):
    task_id = await kit.task_in("FAILED")
    await redrive(kit, task_id)
    await kit.settle(await kit.start(task_id), BROKEN)
    reads = Reads(kit.store)
    attempts = await reads.attempts(await reads.task(task_id))
    assert [(1, "FAILED"), (2, "FAILED")] == [(a.attempt, a.outcome) for a in attempts]
    assert "ValueError" == attempts[0].error.type


async def test_redriven_twice_it_moves_once(kit: Kit):
    task_id = await kit.task_in("FAILED")
    await redrive(kit, task_id)
    after = kit.dump(without=BOOKKEEPING)
    assert ("state", "PENDING") == (await redrive(kit, task_id))[:2]
    assert after == kit.dump(without=BOOKKEEPING)


async def test_a_redrive_whose_reply_was_lost_is_answered_again(kit: Kit):
    task_id = await kit.task_in("FAILED")
    first = await redrive(kit, task_id, "+5", op="a")
    after = kit.dump(without=BOOKKEEPING)
    kit.leap(1)
    assert first == await redrive(kit, task_id, "+5", op="a")
    assert after == kit.dump(without=BOOKKEEPING)


@pytest.mark.parametrize("due", ["+5000", "1764000000000"])
async def test_it_may_begin_at_another_time(kit: Kit, due: str):
    task_id = await kit.task_in("CANCELLED")
    await redrive(kit, task_id, due)
    expected = kit.now_ms + 5_000 if due[0] == "+" else int(due)
    assert str(expected) == kit.record(task_id)["due_ms"]


async def test_a_poisoned_task_has_its_count_of_lost_workers_forgiven(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    for last in (False, True):
        grant = await kit.start(task_id)
        await kit.wait(LEASE_MS)
        await kit.reap(grant, lost(None if last else 0))
    await redrive(kit, task_id)
    assert 0 == (await kit.start(task_id)).lost


async def test_dead_letters_are_exactly_the_failed(kit: Kit):
    made = [await kit.task_in("FAILED") for _ in range(5)]
    for task_id in made[:2]:
        await redrive(kit, task_id, f"+{DAY_MS}")
    left = [each.decode() for each in kit.plain.zrange(kit.keys.dead("default"), 0, -1)]
    assert set(made[2:]) == set(left)


async def test_many_lives(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(payload=b"x" * 3_000))
    for life in range(1, 8):
        assert str(life) == kit.record(task_id).get("life", "1")
        await kit.settle(await kit.start(task_id), BROKEN)
        await redrive(kit, task_id)
    assert 7 == int(kit.record(task_id)["attempt"])


# ── edits on the way ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
async def test_it_is_changed_on_the_way(kit: Kit, state: str):
    task_id = await kit.task_in(state, tags=("old",))
    edit = Edit(
        lane="bulk:high:default:charge",
        due="+5000",
        payload=b"\x93new",
        options='{"tags":["new"]}',
        lease_ms=9_000,
        wants="failed",
    )
    changed = await kit.store.redrive(0, task_id, "default", None, edit)
    task = await Reads(kit.store).task(task_id)
    assert "redriven" == changed.word
    assert ("bulk", "high") == (task.queue, task.priority)
    assert (("new",), 9_000) == (task.tags, task.lease_ms)
    assert (kit.now_ms + 5_000, b"\x93new") == (task.due_ms, task.payload)
    assert "failed" == kit.record(task_id)["wants"]


async def test_a_large_payload_takes_the_place_of_a_small_one_and_back(kit: Kit):
    task_id = await kit.task_in("FAILED", payload=b"small")
    for payload in (b"x" * 5_000, b"y"):
        await kit.store.redrive(0, task_id, "default", None, Edit(payload=payload))
        assert payload == (await Reads(kit.store).task(task_id)).payload
        grant = await kit.start(task_id)
        assert payload == grant.payload
        await kit.settle(grant, BROKEN)


async def test_a_refused_edit_leaves_the_dead_letter(kit: Kit):
    task_id = await kit.task_in("FAILED")
    before = kit.dump(without=BOOKKEEPING)
    version = kit.version(task_id)
    refused = await kit.store.redrive(0, task_id, "default", version + 1, Edit(payload=b"x"))
    assert ("version", "FAILED", version) == refused
    other = await kit.store.redrive(0, task_id, "acme", None, Edit(payload=b"x"))
    assert "missing" == other.word
    assert before == kit.dump(without=BOOKKEEPING)


async def test_an_edit_whose_reply_was_lost_changes_nothing_more(kit: Kit):
    task_id = await kit.task_in("FAILED")
    edit = Edit(lane="bulk:normal:default:charge", payload=b"x" * 2_000)
    first = await kit.store.redrive(0, task_id, "default", None, edit, op="a")
    await kit.settle(await kit.start(task_id), BROKEN)
    after = kit.dump(without=BOOKKEEPING)
    again = await kit.store.redrive(0, task_id, "default", None, edit, op="a")
    assert ("redriven", "redriven", "FAILED") == (first.word, again.word, again.state)
    assert after == kit.dump(without=BOOKKEEPING)
