"""lines: what runs say is kept, bounded, in order and once; and leaves with the task."""

import pytest
from tests.protocol.kit import BOOKKEEPING, DONE, Kit, retry_in

from tasksched.model.states import STATES, State
from tasksched.store.reads import LINES_MAX, Reads

pytestmark = pytest.mark.anyio


async def say(kit: Kit, task_id: str, *texts: str, first: int = 1, fence: str = "") -> list[str]:
    fence = fence or kit.fence(task_id)
    rows = [(task_id, fence, n, text) for n, text in enumerate(texts, first)]
    return await kit.store.lines(0, rows)


async def heard(kit: Kit, task_id: str, after: str = "-") -> list[tuple[int, str]]:
    found = await Reads(kit.store).lines(task_id, after)
    return [(line.attempt, line.text) for line in found]


@pytest.mark.parametrize("state", STATES)
async def test_in_every_state_only_what_runs_is_heard(kit: Kit, state: State):
    task_id = await kit.task_in(state)
    before = kit.dump(without=BOOKKEEPING)
    words = await say(kit, task_id, "a", "b")
    if state == "RUNNING":
        assert ["ok", "ok"] == words
        assert [(1, "a"), (1, "b")] == await heard(kit, task_id)
        return
    assert ["stale", "stale"] == words
    assert before == kit.dump(without=BOOKKEEPING)


async def test_a_line_changes_no_version_and_says_when(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    version = kit.version(task_id)
    kit.leap(1_234)
    await say(kit, task_id, "a")
    assert version == kit.version(task_id)
    (line,) = await Reads(kit.store).lines(task_id)
    assert kit.now_ms == line.at_ms


async def test_said_again_it_is_heard_once(kit: Kit):
    """Replies are lost, and batches are cut anew."""
    task_id = await kit.task_in("RUNNING")
    await say(kit, task_id, "a", "b")
    after = kit.dump(without=BOOKKEEPING)
    assert ["ok", "ok"] == await say(kit, task_id, "a", "b")
    assert after == kit.dump(without=BOOKKEEPING)
    assert ["ok", "ok"] == await say(kit, task_id, "b", "c", first=2)
    assert [(1, "a"), (1, "b"), (1, "c")] == await heard(kit, task_id)


async def test_a_fence_that_is_not_in_force_says_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    old = kit.fence(task_id)
    await say(kit, task_id, "first")
    await kit.settle((task_id, old), retry_in(0))
    await kit.start(task_id)
    assert ["stale"] == await say(kit, task_id, "late", first=2, fence=old)
    assert ["ok"] == await say(kit, task_id, "second")
    assert ["stale"] == await say(kit, kit.new_id(), "who?", fence=old)
    assert [(1, "first"), (2, "second")] == await heard(kit, task_id)


async def test_the_last_lines_are_kept_and_the_place_goes_on(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    for first in range(1, 251, 50):
        await say(kit, task_id, *(f"line {n}" for n in range(first, first + 50)), first=first)
    found = await Reads(kit.store).lines(task_id)
    assert LINES_MAX == len(found) == 200
    assert ("line 51", "line 250") == (found[0].text, found[-1].text)
    assert [(1, "line 250")] == await heard(kit, task_id, found[-2].id)
    assert [] == await heard(kit, task_id, found[-1].id)


async def test_its_bytes_count_as_the_tasks_and_go_with_it(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await say(kit, task_id, "x" * 100, "ü" * 10)
    assert "120" == kit.record(task_id)["extra"]
    await say(kit, task_id, "x" * 100, "ü" * 10)
    assert "120" == kit.record(task_id)["extra"]
    await kit.settle((task_id, kit.fence(task_id)), DONE)
    counted = kit.plain.hget(kit.keys.counts, "bytes:default")
    assert 400 + 1 + 120 == int(counted)
    assert 1 == (await kit.store.prune(
        0, "default", done_ms=0, dead_ms=0, count_max=0, bytes_max=0, keyed_ms=0, unkeyed_ms=0,
        limit=9,
    ))[0]  # fmt: skip
    assert 0 == kit.plain.exists(kit.keys.lines(task_id))
    assert 0 == int(kit.plain.hget(kit.keys.counts, "bytes:default"))


async def test_who_listens_is_told_once_a_call(valkey: Kit):
    task_id = await valkey.task_in("RUNNING")
    listener = valkey.plain.pubsub(ignore_subscribe_messages=True)
    listener.ssubscribe(valkey.keys.live)
    listener.get_sharded_message(timeout=1)
    await say(valkey, task_id, "a", "b")
    await say(valkey, task_id, "a", "b")  # nothing new
    told = []
    while (message := listener.get_sharded_message(timeout=0.2)) is not None:
        told.append(message["data"].decode())
    listener.close()
    assert [task_id] == told
