"""A handler for its own version and older ones: routes, upgrades, and what goes wrong in them."""

import pytest
from tests.runtime.kit import grant_of, registry_of

from tasksched import App, clock
from tasksched.errors import Invalid
from tasksched.model import codec
from tasksched.runtime.context import Run
from tasksched.runtime.executor import Executor
from tasksched.runtime.threads import Threads

pytestmark = pytest.mark.anyio


def app_with_charge() -> App:
    app = App()

    @app.task(version="3", accepts=(None, "1", "2"))
    async def charge(cents, currency="EUR"):
        return [cents, currency]

    @charge.upgrade("1")
    def _(payload):
        return {"euros": payload[0]}

    @charge.upgrade("2")
    def _(payload):
        return {"cents": payload["euros"] * 100}

    return app


async def run(app: App, route: str, payload=...):
    executor = Executor(app.registry, Threads(1))
    return await executor.run(Run(grant_of(route, payload), 0, 30_000, clock.mono()))


async def test_a_handler_has_a_route_for_each_version_and_submits_its_own():
    app = app_with_charge()
    (handler,) = app.registry

    assert ["charge", "charge@1", "charge@2", "charge@3"] == app.registry.routes
    assert "charge@3" == handler.target.route


@pytest.mark.parametrize(
    ("route", "payload", "value"),
    [
        ("charge@3", {"cents": 5}, [5, "EUR"]),
        ("charge@2", {"euros": 5}, [500, "EUR"]),
        ("charge@1", [5], [500, "EUR"]),
        ("charge", [7], [700, "EUR"]),  # no step of its own: on to the next
    ],
)
async def test_a_payload_goes_through_every_step_from_its_version_on(route, payload, value):
    outcome = await run(app_with_charge(), route, payload)

    assert value == codec.decode(outcome.result)


@pytest.mark.parametrize(
    ("route", "payload", "says"),
    [
        ("charge@1", ..., "the upgrade from version 1 failed with IndexError"),
        ("charge@2", [1], "the upgrade from version 2 failed with TypeError"),
    ],
)
async def test_a_step_that_fails_is_a_final_failure_that_names_the_version(route, payload, says):
    outcome = await run(app_with_charge(), route, payload)

    assert ("FAILED", "payload_not_readable", None) == (
        outcome.kind, outcome.reason, outcome.retry_ms,
    )  # fmt: skip
    assert ("UpgradeFailed", says) == (outcome.error.type, outcome.error.message)
    assert "return {" in outcome.error.traceback
    assert "tasksched/" not in outcome.error.traceback


async def test_what_a_step_makes_must_fit_the_handler():
    app = App()

    @app.task(version="2", accepts=("1",))
    async def fn(a):
        return a

    @fn.upgrade("1")
    def _(payload):
        return {"b": payload}

    outcome = await run(app, "fn@1", [1])
    assert ("FAILED", "payload_not_readable") == (outcome.kind, outcome.reason)
    assert "TypeError" == outcome.error.type


@pytest.mark.parametrize(
    ("version", "accepts"), [("2", ("2",)), ("2", ("1", "1")), (None, (None,)), ("2", ("a b",))]
)
def test_versions_that_make_no_sense_are_refused(version, accepts):
    with pytest.raises(Invalid):
        App().task(name="fn", version=version, accepts=accepts)(lambda: None)


def test_two_handlers_for_one_route_are_refused_and_the_first_stays():
    app = App()
    app.task(name="fn", version="1")(lambda: "old")

    with pytest.raises(Invalid, match="fn@1"):
        app.task(name="fn", version="2", accepts=("1",))(lambda: "new")
    assert ["fn@1"] == app.registry.routes
    assert "old" == app.registry.get("fn@1").function()


def test_an_upgrade_is_for_a_version_that_is_accepted_once_and_plain():
    app = App()
    fn = app.task(name="fn", version="2", accepts=("1",))(lambda: None)
    fn.upgrade("1")(list)

    async def coroutine(payload):
        return payload

    with pytest.raises(Invalid):
        fn.upgrade("3")(list)
    with pytest.raises(Invalid):
        fn.upgrade("1")(dict)
    other = app.task(name="other", version="2", accepts=("1",))(lambda: None)
    with pytest.raises(Invalid):
        other.upgrade("1")(coroutine)


def test_a_registry_names_each_handler_once():
    def fn(): ...

    registry = registry_of(fn)
    assert [fn] == [handler.function for handler in registry]
