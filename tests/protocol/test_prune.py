"""prune: retention by age, count and bytes; what leaves early leaves a stub of its id."""

from typing import Any

import pytest
from tests.protocol.kit import BROKEN, DAY_MS, DONE, HOUR_MS, Kit, retry_in, spec

from tasksched.model.outcome import Outcome

pytestmark = pytest.mark.anyio

USUAL = {
    "done_ms": DAY_MS, "dead_ms": 14 * DAY_MS, "count_max": 1_000, "bytes_max": 1 << 40,
    "keyed_ms": DAY_MS, "unkeyed_ms": HOUR_MS, "limit": 100,
}  # fmt: skip


async def prune(kit: Kit, tenant: str = "default", **limits: Any) -> tuple[int, bool]:
    return await kit.store.prune(0, tenant, **{**USUAL, **limits})


async def finish(kit: Kit, outcome: Outcome = DONE, mark: str = "", **fields: Any) -> str:
    await kit.announce()
    task_id = await kit.submit(spec(**fields), mark=mark)
    await kit.settle(await kit.start(task_id), outcome)
    return task_id


@pytest.mark.parametrize(("state", "days"), [("SUCCESS", 1), ("CANCELLED", 1), ("FAILED", 14)])
async def test_finished_tasks_leave_at_their_age(kit: Kit, state: str, days: int):
    task_id = await kit.task_in(state)
    kit.leap(days * DAY_MS - 1)
    assert (0, False) == await prune(kit)
    kit.leap(1)
    assert (1, False) == await prune(kit)
    assert {} == kit.record(task_id)
    assert 0 == kit.plain.exists(kit.keys.tenants)


async def test_the_age_counts_from_the_verdict(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(run_at_ms=0))
    kit.leap(3 * DAY_MS)
    await kit.settle(await kit.start(task_id), DONE)
    kit.leap(DAY_MS - 1)
    assert (0, False) == await prune(kit)


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "RUNNING"])
async def test_what_is_not_finished_never_leaves(kit: Kit, state: str):
    task_id = await kit.task_in(state)
    kit.leap(1_000 * DAY_MS)
    assert (0, False) == await prune(kit, done_ms=0, dead_ms=0, count_max=0, bytes_max=0)
    assert state == kit.state(task_id)


async def test_everything_of_a_task_leaves_with_it(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(payload=b"p" * 5_000))
    await kit.settle(await kit.start(task_id), retry_in(0))
    await kit.settle(await kit.start(task_id), DONE)
    assert kit.plain.exists(kit.keys.body(task_id), kit.keys.attempts(task_id)) == 2
    kit.leap(DAY_MS)
    await prune(kit)
    assert [] == [key for key in kit.dump() if task_id in key]


async def test_too_many_leave_oldest_first(kit: Kit):
    made = []
    for _ in range(6):
        made.append(await finish(kit))
        kit.leap(1)
    assert (2, False) == await prune(kit, count_max=4)
    assert [True, True, False, False, False, False] == [kit.record(t) == {} for t in made]


async def test_dead_letters_are_not_pushed_out_by_count(kit: Kit):
    dead = await finish(kit, BROKEN)
    await finish(kit)
    assert (1, False) == await prune(kit, count_max=0)
    assert "FAILED" == kit.state(dead)


async def test_too_many_bytes_leave_oldest_success_first(kit: Kit):
    dead = await finish(kit, BROKEN, payload=b"x" * 2_000)
    kit.leap(5)
    done = []
    for _ in range(3):
        done.append(await finish(kit, payload=b"x" * 1_000))
        kit.leap(1)
    stored = int(kit.plain.hget(kit.keys.counts, "bytes:default"))
    assert 3 * 1_401 + 2_400 < stored < 3 * 1_401 + 2_500

    assert (1, False) == await prune(kit, bytes_max=stored - 1)
    assert {} == kit.record(done[0])
    assert (2, False) == await prune(kit, bytes_max=2_500)
    assert "FAILED" == kit.state(dead)
    assert (1, False) == await prune(kit, bytes_max=0)


async def test_a_call_is_bounded_and_says_that_there_is_more(kit: Kit):
    for _ in range(5):
        await finish(kit)
    kit.leap(DAY_MS)
    assert [(2, True), (2, True), (1, False)] == [await prune(kit, limit=2) for _ in range(3)]


async def test_each_tenant_has_its_own_retention(kit: Kit):
    mine, theirs = await kit.task_in("SUCCESS"), await kit.task_in("SUCCESS", tenant="acme")
    kit.leap(DAY_MS)
    await prune(kit, "acme")
    assert (True, False) == (bool(kit.record(mine)), bool(kit.record(theirs)))


async def test_a_redriven_task_is_not_old(kit: Kit):
    task_id = await kit.task_in("FAILED")
    kit.leap(20 * DAY_MS)
    await kit.store.redrive(0, task_id, "default", None)
    assert (0, False) == await prune(kit)
    await kit.announce(ttl_ms=90 * DAY_MS)
    await kit.settle(await kit.start(task_id), BROKEN)
    assert (0, False) == await prune(kit)


async def test_an_index_entry_that_disagrees_removes_no_task(kit: Kit):
    """Seeded by hand: a task that waits stands among the finished."""
    task_id = await kit.task_in("PENDING")
    kit.plain.zadd(kit.keys.done("default"), {task_id: 1, "0nobody": 1})
    assert (2, False) == await prune(kit)
    assert "PENDING" == kit.state(task_id)
    assert 2 == kit.stats()["stray:finished"]


# ── idempotency ──────────────────────────────────────────────────────────────────────────────────


async def test_a_key_ends_24_hours_after_the_creation_and_not_before(kit: Kit):
    """idempotency-001: 201, 200, 201, though retention took the record long before."""
    await kit.announce(ttl_ms=9 * DAY_MS)
    task_id = await finish(kit, mark="f")
    created_ms = int(kit.record(task_id)["created_ms"])
    kit.leap(HOUR_MS)
    assert (1, False) == await prune(kit, done_ms=HOUR_MS)

    async def again(mark: str) -> str:
        _, words = await kit.store.submit(0, [(task_id, spec(delay_ms=5), mark)])
        return words.get(0, "created")

    kit.store.now_ms = created_ms + 86_399_000
    assert ["gone", "reused"] == [await again("f"), await again("g")]
    kit.store.now_ms = created_ms + 86_401_000
    assert "created" == await again("f")


async def test_an_id_without_a_key_is_remembered_for_an_hour(kit: Kit):
    """So that a retry after a lost reply cannot make a second one of a task that came and went."""
    task_id = await finish(kit)
    kit.leap(1)
    await prune(kit, done_ms=0)
    for passed, expected in ((HOUR_MS - 2, {0: "gone"}), (1, {})):
        kit.leap(passed)
        _, words = await kit.store.submit(0, [(task_id, spec(delay_ms=5), "")])
        assert expected == words


async def test_no_stub_is_left_when_its_time_is_over(kit: Kit):
    await finish(kit, mark="f")
    kit.leap(DAY_MS)
    await prune(kit)
    assert [] == [key for key in kit.dump() if ":stub:" in key]


async def test_a_stub_leaves_by_itself(kit: Kit):
    task_id = await finish(kit, mark="f")
    kit.leap(HOUR_MS)
    await prune(kit, done_ms=0)
    assert 22 * HOUR_MS < kit.plain.pttl(kit.keys.stub(task_id)) <= 23 * HOUR_MS
