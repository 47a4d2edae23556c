"""Quotas over HTTP: a 429 says which limit, how much and when; a batch answers one by one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.http.conftest import CHARGE, Rig, assert_problem, open_rig
from tests.servers import ServerProcess

from tasksched import QuotaReached, RateLimited
from tasksched.client.direct import Direct
from tasksched.commands.session import Session, open_session
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.settings import Settings
from tasksched.store.records import set_conf

pytestmark = pytest.mark.anyio

TASK = {"target": CHARGE}
SPEC = TaskSpec(target=HandlerTarget("charge"))


async def limit(session: Session, words: str, tenant: str = "default") -> None:
    await set_conf(session.store, f"tenant:{tenant}", words)


async def test_a_full_quota_is_a_problem_with_its_fields(rig: Rig):
    await limit(rig.session, "pending=2")
    await rig.make()
    await rig.make()
    answer = await rig.ask("POST", "/tasks", TASK)
    problem = assert_problem(answer, 429)
    assert ("QUOTA", "/problems/quota", "max_pending", "1s") == (
        problem["code"], problem["type"], problem["limit"], problem["retry_after"],
    )  # fmt: skip
    assert ['"max_pending";q=2', '"max_pending";r=0;t=1', "1"] == [
        answer.headers[name] for name in ("ratelimit-policy", "ratelimit", "retry-after")
    ]
    assert 200 == (await rig.ask("GET", problem["type"])).status_code


async def test_a_rate_is_a_problem_with_its_fields(rig: Rig):
    await limit(rig.session, "creates=0.5")
    await rig.make()
    answer = await rig.ask("POST", "/tasks", TASK)
    problem = assert_problem(answer, 429)
    assert ("RATE_LIMITED", "create_rate") == (problem["code"], problem["limit"])
    assert '"create_rate";q=1;w=2' == answer.headers["ratelimit-policy"]
    assert answer.headers["retry-after"] in {"1", "2"}
    assert f'"create_rate";r=0;t={answer.headers["retry-after"]}' == answer.headers["ratelimit"]


async def test_a_batch_answers_in_order_and_counts_what_it_refused(rig: Rig):
    await limit(rig.session, "pending=2", tenant="small")
    items = [TASK, {}, TASK, TASK, TASK]
    answer = await rig.ask("POST", "/tasks/batch", items, Tasksched_Tenant="small")
    found = answer.json()["items"]
    assert [201, 422, 201, 429, 429] == [item["status"] for item in found]
    assert {"code": "QUOTA", "limit": "max_pending", "retry_after": "1s"} == {
        name: found[3][name] for name in ("code", "limit", "retry_after")
    }
    metrics = (await rig.ask("GET", "/metrics")).text
    assert '\ntasksched_refused_total{reason="max_pending"} 2.0\n' in metrics


async def test_a_refused_key_is_unused_and_a_known_one_is_answered(rig: Rig):
    await limit(rig.session, "pending=1")
    first = await rig.ask("POST", "/tasks", TASK, Idempotency_Key="a")
    assert_problem(await rig.ask("POST", "/tasks", TASK, Idempotency_Key="b"), 429)
    again = await rig.ask("POST", "/tasks", TASK, Idempotency_Key="a")
    assert (200, first.json()["task_id"]) == (again.status_code, again.json()["task_id"])
    await rig.finish(await rig.start())
    for _ in range(50):
        later = await rig.ask("POST", "/tasks", TASK, Idempotency_Key="b")
        if later.status_code == 201:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(later.text)


async def test_recurring_tasks_fire_although_the_quota_is_full(rig: Rig):
    await limit(rig.session, "pending=1")
    await rig.make(delay="1h")
    nightly = {"target": CHARGE, "cron": "0 3 * * *", "timezone": "UTC"}
    assert 201 == (await rig.ask("PUT", "/recurring-tasks/nightly", nightly)).status_code
    assert 201 == (await rig.ask("POST", "/recurring-tasks/nightly/trigger")).status_code


@pytest.fixture
async def others(rig: Rig) -> AsyncIterator[list[Rig]]:
    """More API processes on the same namespace."""
    opened = [await open_rig(rig.session.settings.url) for _ in range(3)]
    yield [found for found, _ in opened]
    for found, session in opened:
        await found.http.aclose()
        await session.close()


async def test_many_processes_fill_it_and_never_pass_it(rig: Rig, others: list[Rig]):
    await limit(rig.session, "pending=50")

    async def ask(api: Rig) -> int:
        return (await api.ask("POST", "/tasks", {**TASK, "delay": "1h"})).status_code

    codes = Counter(await asyncio.gather(*(ask(api) for _ in range(40) for api in [rig, *others])))
    assert {201, 429} == set(codes)
    assert codes[201] <= 50
    for _ in range(40):
        codes[201] += (await ask(rig)) == 201
        await asyncio.sleep(0.02)
    assert 50 == codes[201]
    assert 50 == (await rig.ask("GET", "/tasks/count")).json()["by_status"]["PENDING"]


async def test_the_client_over_redis_is_told_the_same(valkey_server: ServerProcess):
    valkey_server.flush()
    settings: dict[str, Any] = {"url": valkey_server.url, "shards": 4, "patience_ms": 0}
    session = await open_session(Settings(**settings))
    backend = Direct(session)
    await limit(session, "pending=1")
    await backend.submit(SPEC)
    with pytest.raises(QuotaReached) as refused:
        await backend.submit(SPEC)
    assert ("max_pending", 1.0) == (refused.value.limit, refused.value.retry_after)
    await limit(session, "creates=0.1", tenant="slow")
    asked = TaskSpec(target=HandlerTarget("charge"), tenant="slow")
    await backend.submit(asked)
    with pytest.raises(RateLimited) as limited:
        await backend.submit(asked)
    assert "create_rate" == limited.value.limit
    assert 9 < limited.value.retry_after <= 10
    await backend.close()
