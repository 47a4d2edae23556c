"""defer: a run goes on elsewhere under its fence, with a lease of its own, and ends in every way."""

import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    BROKEN,
    DONE,
    LEASE_MS,
    WORKER,
    Kit,
    lost,
    retry_in,
)

from tasksched.model.outcome import Outcome, error_info
from tasksched.model.states import STATES, State
from tasksched.store.protocol import Beat
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio

FIVE_MINUTES_MS = 300_000
UNHEARD = Outcome(kind="TIMED_OUT", retry_ms=1_000, error=error_info("CallbackTimeout", "none"))
UNHEARD_FINALLY = Outcome(
    kind="TIMED_OUT", reason="attempts_exhausted", error=error_info("CallbackTimeout", "none")
)


async def defer(kit: Kit, task_id: str, fence: str = "", lease_ms: int = FIVE_MINUTES_MS) -> str:
    (word,) = await kit.store.defer(0, [(task_id, fence or kit.fence(task_id), lease_ms)])
    return word


async def deferred(kit: Kit, lease_ms: int = FIVE_MINUTES_MS) -> tuple[str, str]:
    """The id and fence of a run that was let go of."""
    task_id = await kit.task_in("RUNNING")
    assert "RUNNING" == await defer(kit, task_id, lease_ms=lease_ms)
    return task_id, kit.fence(task_id)


@pytest.mark.parametrize("state", STATES)
async def test_in_every_state_a_defer_changes_what_runs_and_nothing_else(kit: Kit, state: State):
    task_id = await kit.task_in(state)
    before = kit.dump(without=BOOKKEEPING)
    word = await defer(kit, task_id)
    if state == "RUNNING":
        assert "RUNNING" == word
        assert "1" == kit.record(task_id)["deferred"]
        assert kit.now_ms + FIVE_MINUTES_MS == kit.plain.zscore(kit.keys.watch, task_id)
        return
    # What waits has no fence yet; a cancel before the start leaves none either.
    expected = state if "fence" in kit.record(task_id) else "stale"
    assert expected == word
    assert before == kit.dump(without=BOOKKEEPING)


async def test_the_version_grows_for_it_is_visible(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    version = kit.version(task_id)
    await defer(kit, task_id)
    assert version + 1 == kit.version(task_id)


async def test_said_again_it_changes_nothing(kit: Kit):
    task_id, fence = await deferred(kit)
    kit.leap(1_000)
    await kit.store.heartbeat(0, [Beat(task_id, fence, 2 * FIVE_MINUTES_MS)])
    before = kit.dump(without=BOOKKEEPING)
    words = await kit.store.defer(0, [(task_id, fence, FIVE_MINUTES_MS)] * 2)
    assert ["RUNNING", "RUNNING"] == words
    assert before == kit.dump(without=BOOKKEEPING)


async def test_a_fence_that_is_not_in_force_lets_go_of_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    old = kit.fence(task_id)
    await kit.settle((task_id, old), retry_in(0))
    await kit.start(task_id)
    before = kit.dump(without=BOOKKEEPING)
    for fence in (old, "0", "x"):
        assert "stale" == await defer(kit, task_id, fence)
    assert "stale" == await defer(kit, kit.new_id(), old)
    assert before == kit.dump(without=BOOKKEEPING)


async def test_a_callback_that_was_here_before_keeps_its_longer_lease(kit: Kit):
    """The request is not answered yet, and its target renews for an hour already."""
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    until_ms = kit.now_ms + 3_600_000
    await kit.store.heartbeat(0, [Beat(task_id, fence, 3_600_000)])
    await kit.store.heartbeat(0, [Beat(task_id, fence, LEASE_MS)])  # of the worker
    await defer(kit, task_id)
    await kit.store.heartbeat(0, [Beat(task_id, fence, LEASE_MS)])  # that was under way
    assert until_ms == await Reads(kit.store).lease_until_ms(task_id)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(DONE, "SUCCESS"), (BROKEN, "FAILED"), (retry_in(5), "PENDING")],
)
async def test_it_is_settled_as_any_run(kit: Kit, outcome: Outcome, state: State):
    task_id, fence = await deferred(kit)
    await kit.wait(LEASE_MS + 1)
    assert state == await kit.settle((task_id, fence), outcome)
    assert state == await kit.settle((task_id, fence), outcome)
    assert "conflict" == await kit.settle((task_id, fence), lost())
    assert state == await defer(kit, task_id, fence)
    assert state == kit.state(task_id)
    assert (await Reads(kit.store).task(task_id)).is_deferred is False


async def test_the_next_attempt_is_not_deferred(kit: Kit):
    task_id, fence = await deferred(kit)
    await kit.settle((task_id, fence), retry_in(0))
    second = await kit.start(task_id)
    assert "deferred" not in kit.record(task_id)
    assert "stale" == await defer(kit, task_id, fence)
    assert kit.now_ms + LEASE_MS == kit.plain.zscore(kit.keys.watch, second.id)


async def test_unheard_of_it_has_timed_out_and_lost_no_worker(kit: Kit):
    task_id, fence = await deferred(kit)
    await kit.wait(FIVE_MINUTES_MS - 1)
    assert [] == (await kit.store.overdue(0))[1]
    (word,) = await kit.store.reap(0, [(task_id, fence, UNHEARD)])
    assert "alive" == word
    await kit.wait(1)
    _, (run,) = await kit.store.overdue(0)
    assert (task_id, True, WORKER) == (run.id, run.is_deferred, run.worker)
    for _ in range(2):
        assert ["PENDING"] == await kit.store.reap(0, [(task_id, fence, UNHEARD)])
    assert "lost" not in kit.record(task_id)
    (attempt,) = await Reads(kit.store).attempts(await Reads(kit.store).task(task_id))
    assert ("TIMED_OUT", "CallbackTimeout") == (attempt.outcome, attempt.error.type)


async def test_unheard_of_at_its_last_attempt_it_has_failed(kit: Kit):
    task_id, fence = await deferred(kit)
    await kit.wait(FIVE_MINUTES_MS)
    assert ["FAILED"] == await kit.store.reap(0, [(task_id, fence, UNHEARD_FINALLY)])
    assert "attempts_exhausted" == kit.record(task_id)["reason"]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(DONE, "SUCCESS"), (BROKEN, "CANCELLED"), (retry_in(5), "CANCELLED")],
)
async def test_a_cancel_is_heard_with_the_next_beat(kit: Kit, outcome: Outcome, state: State):
    task_id, fence = await deferred(kit)
    assert "requested" == (await kit.store.cancel(0, task_id, "default", None)).word
    assert ["cancel"] == await kit.store.heartbeat(0, [Beat(task_id, fence, LEASE_MS)])
    assert state == await kit.settle((task_id, fence), outcome)


async def test_a_cancelled_run_that_is_not_heard_of_is_cancelled(kit: Kit):
    task_id, fence = await deferred(kit)
    await kit.store.cancel(0, task_id, "default", None)
    await kit.wait(FIVE_MINUTES_MS)
    assert ["CANCELLED"] == await kit.store.reap(0, [(task_id, fence, UNHEARD)])
    assert "CANCELLED" == kit.state(task_id)


async def test_an_outage_holds_its_lease_too(kit: Kit):
    task_id, fence = await deferred(kit, lease_ms=LEASE_MS)
    kit.leap(LEASE_MS + 1)
    _, overdue = await kit.store.overdue(0)
    words = await kit.store.reap(0, [(run.id, run.fence, UNHEARD) for run in overdue])
    assert ["alive"] == words
    assert "RUNNING" == kit.state(task_id)
    assert ["ok"] == await kit.store.heartbeat(0, [Beat(task_id, fence, LEASE_MS)])
