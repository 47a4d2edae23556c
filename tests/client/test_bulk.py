"""Dead letters and operations through the client, over Redis and over HTTP alike."""

from datetime import timedelta

import pytest
from tests.client.conftest import BROKEN

from tasksched import Conflict, Invalid, NotFound
from tasksched.commands.operations import SMALL_MAX
from tasksched.commands.operator import Operator
from tasksched.commands.removal import Memory
from tasksched.model import codec
from tasksched.model.operation import Count
from tasksched.model.outcome import Outcome, error_info

pytestmark = pytest.mark.anyio


async def dead(stage, count: int = 1, outcome: Outcome = BROKEN, **options):
    """Tasks that failed for good."""
    calls = [stage.charge.options(**options).call(f"inv_{n}", n) for n in range(count)]
    made = await stage.app.submit_many(calls)
    while await stage.run(outcome):
        continue
    return made


async def statuses(made) -> set[str]:
    return {(await task.refresh()).status for task in made}


async def work_on(stage) -> None:
    """A scheduler process takes up what is left to it."""
    (job,) = await Operator(stage.session.store, Memory(1, 1)).look()
    await job.run()


async def test_dead_letters_are_listed_by_filter(stage):
    made = await dead(stage, 3, tags=["x"])
    await dead(stage, 1, queue="other")
    found = [task async for task in stage.app.dead.list(queue="billing", tag="x", handler="ch*")]
    assert {task.id for task in made} == {task.id for task in found}
    first = found[0]
    assert ("FAILED", "not_retryable") == (first.status, first.record.reason)
    again = [task async for task in stage.app.dead.list(fingerprint=first.record.fingerprint)]
    assert 4 == len(again)
    assert 2 == len([task async for task in stage.app.dead.list(limit=2)])


async def test_groups(stage):
    await dead(stage, 3)
    other = Outcome(kind="FAILED", reason="attempts_exhausted", error=error_info("OSError", "7"))
    (latest,) = await dead(stage, 1, other)
    groups = await stage.app.dead.groups()
    assert [(3, "ValueError", "no luck"), (1, "OSError", "<n>")] == [
        (group.count, group.type, group.message) for group in groups
    ]
    assert (latest.id, "7") == (groups[1].sample_task_id, groups[1].sample_error.message)
    assert {"billing": 3} == groups[0].queues
    assert groups[0].first_seen_ms <= groups[0].last_seen_ms
    (only,) = await stage.app.dead.groups(reason="attempts_exhausted")
    assert groups[1] == only
    assert groups[:1] == await stage.app.dead.groups(limit=1)


async def test_redrive_and_purge(stage):
    made = await dead(stage, 5)
    assert Count(5) == await stage.app.dead.count(queue="billing")
    operation = await stage.app.dead.redrive(queue="billing", rate=500)
    assert ("DONE", 5, 0, 500) == (
        operation.status, operation.done, operation.skipped, operation.record.rate,
    )  # fmt: skip
    assert {"PENDING", "QUEUED"} >= await statuses(made)
    await stage.run(BROKEN)
    purged = await (await stage.app.dead.purge(all=True)).wait()
    assert ("DONE", 5) == (purged.state, purged.done)
    with pytest.raises(NotFound):
        await made[0].refresh()


async def test_everything_must_be_said(stage):
    for verb in (stage.app.dead.redrive, stage.app.dead.purge, stage.app.operations.cancel):
        with pytest.raises(Invalid) as refused:
            await verb()
        assert "/all" == refused.value.problems[0].pointer


@pytest.mark.parametrize("words", [{"queue": "a b"}, {"colour": "red"}, {"rate": 0}])
async def test_a_bad_word_is_refused(stage, words):
    with pytest.raises(Invalid):
        await stage.app.dead.redrive(**{"all": True, **words})


async def test_a_large_one_is_waited_for(stage):
    made = await dead(stage, SMALL_MAX + 10)
    operation = await stage.app.dead.redrive(all=True, rate=10_000)
    assert ("RUNNING", Count(SMALL_MAX + 10)) == (operation.status, operation.expected)
    with pytest.raises(TimeoutError):
        await operation.wait(0)
    await work_on(stage)
    record = await operation.wait("5s")
    assert ("DONE", len(made)) == (record.state, operation.done)
    (listed,) = await stage.app.operations.list()
    assert operation.record == listed.record
    assert record == (await stage.app.operations.get(operation.id)).record


async def test_one_that_runs_is_stopped(stage):
    await dead(stage, SMALL_MAX + 10)
    operation = await stage.app.dead.purge(all=True)
    assert "STOPPED" == (await operation.stop()).state
    assert "STOPPED" == (await operation.wait()).state
    ended = await stage.app.dead.redrive(queue="none")
    with pytest.raises(Conflict):
        await ended.stop()


async def test_many_tasks_are_edited_cancelled_and_deleted(stage):
    options = stage.charge.options(delay="1h")
    made = await stage.app.submit_many([options.call(f"inv_{n}", n) for n in range(3)])
    operations = stage.app.operations
    edited = await operations.edit(
        {"delay": timedelta(hours=2), "priority": "low"}, queue="billing", status="PENDING"
    )
    assert (3, {"delay_ms": 7_200_000, "priority": "low"}) == (edited.done, edited.record.changes)
    assert "low" == (await made[0].refresh()).priority
    assert Count(3) == await operations.count("cancel", handler="charge")
    assert 3 == (await operations.cancel(priority="low")).done
    assert {"CANCELLED"} == await statuses(made)
    assert 3 == (await operations.delete(status=["CANCELLED", "SUCCESS"])).done


async def test_a_payload_is_no_change_for_many(stage):
    with pytest.raises(Invalid):
        await stage.app.operations.edit({"payload": 1}, all=True)
    with pytest.raises(Invalid):
        await stage.app.operations.edit({"colour": 1}, all=True)


async def test_a_task_is_retried_with_changes(stage):
    (task,) = await dead(stage)
    await task.retry(payload=["inv_9", 9], queue="bulk", delay="1h", tags=["again"])
    record = await task.refresh()
    assert ("PENDING", "bulk", ("again",)) == (record.status, record.queue, record.tags)
    assert ["inv_9", 9] == codec.decode(record.payload)
    assert (None, 2) == (record.fingerprint, (await stage.session.tasks.reads.task(task.id)).life)


async def test_a_task_is_deleted(stage):
    (task,) = await dead(stage)
    await task.delete()
    with pytest.raises(NotFound):
        await task.delete()
    waiting = await stage.charge.options(delay="1h").submit("inv_1", 1)
    await waiting.delete(version=1)
    with pytest.raises(NotFound):
        await waiting.refresh()
    running = await stage.charge.submit("inv_1", 1)
    await stage.start_all()
    with pytest.raises(Conflict):
        await running.delete()


def test_without_an_event_loop(make_app):
    app = make_app()
    task = app.submit_sync("charge", 1)
    assert [] == app.dead.list_sync()
    assert [] == app.dead.groups_sync()
    assert Count(0) == app.dead.count_sync()
    assert "DONE" == app.dead.redrive_sync(all=True).wait_sync().state
    assert "DONE" == app.dead.purge_sync(all=True).refresh_sync().state
    assert 1 == app.operations.edit_sync({"delay": "1h"}, queue="default").done
    assert 1 == app.operations.cancel_sync(queue="default").done
    task.retry_sync(delay="1h")
    task.delete_sync()
    assert 0 == app.operations.delete_sync(all=True).done
    made = app.operations.list_sync()
    assert 5 == len(made)
    with pytest.raises(Conflict):
        app.operations.get_sync(made[0].id).stop_sync()
    app.close_sync()
