"""Recurring tasks through the client, over Redis and over HTTP: the same answers."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.client.conftest import Make, Stage, asgi, done, remote
from tests.client.test_remote import LOST, Lossy

from tasksched import (
    App,
    Conflict,
    Cron,
    Delay,
    Every,
    Invalid,
    NotFound,
    PreconditionFailed,
    Recurring,
    Retry,
    RRule,
    Unavailable,
)
from tasksched.client.recurring_backend import RecurringBackend
from tasksched.client.schedule_options import RecurringChanges, edited
from tasksched.commands.session import Session
from tasksched.model.instants import format_instant, parse_instant
from tasksched.runtime.ticker import fire_owed
from tasksched.settings import Settings
from tasksched.store.schedules import Schedules

pytestmark = pytest.mark.anyio

START = "2026-03-28T12:00:00Z"
START_MS = parse_instant(START)
NIGHTLY = Cron("30 2 * * *", tz="Europe/Paris")
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def clock(request: pytest.FixtureRequest) -> None:
    if "session" in request.fixturenames:
        session: Session = request.getfixturevalue("session")
        session.store.now_ms = START_MS


def advance(stage: Stage, ms: int) -> None:
    stage.session.store.now_ms += ms


async def fire(stage: Stage) -> None:
    """As a scheduler: whatever is owed now."""
    schedules = Schedules(stage.session.store)
    for shard in range(stage.session.store.shards):
        while (await fire_owed(schedules, shard))[0]:
            pass


def nowhere() -> App:
    return App(settings=Settings(url="redis://nowhere"))


def times(fires: list) -> list[str]:
    return [format_instant(fire.at_ms) for fire in fires]


# -- making ---------------------------------------------------------------------------------------


async def test_create_says_when_and_is_the_same_again(stage: Stage):
    make = stage.charge.every(NIGHTLY, id="nightly")
    s = await make.create("inv_1", cents=5)

    assert (s.id, s.tenant, s.created, s.status) == ("nightly", "default", True, "ACTIVE")
    assert s.description == "At 02:30 every day, Europe/Paris"
    assert s.record is not None
    assert s.record.version == 1
    assert s.record.spec.template.queue == "billing"
    assert s.record.spec.template.timeout_ms == 30_000
    assert s.record.spec.template.retry == Retry(3)  # classes do not travel
    assert times(s.next_fires(2)) == ["2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"]
    assert "does not exist" in (s.next_fires(1)[0].note or "")

    again = await make.create("inv_1", cents=5)
    assert (again.created, again) == (False, s)
    with pytest.raises(Conflict) as refused:
        await make.create("inv_1", cents=6)
    assert refused.value.extra["version"] == 1
    assert refused.value.extra["recurring_task_id"] == "nightly"


async def test_put_replaces_whatever_version(stage: Stage):
    first = await stage.add.every("15m", id="s").put(1)
    second = await stage.add.every("20m", id="s").put(1)
    third = await stage.add.every("20m", id="s").put(1)

    assert (first.created, second.created, third.created) == (True, False, False)
    assert [each.record.version for each in (first, second, third) if each.record] == [1, 2, 2]
    await second.delete()
    assert (await stage.add.every("20m", id="s").put(1)).created


async def test_puts_at_the_same_time_all_come_through(stage: Stage):
    await asyncio.gather(*(stage.add.every(60 + n, id="s").put(n) for n in range(4)))
    assert (await stage.app.recurring("s").refresh()).version == 4


@pytest.mark.parametrize(
    ("when", "kind"),
    [
        (NIGHTLY, "cron"), ("30 2 * * *", "cron"), (" @daily ", "cron"), (Every("1h"), "interval"),
        ("1h30m", "interval"), (90, "interval"), (Delay("5m"), "delay"),
        (RRule("FREQ=MONTHLY;BYDAY=-1FR"), "rrule"),
    ],
)  # fmt: skip
async def test_every_way_to_say_when(stage: Stage, when, kind: str):
    s = await stage.add.every(when, id="s").create(1)
    record = await s.refresh()
    assert record.spec.rule.kind == kind
    assert s.next_fires(1)[0].at_ms == record.next_ms


async def test_what_is_said_arrives(stage: Stage):
    rule = Cron("H 9 * * *", tz="Asia/Tokyo", on_gap="skip", start_at="2026-04-01T00:00:00Z")
    s = await (
        stage.add.options(queue="q", priority="high", tags=["a"], retry=Retry(7), timeout="90s")
        .every(
            rule, id="s", overlap="queue", catch_up="all", catch_up_limit=5, misfire_grace="1h",
            jitter=30, max_runs=9, tenant="acme",
        )
        .create(1, b=3)
    )  # fmt: skip
    record = await s.refresh()

    spec, template = record.spec, record.spec.template
    assert (s.tenant, template.tenant, template.queue, template.priority) == (
        "acme", "acme", "q", "high",
    )  # fmt: skip
    assert (template.tags, template.retry, template.timeout_ms) == (("a",), Retry(7), 90_000)
    assert (spec.overlap, spec.misfire.catch_up, spec.misfire.limit) == ("queue", "all", 5)
    assert (spec.misfire.grace_ms, spec.jitter_ms, spec.max_runs) == (HOUR_MS, 30_000, 9)
    assert spec.rule == rule.bind("acme:s", record.generation_ms)
    with pytest.raises(NotFound):
        await stage.app.recurring("s").refresh()  # of another tenant


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"id": "a b"}, "/id"),
        ({}, "/id"),
        ({"id": "s", "overlap": "maybe"}, "/overlap"),
        ({"id": "s", "catch_up": "none"}, "/misfire_grace"),
        ({"id": "s", "catch_up_limit": 0}, "/catch_up_limit"),
        ({"id": "s", "catch_up_limit": "9"}, "/catch_up_limit"),
        ({"id": "s", "jitter": "soon"}, "/jitter"),
        ({"id": "s", "max_runs": 0}, "/max_runs"),
        ({"id": "s", "after": "success"}, "/after"),
        ({"id": "s", "tenant": "a b"}, "/tenant"),
        ({"id": "s", "colour": "red"}, "/colour"),
    ],
)
async def test_wrong_options_are_refused_here(direct: Stage, options, pointer: str):
    with pytest.raises(Invalid) as refused:
        direct.add.every("15m", **options)
    assert [problem.pointer for problem in refused.value.problems] == [pointer]


async def test_what_only_one_task_can_have_is_refused(direct: Stage):
    for options in ({"delay": "1h"}, {"at": START}, {"key": "k"}, {"expires": "1h"}):
        with pytest.raises(Invalid, match="its rule says when"):
            direct.add.options(**options).every("15m", id="s")
    with pytest.raises(Invalid, match="cannot overlap"):
        direct.add.every(Delay("1m"), id="s", overlap="allow")
    with pytest.raises(Invalid) as refused:
        direct.add.every("sometimes", id="s")
    assert refused.value.problems[0].pointer == "/interval"
    with pytest.raises(TypeError):
        await direct.add.every("1h", id="s").create()


async def test_a_rule_that_is_over_is_refused(stage: Stage):
    with pytest.raises(Invalid, match="never fires"):
        await stage.add.every(Cron("@daily", end_at="2020-01-01T00:00:00Z"), id="s").create(1)


def test_a_fresh_rule_is_looked_at_without_a_server():
    app = nowhere()
    make = app.named("x").every(NIGHTLY, id="s")
    assert make.description == "At 02:30 every day, Europe/Paris"
    assert times(make.next_fires(1, after=START)) == ["2026-03-29T01:00:00.000Z"]
    assert times(app.named("x").every("1h", id="s").next_fires(1, after=START)) == [
        "2026-03-28T13:00:00.000Z"
    ]
    assert len(make.next_fires()) == 10
    with pytest.raises(RuntimeError, match=r"refresh\(\) it first"):
        app.recurring("s").next_fires()
    assert repr(app.recurring("s")) == "<Recurring s not read yet>"


# -- verbs ----------------------------------------------------------------------------------------


async def test_pause_and_resume(stage: Stage):
    s = await stage.add.every("15m", id="s").create(1)
    assert (await s.pause()).status == s.status == "PAUSED"
    assert s.next_fires() == []
    assert (await s.pause()).version == 2
    advance(stage, HOUR_MS)
    with pytest.raises(PreconditionFailed):
        await s.resume(version=1)
    assert (await s.resume(version=2)).status == "ACTIVE"
    assert s.next_fires(1)[0].at_ms == START_MS + HOUR_MS + HOUR_MS // 4


async def test_edit_changes_what_is_named(stage: Stage):
    s = await stage.add.every("15m", id="s", overlap="queue", jitter="5s").create(1)
    await s.edit(rule=NIGHTLY, queue="q", tags=["x"], jitter=None, timeout="1m", catch_up="all")
    record = await s.edit(payload=[7], max_runs=3, retry=Retry(2), priority="low")

    spec, template = record.spec, record.spec.template
    assert record == await s.refresh()
    assert (record.version, spec.rule, spec.overlap) == (3, NIGHTLY, "queue")
    assert (spec.jitter_ms, spec.max_runs, spec.misfire.catch_up) == (None, 3, "all")
    assert (template.queue, template.tags, template.priority) == ("q", ("x",), "low")
    assert (template.timeout_ms, template.retry) == (60_000, Retry(2))
    record = await s.edit(timeout=None, retry=None, max_runs=None)
    assert (record.spec.template.timeout_ms, record.spec.max_runs) == (None, None)
    assert record.spec.template.retry == Retry()

    assert (await s.edit(queue="q")).version == 4  # nothing new
    with pytest.raises(PreconditionFailed):
        await s.edit(queue="r", version=1)
    with pytest.raises(Invalid, match="say what to change"):
        await s.edit()
    await (await s.trigger()).refresh()


async def test_an_edit_of_the_rule_drops_its_bounds_and_what_went_with_its_kind(stage: Stage):
    delay = Delay("5m", end_at="2030-01-01T00:00:00Z")
    s = await stage.add.every(delay, id="s", after="success").create(1)
    record = await s.edit(rule="1h")
    assert (record.spec.rule.kind, record.spec.after) == ("interval", "terminal")
    assert record.spec.rule.end_ms is None


async def test_trigger_makes_a_task_of_it(stage: Stage):
    s = await stage.charge.every(NIGHTLY, id="s").create("inv_1", 5)
    task = await s.trigger()
    assert await stage.run(done("paid")) == 1
    record = await task.wait(1)
    assert await task.result(0) == "paid"
    assert (record.schedule, record.nominal_ms) == ("default:s", START_MS)
    (entry,) = await s.runs()
    assert (entry.outcome, entry.by_hand, entry.task_id) == ("fired", True, task.id)


async def test_a_run_is_on_the_ledger(stage: Stage):
    s = await stage.charge.every("15m", id="s").create("inv_1", 5)
    advance(stage, HOUR_MS // 4 + 500)
    await fire(stage)
    assert await stage.run(done("paid")) == 1
    (entry,) = await s.runs()
    assert (entry.outcome, entry.lateness_ms, entry.count) == ("fired", 500, 1)
    assert (await stage.app.get(entry.task_id or "")).status == "SUCCESS"
    record = await s.refresh()
    assert (record.runs, record.last_ms) == (1, START_MS + HOUR_MS // 4)


async def test_backfill_counts_first(stage: Stage):
    s = await stage.add.every(Every("1h", start_at="2026-03-28T00:00:00Z"), id="s").create(1)
    span = ("2026-03-28T01:00:00Z", datetime(2026, 3, 28, 4, tzinfo=UTC))
    counted = await s.backfill(*span, dry_run=True)
    made = await s.backfill(*span, rate=100)
    again = await s.backfill(*span)

    assert (counted.count, counted.task_ids, counted.is_exact) == (4, [], True)
    assert (len(made.task_ids), again.task_ids) == (4, [])
    with pytest.raises(Invalid):
        await s.backfill(span[1], span[0])


async def test_a_fixed_delay_tells_its_waiting_run(stage: Stage):
    s = await stage.add.every(Delay("10m"), id="s").create(1)
    assert [fire.at_ms for fire in s.next_fires(3)] == [START_MS + 600_000]
    advance(stage, 600_000)
    await fire(stage)
    await stage.run(done(3), "add")
    await s.refresh()
    assert [fire.at_ms for fire in s.next_fires(3)] == [START_MS + 1_200_000]


async def test_delete_ends_it(stage: Stage):
    s = await stage.add.every("15m", id="s").create(1)
    with pytest.raises(PreconditionFailed):
        await s.delete(version=9)
    await s.delete()
    for verb in (s.refresh, s.pause, s.resume, s.trigger, s.delete, s.runs):
        with pytest.raises(NotFound):
            await verb()


async def test_an_id_that_can_be_none_is_not_found(stage: Stage):
    for name in ("a b", "a/b", "a:b", "", "é"):
        with pytest.raises(NotFound):
            await stage.app.recurring(name).refresh()


async def test_find_sees_all_in_pages(stage: Stage):
    made = [await stage.add.every(60 + n, id=f"s{n}").create(n) for n in range(7)]
    await made[3].pause()
    found = [each async for each in stage.app.find_recurring()]
    assert [each.id for each in found if each.status == "ACTIVE"] == [
        f"s{n}" for n in range(7) if n != 3
    ]
    assert found[0].next_fires(1)[0].at_ms == START_MS + 60_000
    paused = [each async for each in stage.app.find_recurring(status="PAUSED")]
    assert paused == [made[3]]


async def test_pages_follow_each_other(stage: Stage):
    backend: RecurringBackend = stage.backend.recurring
    for n in range(5):
        await stage.add.every(60 + n, id=f"s{n}").create(n)
    seen, cursor = [], None
    while True:
        page = await backend.page("default", None, cursor, 2)
        seen += [each.spec.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"s{n}" for n in range(5)]


# -- transports -----------------------------------------------------------------------------------


@pytest.fixture
async def lossy(session: Session) -> Lossy:
    return Lossy(asgi(session))


@pytest.fixture
async def over_http(session: Session, lossy: Lossy):
    backend = remote(lossy)
    found = Stage(session, backend)
    with found.app.using(backend):
        yield found
    await backend.close()


async def test_a_lost_reply_is_asked_for_again(over_http: Stage, lossy: Lossy):
    lossy.lose = [LOST]
    s = await over_http.add.every("15m", id="s").create(1)
    lossy.lose = [LOST]
    assert (await s.pause()).version == 2
    lossy.lose = [LOST]
    assert (await s.edit(queue="q")).version == 3
    lossy.lose = [LOST]
    assert (await s.resume(version=3)).status == "ACTIVE"
    lossy.lose = [LOST]
    with pytest.raises(Unavailable):
        await s.trigger()  # it may have been done
    assert await over_http.count() == 1


async def test_versions_are_named_to_the_api(over_http: Stage, lossy: Lossy):
    s = await over_http.add.every("15m", id="s").create(1)
    await s.edit(queue="q", version=1)
    await over_http.add.every("20m", id="s").put(1)
    await s.delete()
    sent = [(r.method, r.headers.get("If-Match")) for r in lossy.seen]
    assert sent == [
        ("POST", None), ("PATCH", '"1"'), ("POST", None), ("PUT", '"2"'), ("DELETE", "*"),
    ]  # fmt: skip


async def test_an_edit_races_with_others(direct: Stage):
    s = await direct.add.every("15m", id="s").create(1)
    await asyncio.gather(*(s.edit(queue=f"q{n}") for n in range(4)))
    assert (await s.refresh()).version == 5


def test_an_edit_of_nothing_is_the_same():
    make = nowhere().named("x").every("15m", id="s", catch_up="all", catch_up_limit=3)
    assert edited(make._spec, RecurringChanges()) == make._spec


# -- without an event loop ------------------------------------------------------------------------


@pytest.fixture
def app(make_app: Make) -> Iterator:
    found = make_app()
    yield found
    found.close_sync()


def test_sync_twins(app):
    @app.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    s = add.every("1h", id="s").create_sync(1)
    assert not add.every("2h", id="s").put_sync(1).created
    assert s.refresh_sync().version == 2
    assert s.pause_sync().status == "PAUSED"
    assert s.resume_sync().status == "ACTIVE"
    assert s.edit_sync(queue="q").spec.template.queue == "q"
    assert s.trigger_sync().refresh_sync().queue == "q"
    assert len(s.runs_sync()) == 1
    assert s.backfill_sync("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", dry_run=True).count == 0
    assert [type(each) for each in app.find_recurring_sync()] == [Recurring]
    s.delete_sync()
    assert app.find_recurring_sync() == []
