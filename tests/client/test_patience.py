"""Refusals for now: whoever is told "later" comes later, spread out, and not for ever."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
import pytest
from tests.client.conftest import Stage, asgi, remote
from tests.client.test_remote import Lossy, problem

from tasksched import MemoryBudget, Overloaded, PartlyFailed, QuotaReached, RateLimited, Unavailable
from tasksched.client import patience as module
from tasksched.client.direct import Direct
from tasksched.client.patience import Patience, details_of, retry_after_ms
from tasksched.commands.session import Session
from tasksched.errors import TaskschedError
from tasksched.model import codec
from tasksched.model.task import Created, TaskSpec

pytestmark = pytest.mark.anyio


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += seconds * 1000


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(module.asyncio, "sleep", found.sleep)
    monkeypatch.setattr(module.clock, "mono_ms", lambda: int(found.now_ms))
    return found


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


LATER = RateLimited("later", limit="create_rate", retry_after_ms=500)


async def test_pauses_are_spread_and_never_before_what_was_asked(time: Time):
    waited = Patience(60_000)
    for _ in range(20):
        await waited.pause(LATER)
    assert min(time.slept) >= 0.5
    assert max(time.slept) <= 0.5 + module.PAUSE_MAX_S
    assert len(set(time.slept)) == 20


async def test_nobody_waits_past_the_deadline(time: Time):
    waited = Patience(1_200)
    tries = 0
    with contextlib.suppress(RateLimited):
        while tries < 100:
            await waited.pause(LATER)
            tries += 1
    assert tries in {1, 2}
    assert time.now_ms <= 1_200
    with pytest.raises(RateLimited):
        await Patience(60_000).pause(RateLimited(retry_after_ms=61_000))
    assert tries == len(time.slept)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7_000),
        ({"retry-after": "7", "ratelimit": '"x";r=0;t=9'}, 7_000),
        ({"ratelimit": '"create_rate";r=0;t=9'}, 9_000),
        ({"ratelimit": '"create_rate";r=3;t=9'}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
async def test_what_an_answer_says_of_later(headers: dict[str, str], expected: int | None):
    assert expected == retry_after_ms(headers)


async def test_a_date_is_counted_from_now(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.clock, "wall_ms", lambda: 4_000)
    assert 6_000 == retry_after_ms({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"})


async def test_details_of_a_newer_api_are_left_out():
    assert {"limit": "x", "retry_after_ms": 1_500} == details_of("x", "1.5s")
    assert {} == details_of(None, "a while")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "RATE_LIMITED", RateLimited),
        (429, "QUOTA", QuotaReached),
        (503, "OVERLOADED", Overloaded),
        (503, "MEMORY_BUDGET", MemoryBudget),
    ],
)
async def test_refusals_keep_their_kind_limit_and_time(
    session: Session, lossy: Lossy, status: int, code: str, kind: type[TaskschedError]
):
    backend = remote(lossy, patience_ms=0)
    body = {"code": code, "detail": "no", "limit": "max_pending", "retry_after": "1.5s"}
    lossy.refuse = [httpx2.Response(status, json=body, headers={"Retry-After": "2"})]
    with pytest.raises(kind) as refused:
        await backend.stats()
    assert type(refused.value) is kind
    assert 1.5 == refused.value.retry_after
    if isinstance(refused.value, RateLimited):
        assert "max_pending" == refused.value.limit
    await backend.close()


async def test_a_verb_is_repeated_only_where_nothing_was_done(
    stage: Stage, lossy: Lossy, time: Time
):
    task = await stage.add.submit(1)
    lossy.refuse = [problem(503, "OVERLOADED"), problem(429, "TOO_MANY_REQUESTS")]
    assert "PENDING" == (await task.run_now()).status
    lossy.refuse = [problem(503, "UNAVAILABLE")]  # it may have been done before Redis went away
    with pytest.raises(Unavailable):
        await task.run_now()


class Stingy:
    """A backend that creates so many tasks a call and refuses the others for now."""

    call_max = keyed_max = 10
    calls_at_once = 2

    def __init__(self, inner: Any, most: int) -> None:
        self._inner = inner
        self._most = most

    async def submit_many(self, specs: Sequence[TaskSpec]) -> list[Created | TaskschedError]:
        made = await self._inner.submit_many(specs[: self._most]) if self._most else []
        return [*made, *[LATER] * (len(specs) - len(made))]


async def test_many_slow_down_and_all_arrive_once_in_order(direct: Stage, time: Time):
    stingy: Any = Stingy(direct.backend, 2)
    with direct.app.using(stingy):
        tasks = await direct.app.submit_many(direct.add.call(n) for n in range(35))
    assert 35 == len({task.id for task in tasks}) == await direct.count()
    args = [(await direct.session.tasks.get("default", task.id)).payload for task in tasks]
    assert sorted(range(35)) == [_first(payload) for payload in args]
    assert time.slept


def _first(payload: bytes) -> Any:
    args: Any = codec.decode(payload)
    return args["args"][0] if isinstance(args, dict) else args[0]


async def test_many_give_up_where_nothing_is_accepted_any_more(direct: Stage, time: Time):
    nothing: Any = Stingy(direct.backend, 0)
    with direct.app.using(nothing), pytest.raises(PartlyFailed) as refused:
        await direct.app.submit_many(direct.add.call(n) for n in range(25))
    assert [RateLimited] * 25 == [type(error) for error in refused.value.errors]
    assert 2 * direct.session.settings.patience_ms > time.now_ms
    assert 0 == await direct.count()


async def test_a_refused_batch_is_sent_again_over_http(stage: Stage, lossy: Lossy, time: Time):
    lossy.refuse = [problem(429, "RATE_LIMITED", **{"Retry-After": "1"})]
    tasks = await stage.app.submit_many(stage.add.call(n) for n in range(5))
    assert 5 == len(tasks) == await stage.count()
    assert 1 <= time.slept[0]


async def test_the_client_over_redis_waits_for_memory(session: Session, time: Time):
    class Full:
        tries = 0

        async def submit(self, spec: TaskSpec) -> Created:
            self.tries += 1
            if self.tries < 3:
                raise MemoryBudget("full", retry_after_ms=1_000)
            return await session.tasks.submit(spec)

    backend = Direct(session)
    backend._tasks = full = Full()  # type: ignore[assignment]
    stage = Stage(session, backend)
    with stage.app.using(backend):
        await stage.add.submit(1)
    assert (3, 1) == (full.tries, await stage.count())
    assert 2 <= sum(time.slept)
