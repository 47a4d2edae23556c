"""Headers that are there twice, and a tenant that is none: refused before anything is done."""

from typing import Any

import pytest
from tests.http.conftest import CHARGE, Rig, assert_problem, pointers
from tests.http.keys_kit import open_guarded
from tests.servers import ServerProcess

pytestmark = pytest.mark.anyio

KEPT = "00-{}-00f067aa0ba902b7-01"


async def ask(rig: Any, verb: str, path: str, body: Any = None, **twice: tuple[str, str]) -> Any:
    headers = [(n.replace("_", "-"), value) for n, values in twice.items() for value in values]
    return await rig.http.request(verb, path, headers=headers, json=body)


async def audit(rig: Rig) -> list[tuple[str, str]]:
    items = (await rig.ask("GET", "/audit")).json()["items"]
    return [(each["route"], each["outcome"]) for each in items if "/audit" not in each["route"]]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Idempotency_Key", ("a", "b")),
        ("If_Match", ('"1"', '"2"')),
        ("Tasksched_Tenant", ("acme", "globex")),
        ("Content_Type", ("application/json", "application/json")),
        ("Host", ("localhost", "localhost")),
        ("Authorization", ("Bearer a", "Bearer b")),
        ("Durability", ("memory", "fsync")),
        ("Origin", ("http://localhost", "http://evil.example")),
        ("Tasksched_Callback_Token", ("a", "b")),
    ],
)
async def test_a_header_that_is_there_twice_is_malformed(rig: Rig, name: str, values):
    answer = await ask(rig, "POST", "/tasks", {"target": CHARGE}, **{name: values})
    problem = assert_problem(answer, 400)
    assert ("MALFORMED", [name.replace("_", "-")]) == (
        problem["code"], [each["header"] for each in problem["errors"]],
    )  # fmt: skip
    assert 0 == (await rig.ask("GET", "/tasks/count")).json()["total"]


async def test_two_traces_are_none(rig: Rig):
    twice = (KEPT.format("1" * 32), KEPT.format("2" * 32))
    made = await ask(rig, "POST", "/tasks", {"target": CHARGE}, traceparent=twice)
    assert 201 == made.status_code
    assert (await rig.show(made.json()["task_id"])).get("traceparent") is None


async def test_lists_and_unknown_headers_may_be_there_twice(rig: Rig):
    twice = {"Prefer": ("wait=0", "respond-async"), "X_Mine": ("1", "2"), "Accept": ("a/b", "*/*")}
    assert 201 == (await ask(rig, "POST", "/tasks", {"target": CHARGE}, **twice)).status_code


@pytest.mark.parametrize("values", [("a b",), ("acme", "globex")])
async def test_without_keys_a_tenant_that_is_none_changes_nothing(rig: Rig, values):
    status = 422 if len(values) == 1 else 400
    for verb, path, body in [("POST", "/pause", None), ("PUT", "/queues/q1", {"max_running": 5})]:
        answer = await ask(rig, verb, path, body, Tasksched_Tenant=values)
        assert [""] == pointers(assert_problem(answer, status))
    assert (await rig.ask("GET", "/queues/q1")).json()["max_running"] is None
    assert (await rig.ask("GET", "/queues/q1")).json()["paused_by"] is None
    assert [] == await audit(rig)


async def test_without_keys_the_audit_has_the_tenant_that_is_named(rig: Rig):
    assert (await rig.ask("POST", "/pause", Tasksched_Tenant="acme")).is_success
    items = (await rig.ask("GET", "/audit", Tasksched_Tenant="acme")).json()["items"]
    assert ("POST /pause", "acme") in [(each["route"], each["tenant"]) for each in items]


async def test_two_keys_are_malformed_also_where_anybody_may_ask(valkey_server: ServerProcess):
    valkey_server.flush()
    async with open_guarded(valkey_server.url) as api:
        text = (await api.key()).text
        twice = (f"Bearer {text}", f"Bearer {text}")
        for path in ("/tasks", "/health", "/nothing"):
            assert_problem(await ask(api, "GET", path, Authorization=twice), 400)
        one = (f"Bearer {text}",)
        answer = await ask(api, "GET", "/tasks", Authorization=one, Host=("a.example", "b.example"))
        assert_problem(answer, 400)
