"""One task over HTTP: looking at it with versions, editing, cancelling, running now, retrying."""

import pytest
from tests.http.conftest import BROKEN, CHARGE, DONE, assert_problem

from tasksched.commands.explain import redis_cli
from tasksched.store.replies import Release

pytestmark = pytest.mark.anyio


async def task_in(rig, state: str) -> str:
    """The id of a task in this state."""
    if state == "PENDING":
        return await rig.make(delay="1h")
    task_id = await rig.make()
    if state == "CANCELLED":
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
        return task_id
    started = await rig.start()
    if state != "RUNNING":
        await rig.finish(started, DONE if state == "SUCCESS" else BROKEN)
    assert (await rig.show(task_id))["status"] == state
    return task_id


# -- looking --------------------------------------------------------------------------------------


async def test_an_etag_spares_the_body(rig):
    task_id = await rig.make(delay="1h")
    path = f"/tasks/{task_id}"
    etag = (await rig.ask("GET", path)).headers["etag"]

    same = await rig.ask("GET", path, If_None_Match=f'"7", W/{etag}')
    await rig.ask("PATCH", path, {"queue": "other"})
    changed = await rig.ask("GET", path, If_None_Match=etag)

    assert etag == '"1"'
    assert [304, b"", etag] == [same.status_code, same.content, same.headers["etag"]]
    assert [200, '"2"'] == [changed.status_code, changed.headers["etag"]]
    assert (await rig.ask("GET", path, If_None_Match="*")).status_code == 304


async def test_head_is_get_without_a_body(rig):
    answer = await rig.http.head(f"/tasks/{await rig.make()}")

    assert answer.status_code == 200
    assert answer.headers["etag"]


async def test_a_finished_task_tells_all(rig):
    task_id = await task_in(rig, "FAILED")

    shown = await rig.show(task_id)

    assert shown["status"] == "FAILED"
    assert shown["attempts"] == 1
    assert shown["reason"] == "not_retryable"
    assert shown["error"] == {"type": "ValueError", "message": "no", "traceback": ""}
    assert shown["result"] is None
    assert shown["why_waiting"] == []
    times = shown["timestamps"]
    assert times["created_at"] <= times["queued_at"] <= times["started_at"] <= times["finished_at"]


async def test_attempts_over_two_lives(rig):
    task_id = await task_in(rig, "FAILED")
    await rig.ask("POST", f"/tasks/{task_id}/retry")
    await rig.finish(await rig.start())

    found = (await rig.ask("GET", f"/tasks/{task_id}/attempts")).json()

    assert [a["outcome"] for a in found["items"]] == ["FAILED", "SUCCEEDED"]
    assert [a["attempt"] for a in found["items"]] == [1, 2]
    assert found["items"][0]["error"]["type"] == "ValueError"
    assert found["items"][1]["error"] is None
    assert found["next_cursor"] is None
    assert (await rig.show(task_id))["attempts"] == 1


async def test_another_tenants_task_is_not_found_anywhere(rig):
    task_id = await rig.make()
    other = {"Tasksched_Tenant": "other"}
    answers = [
        await rig.ask("GET", f"/tasks/{task_id}", **other),
        await rig.ask("GET", f"/tasks/{task_id}/attempts", **other),
        await rig.ask("PATCH", f"/tasks/{task_id}", {"queue": "a"}, **other),
        await rig.ask("POST", f"/tasks/{task_id}/cancel", **other),
        await rig.ask("POST", f"/tasks/{task_id}/run-now", **other),
        await rig.ask("POST", f"/tasks/{task_id}/retry", **other),
    ]

    unknown = await rig.ask("GET", f"/tasks/{'0' * 23}", **other)

    assert_problem(unknown, 404)
    for answer in answers:
        assert_problem(answer, 404)
    same = [a.text.replace(task_id, "") for a in (answers[0], unknown)]
    assert same[0].split("request_id")[0] == same[1].replace("0" * 23, "").split("request_id")[0]


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\x00\x9d", b"\xc1", b"\xc4\x01a", b"\xd9\x02\xff\xfe", b"\x9d"]
)
async def test_broken_bytes_are_marked_and_harm_nobody(rig, raw):
    """payload-result-007"""
    answer = await rig.ask("POST", "/tasks/batch", [{"target": CHARGE, "payload": 1}] * 100)
    task_id = answer.json()["items"][7]["task_id"]
    keys = next(k for n, k in enumerate(rig.session.store.keys) if task_id.endswith(f"0{n}"))
    await rig.session.gateway.command("HSET", keys.task(task_id), "payload", raw)

    shown = await rig.show(task_id)
    listed = await rig.ask("GET", "/tasks?limit=500")

    assert [shown["payload"], shown["corrupt"]] == [None, True]
    assert len(listed.json()["items"]) == 100
    assert (await rig.ask("GET", "/metrics")).status_code == 200


async def test_a_lost_large_payload_is_marked(rig):
    task_id = await rig.make(payload="x" * 5_000)
    await rig.session.gateway.command("DEL", f"{{ts:{int(task_id[-1])}}}:body:{task_id}")

    shown = await rig.show(task_id)

    assert [shown["payload"], shown["corrupt"]] == [None, True]


# -- editing --------------------------------------------------------------------------------------


async def test_an_edit_changes_what_it_names_and_no_more(rig):
    task_id = await rig.make(delay="1h", payload=1, timeout="5s", tags=["a"], queue="q")
    before = await rig.show(task_id)

    answer = await rig.ask(
        "PATCH",
        f"/tasks/{task_id}",
        {"payload": {"n": 2}, "priority": "low", "timeout": None, "run_at": "2030-01-01T00:00:00Z"},
        Content_Type="application/merge-patch+json",
    )

    after = await rig.show(task_id)
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"2"'
    assert {**answer.json(), "durability": None, "why_waiting": None} == {
        **after, "durability": None, "why_waiting": None,
    }  # fmt: skip
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"version", "payload", "priority", "timeout", "timestamps", "why_waiting"}
    assert after["payload"] == {"n": 2}
    assert after["timestamps"]["run_at"] == "2030-01-01T00:00:00.000Z"


async def test_an_edit_can_empty(rig):
    task_id = await rig.make(
        delay="1h", expires_at="2030-01-01T00:00:00Z", tags=["a"], retry={"max_attempts": 2}
    )

    await rig.ask("PATCH", f"/tasks/{task_id}", {"expires_at": None, "tags": None, "retry": None})

    shown = await rig.show(task_id)
    assert [shown["expires_at"], shown["tags"], shown["retry"]["max_attempts"]] == [None, [], 5]


async def test_if_match_guards_an_edit(rig):
    task_id = await rig.make(delay="1h")
    path = f"/tasks/{task_id}"

    refused = await rig.ask("PATCH", path, {"queue": "a"}, If_Match='"2"')
    weak = await rig.ask("PATCH", path, {"queue": "a"}, If_Match='W/"1"')
    nonsense = await rig.ask("PATCH", path, {"queue": "a"}, If_Match='"x"')
    malformed = await rig.ask("PATCH", path, {"queue": "a"}, If_Match="1")
    agreed = await rig.ask("PATCH", path, {"queue": "a"}, If_Match='"1"')
    any_version = await rig.ask("PATCH", path, {"queue": "b"}, If_Match="*")

    assert assert_problem(refused, 412)["version"] == 1
    assert_problem(weak, 412)
    assert_problem(nonsense, 412)
    assert_problem(malformed, 400)
    assert [200, 200] == [agreed.status_code, any_version.status_code]
    assert (await rig.show(task_id))["version"] == 3


async def test_an_edit_that_names_nothing_changes_nothing(rig):
    task_id, running = await rig.make(delay="1h"), await task_in(rig, "RUNNING")

    answer = await rig.ask("PATCH", f"/tasks/{task_id}", {})

    assert [200, 1] == [answer.status_code, answer.json()["version"]]
    assert_problem(await rig.ask("PATCH", f"/tasks/{task_id}", {}, If_Match='"9"'), 412)
    assert_problem(await rig.ask("PATCH", f"/tasks/{running}", {}), 409)


@pytest.mark.parametrize("state", ["RUNNING", "SUCCESS", "FAILED", "CANCELLED"])
@pytest.mark.parametrize("verb", ["edit", "run-now"])
async def test_what_does_not_wait_cannot_be_moved(rig, state, verb):
    task_id = await task_in(rig, state)

    if verb == "edit":
        answer = await rig.ask("PATCH", f"/tasks/{task_id}", {"delay": 5})
    else:
        answer = await rig.ask("POST", f"/tasks/{task_id}/run-now")

    assert assert_problem(answer, 409)["task_status"] == state


async def test_run_now_makes_due(rig):
    task_id = await task_in(rig, "PENDING")

    answer = await rig.ask("POST", f"/tasks/{task_id}/run-now", {})

    assert answer.status_code == 200
    assert answer.json() == {
        "task_id": task_id, "status": "PENDING", "version": 2, "durability": "memory",
    }  # fmt: skip
    assert answer.headers["etag"] == '"2"'
    assert [grant.id for _, grant in await rig.start()] == [task_id]


# -- ending and beginning again -------------------------------------------------------------------


async def test_cancel_before_the_start_is_final_and_repeatable(rig):
    """cancel-race-002"""
    task_id = await task_in(rig, "PENDING")

    first = await rig.ask("POST", f"/tasks/{task_id}/cancel")
    second = await rig.ask("POST", f"/tasks/{task_id}/cancel")

    assert [200, 200] == [first.status_code, second.status_code]
    assert first.json() == second.json()
    assert first.json()["status"] == "CANCELLED"
    assert (await rig.show(task_id))["status"] == "CANCELLED"


@pytest.mark.parametrize("state", ["SUCCESS", "FAILED"])
async def test_cancel_of_a_finished_task_is_refused(rig, state):
    """cancel-race-002"""
    task_id = await task_in(rig, state)

    answer = await rig.ask("POST", f"/tasks/{task_id}/cancel")

    assert assert_problem(answer, 409)["task_status"] == state
    assert (await rig.show(task_id))["status"] == state


async def test_cancel_of_a_running_task_is_a_request(rig):
    """cancel-race-003"""
    task_id = await rig.make()
    started = await rig.start()

    answer = await rig.ask("POST", f"/tasks/{task_id}/cancel")
    await rig.finish(started)

    assert answer.status_code == 202
    assert [answer.json()["status"], answer.json()["cancel_requested"]] == ["RUNNING", True]
    shown = await rig.show(task_id)
    assert [shown["status"], shown["cancel_requested"]] == ["SUCCESS", True]


async def test_if_match_guards_every_verb(rig):
    task_id = await task_in(rig, "CANCELLED")

    for verb in ("cancel", "run-now", "retry"):
        answer = await rig.ask("POST", f"/tasks/{task_id}/{verb}", If_Match='"77"')
        assert_problem(answer, 412)


@pytest.mark.parametrize(
    ("state", "status"),
    [("FAILED", 200), ("CANCELLED", 200), ("SUCCESS", 409), ("PENDING", 409), ("RUNNING", 409)],
)
async def test_retry_gives_a_new_life_once(rig, state, status):
    task_id = await task_in(rig, state)

    first = await rig.ask("POST", f"/tasks/{task_id}/retry")
    second = await rig.ask("POST", f"/tasks/{task_id}/retry")

    assert [status, 409] == [first.status_code, second.status_code]


@pytest.mark.parametrize("body", [b'{"x":1}', b"[]", b'{"force":true}'])
async def test_verbs_take_no_options(rig, body):
    task_id = await rig.make(delay="1h")

    assert_problem(await rig.ask("POST", f"/tasks/{task_id}/cancel", body), 422)
    assert (await rig.show(task_id))["status"] == "PENDING"


# -- why it waits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("no_process", "the worker could not get a process to run it in"),
        ("circuit_open", "its host failed too often in a row and is left alone"),
        ("of_a_newer_release", "of_a_newer_release"),
    ],
)
async def test_why_a_postponed_run_waits(rig, why, said):
    task_id = await rig.make()
    ((shard, grant),) = await rig.start()
    await rig.session.store.release(shard, [Release(grant.id, grant.fence, 60_000, why)])
    (reason,) = (await rig.show(task_id))["why_waiting"]
    assert ("not_due", why) == (reason["reason"], reason["postponed"])
    assert reason["detail"].endswith(f" (postponed: {said})")


async def test_why_waiting(rig):
    later = await rig.make(run_at="2030-01-01T00:00:00Z")
    homeless = await rig.make()
    await rig.start(route="other")
    (reason,) = (await rig.show(later))["why_waiting"]
    (no_worker,) = (await rig.show(homeless))["why_waiting"]

    assert [reason["reason"], reason["until"]] == ["not_due", "2030-01-01T00:00:00.000Z"]
    assert [no_worker["reason"], no_worker["route"]] == ["no_worker_for_handler", "charge"]


async def test_why_a_due_task_waits_for_others(rig):
    for shard in range(4):
        await rig.session.store.announce(shard, "w1", 600_000, ("queue:*", "route:charge"))
    many = [{"target": CHARGE}] * 1_000
    items = (await rig.ask("POST", "/tasks/batch", many)).json()["items"]
    for shard in range(4):
        await rig.session.store.dispatch(shard)

    found = {(await rig.show(item["task_id"]))["why_waiting"][0]["reason"] for item in items[::40]}

    assert found == {"waiting_for_worker", "queue_full"}


async def test_the_line_that_shows_the_record(rig):
    task_id = await rig.make(delay="1h")
    task = await rig.session.tasks.get("default", task_id)

    line = redis_cli(rig.session.store, task)

    key = line.split("'")[1]
    assert line == f"redis-cli HGETALL '{key}'"
    assert await rig.session.gateway.command("HGET", key, "state") == b"PENDING"
