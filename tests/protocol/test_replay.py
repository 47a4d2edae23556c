"""Sent twice is done once: every call may be repeated after a lost reply, and answers the same."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    BROKEN,
    DONE,
    LEASE_MS,
    STOPPED,
    WORKER,
    Kit,
    lost,
    retry_in,
    spec,
)

from tasksched.model.states import STATES, State
from tasksched.store.protocol import Beat, Edit, Release

pytestmark = pytest.mark.anyio

Call = Callable[[Kit, str], Awaitable[Any]]


def run_of(kit: Kit, task_id: str) -> tuple[str, str]:
    return task_id, kit.fence(task_id)


def calls() -> dict[str, Call]:
    """Mutating calls whose reply tells the caller what became of the task."""
    store = {
        "cancel": lambda k, t: k.store.cancel(0, t, "default", None, op="o"),
        "cancel if": lambda k, t: k.store.cancel(0, t, "default", k.version(t), op="o"),
        "edit": lambda k, t: k.store.edit(0, t, "default", None, Edit(due="+50"), op="o"),
        "run_now": lambda k, t: k.store.run_now(0, t, "default", None, op="o"),
        "redrive": lambda k, t: k.store.redrive(0, t, "default", None, Edit(due="+50"), op="o"),
        "release": lambda k, t: k.store.release(0, [run_of(k, t)]),
        "heartbeat": lambda k, t: k.store.heartbeat(0, [Beat(*run_of(k, t), LEASE_MS)]),
        "progress": lambda k, t: k.store.heartbeat(0, [Beat(*run_of(k, t), LEASE_MS, None, "{}")]),
        "reap": lambda k, t: k.store.reap(0, [(*run_of(k, t), lost(50))]),
        "bury": lambda k, t: k.store.reap(0, [(*run_of(k, t), lost())]),
        "announce": lambda k, t: k.announce(),
        "postpone": lambda k, t: k.store.release(0, [Release(*run_of(k, t), 50, "host_busy")]),
        "defer": lambda k, t: k.store.defer(0, [(*run_of(k, t), LEASE_MS)]),
        "lines": lambda k, t: k.store.lines(0, [(*run_of(k, t), 1, "said")]),
        "checkpoint": lambda k, t: k.store.checkpoint(0, *run_of(k, t), b"kept"),
        "settle lost": lambda k, t: k.settle(run_of(k, t), lost(50)),
    }
    for name, outcome in (
        ("done", DONE), ("fail", BROKEN), ("retry", retry_in(50)), ("stop", STOPPED),
    ):  # fmt: skip
        store[f"settle {name}"] = lambda k, t, o=outcome: k.settle(run_of(k, t), o)
    return store


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", calls())
async def test_the_same_call_again_changes_nothing_and_answers_the_same(
    kit: Kit, name: str, state: State
):
    task_id = await kit.task_in(state)
    if name in {"reap", "bury"}:
        await kit.wait(LEASE_MS)
    call = calls()[name]
    first = await call(kit, task_id)
    after = kit.dump(without=BOOKKEEPING)

    assert first == await call(kit, task_id)
    assert first == await call(kit, task_id)

    assert after == kit.dump(without=BOOKKEEPING)


async def test_the_same_rows_again_make_no_second_task(kit: Kit):
    await kit.announce()
    rows = [
        (kit.new_id(), spec(payload=b"x" * size, delay_ms=delay_ms), mark)
        for size in (1, 3_000)
        for delay_ms in (0, 5_000)
        for mark in ("", "f")
    ]
    assert {} == (await kit.store.submit(0, rows))[1]
    after = kit.dump(without=BOOKKEEPING)
    kit.leap(3)
    assert dict.fromkeys(range(8), "exists") == (await kit.store.submit(0, rows))[1]
    assert after == kit.dump(without=BOOKKEEPING)


async def test_rows_of_which_some_were_made_before(kit: Kit):
    """A batch whose first try broke off and was cut differently."""
    old, new = kit.new_id(), kit.new_id()
    await kit.submit(task_id=old)
    _, words = await kit.store.submit(0, [(new, spec(), ""), (old, spec(), "")])
    assert {1: "exists"} == words


async def test_a_lost_reply_is_replayed_by_the_gateway_itself(kit: Kit):
    """The server executed it, the connection broke: the caller sees one answer."""
    task_id = await kit.task_in("RUNNING")
    gateway = kit.store.gateway
    evaluate, failed = gateway._evaluate, []

    async def lossy(*args: Any) -> Any:
        reply = await evaluate(*args)
        if not failed:
            failed.append(reply)
            raise ConnectionError("the reply was lost")
        return reply

    from redis.exceptions import ConnectionError  # noqa: PLC0415, A004 - the library's own

    gateway._evaluate = lossy
    assert "SUCCESS" == await kit.settle((task_id, kit.fence(task_id)), DONE)
    assert [[b"SUCCESS"]] == failed
    assert 1 == gateway.replays


async def test_dispatch_again_moves_nothing_twice(kit: Kit):
    await kit.announce()
    await kit.submit_many(5, spec(delay_ms=1))
    kit.leap(1)
    await kit.dispatch()
    after = kit.dump(without=BOOKKEEPING)
    assert 0 == (await kit.dispatch()).moved
    assert after == kit.dump(without=BOOKKEEPING)


async def test_reclaim_and_sweep_again_change_nothing(kit: Kit):
    task_id = await kit.task_in("QUEUED")
    kit.plain.xdel(kit.keys.ready("default:normal:charge"), kit.record(task_id)["entry"])
    await kit.wait(LEASE_MS)
    assert ["PENDING"] == await kit.store.reclaim(0, [task_id])
    after = kit.dump(without=BOOKKEEPING)
    assert ["stray"] == await kit.store.reclaim(0, [task_id])  # it is not watched any more
    assert after == kit.dump(without=BOOKKEEPING)


async def test_a_take_again_is_the_same_take(kit: Kit):
    await kit.announce()
    await kit.submit_many(3, spec(payload=b"x" * 2_000))
    first = await kit.take_call(1, 2)
    after = kit.dump(without=["clock"])
    assert first == await kit.take_call(1, 2)
    assert first == await kit.take_call(1, 100, WORKER)
    assert after == kit.dump(without=["clock"])
