"""Queues, tenants and concurrency keys for programs, over Redis and over HTTP."""

import asyncio
import json

import pytest
from tests.client.conftest import BROKEN, Stage, asgi, remote
from tests.client.test_remote import LOST, Lossy

from tasksched.client import limits
from tasksched.commands import tenant_purge
from tasksched.commands.session import Session
from tasksched.commands.tenant_purge import Purged
from tasksched.errors import Draining, Invalid, NotFound
from tasksched.model.limits import QueueRules, TenantRules
from tasksched.model.task import Concurrency

pytestmark = pytest.mark.anyio


async def test_rules_of_a_queue_change_one_by_one(stage: Stage):
    queues = stage.app.queues
    first = await queues.set("mail", max_running=3, strict=True)
    assert (1, QueueRules(max_running=3, strict=True)) == (first.version, first.rules)
    second = await queues.set("mail", dispatch_rate=0.5)
    assert QueueRules(max_running=3, strict=True, dispatch_rate=0.5) == second.rules
    third = await queues.set("mail", max_running=None, strict=False)
    assert QueueRules(dispatch_rate=0.5) == third.rules
    assert third == await queues.get("mail")
    assert third == await queues.set("mail", dispatch_rate=0.5)


async def test_queues_are_listed_with_what_they_hold(stage: Stage):
    await stage.charge.options(delay="1h").submit("inv_1", 1)
    await stage.app.queues.set("mail", max_running=3)
    found = {each.name: each for each in await stage.app.queues.list()}
    assert {"billing", "mail"} == set(found)
    assert 1 == found["billing"].counts["PENDING"]


async def test_pauses_are_told_and_ended(stage: Stage):
    queues = stage.app.queues
    assert "queue" == (await queues.pause("billing")).paused_by
    assert (await queues.resume("billing")).paused_by is None
    assert "share" == (await queues.pause_share("billing")).paused_by
    assert (await queues.resume_share("billing")).paused_by is None
    await queues.pause_everything()
    assert "everything" == (await queues.get("billing")).paused_by
    await queues.resume_everything()
    assert (await queues.get("billing")).paused_by is None


async def test_a_drained_queue_is_told_by_a_class_of_its_own(stage: Stage):
    assert (await stage.app.queues.drain("billing")).rules.draining
    with pytest.raises(Draining, match="queue billing is drained"):
        await stage.charge.submit("inv_1", 1)
    await stage.add.submit(1)
    assert not (await stage.app.queues.resume("billing")).rules.draining


async def test_limits_of_a_tenant_change_one_by_one(stage: Stage):
    tenants = stage.app.tenants
    await tenants.set("acme", weight=2.5, max_pending=0, create_rate=10)
    await tenants.set("acme", max_running=2, dispatch_rate=50)
    state = await tenants.set("acme", weight=None)
    assert state == await tenants.get("acme")
    assert (
        TenantRules(max_pending=0, create_rate=10, max_running=2, dispatch_rate=50) == state.rules
    )
    assert state in await tenants.list()


async def test_a_tenant_stands_still_and_goes_on(stage: Stage):
    tenants = stage.app.tenants
    assert (await tenants.pause("default")).rules.paused
    assert (await tenants.drain("default")).rules.draining
    assert TenantRules() == (await tenants.resume("default")).rules


async def test_use_of_the_limits_is_told(stage: Stage):
    for n in range(3):
        await stage.charge.submit(f"inv_{n}", n)
    await stage.start_all()
    state = await stage.app.tenants.get("default")
    assert (3, 3) == (state.unfinished, state.running)


async def settled(stage: Stage, runs: list[tuple[int, str, str]]) -> None:
    for shard, fence, task_id in runs:
        await stage.session.store.settle(shard, [(task_id, fence, BROKEN)])


async def test_a_purged_tenant_has_nothing_left_and_others_keep_theirs(stage: Stage):
    acme = stage.charge.options(tenant="acme")
    for n in range(3):
        await acme.options(delay="1h").submit(f"inv_{n}", n)
    await acme.every("15m", id="quarterly").create("inv_9", 5)
    await stage.app.tenants.set("acme", weight=2)
    kept = await stage.add.submit(1)

    found = await stage.app.tenants.purge("acme")

    assert (3, 1, 0, 0) == (found.tasks, found.recurring_tasks, found.webhooks, found.api_keys)
    assert (True, 0, 0) == (found.done, found.left, found.running)
    assert TenantRules() == (await stage.app.tenants.get("acme")).rules
    assert ["default"] == [each.name for each in await stage.app.tenants.list()]
    assert "PENDING" == (await kept.refresh()).status


async def test_a_purge_sums_its_requests(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_purge, "TASKS_MAX", 2)
    monkeypatch.setattr(tenant_purge, "BATCH", 2)
    await stage.app.submit_many(stage.add.options(delay="1h").call(n) for n in range(5))
    assert not (await stage.backend.limits.purge_tenant("default", "default")).done
    found = await stage.app.tenants.purge("default")
    assert (3, True) == (found.tasks, found.done)


async def test_a_purge_waits_for_what_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    await stage.charge.submit("inv_1", 1)
    runs = await stage.start_all()
    pauses: list[float] = []
    never_slept = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await settled(stage, runs)
        await never_slept(0)

    monkeypatch.setattr(limits.asyncio, "sleep", sleep)
    found = await stage.app.tenants.purge("default")
    assert (1, 0, True) == (found.tasks, found.running, found.done)
    assert [limits.PAUSE_S] == pauses


async def test_a_purge_that_takes_too_long_says_what_runs_and_goes_on_later(stage: Stage):
    await stage.charge.submit("inv_1", 1)
    runs = await stage.start_all()
    with pytest.raises(
        TimeoutError, match=r"default is not purged .*: tasks left 1, still running 1"
    ):
        await stage.app.tenants.purge("default", timeout="0s")
    state = (await stage.app.tenants.get("default")).rules
    assert (True, True) == (state.paused, state.draining)
    await settled(stage, runs)
    assert (await stage.app.tenants.purge("default")).done


async def test_a_purge_of_nobody_is_done_and_a_bad_one_is_refused(stage: Stage):
    nothing = Purged(
        tasks=0, recurring_tasks=0, webhooks=0, api_keys=0, left=0, running=0, done=True
    )
    assert nothing == await stage.app.tenants.purge("nobody")
    for name, timeout in (("a:b", "1s"), ("acme", "-1s")):
        with pytest.raises(Invalid):
            await stage.app.tenants.purge(name, timeout)
    with pytest.raises((Invalid, NotFound)):
        await stage.backend.limits.purge_tenant("default", "a:b")


async def test_a_purge_whose_answer_is_lost_is_asked_for_again(session: Session):
    lossy = Lossy(asgi(session))
    backend = remote(lossy)
    stage = Stage(session, backend)
    with stage.app.using(backend):
        await stage.add.options(delay="1h").submit(1)
        lossy.lose = [LOST]
        assert (await stage.app.tenants.purge("default")).done
    await backend.close()
    assert ["/tenants/default/purge"] * 2 == [request.url.path for request in lossy.seen[1:]]
    assert 0 == await stage.count()


@pytest.mark.parametrize(
    "limits", [{"max_running": 0}, {"weight": 2}, {"dispatch_rate": 0.0001}, {"paused": 1}]
)
async def test_bad_limits_are_refused(stage: Stage, limits: dict):
    with pytest.raises(Invalid):
        await stage.app.queues.set("mail", **limits)
    with pytest.raises(Invalid):
        await stage.app.queues.get("a:b")


async def test_a_key_travels_with_options_edits_and_handlers(stage: Stage):
    @stage.app.task(concurrency_key="backup", concurrency_limit=2)
    async def backup() -> None: ...

    task = await backup.options(delay="1h").submit()
    assert Concurrency("backup", 2) == (await task.refresh()).concurrency
    other = await backup.options(delay="1h", concurrency_key="other").submit()
    assert Concurrency("other", 2) == (await other.refresh()).concurrency
    plain = await stage.add.options(delay="1h", concurrency_key="k").submit(1)
    assert Concurrency("k", 1) == (await plain.refresh()).concurrency
    await stage.app.operations.edit({"concurrency_limit": 5}, status="PENDING", queue="default")
    assert Concurrency("k", 5) == (await plain.refresh()).concurrency
    assert Concurrency("backup", 5) == (await task.refresh()).concurrency


async def test_a_limit_without_a_key_is_refused(stage: Stage):
    with pytest.raises(Invalid):
        stage.add.options(concurrency_limit=2)
    with pytest.raises(Invalid):
        stage.app.task(concurrency_limit=2)(test_a_limit_without_a_key_is_refused)
    with pytest.raises(Invalid):
        stage.add.options(concurrency_key="", concurrency_limit=2)


async def test_a_recurring_task_keeps_and_changes_its_key(stage: Stage):
    made = await stage.add.options(concurrency_key="k").every("15m", id="quarterly").create(1)
    assert Concurrency("k", 1) == (await made.refresh()).spec.template.concurrency
    await made.edit(concurrency_limit=3)
    assert Concurrency("k", 3) == (await made.refresh()).spec.template.concurrency
    await made.edit(concurrency_key=None)
    assert (await made.refresh()).spec.template.concurrency is None


async def test_why_waiting_names_the_key(stage: Stage):
    await stage.start_all("add")
    made = [await stage.add.options(concurrency_key="k").submit(n) for n in range(2)]
    for _ in range(3):
        await stage.start_all("add")
    records = [(await task.refresh()) for task in made]
    assert {"PENDING"} == {record.status for record in records}
    reasons = [(await stage.backend.explain("default", task.id)).reasons for task in made]
    assert {"concurrency_key k 1"} <= {each[0].get("limit") for each in reasons}


def test_the_twins_without_a_loop_say_the_same(make_app):
    app = make_app()
    try:
        assert 3 == app.queues.set_sync("mail", max_running=3).rules.max_running
        assert ["mail"] == [each.name for each in app.queues.list_sync()]
        assert "queue" == app.queues.pause_sync("mail").paused_by
        assert app.queues.drain_sync("mail").rules.draining
        assert QueueRules(max_running=3) == app.queues.resume_sync("mail").rules
        assert "share" == app.queues.pause_share_sync("mail").paused_by
        assert app.queues.resume_share_sync("mail").paused_by is None
        app.queues.pause_everything_sync()
        assert "everything" == app.queues.get_sync("mail").paused_by
        app.queues.resume_everything_sync()
        assert 2 == app.tenants.set_sync("acme", weight=2).rules.weight
        assert app.tenants.pause_sync("acme").rules.paused
        assert app.tenants.drain_sync("acme").rules.draining
        assert TenantRules(weight=2) == app.tenants.resume_sync("acme").rules
        assert ["acme"] == [each.name for each in app.tenants.list_sync()]
        assert 2 == app.tenants.get_sync("acme").version - 3
        assert app.tenants.purge_sync("acme", "10s").done
        assert [] == app.tenants.list_sync()
    finally:
        app.close_sync()


async def test_an_export_comes_line_by_line_over_http(session: Session):
    backend = remote(asgi(session))
    stage = Stage(session, backend)
    with stage.app.using(backend):
        task = await stage.add.options(tenant="acme", delay="1h").submit(1)
        told = [each async for each in backend.limits.export_tenant("default", "acme")]
    await backend.close()
    lines = [json.loads(each) for each in told]
    assert [next(iter(line)) for line in lines] == ["tenant", "task", "end"]
    assert lines[1]["task"]["task_id"] == task.id
