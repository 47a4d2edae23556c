"""Recurring tasks that stand in the code: declared, and synced by any number of workers."""

import asyncio

import pytest
from tests.client.conftest import fresh

from tasksched import App, Cron, Ctx, Delay, Every, Invalid, Unavailable
from tasksched import app as roles
from tasksched.client.declared import Report, sync_declared
from tasksched.commands.recurring import Recurring
from tasksched.commands.session import Session, open_session
from tasksched.settings import Settings

NOWHERE = Settings(url="redis://nowhere")


def app_of(*rules: object, name: str = "code", **options: object) -> App:
    """An App with a handler ``h0``, ``h1``… for each rule."""
    app = App(settings=NOWHERE, name=name)
    for n, rule in enumerate(rules):
        app.task(name=f"h{n}", every=rule, schedule_options=options)(lambda: None)  # type: ignore[call-overload]
    return app


# -- declaring ------------------------------------------------------------------------------------


def test_a_handler_declares_by_cron_or_every():
    app = App(settings=NOWHERE)

    @app.task(cron=Cron("30 2 * * *", tz="Europe/Paris"), queue="q")
    async def nightly() -> None: ...
    @app.task(cron="@hourly", schedule_options={"id": "on-the-hour", "overlap": "allow"})
    def hourly(ctx: Ctx, much: int = 1) -> None: ...
    @app.task(every="15m")
    def often() -> None: ...
    @app.task(every=Delay("1m"), version="v2")
    def after() -> None: ...
    @app.task
    def plain(x: int) -> None: ...

    found = {one.id: one for one in app.declared}
    assert list(found) == ["nightly", "on-the-hour", "often", "after"]
    spec = found["on-the-hour"].spec("acme", app.owner)
    assert (spec.overlap, spec.owner, spec.ref) == ("allow", "code", "acme:on-the-hour")
    assert (spec.template.target.route, spec.template.payload) == ("hourly", b"")
    assert found["nightly"].template.queue == "q"
    assert found["often"].rule == Every("15m")


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"cron": "@hourly", "every": "1h"}, "/every"),
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": 5}, "/cron"),
        ({"every": "soon"}, "/interval"),
        ({"schedule_options": {"overlap": "skip"}}, "/schedule_options"),
        ({"every": "1h", "schedule_options": {"overlap": "no"}}, "/overlap"),
        ({"every": "1h", "schedule_options": {"tenant": "acme"}}, "/tenant"),
        ({"every": "1h", "schedule_options": {"id": "a b"}}, "/id"),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(options, pointer: str):
    app = App(settings=NOWHERE)
    with pytest.raises(Invalid) as refused:
        app.task(**options)(test_what_is_wrong_is_told_where_it_stands)
    assert [problem.pointer for problem in refused.value.problems] == [pointer]
    assert app.registry.routes == []


def test_a_declared_handler_needs_no_arguments():
    app = App(settings=NOWHERE)
    with pytest.raises(TypeError, match="missing a required"):

        @app.task(every="1h")
        def add(a: int) -> None: ...

    again = app.task(name="two", every="1h", schedule_options={"id": "s"})
    app.task(name="one", every="1h", schedule_options={"id": "s"})(lambda: None)
    with pytest.raises(Invalid, match="declared already"):
        again(lambda: None)


def test_the_name_of_an_app_is_the_owner():
    assert App(name="billing").owner == "billing"
    with pytest.raises(Invalid):
        App(name="two words")


# -- syncing --------------------------------------------------------------------------------------


@pytest.fixture
async def recurring(session: Session) -> Recurring:
    return Recurring(session.store)


def words(reports: list[Report]) -> list[str]:
    names = ("created", "updated", "unchanged", "removed", "foreign")
    return sorted(name for report in reports for name in names for _ in getattr(report, name))


@pytest.mark.anyio
async def test_a_second_sync_touches_nothing(recurring: Recurring):
    app = app_of("15m", Cron("@daily"), Delay("1m"))
    assert (await sync_declared(app, recurring, "acme")).created == ["h0", "h1", "h2"]
    before = [await recurring.get("acme", f"h{n}") for n in range(3)]
    assert (await sync_declared(app, recurring, "acme")).unchanged == ["h0", "h1", "h2"]
    assert [await recurring.get("acme", f"h{n}") for n in range(3)] == before
    assert {one.spec.owner for one in before} == {"code"}


@pytest.mark.anyio
async def test_workers_that_start_at_once_create_once_and_update_once(session: Session):
    sessions = [await open_session(session.settings) for _ in range(6)]

    async def start_all(app: App) -> list[str]:
        return words(
            await asyncio.gather(
                *(sync_declared(app, Recurring(each.store), "default") for each in sessions)
            )
        )

    assert await start_all(app_of("15m")) == ["created"] + ["unchanged"] * 5
    assert await start_all(app_of("20m")) == ["unchanged"] * 5 + ["updated"]
    found = await Recurring(session.store).get("default", "h0")
    assert (found.version, found.spec.rule) == (2, Every("20m").bind("", found.generation_ms))
    for each in sessions:
        await each.close()


@pytest.mark.anyio
async def test_old_and_new_workers_that_start_at_once_end_with_one_of_both(session: Session):
    apps = [app_of(f"{15 + n % 2}m") for n in range(6)]
    recurring = Recurring(session.store)
    reports = await asyncio.gather(*(sync_declared(app, recurring, "default") for app in apps))
    assert words(reports).count("created") == 1
    assert (await recurring.get("default", "h0")).spec.rule.fields()["interval"] in {"15m", "16m"}


@pytest.mark.anyio
async def test_what_somebody_else_has_is_left_alone(recurring: Recurring):
    await sync_declared(app_of("15m", name="other"), recurring, "default")
    report = await sync_declared(app_of("20m", "1h"), recurring, "default", prune=True)
    assert (report.foreign, report.created, report.removed) == (["h0"], ["h1"], [])
    assert (await recurring.get("default", "h0")).version == 1


@pytest.mark.anyio
async def test_a_pause_stays(recurring: Recurring):
    await sync_declared(app_of("15m"), recurring, "default")
    await recurring.pause("default", "h0")
    assert (await sync_declared(app_of("20m"), recurring, "default")).updated == ["h0"]
    assert (await recurring.get("default", "h0")).status == "PAUSED"


@pytest.mark.anyio
async def test_pruning_removes_its_own_alone(recurring: Recurring):
    await sync_declared(app_of("15m", "16m", "17m"), recurring, "default")
    await sync_declared(app_of("15m", "16m", "17m"), recurring, "acme")
    await sync_declared(app_of("1m", name="other", id="theirs"), recurring, "default")

    assert (await sync_declared(app_of("15m"), recurring, "default")).removed == []
    report = await sync_declared(app_of("15m"), recurring, "default", prune=True)
    assert (report.removed, report.unchanged) == (["h1", "h2"], ["h0"])
    left, _ = await recurring.page("default", None, limit=10)
    assert {one.spec.id for one in left} == {"h0", "theirs"}
    assert len((await recurring.page("acme", None, limit=10))[0]) == 3


@pytest.mark.anyio
async def test_one_that_cannot_be_holds_up_no_other(recurring: Recurring):
    over = Every("1h", end_at="2020-01-01T00:00:00Z")
    report = await sync_declared(app_of(over, "1h"), recurring, "default")
    assert report.created == ["h1"]
    assert "never fires" in report.failed["h0"]


# -- at the start of a worker ---------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_worker_syncs_as_soon_as_redis_lets_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    outages = [Unavailable("away"), Unavailable("still away")]

    async def sync(*args: object, **kwargs: object) -> Report:
        if outages:
            raise outages.pop()
        return await sync_declared(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(roles, "sync_declared", sync)
    monkeypatch.setattr(roles, "RETRY_S", 0.01)
    await roles._declare(app_of("15m"), session, asyncio.Event(), prune=False)
    assert (await Recurring(session.store).get("default", "h0")).version == 1

    outages = [Unavailable("for ever")] * 1000
    stop = asyncio.Event()
    stop.set()
    await roles._declare(app_of("15m"), session, stop, prune=False)
    assert len(outages) == 1000


@pytest.mark.anyio
async def test_the_tenant_is_the_flag_or_the_apps_own(session: Session):
    recurring = Recurring(session.store)
    app = App(settings=NOWHERE, tenant="acme")
    app.task(name="h", every="1h")(lambda: None)
    await roles._declare(app, session, asyncio.Event(), prune=False)
    assert (await recurring.get("acme", "h")).version == 1

    told = await open_session(fresh(session.settings.url).with_flags(tenant="flagged"))
    await roles._declare(app, told, asyncio.Event(), prune=True)
    assert (await Recurring(told.store).get("flagged", "h")).version == 1
    await told.close()
