"""A cancel against everything that may happen to a task at the same time, in both orders.

Scripts run one after another, so two orders are all there is. What must hold: before a start a cancel
is final; while a run goes on it is a request, and the run ends CANCELLED unless it succeeds; after an
acknowledged cancel nothing starts; a finished task is left alone.
"""

from collections.abc import Awaitable, Callable

import pytest
from tests.protocol.kit import BROKEN, DONE, LEASE_MS, STOPPED, Kit, lost, retry_in

from tasksched.commands.callbacks import CallbackRef, Callbacks
from tasksched.model.callback import FailureReport, callback_token
from tasksched.model.outcome import Outcome, error_info
from tasksched.store.protocol import Beat, Release

pytestmark = pytest.mark.anyio

Event = Callable[[Kit, str, str], Awaitable[str]]
UNHEARD = Outcome(kind="TIMED_OUT", retry_ms=1_000, error=error_info("CallbackTimeout", "none"))


async def cancel(kit: Kit, task_id: str) -> tuple[str, str]:
    changed = await kit.store.cancel(0, task_id, "default", None)
    return changed.word, changed.state


def settled(outcome: Outcome) -> Event:
    return lambda kit, task_id, fence: kit.settle((task_id, fence), outcome)


def released(wait_ms: int | None = None) -> Event:
    async def event(kit: Kit, task_id: str, fence: str) -> str:
        why = "" if wait_ms is None else "host_busy"
        (word,) = await kit.store.release(0, [Release(task_id, fence, wait_ms, why)])
        return word

    return event


def reaped(outcome: Outcome) -> Event:
    async def event(kit: Kit, task_id: str, fence: str) -> str:
        await kit.wait(LEASE_MS)
        (word,) = await kit.store.reap(0, [(task_id, fence, outcome)])
        return word

    return event


async def unheard(kit: Kit, task_id: str, fence: str) -> str:
    await kit.store.defer(0, [(task_id, fence, 1_000)])
    return await reaped(UNHEARD)(kit, task_id, fence)


def reported(verb: str) -> Event:
    async def event(kit: Kit, task_id: str, fence: str) -> str:
        await kit.store.defer(0, [(task_id, fence, LEASE_MS)])
        kit.store.secret = b"secret"
        callbacks = Callbacks(kit.store)
        ref = CallbackRef(task_id, fence, callback_token(b"secret", task_id, fence))
        if verb == "complete":
            return await callbacks.complete(ref, b"\xc0")
        return await callbacks.fail(ref, FailureReport(message="no", retryable=verb == "again"))

    return event


# What ends a run, the state it leads to, and the state where a cancel came before.
ENDS: dict[str, tuple[Event, str, str]] = {
    "success": (settled(DONE), "SUCCESS", "SUCCESS"),
    "final failure": (settled(BROKEN), "FAILED", "CANCELLED"),
    "failure to retry": (settled(retry_in(1_000)), "PENDING", "CANCELLED"),
    "stopped": (settled(STOPPED), "CANCELLED", "CANCELLED"),
    "lost, by its owner": (settled(lost(1_000)), "PENDING", "CANCELLED"),
    "release": (released(), "PENDING", "CANCELLED"),
    "postponed": (released(5_000), "PENDING", "CANCELLED"),
    "reap": (reaped(lost(1_000)), "PENDING", "CANCELLED"),
    "reap at the limit": (reaped(lost()), "FAILED", "CANCELLED"),
    "no callback": (unheard, "PENDING", "CANCELLED"),
    "callback: complete": (reported("complete"), "SUCCESS", "SUCCESS"),
    "callback: fail": (reported("fail"), "FAILED", "CANCELLED"),
    "callback: fail, again": (reported("again"), "PENDING", "CANCELLED"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_cancel_before_the_end_of_a_run(kit: Kit, name: str):
    end, _, expected = ENDS[name]
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    assert ("requested", "RUNNING") == await cancel(kit, task_id)
    assert ["cancel"] == await kit.store.heartbeat(0, [Beat(task_id, fence, LEASE_MS)])
    assert expected == await end(kit, task_id, fence)
    assert (expected, "1") == (kit.state(task_id), kit.record(task_id)["cancel_requested"])
    await nothing_starts(kit)


@pytest.mark.parametrize("name", ENDS)
async def test_a_cancel_after_the_end_of_a_run(kit: Kit, name: str):
    end, state, _ = ENDS[name]
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    assert state == await end(kit, task_id, fence)
    expected = {
        "SUCCESS": ("finished", "SUCCESS"),
        "FAILED": ("finished", "FAILED"),
        "CANCELLED": ("cancelled", "CANCELLED"),
        "PENDING": ("cancelled", "CANCELLED"),
    }[state]
    assert expected == await cancel(kit, task_id)
    await nothing_starts(kit)


async def nothing_starts(kit: Kit) -> None:
    """However long one waits."""
    await kit.wait(4 * LEASE_MS)
    await kit.announce()
    await kit.dispatch()
    assert [] == await kit.take()


# -- the start ------------------------------------------------------------------------------------


async def test_a_cancel_before_the_start_is_final_also_for_what_is_dispatched(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    assert ("cancelled", "CANCELLED") == await cancel(kit, task_id)
    assert [] == await kit.take()
    assert "attempt" not in kit.record(task_id)
    await nothing_starts(kit)


async def test_a_cancel_after_the_start_is_a_request(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    (grant,) = await kit.take()
    assert ("requested", "RUNNING") == await cancel(kit, task_id)
    assert "CANCELLED" == await kit.settle(grant, STOPPED)
    await nothing_starts(kit)


async def test_a_cancel_before_a_start_whose_reply_was_lost_is_none(kit: Kit):
    """The same call again tells of the run that began; the cancel between the two is a request."""
    task_id = await kit.task_in("QUEUED")
    (first,) = await kit.take_call(7)
    assert ("requested", "RUNNING") == await cancel(kit, task_id)
    (again,) = await kit.take_call(7)
    assert (first.id, first.fence) == (again.id, again.fence)
    assert ["cancel"] == await kit.store.heartbeat(0, [Beat(again.id, again.fence, LEASE_MS)])
    assert "CANCELLED" == await kit.settle(again, STOPPED)


async def test_a_cancel_while_it_waits_for_its_next_attempt_is_final(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await kit.settle((task_id, kit.fence(task_id)), retry_in(1_000))
    assert ("cancelled", "CANCELLED") == await cancel(kit, task_id)
    await nothing_starts(kit)


# -- letting go -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_cancel_and_a_defer_in_either_order_leave_a_run_that_is_asked_to_stop(
    kit: Kit, is_first: bool
):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    if is_first:
        assert ("requested", "RUNNING") == await cancel(kit, task_id)
    assert ["RUNNING"] == await kit.store.defer(0, [(task_id, fence, 60_000)])
    if not is_first:
        assert ("requested", "RUNNING") == await cancel(kit, task_id)
    record = kit.record(task_id)
    assert ("RUNNING", "1", "1") == (
        record["state"], record["deferred"], record["cancel_requested"],
    )  # fmt: skip
    assert ["cancel"] == await kit.store.heartbeat(0, [Beat(task_id, fence, LEASE_MS)])
    await kit.wait(60_001)
    (word,) = await kit.store.reap(0, [(task_id, fence, UNHEARD)])
    assert "CANCELLED" == word
    await nothing_starts(kit)


async def test_a_defer_after_the_end_revives_nothing(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    fence = kit.fence(task_id)
    await cancel(kit, task_id)
    await kit.settle((task_id, fence), STOPPED)
    assert ["CANCELLED"] == await kit.store.defer(0, [(task_id, fence, 60_000)])
    assert None is kit.plain.zscore(kit.keys.watch, task_id)
    await nothing_starts(kit)


async def test_cancelled_twice_it_is_asked_once(kit: Kit):
    task_id = await kit.task_in("RUNNING")
    await cancel(kit, task_id)
    version = kit.version(task_id)
    assert ("requested", "RUNNING") == await cancel(kit, task_id)
    assert version == kit.version(task_id)
