"""A Redis that is slow or frozen: refusals are quick, the waiting are few, and then it goes on."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.http.conftest import CHARGE, Rig, assert_problem, open_rig
from tests.proxy import Proxy, command
from tests.servers import ServerProcess

pytestmark = pytest.mark.anyio

SLOW_MS = 100
MOST = 40
TASK = {"target": CHARGE}


@pytest.fixture
async def frozen(spawn: Callable[..., ServerProcess]) -> AsyncIterator[tuple[Rig, ServerProcess]]:
    server = spawn("valkey")
    found, session = await open_rig(server.url, api_slow_ms=SLOW_MS, api_waiting_max=MOST)
    await found.make()
    yield found, server
    server.resume()
    await found.http.aclose()
    await session.close()


async def flood(rig: Rig, number: int, path: str = "/tasks", body: Any = TASK) -> Counter[str]:
    """Requests at once, as those that must be answered at once; what became of each."""

    async def one() -> str:
        answer = await rig.ask("POST", path, body)
        return answer.json().get("code", str(answer.status_code))

    return Counter(await asyncio.gather(*(one() for _ in range(number))))


async def test_creates_that_would_wait_too_long_are_refused_at_once(
    frozen: tuple[Rig, ServerProcess],
):
    rig, server = frozen
    server.pause()
    first = [asyncio.create_task(rig.ask("POST", "/tasks", TASK)) for _ in range(5)]
    await asyncio.sleep(0.5)  # a look that is not answered, and then the slowness itself
    for path, body in (("/tasks", TASK), ("/v1/tasks", TASK), ("/tasks/batch", [TASK])):
        answer = await asyncio.wait_for(rig.ask("POST", path, body), 1)
        problem = assert_problem(answer, 503)
        assert "OVERLOADED" == problem["code"]
        assert "1" == answer.headers["retry-after"]
    assert not any(each.done() for each in first)

    server.resume()
    made = [await each for each in first]
    assert [201] * 5 == [each.status_code for each in made]
    await rig.make()  # quick again, without a wait


async def test_a_flood_leaves_places_for_reads_and_none_grows_without_bound(
    frozen: tuple[Rig, ServerProcess],
):
    rig, server = frozen
    task_id = await rig.make()
    server.pause()
    waiting = [asyncio.create_task(rig.ask("POST", "/tasks", TASK)) for _ in range(500)]
    reading = [asyncio.create_task(rig.ask("GET", f"/tasks/{task_id}")) for _ in range(5)]
    await asyncio.sleep(0.5)
    refused = [each for each in waiting if each.done()]
    assert 500 - len(refused) <= MOST * 0.75
    assert {"OVERLOADED"} == {each.result().json()["code"] for each in refused}
    assert not any(each.done() for each in reading)
    assert 200 == (await rig.ask("GET", "/livez")).status_code

    server.resume()
    assert [200] * 5 == [(await each).status_code for each in reading]
    kept = [await each for each in waiting if each not in refused]
    assert {201} == {each.status_code for each in kept}
    assert {"201": 10} == await flood(rig, 10)


async def test_reads_are_bounded_too(frozen: tuple[Rig, ServerProcess]):
    rig, server = frozen
    server.pause()
    reading = [asyncio.create_task(rig.ask("GET", "/tasks/count")) for _ in range(MOST + 10)]
    await asyncio.sleep(0.1)
    refused = [each.result() for each in reading if each.done()]
    assert [503] * 10 == [each.status_code for each in refused]
    server.resume()
    assert {200, 503} == {(await each).status_code for each in reading}


async def test_who_waits_for_a_result_takes_no_place(rig: Rig):
    settings = {"api_slow_ms": SLOW_MS, "api_waiting_max": 4}
    narrow, session = await open_rig(rig.session.settings.url, **settings)
    waiting = [asyncio.create_task(narrow.ask("POST", "/tasks?wait=20", TASK)) for _ in range(3)]
    await asyncio.sleep(3 * SLOW_MS / 1000)
    assert [False] * 3 == [each.done() for each in waiting]
    await narrow.make()
    await narrow.finish(await narrow.start())
    assert ["SUCCESS"] * 3 == [(await each).json()["status"] for each in waiting]
    await narrow.http.aclose()
    await session.close()


async def test_a_slow_uploader_holds_up_nobody(rig: Rig):
    narrow, session = await open_rig(rig.session.settings.url, api_slow_ms=SLOW_MS)
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"target": '
        await go_on.wait()
        yield b'{"type": "handler", "name": "charge"}}'

    headers = {"Content-Type": "application/json"}
    slow = asyncio.create_task(narrow.http.post("/tasks", content=slowly(), headers=headers))
    await asyncio.sleep(3 * SLOW_MS / 1000)
    await narrow.make()
    go_on.set()
    assert 201 == (await slow).status_code
    await narrow.http.aclose()
    await session.close()


async def test_bodies_that_end_all_at_once_do_not_get_past_the_bound(
    frozen: tuple[Rig, ServerProcess],
):
    rig, server = frozen
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"target": '
        await go_on.wait()
        yield b'{"type": "handler", "name": "charge"}}'

    headers = {"Content-Type": "application/json"}
    sending = [
        asyncio.create_task(rig.http.post("/tasks", content=slowly(), headers=headers))
        for _ in range(2 * MOST)
    ]
    await asyncio.sleep(0.1)
    server.pause()
    go_on.set()
    await asyncio.sleep(0.1)
    assert MOST * 0.75 == len([each for each in sending if not each.done()])
    server.resume()
    found = Counter([(await each).status_code for each in sending])
    assert {201: MOST * 0.75, 503: MOST * 1.25} == found


async def test_a_slow_redis_is_noticed_through_the_calls_of_a_batch(
    spawn: Callable[..., ServerProcess],
):
    server = spawn("valkey")
    async with Proxy(server.url) as proxy:
        rig, session = await open_rig(proxy.url, api_slow_ms=SLOW_MS)
        await rig.make()
        proxy.delay(command("EVALSHA"), 0.6)
        batch = asyncio.create_task(rig.ask("POST", "/tasks/batch", [TASK] * 10))
        await asyncio.sleep(0.3)
        problem = assert_problem(await rig.ask("POST", "/tasks", TASK), 503)
        assert "OVERLOADED" == problem["code"]
        assert {201} == {item["status"] for item in (await batch).json()["items"]}
        proxy.clear()
        await rig.http.aclose()
        await session.close()
