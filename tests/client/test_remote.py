"""The HTTP transport when replies are lost, late or refused."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.client.conftest import Stage, asgi, fresh, remote

from tasksched import (
    App,
    Conflict,
    Forbidden,
    Invalid,
    KeyReused,
    TaskschedError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from tasksched.client import remote as module
from tasksched.commands.keys import Keys, KeySpec
from tasksched.commands.session import Session
from tasksched.model.apikey import new_text
from tasksched.model.task import HandlerTarget, TaskSpec

pytestmark = pytest.mark.anyio


class Lossy(httpx2.AsyncBaseTransport):
    """Delivers every request; loses the first replies, or refuses before it delivers."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self.inner = inner
        self.lose: list[Exception] = []
        self.refuse: list[Exception | httpx2.Response] = []
        self.seen: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        if self.refuse:
            refusal = self.refuse.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return refusal
        reply = await self.inner.handle_async_request(request)
        if self.lose:
            raise self.lose.pop(0)
        return reply


LOST = httpx2.ReadError("connection reset")


@pytest.fixture
async def lossy(session: Session) -> Lossy:
    return Lossy(asgi(session))


@pytest.fixture
async def stage(session: Session, lossy: Lossy) -> AsyncIterator[Stage]:
    backend = remote(lossy)
    found = Stage(session, backend)
    with found.app.using(backend):
        yield found
    await backend.close()


async def test_a_lost_reply_makes_no_second_task(stage: Stage, lossy: Lossy):
    lossy.lose = [LOST, httpx2.ReadTimeout("late")]
    task = await stage.add.submit(1)

    keys = {request.headers["Idempotency-Key"] for request in lossy.seen}
    assert (len(lossy.seen), len(keys)) == (3, 1)
    assert task.created  # by us, at the first send
    assert await stage.count() == 1


async def test_a_lost_reply_of_a_keyed_submit_makes_no_second_task(stage: Stage, lossy: Lossy):
    lossy.lose = [LOST]
    await stage.add.options(key="k").submit(1)
    assert await stage.count() == 1


async def test_a_lost_reply_makes_no_second_batch(stage: Stage, lossy: Lossy):
    lossy.lose = [LOST]
    tasks = await stage.app.submit_many(stage.add.call(n) for n in range(50))

    assert {task.created for task in tasks} == {True}
    assert await stage.count() == 50


async def test_two_submits_have_two_keys(stage: Stage, lossy: Lossy):
    await stage.add.submit(1)
    await stage.add.submit(1)
    assert await stage.count() == 2


async def test_a_verb_that_may_have_been_done_is_not_repeated(stage: Stage, lossy: Lossy):
    task = await stage.add.submit(1)
    lossy.lose = [LOST]
    with pytest.raises(Unavailable, match="connection reset"):
        await task.run_now()

    lossy.lose = [LOST]
    assert (await task.cancel()).status == "CANCELLED"  # twice is once


async def test_what_was_never_sent_is_sent_again(stage: Stage, lossy: Lossy):
    task = await stage.add.submit(1)
    lossy.refuse = [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("slow")]
    assert (await task.run_now()).status == "PENDING"


def problem(status: int, code: str, **headers: str) -> httpx2.Response:
    body = {"code": code, "detail": "said so", "errors": [{"pointer": "/x", "detail": "bad"}]}
    return httpx2.Response(status, json=body, headers=headers)


async def test_later_is_waited_for(stage: Stage, lossy: Lossy, slept: list[float]):
    lossy.refuse = [
        problem(503, "UNAVAILABLE", **{"Retry-After": "2"}),
        problem(429, "TOO_MANY_REQUESTS", **{"Retry-After": "1"}),
    ]
    await stage.add.submit(1)
    assert slept[0] >= 2
    assert 1 <= slept[1] < 2


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", pause)
    return pauses


async def test_patience_ends(session: Session, lossy: Lossy):
    backend = remote(lossy, patience_ms=50)
    lossy.refuse = [problem(503, "UNAVAILABLE", **{"Retry-After": "60"})]
    with pytest.raises(Unavailable) as refused:
        await backend.stats()
    assert refused.value.extra["retry_after_ms"] == 60_000
    await backend.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (422, "INVALID", Invalid),
        (422, "KEY_REUSED", KeyReused),
        (409, "CONFLICT", Conflict),
        (401, "UNAUTHORIZED", Unauthorized),
        (403, "FORBIDDEN", Forbidden),
        (401, "SOMETHING_NEW", Unauthorized),
        (429, "NEW", TooManyRequests),
        (418, "TEAPOT", TaskschedError),
    ],
)
async def test_problems_come_back_as_errors(
    session: Session, lossy: Lossy, status: int, code: str, kind: type[Exception]
):
    backend = remote(lossy, patience_ms=0)
    lossy.refuse = [problem(status, code)]
    with pytest.raises(TaskschedError, match="said so") as refused:
        await backend.stats()
    assert type(refused.value) is kind
    if isinstance(refused.value, Invalid):
        assert refused.value.problems[0].pointer == "/x"
    await backend.close()


async def test_what_is_no_problem_json_is_an_error_all_the_same(session: Session, lossy: Lossy):
    backend = remote(lossy, patience_ms=0)
    lossy.refuse = [
        httpx2.Response(500, text="<html>"),
        httpx2.Response(302, headers={"location": "https://elsewhere"}),
        httpx2.Response(200, text="not json"),
    ]
    for said in ("answered 500", "redirects to https://elsewhere", "cannot be read"):
        with pytest.raises(TaskschedError, match=said):
            await backend.get("default", "x")
    await backend.close()


async def test_the_key_of_the_api_comes_from_the_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    in_file, direct, mine = (new_text("0123456789") for _ in range(3))
    (tmp_path / "key").write_text(f"{in_file}\n")
    monkeypatch.setenv("TASKSCHED_API_KEY_FILE", str(tmp_path / "key"))
    url = "http://localhost:1"
    for variable, given, expected in (
        (None, None, in_file),
        (direct, None, direct),
        (direct, mine, mine),
    ):
        if variable:
            monkeypatch.setenv("TASKSCHED_API_KEY", variable)
        app = App(url, api_key=given)
        opened = await app._link.backend()
        assert isinstance(opened, module.Remote)
        assert opened._client.headers["Authorization"] == f"Bearer {expected}"
        shown = f"{app._link.settings}{opened._client.headers!r}{vars(app)}{vars(app._link)}"
        assert expected not in shown
        await app.close()


@pytest.mark.parametrize(
    "key", ["ts_canary", "ts_canary\n", "canary with spaces", "canary\r\nX: y", "canaré"]
)
async def test_a_key_that_cannot_be_right_is_not_sent_and_not_shown(key: str):
    with pytest.raises(Unauthorized) as caught:
        await module.open_remote(fresh("http://localhost:1", api_key=key))
    assert "canar" not in str(caught.value)
    assert caught.value.exit_code == 5


async def test_a_key_refused_or_short_of_a_scope_is_an_error_of_its_own(session: Session):
    transport = asgi(session)
    keys = Keys(session.store)
    spec = KeySpec(name="reader", tenant="default", scopes=("tasks:read",))
    made = await keys.create(spec)

    async def told(key: str | None) -> TaskschedError:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        )
        backend = module.Remote(client, patience_ms=0)
        with pytest.raises(TaskschedError) as caught:
            await backend.submit(TaskSpec(target=HandlerTarget(name="charge")))
        await backend.close()
        return caught.value

    assert made.text is not None
    found = [await told(key) for key in (None, new_text(made.id), made.text)]
    assert [type(error) for error in found] == [Unauthorized, Unauthorized, Forbidden]
    assert "tasks:write" in found[2].detail


async def test_big_batches_are_cut(session: Session, lossy: Lossy):
    backend = remote(lossy)
    app = App(settings=session.settings)
    with app.using(backend):
        big = app.named("x").options(delay="1h")
        await app.submit_many(big.call("y" * 250_000) for _ in range(40))
    assert len(lossy.seen) == 2
    await backend.close()
