"""Operations where a batch ends with its phase, is taken over, or is done only by half."""

import itertools
from typing import Any

import pytest
from tests.protocol.kit import HOUR_MS, Kit, spec
from tests.protocol.test_operations import (
    MEMORY,
    begun,
    dead_letters,
    die_before_saying_so,
    finish,
    request,
    states,
    take_up,
)

from tasksched.commands import walk
from tasksched.commands.operations import Operations
from tasksched.commands.operator import LEASE_MS, Job, Operator
from tasksched.commands.tasks import Changes
from tasksched.errors import TaskschedError, Unavailable
from tasksched.model.filters import Filter
from tasksched.model.operation import Operation
from tasksched.store.protocol import Edit
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio


async def read(kit: Kit, operation: Operation) -> Operation:
    return await Operations(kit.store, MEMORY).get("default", operation.id)


async def ended(kit: Kit, **asked: Any) -> Operation:
    """However many steps that takes."""
    operation = await Operations(kit.store, MEMORY).start(request(**asked))
    if operation.state == "RUNNING":
        await finish(kit, await take_up(kit))
    return await read(kit, operation)


def fails_after(whole: Any, count: int, error: Exception) -> Any:
    """A verb of the store that does so many calls and no more."""
    calls = itertools.count()

    async def half(*args: Any, **more: Any) -> Any:
        if next(calls) >= count:
            raise error
        return await whole(*args, **more)

    return half


async def stopped_by_half(kit: Kit, job: Job) -> None:
    """37 of a batch of redrives are done when Redis goes."""
    whole = kit.store.redrive
    kit.store.redrive = fails_after(whole, 37, Unavailable("gone"))  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await job.step()
    kit.store.redrive = whole  # type: ignore[method-assign]


# ── a batch that is full where its phase ends ────────────────────────────────────────────────────


@pytest.mark.parametrize(("waiting", "rate"), [(99, 1_000), (100, 1_000), (200, 1_000), (3, 1)])
async def test_after_a_full_batch_what_runs_is_cancelled_too(valkey: Kit, waiting: int, rate: int):
    running = [await valkey.task_in("RUNNING") for _ in range(3)]
    made = await valkey.submit_many(waiting, spec(delay_ms=HOUR_MS))
    operation = await ended(valkey, kind="cancel", rate=rate)
    assert ("DONE", waiting + 3, 0) == (operation.state, operation.done, operation.skipped)
    assert {"CANCELLED": waiting} == states(valkey, made)
    assert {"1"} == {valkey.record(task_id).get("cancel_requested") for task_id in running}


@pytest.mark.parametrize(
    ("kind", "later"),
    [("edit", ["QUEUED"]), ("delete", ["SUCCESS", "FAILED", "QUEUED"]), ("delete", ["CANCELLED"])],
)
async def test_after_a_full_batch_the_later_states_are_reached(
    valkey: Kit, kind: str, later: list[Any]
):
    others = [await valkey.task_in(state) for state in later]
    made = await valkey.submit_many(100, spec(delay_ms=HOUR_MS))
    changes = Changes(queue="bulk") if kind == "edit" else None
    operation = await ended(valkey, kind=kind, changes=changes)
    assert ("DONE", 100 + len(later), 0) == (operation.state, operation.done, operation.skipped)
    after = {"PENDING": 100 + len(later)} if kind == "edit" else {"gone": 100 + len(later)}
    assert after == states(valkey, made + others)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 500])
@pytest.mark.parametrize("examined", [1, 2, 3, 4, 500])
async def test_a_walk_in_whatever_portions_meets_each_task_once(
    valkey: Kit, monkeypatch: pytest.MonkeyPatch, limit: int, examined: int
):
    monkeypatch.setattr(walk, "EXAMINED_MAX", examined)
    made = await valkey.submit_many(4, spec(delay_ms=HOUR_MS))
    made += [await valkey.task_in(state) for state in ("FAILED", "SUCCESS", "QUEUED")]
    phases = walk.PHASES["delete"]
    plan = walk.Plan(tenant="default", filter=Filter(), phases=phases)
    met, cursor = [], None
    for _ in range(4 * len(made)):
        found = await walk.next_batch(Reads(valkey.store), plan, cursor, limit)
        assert len(found.tasks) <= min(limit, examined)
        met += [task.id for task in found.tasks]
        cursor = found.cursor
        if cursor is None:
            break
    assert (None, sorted(made)) == (cursor, sorted(met))


# ── a batch that is taken over ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_orderly", [True, False])
async def test_what_lives_again_when_a_delete_is_taken_over_is_left(valkey: Kit, is_orderly: bool):
    made = await dead_letters(valkey, 5)
    await begun(valkey, request("delete", Filter(status=("FAILED",)), rate=1))
    job = await take_up(valkey)
    await job.step()
    ((planned, _),) = job.operation.batch
    if is_orderly:
        await job.release()
    else:
        valkey.leap(LEASE_MS)
    await valkey.store.redrive(0, planned, "default", None)
    job = await take_up(valkey)
    await finish(valkey, job)
    assert ("DONE", 4, 1) == (job.operation.state, job.operation.done, job.operation.skipped)
    assert ("PENDING", {"PENDING": 1, "gone": 4}) == (valkey.state(planned), states(valkey, made))


@pytest.mark.parametrize("kind", ["cancel", "edit"])
async def test_what_is_in_another_queue_when_it_is_taken_over_is_left(valkey: Kit, kind: str):
    await valkey.submit_many(5, spec(queue="a", delay_ms=HOUR_MS))
    changes = Changes(tags=("x",)) if kind == "edit" else None
    await begun(valkey, request(kind, Filter(queue="a"), rate=1, changes=changes))
    job = await take_up(valkey)
    await job.step()
    ((planned, _),) = job.operation.batch
    await job.release()
    lane = valkey.record(planned)["lane"].replace("a:", "b:", 1)
    await valkey.store.edit(0, planned, "default", None, Edit(lane=lane))
    before = valkey.record(planned)
    job = await take_up(valkey)
    await finish(valkey, job)
    assert (4, 1, before) == (job.operation.done, job.operation.skipped, valkey.record(planned))


@pytest.mark.parametrize(
    ("kind", "asked", "after"),
    [
        ("cancel", Filter(status=("PENDING",)), "CANCELLED"),
        ("edit", Filter(queue="a"), "PENDING"),
        ("delete", Filter(status=("PENDING",)), "gone"),
    ],
)
async def test_what_the_operation_moved_out_of_its_filter_is_counted_after_a_crash(
    valkey: Kit, kind: str, asked: Filter, after: str
):
    """Half of the batch; of a delete, each of that half is cancelled and not yet removed."""
    made = await valkey.submit_many(250, spec(queue="a", delay_ms=HOUR_MS))
    changes = Changes(queue="b") if kind == "edit" else None
    await begun(valkey, request(kind, asked, changes=changes))
    job = await take_up(valkey)
    await job.step()
    name = {"delete": "purge"}.get(kind, kind)
    whole = getattr(valkey.store, name)
    half = fails_after(whole, 37, Unavailable("gone"))
    setattr(valkey.store, name, half)
    with pytest.raises(Unavailable):
        await job.step()
    setattr(valkey.store, name, whole)
    valkey.leap(LEASE_MS)
    job = await take_up(valkey)
    await finish(valkey, job)
    assert ("DONE", 250, 0) == (job.operation.state, job.operation.done, job.operation.skipped)
    assert {after: 250} == states(valkey, made)


async def test_edited_tasks_that_are_met_again_are_not_counted_again_after_a_crash(valkey: Kit):
    made = await valkey.submit_many(250, spec(delay_ms=HOUR_MS))
    await begun(valkey, request("edit", changes=Changes(delay_ms=3 * HOUR_MS)))
    job = await take_up(valkey)
    while not {task_id for task_id, _ in job.operation.batch} & edited(valkey, made):
        valkey.leap(int(await job.step()) + 1)
    await die_before_saying_so(valkey, job)
    valkey.leap(LEASE_MS)
    job = await take_up(valkey)
    await finish(valkey, job)
    assert ("DONE", 250, 0) == (job.operation.state, job.operation.done, job.operation.skipped)
    assert {2} == {valkey.version(task_id) for task_id in made}


def edited(kit: Kit, task_ids: list[str]) -> set[str]:
    return {task_id for task_id in task_ids if kit.version(task_id) == 2}


# ── a batch that is done by half ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ends", ["sleeps", "leaves"])
async def test_a_stop_after_half_a_batch_counts_that_half(valkey: Kit, ends: str):
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()
    await stopped_by_half(valkey, job)
    await Operations(valkey.store, MEMORY).stop("default", operation.id)
    if ends == "leaves":
        await job.release()
    else:
        valkey.leap(LEASE_MS)
        assert None is await job.step()
    told = await read(valkey, operation)
    assert {"FAILED": 213, "PENDING": 37} == states(valkey, made)
    assert ("STOPPED", 37, 0) == (told.state, told.done, told.skipped)


async def test_a_failure_after_half_a_batch_counts_that_half(valkey: Kit):
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()
    whole = valkey.store.redrive
    valkey.store.redrive = fails_after(whole, 37, TaskschedError("a fault"))  # type: ignore[method-assign]
    await job.run()
    told = await read(valkey, operation)
    assert {"FAILED": 213, "PENDING": 37} == states(valkey, made)
    assert ("FAILED", 37, 0) == (told.state, told.done, told.skipped)


async def test_a_failure_after_half_a_purge_counts_that_half(valkey: Kit):
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request("purge", rate=2_000))
    job = await take_up(valkey)
    await job.step()
    whole = valkey.store.purge
    valkey.store.purge = fails_after(whole, 1, TaskschedError("a fault"))  # type: ignore[method-assign]
    await job.run()
    told = await read(valkey, operation)
    gone = states(valkey, made)["gone"]
    assert (True, "FAILED", gone) == (0 < gone < 200, told.state, told.done)


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_write_whose_answer_was_lost_is_not_counted_twice(valkey: Kit, is_stopped: bool):
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()
    whole = job._records.put

    async def lost(*args: Any, **more: Any) -> None:
        await whole(*args, **more)
        raise Unavailable("gone")

    job._records.put = lost  # type: ignore[assignment, method-assign]
    valkey.leap(100)
    with pytest.raises(Unavailable):
        await job.step()
    job._records.put = whole  # type: ignore[method-assign]
    job._again = True
    if is_stopped:
        await Operations(valkey.store, MEMORY).stop("default", operation.id)
    valkey.leap(100)
    assert None is await job.step()
    if not is_stopped:
        valkey.leap(LEASE_MS)
        await finish(valkey, await take_up(valkey))
    told = await read(valkey, operation)
    assert (states(valkey, made)["PENDING"], 0) == (told.done, told.skipped)
    assert (100 if is_stopped else 250) == told.done
    assert [] == await Operator(valkey.store, MEMORY).look()
