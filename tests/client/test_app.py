"""Declaring handlers, connecting, loops, threads, forks."""

import asyncio
import threading

import pytest
from tests.client.conftest import Make, Stage, done

from tasksched import App, Ctx, Invalid, Retry, Unavailable
from tasksched.client.handler import CtxHandler, Handler, SyncCtxHandler, SyncHandler
from tasksched.settings import Settings

NOWHERE = Settings(url="redis://nowhere")


def test_a_decorated_function_is_still_the_function():
    app = App(settings=NOWHERE)

    @app.task
    async def charge(ctx: Ctx, invoice: str) -> str:
        """Charges."""
        return f"{ctx} {invoice}"

    @app.task(queue="q")
    def add(a: int, b: int) -> int:
        return a + b

    assert asyncio.run(charge("a ctx", "inv_1")) == "a ctx inv_1"  # type: ignore[arg-type]
    assert add(1, b=2) == 3
    assert (charge.__name__, charge.__doc__, charge.name) == ("charge", "Charges.", "charge")


def test_four_kinds_of_functions_are_told_apart():
    app = App(settings=NOWHERE)

    @app.task
    async def one(ctx: Ctx) -> None: ...
    @app.task
    async def two(ctx: int) -> None: ...
    @app.task
    def three(ctx: "Ctx", x: "Unknown" = None) -> None: ...  # noqa: F821
    @app.task
    def four() -> None: ...

    kinds = [CtxHandler, Handler, SyncCtxHandler, SyncHandler]
    assert [type(each) for each in (one, two, three, four)] == kinds
    modes = [(entry.mode, entry.wants_ctx) for entry in app.registry]
    assert modes == [("async", True), ("async", False), ("thread", True), ("thread", False)]


def test_the_registry_holds_what_the_decorator_said():
    app = App(settings=NOWHERE)
    policy = Retry(2, never=(ValueError,))

    @app.task(name="billing.charge", version="v2", queue="q", retry=policy, timeout="1m", lease=5)
    async def charge() -> None: ...

    entry = app.registry.get("billing.charge@v2")
    assert entry is not None
    assert (entry.retry, entry.timeout_ms, entry.lease_ms) == (policy, 60_000, 5_000)
    assert charge.call().spec.retry == Retry(2)  # classes do not travel


def test_a_second_handler_of_the_same_name_is_refused():
    app = App(settings=NOWHERE)
    app.task(name="x")(len)
    with pytest.raises(Invalid, match="registered already"):
        app.task(name="x")(len)


def test_making_an_app_reads_and_connects_to_nothing(monkeypatch: pytest.MonkeyPatch):
    app = App()
    monkeypatch.setenv("TASKSCHED_URL", "redis://localhost:1")
    monkeypatch.setenv("TASKSCHED_TENANT", "acme")

    assert app.named("x").call().spec.tenant == "acme"
    with pytest.raises(Unavailable):
        app.submit_sync("x")
    app.close_sync()


@pytest.mark.parametrize("url", ["localhost:6379", "http:/x", "memory://", ""])
def test_a_strange_url_is_refused(url: str):
    app = App(url or "ftp://x")
    with pytest.raises(Invalid, match="the URL begins with none of"):
        app.submit_sync("x")
    app.close_sync()


def test_sync_twins_need_no_event_loop(make_app: Make):
    app = make_app()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    task = add.submit_sync(1, b=2)
    many = app.submit_many_sync(add.call(n, n) for n in range(5))
    assert len(app.find_sync(handler="add")) == 6
    assert app.get_sync(task.id).status == "PENDING"
    assert task.refresh_sync().version == 1
    assert task.reschedule_sync(delay="1h").status == "PENDING"
    assert task.run_now_sync().status == "PENDING"
    assert task.cancel_sync().status == "CANCELLED"
    assert task.retry_sync().status == "PENDING"
    assert task.attempts_sync() == []
    with pytest.raises(TimeoutError):
        many[0].result_sync(0.01)
    app.close_sync()
    assert add.options(delay=1).submit_sync(1, 1).created  # it connects again
    app.close_sync()


def test_many_threads_share_the_background_loop(make_app: Make):
    app = make_app()
    threads = [threading.Thread(target=app.submit_sync, args=("x", n)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(app.find_sync()) == 20
    app.close_sync()


def test_several_loops_use_one_app_one_after_the_other(make_app: Make):
    app = make_app()

    async def once() -> str:
        async with app:
            return (await app.submit("x")).id

    assert asyncio.run(once()) != asyncio.run(once())


@pytest.mark.anyio
async def test_a_sync_twin_works_inside_a_running_loop(make_app: Make):
    app = make_app()
    async with app:
        task = await asyncio.to_thread(app.submit_sync, "x", 1)
        assert (await app.get(task.id)).status == "PENDING"


@pytest.mark.anyio
async def test_first_requests_at_the_same_time_open_one_connection(make_app: Make):
    app = make_app()
    backends = await asyncio.gather(*(app._link.backend() for _ in range(10)))
    assert len(set(map(id, backends))) == 1
    await app.close()


@pytest.mark.anyio
async def test_a_verdict_wakes_the_one_who_waits(direct: Stage):
    task = await direct.charge.submit("inv_1", 1)
    waiting = asyncio.create_task(task.result("20s"))
    await asyncio.sleep(0.1)
    await direct.run(done("paid"))

    assert await asyncio.wait_for(waiting, 1.5) == "paid"


@pytest.mark.anyio
@pytest.mark.parametrize("after_s", [0, 0.001, 0.003])
async def test_closing_ends_also_while_the_listener_connects(make_app: Make, after_s: float):
    app = make_app()
    task = await app.submit("x")
    with pytest.raises(TimeoutError):
        await task.result(after_s)
    await asyncio.wait_for(app.close(), 5)
