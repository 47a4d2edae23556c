"""A tenant taken out and taken away over HTTP: all of it, in lines; and then nothing is left of it."""

import json
from typing import Any

import pytest
from tests.http.conftest import BROKEN, CHARGE, DONE, Rig, assert_problem, pointers

from tasksched.commands.keys import Keys, KeySpec

pytestmark = pytest.mark.anyio

ACME = {"Tasksched_Tenant": "acme"}
HOOK = {"url": "https://example.com/hook", "events": ["task.failed"]}


async def furnish(rig: Rig) -> dict[str, str]:
    """Some of everything; ids by what they are of."""
    made = {}
    for name, members in {
        "waits": {"delay": "1h", "payload": {"n": 1}},
        "done": {"payload": [1]},
        "broken": {"tags": ["x"]},
        "large": {"payload": "x" * 50_000, "delay": "1h"},
    }.items():
        answer = await rig.ask("POST", "/tasks", {"target": CHARGE, **members}, **ACME)
        made[name] = answer.json()["task_id"]
        if name in {"done", "broken"}:
            await rig.finish(await rig.start(), DONE if name == "done" else BROKEN)
    cron = {"target": CHARGE, "cron": "@daily", "payload": {"nightly": True}}
    await rig.ask("PUT", "/recurring-tasks/nightly", cron, **ACME)
    made["webhook"] = (await rig.ask("POST", "/webhooks", HOOK, **ACME)).json()["webhook_id"]
    await rig.ask("PUT", "/tenants/acme", {"max_running": 5})
    return made


async def exported(rig: Rig, tenant: str = "acme") -> list[dict[str, Any]]:
    answer = await rig.ask("GET", f"/tenants/{tenant}/export")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


# -- export ---------------------------------------------------------------------------------------


async def test_an_export_has_all_of_it_as_the_api_shows_it(rig: Rig):
    made = await furnish(rig)
    lines = await exported(rig)

    assert list(lines[0]) == ["tenant"]
    assert lines[0]["tenant"] == (await rig.ask("GET", "/tenants/acme")).json()
    (recurring,) = [line["recurring_task"] for line in lines if "recurring_task" in line]
    assert recurring == (await rig.ask("GET", "/recurring-tasks/nightly", **ACME)).json()
    (webhook,) = [line["webhook"] for line in lines if "webhook" in line]
    assert (webhook["webhook_id"], "secret" in webhook) == (made["webhook"], False)
    tasks = {line["task"]["task_id"]: line["task"] for line in lines if "task" in line}
    for name in ("waits", "done", "broken", "large"):
        shown = (await rig.ask("GET", f"/tasks/{made[name]}", **ACME)).json()
        assert tasks[made[name]] == {key: shown[key] for key in tasks[made[name]]}
    assert lines[-1] == {"end": {"recurring_tasks": 1, "webhooks": 1, "tasks": len(tasks)}}


async def test_an_export_of_many_goes_through_all_pages(rig: Rig):
    body = [{"target": CHARGE, "delay": "1h", "payload": n} for n in range(230)]
    await rig.ask("POST", "/tasks/batch", body, **ACME)
    lines = await exported(rig)

    assert sorted(line["task"]["payload"] for line in lines if "task" in line) == list(range(230))
    assert lines[-1]["end"]["tasks"] == 230


async def test_who_has_nothing_exports_that(rig: Rig):
    first, last = await exported(rig, "nobody")
    assert (first["tenant"]["tenant"], last["end"]["tasks"]) == ("nobody", 0)


async def test_others_are_in_no_export(rig: Rig):
    await furnish(rig)
    mine = await rig.make(delay="1h")
    assert mine not in json.dumps(await exported(rig))
    assert [line for line in await exported(rig, "default") if "webhook" in line] == []


# -- purge ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, {"confirm": "default"}, {"confirm": None}, {"confirm": "acme", "x": 1}])  # fmt: skip
async def test_a_purge_names_the_tenant_twice(rig: Rig, body: dict[str, Any]):
    made = await furnish(rig)
    answer = await rig.ask("POST", "/tenants/acme/purge", body)

    problem = assert_problem(answer, 422)
    assert pointers(problem) == (["/x"] if "x" in body else ["/confirm"])
    assert (await rig.ask("GET", f"/tasks/{made['waits']}", **ACME)).status_code == 200


async def test_a_purge_leaves_nothing_and_nobody_else_out(rig: Rig):
    await furnish(rig)
    mine = await rig.make(delay="1h")
    key = await Keys(rig.session.store).create(
        KeySpec(name="k", tenant="acme", scopes=("tasks:read",))
    )
    bearer = {"Authorization": f"Bearer {key.text}"}
    assert (await rig.ask("GET", "/tasks", **bearer)).status_code == 200
    found = []
    while not found or not found[-1]["done"]:
        answer = await rig.ask("POST", "/tenants/acme/purge", {"confirm": "acme"})
        found.append(answer.json())
        assert len(found) < 9, found

    assert sum(each["tasks"] for each in found) >= 4
    assert (found[0]["recurring_tasks"], found[0]["webhooks"], found[0]["api_keys"]) == (1, 1, 1)
    assert (found[-1]["left"], found[-1]["running"], found[-1]["tenant"]) == (0, 0, "acme")
    assert [list(line) for line in await exported(rig)] == [["tenant"], ["end"]]
    assert (await rig.ask("GET", f"/tasks/{mine}")).status_code == 200
    tenants = (await rig.ask("GET", "/tenants")).json()["items"]
    assert [each["tenant"] for each in tenants] == ["default"]


async def test_it_may_begin_anew(rig: Rig):
    await furnish(rig)
    while not (await rig.ask("POST", "/tenants/acme/purge", {"confirm": "acme"})).json()["done"]:
        pass
    made = await rig.ask("POST", "/tasks", {"target": CHARGE}, **ACME)

    assert made.status_code == 201
    assert (await rig.ask("GET", "/tenants/acme")).json()["max_running"] is None
