"""settle: one verdict per life, by the fence in force; repeated it changes nothing."""

import json

import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    BROKEN,
    DONE,
    HOUR_MS,
    LEASE_MS,
    STOPPED,
    Kit,
    lost,
    retry_in,
    spec,
)

from tasksched.model.outcome import Outcome, error_info

pytestmark = pytest.mark.anyio


async def test_a_success_is_recorded_with_its_result(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    kit.leap(5)
    assert "SUCCESS" == await kit.settle((task_id, kit.fence(task_id)), DONE)

    record = kit.record(task_id)
    assert ("SUCCESS", "SUCCEEDED", "\x01") == (
        record["state"],
        record["outcome"],
        record["result"],
    )
    assert {record["ended_ms"], record["finished_ms"]} == {str(kit.now_ms)}
    assert kit.now_ms == kit.plain.zscore(kit.keys.done("default"), task_id)


async def test_a_failure_with_a_retry_waits_until_then(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    assert "PENDING" == await kit.settle((task_id, kit.fence(task_id)), retry_in(7_000))

    record = kit.record(task_id)
    assert str(kit.now_ms + 7_000) == record["due_ms"]
    assert "OSError" == json.loads(record["error"])["type"]
    assert not {"finished_ms", "reason"} & record.keys()


@pytest.mark.parametrize("reason", ["attempts_exhausted", "not_retryable", "result_too_large"])
async def test_a_final_failure_is_a_dead_letter_with_its_reason(kit: Kit, reason: str):
    task_id = await kit.task_in("RUNNING")
    outcome = Outcome(kind="FAILED", reason=reason, error=error_info("E", "m"))
    assert "FAILED" == await kit.settle((task_id, kit.fence(task_id)), outcome)
    assert reason == kit.record(task_id)["reason"]
    assert kit.now_ms == kit.plain.zscore(kit.keys.dead("default"), task_id)


@pytest.mark.parametrize("outcome", [BROKEN, retry_in(5), STOPPED, Outcome(kind="TIMED_OUT")])
async def test_after_a_request_to_cancel_every_end_but_success_is_cancelled(kit: Kit, outcome):
    task_id = await kit.task_in("RUNNING")
    await kit.store.cancel(0, task_id, "default", None)
    run = (task_id, kit.fence(task_id))
    assert "CANCELLED" == await kit.settle(run, outcome)
    assert "CANCELLED" == kit.record(task_id)["outcome"]
    assert "CANCELLED" == await kit.settle(run, outcome)  # as it was reported the first time
    assert "conflict" == await kit.settle(run, DONE)


async def test_a_success_that_arrives_after_the_request_is_the_truth(kit: Kit):
    """cancel-race-003: the work did happen."""
    task_id = await kit.task_in("RUNNING")
    await kit.store.cancel(0, task_id, "default", None)
    assert "SUCCESS" == await kit.settle((task_id, kit.fence(task_id)), DONE)
    assert "1" == kit.record(task_id)["cancel_requested"]


# ── the same again ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(DONE, "SUCCESS"), (BROKEN, "FAILED"), (retry_in(9), "PENDING"), (STOPPED, "CANCELLED")],
)
async def test_the_same_outcome_again_is_answered_as_the_first_time(kit: Kit, outcome, state: str):
    """double-completion-001: the reply was lost and the worker sends it again."""
    task_id = await kit.task_in("RUNNING")
    run = (task_id, kit.fence(task_id))
    assert state == await kit.settle(run, outcome)
    after = kit.dump(without=BOOKKEEPING)
    for passed in (0, 500, HOUR_MS):
        kit.leap(passed)
        assert state == await kit.settle(run, outcome)
    assert after == kit.dump(without=BOOKKEEPING)


@pytest.mark.parametrize("first", [DONE, BROKEN, retry_in(9), STOPPED])
@pytest.mark.parametrize("second", [DONE, BROKEN, STOPPED, Outcome(kind="TIMED_OUT")])
async def test_another_outcome_of_the_same_fence_is_a_conflict(kit: Kit, first, second):
    """double-completion-002: success and then failure, by one worker."""
    if first.kind == second.kind:
        return
    task_id = await kit.task_in("RUNNING")
    run = (task_id, kit.fence(task_id))
    await kit.settle(run, first)
    after = kit.dump(without=BOOKKEEPING)
    cancelled = first is STOPPED and second is not DONE  # may be what it was recorded from
    assert ("CANCELLED" if cancelled else "conflict") == await kit.settle(run, second)
    assert after == kit.dump(without=BOOKKEEPING)


async def test_both_outcomes_in_one_call_are_told_apart(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    rows = [(task_id, fence, DONE), (task_id, fence, BROKEN), (task_id, fence, DONE)]
    rows += [(task_id, str(int(fence) - 1), DONE)]
    assert ["SUCCESS", "conflict", "SUCCESS", "stale"] == await kit.store.settle(0, rows)


# ── fencing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fence", ["", "0", "-1", "x", "1e15", "+1"])
async def test_what_is_not_the_fence_in_force_is_stale(kit: Kit, fence: str):
    task_id = await kit.task_in("RUNNING")
    before = kit.dump(without=BOOKKEEPING)
    assert "stale" == await kit.settle((task_id, fence), DONE)
    assert "stale" == await kit.settle((task_id, kit.fence(task_id) + " "), DONE)
    assert "stale" == await kit.settle((kit.new_id(), kit.fence(task_id)), DONE)
    assert before == kit.dump(without=BOOKKEEPING)


async def test_a_worker_that_was_thought_dead_cannot_report_any_more(kit: Kit):
    """lease-008: A blocks 45 s with a lease of 30; B takes over; A reports late; B's result counts."""
    task_id = await kit.task_in("RUNNING")
    one = kit.fence(task_id)
    await kit.wait(31_000)
    assert "PENDING" == (await kit.store.reap(0, [(task_id, one, lost(0))]))[0]
    assert "stale" == await kit.settle((task_id, one), DONE)  # also before anybody took it

    two = await kit.start(task_id)
    for outcome in (DONE, BROKEN, retry_in(1), STOPPED):
        assert "stale" == await kit.settle((task_id, one), outcome)
    assert "stale" == (await kit.store.release(0, [(task_id, one)]))[0]
    assert "RUNNING" == kit.state(task_id)
    theirs = Outcome(kind="SUCCEEDED", result=b"B")
    assert "SUCCESS" == await kit.settle(two, theirs)

    assert "stale" == await kit.settle((task_id, one), Outcome(kind="SUCCEEDED", result=b"A"))
    record = kit.record(task_id)
    assert ("B", "2") == (record["result"], record["attempt"])


async def test_after_the_reaper_a_verdict_is_stale_also_where_it_was_the_end(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    await kit.wait(LEASE_MS)
    assert ["FAILED"] == await kit.store.reap(0, [(task_id, fence, lost())])
    for outcome in (DONE, BROKEN):
        assert "stale" == await kit.settle((task_id, fence), outcome)
    assert "worker_lost" == kit.record(task_id)["reason"]


async def test_a_verdict_in_time_counts_though_the_lease_is_over(kit: Kit):
    """Nobody reaped it yet: the run is still the only one."""
    task_id = await kit.task_in("RUNNING")
    await kit.wait(10 * LEASE_MS)
    assert "SUCCESS" == await kit.settle((task_id, kit.fence(task_id)), DONE)
    assert [] == (await kit.store.overdue(0))[1]


# ── batches and sizes ────────────────────────────────────────────────────────────────────────────


async def test_a_batch_is_answered_row_by_row(kit: Kit):
    await kit.announce()
    await kit.submit_many(64)
    grants = await kit.take()
    kinds = [DONE, BROKEN, retry_in(5), STOPPED] * 16
    rows = [(g.id, g.fence, kind) for g, kind in zip(grants, kinds, strict=True)]
    words = ["SUCCESS", "FAILED", "PENDING", "CANCELLED"] * 16
    assert words == await kit.store.settle(0, rows)
    assert words == await kit.store.settle(0, rows)


@pytest.mark.parametrize("size", [0, 1, 1024, 65_536])
async def test_results_of_every_size_are_kept(kit: Kit, size: int):
    task_id = await kit.task_in("RUNNING")
    result = b"\xff" * size
    await kit.settle((task_id, kit.fence(task_id)), Outcome(kind="SUCCEEDED", result=result))
    assert (result or None) == kit.plain.hget(kit.keys.task(task_id), "result")


async def test_the_result_of_a_failure_is_not_kept(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    outcome = Outcome(kind="FAILED", reason="not_retryable", result=b"x")
    await kit.settle((task_id, kit.fence(task_id)), outcome)
    assert "result" not in kit.record(task_id)


async def test_lost_workers_are_counted_in_a_row_only(kit: Kit):
    """Poison is what loses its worker again and again; any other end breaks the row."""
    await kit.announce()
    task_id = await kit.submit()
    for expected in ("1", "2"):
        grant = await kit.start(task_id)
        await kit.wait(LEASE_MS)
        await kit.reap(grant, lost(0))
        assert expected == kit.record(task_id)["lost"]
    grant = await kit.start(task_id)
    assert 2 == grant.lost
    await kit.settle(grant, retry_in(0))
    assert "0" == kit.record(task_id)["lost"]


async def test_those_who_wait_for_a_result_are_told(valkey: Kit):
    listener = valkey.plain.pubsub()
    listener.ssubscribe(valkey.keys.finished)
    listener.get_sharded_message(timeout=1)
    task_id = await valkey.task_in("SUCCESS")
    assert f"{task_id}:SUCCESS".encode() == listener.get_sharded_message(timeout=1)["data"]
    listener.close()


async def test_a_retry_frees_the_worker_and_its_entry(kit: Kit):
    task_id = await kit.task_in("RUNNING", queue="q")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(5))
    assert 0 == kit.plain.xlen(kit.keys.ready("q:normal:charge"))
    assert 0 == kit.plain.xpending(kit.keys.ready("q:normal:charge"), "workers")["pending"]
    assert spec().retry.max_attempts == 5


async def test_a_run_whose_own_process_died_is_lost_by_its_owners_word(kit: Kit):
    """The worker lives, its process for single runs does not: nobody waits for the lease."""
    task_id = await kit.task_in("RUNNING")
    run = (task_id, kit.fence(task_id))
    for _ in range(2):
        assert "PENDING" == await kit.settle(run, lost(0))
    assert "1" == kit.record(task_id)["lost"]
    assert "stale" == await kit.settle(run, DONE)
    assert 1 == (await kit.start(task_id)).lost
    run = (task_id, kit.fence(task_id))
    for _ in range(2):
        assert "FAILED" == await kit.settle(run, lost())
    assert ("worker_lost", "2") == (kit.record(task_id)["reason"], kit.record(task_id)["lost"])
