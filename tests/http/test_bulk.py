"""Dead letters, operations, removal and a tenant's retention over HTTP."""

import pytest
from tests.http.conftest import BROKEN, CHARGE, DONE, assert_problem, pointers

from tasksched.commands.operations import SMALL_MAX
from tasksched.commands.operator import Operator
from tasksched.commands.removal import Memory

pytestmark = pytest.mark.anyio


async def dead(rig, count: int = 1, **members) -> list[str]:
    """Tasks that failed for good."""
    items = [{"target": CHARGE, **members}] * count
    made = (await rig.ask("POST", "/tasks/batch", items)).json()["items"]
    while started := await rig.start():
        await rig.finish(started, BROKEN)
    return [item["task_id"] for item in made]


async def statuses(rig, task_ids: list[str]) -> set[str]:
    found = await rig.session.tasks.reads.tasks(task_ids)
    return {"gone" if task is None else task.status for task in found}


# -- looking --------------------------------------------------------------------------------------


async def test_dead_letters_by_filter_and_page(rig):
    made = [(await dead(rig, queue="a", tags=["x"]))[0] for _ in range(3)]
    await dead(rig, queue="b")

    path = "/dead-letters?queue=a&tag=x&reason=not_retryable&handler=cha*&limit=2"
    first = await rig.ask("GET", path)
    body = first.json()
    second = (await rig.ask("GET", f"{path}&cursor={body['next_cursor']}")).json()

    found = [task["task_id"] for task in body["items"] + second["items"]]
    assert sorted(made) == sorted(found)
    assert second["next_cursor"] is None
    assert 'rel="next"' in first.headers["link"]
    task = body["items"][0]
    assert ("FAILED", "not_retryable") == (task["status"], task["reason"])
    assert "payload" not in task

    group = (await rig.ask("GET", "/dead-letters/groups")).json()
    (only,) = group["items"]
    assert (4, {"a": 3, "b": 1}) == (only["count"], only["queues"])
    assert task["fingerprint"] == only["fingerprint"]
    assert ("ValueError", "no") == (only["type"], only["message"])
    assert only["sample_error"]["message"] == "no"
    assert only["first_seen"] <= only["last_seen"]
    by_print = await rig.ask("GET", f"/dead-letters?fingerprint={only['fingerprint']}")
    assert 4 == len(by_print.json()["items"])


async def test_bounds_of_time_are_inclusive(rig):
    (task_id,) = await dead(rig)
    at = (await rig.show(task_id))["timestamps"]["finished_at"]
    for query, found in (
        (f"finished_from={at}&finished_to={at}", 1),
        ("finished_to=2001-01-01T00:00:00Z", 0),
        ("finished_from=2199-01-01T00:00:00Z", 0),
    ):
        page = (await rig.ask("GET", f"/dead-letters?{query}")).json()
        assert (query, found) == (query, len(page["items"]))


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/dead-letters?queue=a:b", "?queue"),
        ("/dead-letters?fingerprint=a:b", "?fingerprint"),
        ("/dead-letters?handler=*x", "?handler"),
        ("/dead-letters?finished_from=yesterday", "?finished_from"),
        ("/dead-letters?status=FAILED", "?status"),
        ("/dead-letters?limit=0", "?limit"),
        ("/dead-letters/groups?tag=x", "?tag"),
    ],
)
async def test_a_bad_query_is_refused_at_its_place(rig, path, pointer):
    problem = assert_problem(await rig.ask("GET", path), 422)
    (error,) = problem["errors"]
    assert pointer.removeprefix("?") in str(error)


@pytest.mark.parametrize("path", ["/dead-letters", "/dead-letters/groups", "/operations"])
async def test_a_foreign_cursor_is_malformed(rig, path):
    for cursor in ("x", "ZZZ", "W10", ""):
        assert_problem(await rig.ask("GET", f"{path}?cursor={cursor}"), 400)
    await dead(rig, 2)
    cursor = (await rig.ask("GET", "/dead-letters?limit=1")).json()["next_cursor"]
    assert_problem(await rig.ask("GET", f"/dead-letters?queue=a&cursor={cursor}"), 400)


# -- doing ----------------------------------------------------------------------------------------


async def test_a_small_redrive_has_ended_in_the_answer(rig):
    made = await dead(rig, 3)
    answer = await rig.ask("POST", "/dead-letters/redrive", {"all": True})
    body = answer.json()
    assert (200, "DONE", 3, 0) == (
        answer.status_code, body["status"], body["done"], body["skipped"],
    )  # fmt: skip
    assert ({"count": 3, "at_least": False}, 1_000) == (body["expected"], body["rate"])
    assert {"QUEUED", "PENDING"} >= await statuses(rig, made)
    shown = await rig.ask("GET", answer.headers["location"])
    assert body == shown.json()


async def test_a_large_one_goes_on_and_says_where(rig):
    made = await dead(rig, SMALL_MAX + 50)
    body = {"filter": {"queue": "default"}, "rate": 10_000}
    answer = await rig.ask("POST", "/dead-letters/redrive", body)
    operation = answer.json()
    assert (202, "RUNNING", 0) == (answer.status_code, operation["status"], operation["done"])
    assert f"/operations/{operation['operation_id']}" == answer.headers["location"]
    assert {"queue": "default"} == operation["filter"]

    (job,) = await Operator(rig.session.store, Memory(1, 1)).look()
    await job.run()

    ended = (await rig.ask("GET", answer.headers["location"])).json()
    assert ("DONE", len(made)) == (ended["status"], ended["found"])
    assert ended["timestamps"]["finished_at"] is not None
    assert {"PENDING"} == await statuses(rig, made)


async def test_a_running_one_can_be_stopped(rig):
    made = await dead(rig, SMALL_MAX + 50)
    begun = (await rig.ask("POST", "/dead-letters/purge", {"all": True})).json()
    path = f"/operations/{begun['operation_id']}"
    stopped = (await rig.ask("POST", f"{path}/stop")).json()
    assert "STOPPED" == stopped["status"]
    assert [] == await Operator(rig.session.store, Memory(1, 1)).look()
    assert {"FAILED"} == await statuses(rig, made)
    listed = (await rig.ask("GET", "/operations")).json()
    assert [stopped] == listed["items"]
    other = await rig.ask("GET", path, Tasksched_Tenant="acme")
    assert_problem(other, 404)


async def test_a_dry_run_counts(rig):
    made = await dead(rig, 5)
    for path in ("/dead-letters/redrive", "/dead-letters/purge", "/tasks/delete"):
        answer = await rig.ask("POST", path, {"all": True, "dry_run": True})
        assert {"dry_run": True, "count": 5, "at_least": False} == answer.json()
    assert {"FAILED"} == await statuses(rig, made)


@pytest.mark.parametrize("path", [
    "/dead-letters/redrive", "/dead-letters/purge", "/tasks/cancel", "/tasks/delete",
])  # fmt: skip
@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, ["/all"]),
        ({"filter": {}}, ["/all"]),
        ({"filter": None, "all": False}, ["/all"]),
        ({"filter": {"queue": None}}, ["/all"]),
        ({"filter": {"queue": "a b"}}, ["/filter/queue"]),
        ({"filter": {"colour": 1}}, ["/filter/colour"]),
        ({"filter": [], "all": True}, ["/filter"]),
        ({"all": 1}, ["/all"]),
        ({"all": True, "rate": 0}, ["/rate"]),
        ({"all": True, "rate": 10_001}, ["/rate"]),
        ({"all": True, "rate": 1.5}, ["/rate"]),
        ({"all": True, "dry_run": "yes"}, ["/dry_run"]),
        ({"all": True, "changes": {}}, ["/changes"]),
        ([], [""]),
    ],
)
async def test_a_bad_request_is_refused_at_its_place(rig, path, body, where):
    (task_id,) = await dead(rig)
    problem = assert_problem(await rig.ask("POST", path, body), 422)
    assert where == pointers(problem)
    assert "FAILED" == (await rig.show(task_id))["status"]


async def test_tasks_are_cancelled_edited_and_deleted_by_filter(rig):
    mine = [await rig.make(delay="1h", queue="a", tags=["x"]) for _ in range(3)]
    other = await rig.make(delay="1h", queue="b")
    body = {
        "filter": {"queue": "a", "status": "PENDING"},
        "changes": {"delay": "2h", "tags": ["y"]},
    }

    edited = (await rig.ask("POST", "/tasks/edit", body)).json()
    assert ("edit", "DONE", 3) == (edited["kind"], edited["status"], edited["done"])
    assert {"delay": "2h", "tags": ["y"]} == edited["changes"]
    assert ["y"] == (await rig.show(mine[0]))["tags"]

    cancelled = (await rig.ask("POST", "/tasks/cancel", {"filter": {"tag": "y"}})).json()
    assert (3, {"CANCELLED"}) == (cancelled["done"], await statuses(rig, mine))

    deleted = (await rig.ask("POST", "/tasks/delete", {"all": True})).json()
    assert (4, {"gone"}) == (deleted["done"], await statuses(rig, [*mine, other]))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (None, "/changes"),
        ({}, "/changes"),
        ({"payload": 1}, "/changes/payload"),
        ({"target": CHARGE}, "/changes/target"),
        ({"queue": 5}, "/changes/queue"),
        ({"delay": "1h", "run_at": "2199-01-01T00:00:00Z"}, "/changes/delay"),
    ],
)
async def test_changes_for_many_are_checked(rig, changes, where):
    body = {"all": True, "changes": changes}
    problem = assert_problem(await rig.ask("POST", "/tasks/edit", body), 422)
    assert [where] == pointers(problem)


async def test_tenants_do_not_reach_each_others_tasks(rig):
    made = await dead(rig, 2)
    for path in ("/dead-letters/redrive", "/dead-letters/purge", "/tasks/delete"):
        answer = await rig.ask("POST", path, {"all": True}, Tasksched_Tenant="acme")
        assert 0 == answer.json()["found"]
    groups = await rig.ask("GET", "/dead-letters/groups", Tasksched_Tenant="acme")
    assert [] == groups.json()["items"]
    assert {"FAILED"} == await statuses(rig, made)


# -- one task -------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_delete_of_what_has_finished(rig, outcome):
    task_id = await rig.make()
    await rig.finish(await rig.start(), outcome)
    answer = await rig.ask("DELETE", f"/tasks/{task_id}")
    assert (200, {"task_id": task_id, "deleted": True}) == (answer.status_code, answer.json())
    assert_problem(await rig.ask("GET", f"/tasks/{task_id}"), 404)
    assert_problem(await rig.ask("DELETE", f"/tasks/{task_id}"), 404)


async def test_delete_of_what_waits_cancels_it_first(rig):
    task_id = await rig.make(delay="1h")
    assert 200 == (await rig.ask("DELETE", f"/tasks/{task_id}")).status_code
    assert 0 == (await rig.ask("GET", "/tasks/count")).json()["total"]
    totals = await rig.session.tasks.reads.totals()
    assert 1 == totals["default:CANCELLED"]


async def test_delete_of_what_runs_is_a_conflict(rig):
    task_id = await rig.make()
    await rig.start()
    problem = assert_problem(await rig.ask("DELETE", f"/tasks/{task_id}"), 409)
    assert "RUNNING" == problem["task_status"]


async def test_delete_may_name_the_version(rig):
    task_id = await rig.make(delay="1h")
    assert_problem(await rig.ask("DELETE", f"/tasks/{task_id}", If_Match='"7"'), 412)
    assert 200 == (await rig.ask("DELETE", f"/tasks/{task_id}", If_Match='"1"')).status_code


async def test_a_deleted_key_stays_used(rig):
    task_id = await rig.make(delay="1h", idempotency_key="k")
    await rig.ask("DELETE", f"/tasks/{task_id}")
    body = {"target": CHARGE, "delay": "1h", "idempotency_key": "k"}
    again = await rig.ask("POST", "/tasks", body)
    assert (200, task_id, False) == (
        again.status_code, again.json()["task_id"], again.json()["created"],
    )  # fmt: skip


async def test_a_retry_may_change_the_task(rig):
    (task_id,) = await dead(rig, payload={"n": 1})
    changes = {"payload": {"n": 2}, "queue": "bulk", "delay": "1h", "retry": {"max_attempts": 9}}
    answer = await rig.ask("POST", f"/tasks/{task_id}/retry", changes)
    task = await rig.show(task_id)
    assert (200, "PENDING") == (answer.status_code, answer.json()["status"])
    assert ({"n": 2}, "bulk", 9) == (
        task["payload"], task["queue"], task["retry"]["max_attempts"],
    )  # fmt: skip
    assert (None, None) == (task["reason"], task["fingerprint"])


@pytest.mark.parametrize("body", [None, b"null", {}])
async def test_a_retry_needs_no_body(rig, body):
    (task_id,) = await dead(rig)
    answer = await rig.ask("POST", f"/tasks/{task_id}/retry", body)
    assert 200 == answer.status_code


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"colour": 1}, "/colour"),
        ({"queue": 5}, "/queue"),
        ({"expires_at": "2199-01-01T00:00:00Z"}, "/expires_at"),
        ([], ""),
    ],
)
async def test_a_bad_change_leaves_the_dead_letter(rig, body, where):
    (task_id,) = await dead(rig)
    problem = assert_problem(await rig.ask("POST", f"/tasks/{task_id}/retry", body), 422)
    assert [where] == pointers(problem)
    assert "FAILED" == (await rig.show(task_id))["status"]


# -- tenants --------------------------------------------------------------------------------------


async def test_a_tenants_retention_is_set_and_shown(rig):
    nothing = (await rig.ask("GET", "/tenants/default")).json()
    assert ("default", 0) == (nothing["tenant"], nothing["version"])
    assert {None} == set(nothing["retention"].values())
    assert ("1d", "14d") == (nothing["defaults"]["success"], nothing["defaults"]["failed"])

    body = {"retention": {"success": "2h", "failed": 90, "count": 5, "bytes": 1000}}
    put = await rig.ask("PUT", "/tenants/default", body)
    expected = {"success": "2h", "failed": "1m30s", "count": 5, "bytes": 1000}
    assert (200, expected, '"1"') == (put.status_code, put.json()["retention"], put.headers["etag"])
    assert put.json() == (await rig.ask("GET", "/tenants/default")).json()

    again = await rig.ask("PUT", "/tenants/default", body, If_Match='"1"')
    assert 1 == again.json()["version"]
    assert_problem(await rig.ask("PUT", "/tenants/default", {}, If_Match='"7"'), 412)
    emptied = (await rig.ask("PUT", "/tenants/default", {})).json()
    assert {None} == set(emptied["retention"].values())


async def test_whoever_needs_no_key_may_name_any_tenant(rig):
    other = await rig.ask("GET", "/tenants/acme")
    assert "acme" == other.json()["tenant"]
    assert_problem(await rig.ask("GET", "/tenants/a:b"), 404)


@pytest.mark.parametrize(
    ("retention", "where"),
    [
        ({"success": "soon"}, ["/retention/success"]),
        ({"count": -1, "bytes": 0}, ["/retention/count", "/retention/bytes"]),
        ({"cancelled": "1h"}, ["/retention/cancelled"]),
        (5, ["/retention"]),
    ],
)
async def test_bad_retention_is_refused_at_its_place(rig, retention, where):
    problem = assert_problem(
        await rig.ask("PUT", "/tenants/default", {"retention": retention}), 422
    )
    assert where == pointers(problem)
