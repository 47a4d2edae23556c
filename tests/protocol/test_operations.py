"""Operations: one verb for many tasks, in batches that a crash neither loses nor doubles.

The operator is driven step by step on the kit's clock; a crash is an operator that is asked no more.
The audit after each test recounts everything that the operations moved.
"""

import itertools
from typing import Any

import pytest
from tests.protocol.kit import BROKEN, DAY_MS, DONE, HOUR_MS, Kit, open_kit, spec
from tests.servers import ServerProcess

from tasksched.commands.operations import OF_TENANT_MAX, SMALL_MAX, Operations, Request
from tasksched.commands.operator import KEPT_MS, LEASE_MS, Job, Operator
from tasksched.commands.operator import OF_TENANT_MAX as JOBS_OF_TENANT
from tasksched.commands.removal import Memory
from tasksched.commands.tasks import Changes
from tasksched.errors import (
    Conflict,
    Invalid,
    NotFound,
    TaskschedError,
    TooManyRequests,
    Unavailable,
)
from tasksched.model.filters import Filter
from tasksched.model.ids import shard_of
from tasksched.model.operation import Count, Operation
from tasksched.model.outcome import Outcome
from tasksched.model.states import State
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio

MEMORY = Memory(DAY_MS, HOUR_MS)
EVERYTHING = Filter()


def request(kind: Any = "redrive", asked: Filter = EVERYTHING, **more: Any) -> Request:
    return Request(**{"kind": kind, "tenant": "default", "filter": asked, **more})


async def run_all(kit: Kit, outcome: Outcome = BROKEN) -> int:
    """Everything that is due runs and ends like this."""
    await kit.announce()
    count = 0
    while True:
        await kit.dispatch()
        grants = await kit.take()
        if not grants:
            return count
        rows = [(grant.id, grant.fence, outcome) for grant in grants]
        await kit.store.settle(0, rows)
        count += len(grants)


async def dead_letters(kit: Kit, count: int, **fields: Any) -> list[str]:
    made = await kit.submit_many(count, spec(**fields))
    assert count == await run_all(kit)
    kit.leap(1)
    return made


async def begun(kit: Kit, asked: Request) -> Operation:
    """An operation that is not done at once."""
    operation = await Operations(kit.store, MEMORY).start(asked)
    assert "RUNNING" == operation.state
    return operation


async def take_up(kit: Kit) -> Job:
    """A new process finds the one operation that nobody works on."""
    (job,) = await Operator(kit.store, MEMORY).look()
    return job


async def finish(kit: Kit, job: Job) -> int:
    """Steps to the end, on time; how long that took."""
    began_ms = kit.now_ms
    while (wait_ms := await job.step()) is not None:
        kit.leap(int(-(-wait_ms // 1)))
    return kit.now_ms - began_ms


def states(kit: Kit, task_ids: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for task_id in task_ids:
        state = kit.state(task_id) or "gone"
        found[state] = found.get(state, 0) + 1
    return found


def lives(kit: Kit, task_ids: list[str]) -> set[str]:
    return {kit.record(task_id).get("life", "1") for task_id in task_ids}


# ── small ones ───────────────────────────────────────────────────────────────────────────────────


async def test_a_small_one_has_ended_when_it_is_answered(valkey: Kit):
    made = await dead_letters(valkey, SMALL_MAX)
    operation = await Operations(valkey.store, MEMORY).start(request())
    assert ("DONE", SMALL_MAX, 0) == (operation.state, operation.done, operation.skipped)
    assert {"PENDING": SMALL_MAX} == states(valkey, made)
    assert Count(SMALL_MAX) == operation.expected


async def test_nothing_matches_and_that_is_no_error(valkey: Kit):
    operation = await Operations(valkey.store, MEMORY).start(request(asked=Filter(queue="none")))
    assert ("DONE", 0) == (operation.state, operation.found)


@pytest.mark.parametrize(
    ("kind", "state", "after"),
    [
        ("purge", "FAILED", "gone"),
        ("cancel", "PENDING", "CANCELLED"),
        ("cancel", "QUEUED", "CANCELLED"),
        ("cancel", "RUNNING", "RUNNING"),
        ("delete", "PENDING", "gone"),
        ("delete", "QUEUED", "gone"),
        ("delete", "SUCCESS", "gone"),
        ("delete", "FAILED", "gone"),
        ("delete", "CANCELLED", "gone"),
    ],
)
async def test_each_verb_in_each_state_it_is_for(valkey: Kit, kind: str, state: State, after: str):
    task_id = await valkey.task_in(state)
    operation = await Operations(valkey.store, MEMORY).start(request(kind))
    assert (1, 0, {after: 1}) == (operation.done, operation.skipped, states(valkey, [task_id]))
    if state == "RUNNING":
        assert "1" == valkey.record(task_id)["cancel_requested"]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("redrive", "CANCELLED"), ("redrive", "SUCCESS"), ("purge", "SUCCESS"),
        ("purge", "PENDING"), ("cancel", "SUCCESS"), ("cancel", "FAILED"), ("delete", "RUNNING"),
    ],
)  # fmt: skip
async def test_other_states_are_not_even_found(valkey: Kit, kind: str, state: State):
    task_id = await valkey.task_in(state)
    operation = await Operations(valkey.store, MEMORY).start(request(kind))
    assert (0, state) == (operation.found, valkey.state(task_id))


async def test_an_edit_changes_what_waits(valkey: Kit):
    made = [await valkey.task_in("PENDING"), await valkey.task_in("QUEUED")]
    changes = Changes(queue="bulk", delay_ms=2 * HOUR_MS, tags=("late",))
    operation = await Operations(valkey.store, MEMORY).start(request("edit", changes=changes))
    assert ("DONE", 2) == (operation.state, operation.done)
    due = str(valkey.now_ms + 2 * HOUR_MS)
    for task_id in made:
        record = valkey.record(task_id)
        assert ("bulk:normal:default:charge", due) == (record["lane"], record["due_ms"])
    # The one that was dispatched had its second version before.
    assert [2, 3] == [valkey.version(task_id) for task_id in made]


@pytest.mark.parametrize("changes", [Changes(payload=b"x"), Changes(), None])
async def test_what_many_cannot_have_changed_is_refused(valkey: Kit, changes: Changes | None):
    with pytest.raises(Invalid):
        await Operations(valkey.store, MEMORY).start(request("edit", changes=changes))
    assert [] == [key for key in valkey.dump() if "operations" in key]


async def test_filters_choose(valkey: Kit):
    mine = await dead_letters(valkey, 3, queue="a", tags=("x",))
    others = [
        *await dead_letters(valkey, 1, queue="b", tags=("x",)),
        *await dead_letters(valkey, 1, queue="a"),
        *await dead_letters(valkey, 1, queue="a", tags=("x",), tenant="acme"),
    ]
    asked = Filter(queue="a", tag="x", handler="cha*", reason="not_retryable")
    operation = await Operations(valkey.store, MEMORY).start(request(asked=asked))
    assert (3, {"PENDING": 3}) == (operation.done, states(valkey, mine))
    assert {"FAILED": 3} == states(valkey, others)


async def test_tasks_of_all_shards_are_found(valkey_server: ServerProcess):
    valkey_server.flush()
    kit = await open_kit(valkey_server.url, shards=4)
    made = [kit.new_id(shard) for shard in range(4) for _ in range(5)]
    for task_id in made:
        shard = shard_of(task_id, 4)
        await kit.store.submit(shard, [(task_id, spec(delay_ms=HOUR_MS), "")])
    operation = await Operations(kit.store, MEMORY).start(request("cancel"))
    assert (20, 0) == (operation.done, operation.skipped)
    found = await Reads(kit.store).tasks(made)
    assert {"CANCELLED"} == {task.status for task in found}
    assert [] == kit.audit()
    await kit.close()


# ── large ones ───────────────────────────────────────────────────────────────────────────────────


async def test_five_thousand_are_redriven_at_their_rate(valkey: Kit):
    made = await dead_letters(valkey, 5_000)
    operation = await begun(valkey, request(rate=1_000))
    took_ms = await finish(valkey, await take_up(valkey))
    ended = await Operations(valkey.store, MEMORY).get("default", operation.id)
    assert ("DONE", 5_000, 0) == (ended.state, ended.done, ended.skipped)
    # The last batch is not waited for, and 200 ms may be caught up with.
    assert 5_000 - 100 - 200 == took_ms
    assert ({"PENDING": 5_000}, {"2"}) == (states(valkey, made), lives(valkey, made))


async def test_before_its_time_a_step_does_nothing(valkey: Kit):
    made = await dead_letters(valkey, 300)
    await begun(valkey, request(rate=100))
    job = await take_up(valkey)
    for _ in range(20):
        await job.step()
    moved = states(valkey, made)["PENDING"]
    assert 10 <= moved <= 30  # what 0.2 s of grace allow, and the first batch


@pytest.mark.parametrize("kind", ["redrive", "purge", "cancel", "edit", "delete"])
@pytest.mark.parametrize("crash_at", [0, 1, 2])
async def test_a_crash_in_the_middle_neither_loses_nor_doubles(
    valkey: Kit, kind: str, crash_at: int
):
    """The batch was applied, and its process died before it could say so."""
    waits = kind in {"cancel", "edit", "delete"}
    made = (
        await valkey.submit_many(450, spec(delay_ms=HOUR_MS))
        if waits
        else await dead_letters(valkey, 450)
    )
    changes = Changes(delay_ms=2 * HOUR_MS, queue="bulk") if kind == "edit" else None
    operation = await begun(valkey, request(kind, changes=changes))
    job = await take_up(valkey)
    for _ in range(crash_at):
        valkey.leap(int(await job.step()))
    await job.step()
    await die_before_saying_so(valkey, job)

    assert [] == await Operator(valkey.store, MEMORY).look()  # the lease is not over
    valkey.leap(LEASE_MS)
    await finish(valkey, await take_up(valkey))

    ended = await Operations(valkey.store, MEMORY).get("default", operation.id)
    assert ("DONE", 450, 0) == (ended.state, ended.done, ended.skipped)
    after = {"redrive": "PENDING", "cancel": "CANCELLED", "edit": "PENDING"}.get(kind, "gone")
    assert {after: 450} == states(valkey, made)
    if kind == "redrive":
        assert {"2"} == lives(valkey, made)
    if kind in {"edit", "cancel"}:
        assert {2} == {valkey.version(task_id) for task_id in made}


async def die_before_saying_so(kit: Kit, job: Job) -> None:
    """The next batch is done, and the record does not hear of it."""

    async def never(*_: object, **__: object) -> None:
        raise ConnectionAbortedError

    job._records.put = never  # type: ignore[method-assign]
    kit.leap(100)
    with pytest.raises(ConnectionAbortedError):
        await job.step()


async def test_half_a_batch_before_the_crash_is_no_less_exact(valkey: Kit):
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()
    whole, calls = valkey.store.redrive, itertools.count()

    async def half(*args: Any, **more: Any) -> Any:
        if next(calls) >= 37:
            raise Unavailable("gone")
        return await whole(*args, **more)

    valkey.store.redrive = half  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await job.step()
    valkey.store.redrive = whole  # type: ignore[method-assign]
    assert {"FAILED": 213, "PENDING": 37} == states(valkey, made)

    valkey.leap(LEASE_MS)
    await finish(valkey, await take_up(valkey))
    ended = await Operations(valkey.store, MEMORY).get("default", operation.id)
    assert ("DONE", 250, 0, {"2"}) == (ended.state, ended.done, ended.skipped, lives(valkey, made))


async def test_a_task_that_starts_behind_the_walk_is_cancelled_too(valkey: Kit):
    """The index of what is held is by the time of the next look, and a short lease is soon."""
    await valkey.announce()
    queued = await valkey.submit_many(60)
    await valkey.submit_many(190, spec(delay_ms=HOUR_MS))
    assert {"QUEUED": 60} == states(valkey, queued)
    await begun(valkey, request("cancel"))
    job = await take_up(valkey)
    for _ in range(2):
        valkey.leap(int(await job.step()))
    planned = {task_id for task_id, _ in job.operation.batch}
    assert planned & set(queued)  # the walk is in the middle of them
    started = [grant.id for grant in await valkey.take(lease_ms=1_000)]
    assert set(started) - planned
    await finish(valkey, job)
    asked = {task_id for task_id in started if valkey.record(task_id).get("cancel_requested")}
    assert (set(started), 250) == (asked, job.operation.done)


async def test_what_ran_and_failed_again_before_the_crash_was_found_is_not_moved_again(valkey: Kit):
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()
    await die_before_saying_so(valkey, job)
    assert 100 == await run_all(valkey)
    valkey.leap(LEASE_MS)
    await finish(valkey, await take_up(valkey))
    ended = await Operations(valkey.store, MEMORY).get("default", operation.id)
    assert ("DONE", 250, 0) == (ended.state, ended.done, ended.skipped)
    assert {"2"} == lives(valkey, made)
    assert {"FAILED": 100, "PENDING": 150} == states(valkey, made)


async def test_what_fails_again_meanwhile_is_left_alone(valkey: Kit):
    made = await dead_letters(valkey, 300)
    await begun(valkey, request())
    job = await take_up(valkey)
    while (wait_ms := await job.step()) is not None:
        valkey.leap(int(-(-wait_ms // 1)) + 1)
        await run_all(valkey)
    await run_all(valkey)
    assert ({"FAILED": 300}, {"2"}) == (states(valkey, made), lives(valkey, made))
    assert (300, "DONE") == (job.operation.done, job.operation.state)


async def test_what_is_created_meanwhile_is_left_alone(valkey: Kit):
    made = await valkey.submit_many(250, spec(delay_ms=HOUR_MS))
    await begun(valkey, request("cancel"))
    valkey.leap(5)
    later = await valkey.submit_many(10, spec(delay_ms=HOUR_MS))
    await finish(valkey, await take_up(valkey))
    assert {"CANCELLED": 250} == states(valkey, made)
    assert {"PENDING": 10} == states(valkey, later)


async def test_one_that_was_redriven_by_hand_in_between_is_skipped(valkey: Kit):
    made = await dead_letters(valkey, 250)
    await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()  # the first batch is planned
    (planned, _), *_ = job.operation.batch
    await valkey.store.redrive(0, planned, "default", None)
    await finish(valkey, job)
    assert (249, 1) == (job.operation.done, job.operation.skipped)
    assert {"2"} == lives(valkey, made)


async def test_two_operators_do_not_work_on_one_operation(valkey: Kit):
    await dead_letters(valkey, 300)
    await begun(valkey, request())
    first, second = Operator(valkey.store, MEMORY), Operator(valkey.store, MEMORY)
    assert [1, 0] == [len(await first.look()), len(await second.look())]


async def test_who_slept_through_its_lease_finds_that_another_went_on(valkey: Kit):
    made = await dead_letters(valkey, 450)
    await begun(valkey, request())
    sleeper = await take_up(valkey)
    for _ in range(2):
        valkey.leap(int(await sleeper.step()))
    valkey.leap(LEASE_MS)
    other = await take_up(valkey)
    await other.step()
    assert None is await sleeper.step()
    await finish(valkey, other)
    assert (450, 0, {"2"}) == (other.operation.done, other.operation.skipped, lives(valkey, made))


async def test_who_slept_and_was_not_missed_goes_on(valkey: Kit):
    made = await dead_letters(valkey, 450)
    await begun(valkey, request())
    job = await take_up(valkey)
    await job.step()
    valkey.leap(3 * LEASE_MS)
    await finish(valkey, job)
    assert (450, "DONE", {"2"}) == (job.operation.done, job.operation.state, lives(valkey, made))


async def test_a_stop_is_obeyed_at_the_next_write_and_counts_stay_true(valkey: Kit):
    made = await dead_letters(valkey, 450)
    operation = await begun(valkey, request())
    job = await take_up(valkey)
    for _ in range(2):
        valkey.leap(int(await job.step()))
    operations = Operations(valkey.store, MEMORY)
    assert "STOPPED" == (await operations.stop("default", operation.id)).state
    assert None is await job.step()
    stopped = await operations.get("default", operation.id)
    assert ("STOPPED", states(valkey, made)["PENDING"]) == (stopped.state, stopped.done)
    valkey.leap(LEASE_MS)
    assert [] == await Operator(valkey.store, MEMORY).look()
    assert stopped == await operations.stop("default", operation.id)


async def test_what_has_ended_cannot_be_stopped_nor_seen_by_others(valkey: Kit):
    operations = Operations(valkey.store, MEMORY)
    operation = await operations.start(request())
    with pytest.raises(Conflict):
        await operations.stop("default", operation.id)
    with pytest.raises(NotFound):
        await operations.get("acme", operation.id)


async def test_an_edit_that_moves_tasks_ahead_of_the_walk_ends(valkey: Kit):
    """Each edited task is met again further on, and left as it is."""
    made = await valkey.submit_many(450, spec(delay_ms=HOUR_MS))
    changes = Changes(delay_ms=3 * HOUR_MS)
    await begun(valkey, request("edit", changes=changes))
    job = await take_up(valkey)
    await finish(valkey, job)
    assert ("DONE", 450, 0) == (job.operation.state, job.operation.done, job.operation.skipped)
    assert {2} == {valkey.version(task_id) for task_id in made}


async def test_an_ended_one_can_be_looked_at_for_a_day(valkey: Kit):
    operations = Operations(valkey.store, MEMORY)
    operation = await operations.start(request())
    valkey.leap(KEPT_MS - 1)
    await Operator(valkey.store, MEMORY).look()
    assert operation == await operations.get("default", operation.id)
    valkey.leap(1)
    await Operator(valkey.store, MEMORY).look()
    with pytest.raises(NotFound):
        await operations.get("default", operation.id)


async def test_a_list_has_the_newest_first_and_pages(valkey: Kit):
    operations, made = Operations(valkey.store, MEMORY), []
    for _ in range(5):
        made.append((await operations.start(request())).id)
        valkey.leap(1)
    await operations.start(request(tenant="acme"))
    first, then = await operations.page("default", None, 3)
    second, end = await operations.page("default", then, 3)
    assert (made[::-1], None) == ([each.id for each in first + second], end)


async def test_a_dry_run_counts_and_writes_nothing(valkey: Kit):
    await dead_letters(valkey, 20, queue="a")
    before = valkey.dump()
    for kind, asked, expected in (
        ("redrive", Filter(queue="a"), 20),
        ("purge", EVERYTHING, 20),
        ("cancel", EVERYTHING, 0),
        ("delete", Filter(queue="a"), 20),
        ("delete", Filter(tag="none"), 0),
    ):
        counted = await Operations(valkey.store, MEMORY).count(request(kind, asked))
        assert (kind, Count(expected)) == (kind, counted)
    assert before == valkey.dump()


async def test_success_of_a_redriven_task_is_no_dead_letter(valkey: Kit):
    made = await dead_letters(valkey, 5)
    await Operations(valkey.store, MEMORY).start(request())
    assert 5 == await run_all(valkey, DONE)
    assert {"SUCCESS": 5} == states(valkey, made)


async def test_what_goes_wrong_for_good_is_recorded(valkey: Kit):
    """Seeded by hand: two due times, which nothing of ours would have let in."""
    await valkey.submit_many(250, spec(delay_ms=HOUR_MS))
    operation = await begun(valkey, request("edit", changes=Changes(delay_ms=5, run_at_ms=5)))
    await (await take_up(valkey)).run()
    ended = await Operations(valkey.store, MEMORY).get("default", operation.id)
    assert ("FAILED", "INVALID: give run_at or delay, not both") == (ended.state, ended.error)


async def test_a_fault_of_ours_is_recorded_and_not_tried_for_ever(valkey: Kit):
    await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    job = await take_up(valkey)

    async def faulty(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    await job.step()
    valkey.store.redrive = faulty  # type: ignore[method-assign]
    valkey.leap(100)
    with pytest.raises(ZeroDivisionError):
        await job.run()
    ended = await Operations(valkey.store, MEMORY).get("default", operation.id)
    assert ("FAILED", "INTERNAL: ZeroDivisionError('a bug')") == (ended.state, ended.error)
    assert [] == await Operator(valkey.store, MEMORY).look()


async def test_a_record_that_cannot_be_read_stops_no_other(valkey: Kit):
    """Seeded by hand, as a newer release might leave it."""
    valkey.plain.hset(valkey.store.global_keys.operations, "op_x", b'1 {"kind": "unheard"}')
    made = await dead_letters(valkey, 250)
    operation = await begun(valkey, request())
    await finish(valkey, await take_up(valkey))
    assert {"2"} == lives(valkey, made)
    found, _ = await Operations(valkey.store, MEMORY).page("default", None, 10)
    assert [operation.id] == [each.id for each in found]
    with pytest.raises(TaskschedError, match="cannot be read"):
        await Operations(valkey.store, MEMORY).get("default", "op_x")


@pytest.mark.parametrize(
    ("kind", "state"), [("delete", "FAILED"), ("cancel", "PENDING"), ("delete", "PENDING")]
)
async def test_what_is_no_such_task_any_more_when_its_turn_comes_is_left(
    valkey: Kit, kind: str, state: State
):
    """Redriven, or started by hand, after it was planned."""
    if state == "FAILED":
        made = await dead_letters(valkey, 250)
    else:
        made = await valkey.submit_many(250, spec(delay_ms=HOUR_MS))
    await begun(valkey, request(kind, Filter(status=(state,))))
    job = await take_up(valkey)
    await job.step()
    (planned, _), *_ = job.operation.batch
    if state == "FAILED":
        await valkey.store.redrive(0, planned, "default", None)
        expected = "PENDING"
    else:
        await valkey.announce()
        await valkey.store.run_now(0, planned, "default", None)
        await valkey.start(planned)
        expected = "RUNNING"
    await finish(valkey, job)
    assert (249, 1) == (job.operation.done, job.operation.skipped)
    assert (expected, None) == (
        valkey.state(planned), valkey.record(planned).get("cancel_requested"),
    )  # fmt: skip
    assert {expected: 1, "CANCELLED" if kind == "cancel" else "gone": 249} == states(valkey, made)


async def test_one_tenant_with_many_leaves_room_for_others(valkey: Kit):
    await dead_letters(valkey, 250, tenant="acme")
    await dead_letters(valkey, 250)
    for _ in range(OF_TENANT_MAX):
        await Operations(valkey.store, MEMORY).start(request(tenant="acme", rate=1))
    with pytest.raises(TooManyRequests, match="of this tenant"):
        await Operations(valkey.store, MEMORY).start(request(tenant="acme", rate=1))
    valkey.leap(1)
    last = await begun(valkey, request())
    jobs = await Operator(valkey.store, MEMORY).look()
    assert ["acme"] * JOBS_OF_TENANT + ["default"] == [job.operation.tenant for job in jobs]
    assert last.id == jobs[-1].operation.id
