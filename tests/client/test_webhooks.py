"""Webhooks through the client, over Redis and over HTTP: the same answers."""

import pytest
from tests.client.conftest import Stage

from tasksched import App, Conflict, Every, Invalid, NotFound, PreconditionFailed, Receiver
from tasksched.model.signature import check_secret, new_secret
from tasksched.settings import Settings

pytestmark = pytest.mark.anyio

URL = "https://example.com/hook"
OWN = {"url": URL, "events": ["task.failed", "task.succeeded"]}


async def test_the_life_of_an_endpoint(stage: Stage):
    webhooks = stage.app.webhooks
    made = await webhooks.create(URL, ["task.failed"], description="Sales")
    assert made.secret == check_secret(made.secret)
    assert (made.url, made.events, made.version, made.enabled) == (URL, ("task.failed",), 1, True)
    shown = await webhooks.get(made.id)
    assert shown.secret is None
    assert await webhooks.list() == [shown]
    changed = await webhooks.update(made.id, events=["schedule.missed"], version=1)
    assert (changed.events, changed.description, changed.version) == (
        ("schedule.missed",), "Sales", 2,
    )  # fmt: skip
    with pytest.raises(PreconditionFailed):
        await webhooks.update(made.id, description="", version=1)
    assert not (await webhooks.disable(made.id)).enabled
    assert (await webhooks.enable(made.id)).enabled
    rotated = await webhooks.rotate_secret(made.id, overlap="1h")
    assert rotated.secret != made.secret
    assert check_secret(await webhooks.rotate_tenant_secret())
    await webhooks.delete(made.id)
    with pytest.raises(NotFound):
        await webhooks.get(made.id)
    with pytest.raises(NotFound):
        await webhooks.get("no id")


async def test_deliveries(stage: Stage):
    webhooks = stage.app.webhooks
    made = await webhooks.create(URL, ["task.failed"])
    sent = [await webhooks.test(made.id) for _ in range(3)]
    found = [each async for each in webhooks.deliveries(made.id, limit=2)]
    assert [each.status for each in found] == ["PENDING"] * 2
    assert {each.id async for each in webhooks.deliveries(made.id)} == {each.id for each in sent}
    with pytest.raises(Conflict):
        await webhooks.replay(made.id, sent[0].id)
    await stage.app.task_handle(sent[0].id).cancel()
    assert [each.id async for each in webhooks.deliveries(made.id, status="CANCELLED")] == [
        sent[0].id
    ]
    again = await webhooks.replay(made.id, sent[0].id)
    assert (again.id, again.message_id) == (sent[0].id, sent[0].message_id)
    task = await stage.app.get(sent[0].id)
    assert task.record.delivery.endpoint == made.id


@pytest.mark.parametrize(
    "options",
    [
        {"events": []},
        {"events": ["task.lost"]},
        {"secret": "x"},
        {"url": "example.com"},
        {"description": "\n"},
    ],
)
async def test_what_is_wrong_is_refused_before_it_is_sent(options):
    app = App("redis://127.0.0.1:1")
    with pytest.raises(Invalid):
        await app.webhooks.create(**{"url": URL, "events": ["task.failed"], **options})


async def test_tasks_and_schedules_say_who_is_told(stage: Stage):
    app, secret = stage.app, new_secret()

    @app.task(notify=[OWN])
    async def told(n: int) -> int:
        return n

    def brief(record) -> list[tuple[str, tuple[str, ...]]]:
        return [(each.url, each.events) for each in record.notify]

    usual = (URL, ("task.succeeded", "task.failed"))
    task = await told.options(delay="1h").submit(1)
    assert brief(await task.refresh()) == [usual]
    other = Receiver("https://example.com/other", ("task.cancelled",), secret)
    task = await told.options(delay="1h", notify=[other]).submit(1)
    assert brief(await task.refresh()) == [(other.url, other.events)]
    stored = await stage.session.tasks.reads.task(task.id)
    assert [each.secret for each in stored.notify] == [secret]

    missed = {"url": URL, "events": ["schedule.missed"]}
    schedule = await told.every(Every("1h"), id="s", notify=[missed]).create(1)
    assert brief((await schedule.refresh()).spec.template) == [(URL, ("schedule.missed",))]
    await schedule.edit(queue="other")
    assert brief(schedule.record.spec.template) == [(URL, ("schedule.missed",))]
    await schedule.edit(notify=[])
    assert brief(schedule.record.spec.template) == []


@pytest.mark.parametrize(
    ("notify", "pointer"),
    [
        ([{"url": URL, "events": ["schedule.missed"]}], "/notify/0/events/0"),
        ([{"url": URL}], "/notify/0/events"),
        ([OWN, OWN], "/notify/1/url"),
        ([OWN] * 11, "/notify"),
        ("https://example.com", "/notify"),
    ],
)
def test_a_wrong_receiver_is_named(notify, pointer):
    app = App(settings=Settings())
    with pytest.raises(Invalid) as caught:
        app.named("add").options(notify=notify)
    assert pointer in [problem.pointer for problem in caught.value.problems]
    with pytest.raises(Invalid):
        app.task(notify=notify)(lambda: None)


def test_the_reserved_queue_is_nobodys():
    app = App(settings=Settings())
    with pytest.raises(Invalid, match="reserved"):
        app.named("add").options(queue="notifications")
    with pytest.raises(Invalid, match="reserved"):
        app.task(queue="notifications", name="x")(lambda: None)


async def test_a_declared_schedule_says_who_is_told():
    app = App(settings=Settings())

    @app.task(
        every="1h", schedule_options={"notify": [{"url": URL, "events": ["schedule.missed"]}]}
    )
    async def hourly() -> None: ...

    (declared,) = app.declared
    template = declared.spec("acme", "app").template
    assert [(each.url, each.events) for each in template.notify] == [(URL, ("schedule.missed",))]


def test_without_an_event_loop(valkey_server):
    valkey_server.flush()
    app = App(valkey_server.url)
    try:
        made = app.webhooks.create_sync(URL, ["task.failed"])
        assert [each.id for each in app.webhooks.list_sync()] == [made.id]
        assert app.webhooks.get_sync(made.id).version == 1
        assert app.webhooks.update_sync(made.id, description="x").version == 2
        assert not app.webhooks.disable_sync(made.id).enabled
        assert app.webhooks.enable_sync(made.id).enabled
        assert app.webhooks.rotate_secret_sync(made.id).secret
        assert app.webhooks.rotate_tenant_secret_sync(overlap=0)
        sent = app.webhooks.test_sync(made.id)
        assert [each.id for each in app.webhooks.deliveries_sync(made.id)] == [sent.id]
        with pytest.raises(Conflict):
            app.webhooks.replay_sync(made.id, sent.id)
        app.webhooks.delete_sync(made.id)
    finally:
        app.close_sync()
