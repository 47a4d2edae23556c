"""What an App promises over either transport."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.client.conftest import BROKEN, Stage, done

from tasksched import (
    Conflict,
    Invalid,
    KeyReused,
    NotFound,
    PreconditionFailed,
    Retry,
    TaskCancelled,
    TaskFailed,
)
from tasksched.model import codec
from tasksched.model.retry import Retry as RetryPolicy

pytestmark = pytest.mark.anyio
LATER = datetime(2199, 1, 1, tzinfo=UTC)


async def test_a_submitted_task_has_the_defaults_of_its_handler(stage: Stage):
    task = await stage.charge.submit("inv_1", cents=100)
    record = await task.refresh()

    assert (task.created, task.status) == (True, "PENDING")
    assert (record.queue, record.timeout_ms) == ("billing", 30_000)
    assert record.retry == RetryPolicy(3)
    assert codec.decode(record.payload or b"") == {"invoice": "inv_1", "cents": 100}


async def test_options_are_laid_over_the_defaults(stage: Stage):
    chosen = stage.charge.options(
        at=LATER, queue="slow", priority="high", retry=Retry(7), timeout=5, tags=["a", "b"]
    )
    record = await (await chosen.submit("inv_1", 1)).refresh()

    assert record.due_ms == int(LATER.timestamp()) * 1000
    assert (record.queue, record.priority, record.tags) == ("slow", "high", ("a", "b"))
    assert (record.retry.max_attempts, record.timeout_ms) == (7, 5_000)


async def test_a_task_belongs_to_the_trace_that_is_named(stage: Stage):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    task = await stage.add.options(traceparent=trace).submit(1)

    assert (await task.refresh()).traceparent == trace
    assert (await (await stage.add.submit(1)).refresh()).traceparent is None
    with pytest.raises(Invalid, match="a traceparent is 00-"):
        stage.add.options(traceparent="00-x")


async def test_a_duration_of_expires_counts_from_the_due_time(stage: Stage):
    task = await stage.add.options(at=LATER, expires=timedelta(hours=1)).submit(1)
    assert (await task.refresh()).expires_at_ms == int(LATER.timestamp()) * 1000 + 3_600_000

    task = await stage.add.options(expires="2199-06-01T00:00:00Z").submit(1)
    assert (await task.refresh()).expires_at_ms == 7_239_628_800_000


async def test_a_tenant_sees_its_own_tasks_only(stage: Stage):
    task = await stage.add.options(tenant="acme").submit(1)

    assert (await task.refresh()).tenant == "acme"
    with pytest.raises(NotFound):
        await stage.app.get(task.id)


async def test_a_result_is_waited_for_and_comes_back_as_it_was(stage: Stage):
    task = await stage.charge.submit("inv_1", 2**64 - 1)
    await stage.run(done({"paid": [1, 2.5, None]}))

    assert await task.result("5s") == {"paid": [1, 2.5, None]}
    assert task.status == "SUCCESS"


async def test_a_failure_carries_its_error(stage: Stage):
    task = await stage.charge.submit("inv_1", 1)
    await stage.run(BROKEN)

    with pytest.raises(TaskFailed, match=r"not_retryable.*ValueError: no luck") as failed:
        await task.result("5s")
    assert failed.value.error is not None
    assert (failed.value.reason, failed.value.error.type) == ("not_retryable", "ValueError")
    attempts = await task.attempts()
    assert [(a.attempt, a.outcome) for a in attempts] == [(1, "FAILED")]


async def test_waiting_ends_with_a_timeout_and_the_task_goes_on(stage: Stage):
    task = await stage.charge.options(delay="1h").submit("inv_1", 1)

    with pytest.raises(TimeoutError, match="is PENDING after 50ms"):
        await task.result(0.05)


async def test_a_waiting_task_is_cancelled_at_once_and_may_live_again(stage: Stage):
    task = await stage.charge.submit("inv_1", 1)

    assert (await task.cancel()).status == "CANCELLED"
    assert (await task.cancel()).status == "CANCELLED"
    with pytest.raises(TaskCancelled):
        await task.result(0)
    assert (await task.retry()).status == "PENDING"


async def test_a_running_task_is_asked_to_stop(stage: Stage):
    task = await stage.charge.submit("inv_1", 1)
    await stage.start_all()

    change = await task.cancel()
    assert (change.status, change.cancel_requested) == ("RUNNING", True)


async def test_a_task_is_rescheduled_under_the_version_that_was_read(stage: Stage):
    task = await stage.charge.submit("inv_1", 1)
    version = (await task.refresh()).version

    change = await task.reschedule(at=LATER, version=version)
    assert change.version > version
    with pytest.raises(PreconditionFailed):
        await task.reschedule(delay="1h", version=version)
    assert (await task.refresh()).due_ms == int(LATER.timestamp()) * 1000

    await task.run_now()
    assert (await task.refresh()).due_ms < int(LATER.timestamp()) * 1000
    with pytest.raises(Invalid):
        await task.reschedule()


async def test_a_finished_task_refuses_verbs_with_its_state(stage: Stage):
    task = await stage.charge.submit("inv_1", 1)
    await stage.run(done(None))

    with pytest.raises(Conflict, match="SUCCESS") as refused:
        await task.cancel()
    assert refused.value.extra["task_status"] == "SUCCESS"
    for verb in (task.run_now, task.retry):
        with pytest.raises(Conflict):
            await verb()
    assert await task.result() is None


async def test_a_key_makes_one_task(stage: Stage):
    keyed = stage.charge.options(key="charge:inv_1 ü")
    first = await keyed.submit(invoice="inv_1", cents=100)
    second = await keyed.submit(cents=100, invoice="inv_1")

    assert (second.id, first.created, second.created) == (first.id, True, False)
    assert second.status == "PENDING"
    assert second.record is not None
    with pytest.raises(KeyReused):
        await keyed.submit(invoice="inv_1", cents=101)


@pytest.mark.parametrize("task_id", ["nope", "", "0" * 23, "../../stats", "a?b"])
async def test_an_unknown_id_is_not_found(stage: Stage, task_id: str):
    with pytest.raises(NotFound):
        await stage.app.get(task_id)


async def test_find_filters_by_status_handler_queue_and_tag(stage: Stage):
    first = await stage.charge.options(tags=["a"], delay="1h").submit("inv_1", 1)
    await stage.charge.options(queue="other", delay="1h").submit("inv_2", 1)
    await stage.app.submit("billing.refund", 1, delay="1h")
    gone = await stage.app.submit("billing.close", 1)
    await gone.cancel()

    async def found(**filters: object) -> list[str]:
        return [task.id async for task in stage.app.find(**filters)]  # type: ignore[arg-type]

    assert len(await found()) == 4
    assert await found(tag="a") == [first.id]
    assert await found(queue="billing") == [first.id]
    assert await found(handler="billing.*", status="CANCELLED") == [gone.id]
    assert len(await found(handler="bill*.[cr]*e*")) == 2
    assert len(await found(handler="charge")) == 2
    assert len(await found(limit=3)) == 3
    with pytest.raises(Invalid):
        await found(status="DONE")


async def test_a_handle_of_find_has_its_record(stage: Stage):
    await stage.add.submit(1)
    tasks = [task async for task in stage.app.find()]
    assert [(t.status, t.record and t.record.queue) for t in tasks] == [("PENDING", "default")]


async def test_bad_options_name_their_field(stage: Stage):
    for options, pointer in (
        ({"delay": "soon"}, "/delay"),
        ({"at": datetime(2026, 1, 1)}, "/at"),
        ({"queue": "no spaces"}, "/queue"),
        ({"priority": "urgent"}, "/priority"),
        ({"key": "a\nb"}, "/key"),
        ({"tags": ["x", "x"]}, "/tags/1"),
        ({"at": LATER, "delay": 1}, "/delay"),
    ):
        with pytest.raises(Invalid) as refused:
            stage.charge.options(**options)  # type: ignore[arg-type]
        assert [p.pointer for p in refused.value.problems] == [pointer]


async def test_why_a_task_waits(stage: Stage):
    task = await stage.charge.submit("inv_1", 1)
    found = await stage.backend.explain("default", task.id)
    assert [reason["reason"] for reason in found.reasons] == ["no_worker_for_handler"]


async def test_counters_are_the_same_over_both_transports(stage: Stage):
    await stage.charge.submit("inv_1", 1)
    stats = await stage.backend.stats()
    assert (stats["total"], stats["by_status"]["PENDING"]) == (1, 1)
    assert (await stage.app.queues.get("billing")).counts["PENDING"] == 1
    assert await stage.backend.workers() == []
