"""Notifications: the verdict that somebody waits for makes one task, in the script that records it."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.protocol.kit import (
    BOOKKEEPING,
    BROKEN,
    DAY_MS,
    DONE,
    LEASE_MS,
    STOPPED,
    Kit,
    lost,
    retry_in,
    spec,
)
from tests.protocol.schedules.kit import MINUTE_MS, SchedulesKit, Work, ms, open_schedules_kit
from tests.servers import ServerProcess

from tasksched.errors import Unavailable
from tasksched.model.notify import NOTIFY_ROUTE, QUEUE, Cause, Receiver, notification_id
from tasksched.model.schedule import Delay, Every
from tasksched.store.protocol import Edit

pytestmark = pytest.mark.anyio

URL = "https://example.com/hook"
ALL = Receiver(URL, ("task.succeeded", "task.failed", "task.cancelled"))
LANE = f"{QUEUE}:normal:default:{NOTIFY_ROUTE}"


def wanting(*events: Any, **fields: Any) -> Any:
    return spec(notify=(Receiver(URL, events or ALL.events),), **fields)


def notices(kit: Kit) -> dict[str, str]:
    """Id → cause of the notifications there are, whatever became of them."""
    names = kit.plain.keys(kit.keys.task("n*").replace("{", r"\{"))
    found = [name.decode().rsplit(":", 1)[1] for name in names]
    return {
        task_id: msgspec.json.decode(kit.record(task_id)["options"])["cause"] for task_id in found
    }


def causes(kit: Kit) -> list[str]:
    return sorted(text.rsplit(" ", 1)[0] for text in notices(kit).values())


def mark(kit: Kit, task_id: str, life: int = 1) -> str:
    """Which life of which task of this id."""
    return f"{life}/{kit.record(task_id)['created_ms']}"


async def want(kit: Kit, words: str, version: int = 1) -> None:
    """What ``set_conf`` does where an endpoint of the tenant wants these."""
    await kit.store.configure(0, [("hooks:default", f"{version} {words}")])


# -- each verb that records a verdict -------------------------------------------------------------


async def settled(kit: Kit, outcome: Any, **fields: Any) -> str:
    await kit.announce()
    task_id = await kit.submit(wanting(**fields))
    await kit.settle(await kit.start(task_id), outcome)
    return task_id


async def succeed(kit: Kit) -> str:
    return await settled(kit, DONE)


async def fail(kit: Kit) -> str:
    return await settled(kit, BROKEN)


async def stop(kit: Kit) -> str:
    return await settled(kit, STOPPED)


async def cancel_waiting(kit: Kit) -> str:
    task_id = await kit.submit(wanting(delay_ms=DAY_MS))
    await kit.store.cancel(0, task_id, "default", None)
    return task_id


async def cancel_queued(kit: Kit) -> str:
    await kit.announce()
    task_id = await kit.submit(wanting())
    assert "QUEUED" == kit.state(task_id)
    await kit.store.cancel(0, task_id, "default", None)
    return task_id


async def release_cancelled(kit: Kit) -> str:
    await kit.announce()
    grant = await kit.start(await kit.submit(wanting()))
    await kit.store.cancel(0, grant.id, "default", None)
    await kit.store.release(0, [(grant.id, grant.fence)])
    return grant.id


async def lose(kit: Kit) -> str:
    await kit.announce()
    grant = await kit.start(await kit.submit(wanting()))
    await kit.wait(LEASE_MS)
    await kit.reap(grant, lost())
    return grant.id


async def expire_at_dispatch(kit: Kit) -> str:
    task_id = await kit.submit(wanting(delay_ms=DAY_MS, expires_at_ms=kit.now_ms + 5))
    kit.leap(5)
    await kit.dispatch()
    return task_id


async def expire_at_take(kit: Kit) -> str:
    await kit.announce()
    task_id = await kit.submit(wanting(expires_at_ms=kit.now_ms + 5))
    assert "QUEUED" == kit.state(task_id)
    kit.leap(5)
    await kit.take()  # hands it back: it is a scheduler's to fail
    await kit.dispatch()
    return task_id


VERDICTS: dict[Callable[[Kit], Awaitable[str]], tuple[str, str]] = {
    succeed: ("SUCCESS", "task.succeeded"),
    fail: ("FAILED", "task.failed"),
    stop: ("CANCELLED", "task.cancelled"),
    cancel_waiting: ("CANCELLED", "task.cancelled"),
    cancel_queued: ("CANCELLED", "task.cancelled"),
    release_cancelled: ("CANCELLED", "task.cancelled"),
    lose: ("FAILED", "task.failed"),
    expire_at_dispatch: ("FAILED", "task.failed"),
    expire_at_take: ("FAILED", "task.failed"),
}


@pytest.mark.parametrize("verb", VERDICTS, ids=lambda verb: verb.__name__)
async def test_a_verdict_makes_one_notification(kit: Kit, verb):
    task_id = await verb(kit)
    state, event = VERDICTS[verb]
    assert state == kit.state(task_id)
    ((notice_id, text),) = notices(kit).items()
    cause = Cause(event, task_id, mark(kit, task_id), kit.now_ms)  # type: ignore[arg-type]
    assert cause == Cause.parse(text)
    assert notification_id(cause, 0) == notice_id
    record = kit.record(notice_id)
    assert (LANE, str(kit.now_ms)) == (record["lane"], record["due_ms"])
    assert record["state"] in {"PENDING", "QUEUED"}


@pytest.mark.parametrize("verb", VERDICTS, ids=lambda verb: verb.__name__)
async def test_an_endpoint_of_the_tenant_wants_it(valkey: Kit, verb, monkeypatch):
    monkeypatch.setattr("tests.protocol.test_notify.wanting", spec)
    await want(valkey, VERDICTS[verb][1].partition(".")[2])
    task_id = await verb(valkey)
    assert [f"{VERDICTS[verb][1]} {task_id} {mark(valkey, task_id)}"] == causes(valkey)


@pytest.mark.parametrize("verb", VERDICTS, ids=lambda verb: verb.__name__)
async def test_nobody_wants_it_and_nothing_is_written(valkey: Kit, verb, monkeypatch):
    """Neither what others want, nor what nobody does, leaves a key or a counter."""
    other = {"task.failed": "task.cancelled"}.get(VERDICTS[verb][1], "task.failed")
    monkeypatch.setattr(
        "tests.protocol.test_notify.wanting",
        lambda **fields: spec(notify=(Receiver(URL, (other,)),), **fields),
    )
    await want(valkey, "missed blocked")
    await verb(valkey)
    assert [] == [key for key in valkey.dump() if QUEUE in key]
    assert {} == notices(valkey)
    assert {} == {name: n for name, n in valkey.stats().items() if name.startswith(QUEUE)}


async def test_a_failure_that_is_tried_again_is_no_verdict(kit: Kit):
    await settled(kit, retry_in(1_000))
    assert {} == notices(kit)


async def test_what_the_tenant_wants_is_no_business_of_another_tenant(valkey: Kit):
    await want(valkey, "succeeded failed cancelled")
    await valkey.announce()
    task_id = await valkey.submit(spec(tenant="other"))
    await valkey.settle(await valkey.start(task_id), DONE)
    assert {} == notices(valkey)


async def test_a_setting_that_was_taken_back_counts_no_more(valkey: Kit):
    await want(valkey, "succeeded")
    await want(valkey, " ", 2)
    await want(valkey, "failed", 1)  # an old word that comes late
    await valkey.announce()
    task_id = await valkey.submit(spec())
    await valkey.settle(await valkey.start(task_id), DONE)
    assert {} == notices(valkey)


# -- once -----------------------------------------------------------------------------------------


async def test_the_same_verdict_again_makes_no_second_one(kit: Kit):
    await kit.announce()
    grant = await kit.start(await kit.submit(wanting()))
    assert "FAILED" == await kit.settle(grant, BROKEN)
    after = kit.dump(without=BOOKKEEPING)
    assert "FAILED" == await kit.settle(grant, BROKEN)
    assert "conflict" == await kit.settle(grant, DONE)
    assert after == kit.dump(without=BOOKKEEPING)


async def test_a_stale_verdict_makes_none(kit: Kit):
    await kit.announce()
    grant = await kit.start(await kit.submit(wanting()))
    await kit.wait(LEASE_MS)
    await kit.reap(grant, lost(0))
    assert "stale" == await kit.settle(grant, DONE)
    assert {} == notices(kit)


async def test_twice_in_one_call_is_once(kit: Kit):
    await kit.announce()
    grant = await kit.start(await kit.submit(wanting()))
    await kit.store.settle(0, [(grant.id, grant.fence, DONE)] * 2)
    assert [f"task.succeeded {grant.id} {mark(kit, grant.id)}"] == causes(kit)


async def test_a_new_life_has_a_notification_of_its_own(kit: Kit):
    task_id = await fail(kit)
    await kit.store.redrive(0, task_id, "default", None)
    await kit.settle(await kit.start(task_id), BROKEN)
    await kit.store.redrive(0, task_id, "default", None)
    await kit.settle(await kit.start(task_id), DONE)
    lives = enumerate(("task.failed", "task.failed", "task.succeeded"), 1)
    assert [f"{event} {task_id} {mark(kit, task_id, n)}" for n, event in lives] == causes(kit)


async def test_an_edit_says_who_is_told(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(delay_ms=1))
    await kit.store.edit(0, task_id, "default", None, Edit(wants="succeeded"))
    kit.leap(1)
    await kit.settle(await kit.start(task_id), DONE)
    assert [f"task.succeeded {task_id} {mark(kit, task_id)}"] == causes(kit)


# -- the reserved queue ---------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [DONE, BROKEN, STOPPED], ids=lambda outcome: outcome.kind)
async def test_notifications_and_deliveries_raise_no_events(kit: Kit, outcome):
    await want(kit, "succeeded failed cancelled")
    await kit.announce("w1", "queue:*", "route:charge", "route:http", f"route:{NOTIFY_ROUTE}")
    grant = await kit.start(await kit.submit(spec()))
    await kit.settle(grant, DONE)
    assert 1 == await kit.store.deliver(0, "default", [(kit.new_id(), "{}", b"\x80")])
    await kit.dispatch()
    grants = await kit.take()
    assert {NOTIFY_ROUTE, "http"} == {each.route for each in grants}
    for each in grants:
        await kit.settle(each, outcome)
    assert [f"task.succeeded {grant.id} {mark(kit, grant.id)}"] == causes(kit)
    assert await kit.take() == []


async def test_a_run_knows_its_cause(kit: Kit):
    task_id = await succeed(kit)
    await kit.announce("w1", f"queue:{QUEUE}", f"route:{NOTIFY_ROUTE}")
    await kit.dispatch()
    (grant,) = await kit.take()
    cause = Cause("task.succeeded", task_id, mark(kit, task_id), kit.now_ms)
    assert cause == grant.options.cause
    assert "default" == grant.tenant


async def test_deliveries_are_made_once(kit: Kit):
    rows = [(kit.new_id(), '{"timeout_ms":5}', b"x" * size) for size in (10, 3_000)]
    assert 2 == await kit.store.deliver(0, "default", rows)
    after = kit.dump(without=BOOKKEEPING)
    assert 0 == await kit.store.deliver(0, "default", rows)
    assert 1 == await kit.store.deliver(0, "default", [*rows, (kit.new_id(), "{}", b"x")])
    assert len(after) < len(kit.dump(without=BOOKKEEPING))
    await kit.announce("w1", f"queue:{QUEUE}", "route:http")
    await kit.dispatch()
    assert {10, 3_000, 1} == {len(grant.payload or b"") for grant in await kit.take()}


async def test_without_memory_events_are_told_all_the_same(kit: Kit):
    await kit.announce()
    grant = await kit.start(await kit.submit(wanting()))
    kit.plain.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(Unavailable):
            await kit.submit()
        assert "SUCCESS" == await kit.settle(grant, DONE)
        assert [f"task.succeeded {grant.id} {mark(kit, grant.id)}"] == causes(kit)
        assert 1 == await kit.store.deliver(0, "default", [(kit.new_id(), "{}", b"x" * 3_000)])
    finally:
        kit.plain.config_set("maxmemory", 0)


# -- recurring tasks ------------------------------------------------------------------------------


@pytest.fixture
async def recurring(redis_server: ServerProcess):
    made = await open_schedules_kit(redis_server.url)
    yield made
    found = made.audit()
    await made.close()
    assert [] == found


async def put(kit: SchedulesKit, rule: Any, *events: Any, **fields: Any) -> Any:
    asked = kit.spec(rule, **fields)
    template = msgspec.structs.replace(asked.template, notify=(Receiver(URL, events),))
    return (await kit.recurring.put(msgspec.structs.replace(asked, template=template)))[1]


async def test_missed_times_are_told_once_for_each_outage(recurring: SchedulesKit):
    recurring.doubled = True
    recurring.at("12:00:00")
    schedule = await put(recurring, Every("15s"), "schedule.missed")
    await recurring.advance("12:01:00")
    assert [] == causes(recurring)
    for end in ("12:02:05", "12:04:05"):
        await recurring.down_until(end)
        await recurring.advance(end)
    first = [ms("12:01:15"), ms("12:02:15")]
    assert [
        f"schedule.missed default:s {schedule.generation_ms}/{at_ms}" for at_ms in first
    ] == causes(recurring)


async def test_a_block_is_told(recurring: SchedulesKit):
    recurring.doubled = True
    recurring.handler = lambda _: Work(1_000, BROKEN)
    schedule = await put(recurring, Delay("60s"), "schedule.blocked", after="success")
    await recurring.after(MINUTE_MS + 2_000)
    (start,) = recurring.starts
    what = f"{schedule.generation_ms}/{start.id}"
    assert [f"schedule.blocked default:s {what}"] == causes(recurring)


async def test_the_runs_of_a_schedule_tell_its_receivers(recurring: SchedulesKit):
    recurring.at("12:00:00")
    await put(recurring, Every("1m"), "task.succeeded")
    await recurring.advance("12:02:00")
    assert [
        f"task.succeeded {start.id} {mark(recurring, start.id)}" for start in recurring.starts
    ] == [text for start in recurring.starts for text in causes(recurring) if start.id in text]
    assert 2 == len(causes(recurring))


async def test_what_waits_when_a_schedule_is_removed_is_cancelled_and_told(
    recurring: SchedulesKit,
):
    recurring.at("12:00:00")
    await put(recurring, Every("1m"), "task.cancelled")
    task_id = await recurring.trigger()
    await recurring.remove()
    assert [f"task.cancelled {task_id} {mark(recurring, task_id)}"] == causes(recurring)


async def test_an_endpoint_wants_what_happens_to_schedules(recurring: SchedulesKit):
    await want(recurring, "missed blocked")
    recurring.handler = lambda _: Work(1_000, BROKEN)
    await recurring.put(Delay("60s"), after="success")
    await recurring.after(MINUTE_MS + 2_000)
    assert ["schedule.blocked"] == [text.split(" ")[0] for text in causes(recurring)]
