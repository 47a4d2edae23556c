"""Webhooks over HTTP: endpoints, secrets, deliveries; and who is told, on tasks and recurring tasks."""

import asyncio
from typing import Any

import pytest
from tests.http.conftest import BROKEN, CHARGE, Rig, assert_problem, open_rig, pointers

from tasksched.errors import Unavailable
from tasksched.model.durations import DAY_MS
from tasksched.model.endpoint import ENDPOINTS_MAX
from tasksched.model.notify import EVENT_TYPES
from tasksched.model.outcome import Outcome
from tasksched.model.signature import check_secret, new_secret
from tasksched.runtime.janitor import Janitor, Retention
from tasksched.store.records import set_conf

pytestmark = pytest.mark.anyio

URL = "https://example.com/hook"
BODY = {"url": URL, "events": ["task.failed", "task.succeeded"]}
DONE = Outcome(kind="SUCCEEDED", result=b"\x80")


async def create(rig: Rig, body: Any = BODY, **headers: str) -> dict[str, Any]:
    answer = await rig.ask("POST", "/webhooks", body, **headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def conf(rig: Rig, tenant: str = "default") -> str:
    """What scripts are told of the tenant's endpoints, on every shard the same."""
    raws = {
        await rig.session.gateway.command("HGET", keys.conf, f"hooks:{tenant}")
        for keys in rig.session.store.keys
    }
    (raw,) = raws
    return "" if raw is None else raw.decode().partition(" ")[2].strip()


# -- endpoints ------------------------------------------------------------------------------------


async def test_an_endpoint_is_made_and_read(rig):
    answer = await rig.ask("POST", "/webhooks", {**BODY, "description": "Sales"})
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/webhooks/{made['webhook_id']}"
    assert answer.headers["etag"] == '"1"'
    assert answer.headers["cache-control"] == "no-store"
    assert made["secret"] == check_secret(made.pop("secret"))
    assert made["events"] == ["task.succeeded", "task.failed"]
    assert (made["description"], made["enabled"], made["version"]) == ("Sales", True, 1)

    shown = await rig.ask("GET", f"/webhooks/{made['webhook_id']}")
    assert shown.json() == made
    assert shown.headers["etag"] == '"1"'
    assert (await rig.ask("GET", "/webhooks")).json() == {"items": [made], "next_cursor": None}


async def test_a_secret_of_ones_own_is_taken(rig):
    secret = new_secret()
    assert (await create(rig, {**BODY, "secret": secret}))["secret"] == secret


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, ["/url", "/events"]),
        ({"url": "ftp://a", "events": []}, ["/url", "/events"]),
        ({"url": URL, "events": ["task.failed", "task.lost"]}, ["/events/1"]),
        ({**BODY, "nope": 1, "secret": "x"}, ["/nope", "/secret"]),
        ({**BODY, "enabled": "yes"}, ["/enabled"]),
        ({**BODY, "description": "a\nb"}, ["/description"]),
        ({**BODY, "description": "x" * 513}, ["/description"]),
    ],
)
async def test_what_is_wrong_is_named(rig, body, wrong):
    assert pointers(assert_problem(await rig.ask("POST", "/webhooks", body), 422)) == wrong
    assert (await rig.ask("GET", "/webhooks")).json()["items"] == []


async def test_an_edit_changes_what_it_names_under_its_version(rig):
    made = await create(rig)
    path = f"/webhooks/{made['webhook_id']}"
    edit = {"events": ["schedule.missed"]}
    assert_problem(await rig.ask("PATCH", path, edit), 428)
    assert_problem(await rig.ask("PATCH", path, edit, If_Match='"7"'), 412)
    answer = await rig.ask("PATCH", path, edit, If_Match='"1"')
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"2"'
    assert (answer.json()["events"], answer.json()["url"]) == (["schedule.missed"], URL)
    assert "secret" not in answer.json()
    assert (await rig.ask("PATCH", path, edit, If_Match="*")).headers["etag"] == '"2"'
    wrong = {"url": None, "secret": new_secret(), "events": []}
    problem = assert_problem(await rig.ask("PATCH", path, wrong, If_Match="*"), 422)
    assert pointers(problem) == ["/secret", "/url", "/events"]


async def test_removal_needs_the_version_too(rig):
    path = f"/webhooks/{(await create(rig))['webhook_id']}"
    assert_problem(await rig.ask("DELETE", path), 428)
    assert_problem(await rig.ask("DELETE", path, If_Match='"9"'), 412)
    assert (await rig.ask("DELETE", path, If_Match='"1"')).status_code == 200
    assert_problem(await rig.ask("GET", path), 404)
    assert_problem(await rig.ask("DELETE", path, If_Match='"1"'), 404)


async def test_scripts_are_told_the_union_of_what_is_enabled(rig):
    assert await conf(rig) == ""
    first = await create(rig)
    assert await conf(rig) == "failed succeeded"
    second = await create(rig, {"url": URL, "events": ["schedule.blocked", "task.failed"]})
    assert await conf(rig) == "blocked failed succeeded"
    await rig.ask("POST", f"/webhooks/{first['webhook_id']}/disable")
    assert await conf(rig) == "blocked failed"
    await rig.ask("POST", f"/webhooks/{first['webhook_id']}/enable")
    assert await conf(rig) == "blocked failed succeeded"
    path = f"/webhooks/{second['webhook_id']}"
    await rig.ask("PATCH", path, {"events": ["task.cancelled"]}, If_Match="*")
    assert await conf(rig) == "cancelled failed succeeded"
    await rig.ask("DELETE", path, If_Match="*")
    await rig.ask("DELETE", f"/webhooks/{first['webhook_id']}", If_Match="*")
    assert await conf(rig) == ""
    await create(rig, {**BODY, "enabled": False})
    assert await conf(rig) == ""


async def test_a_removal_whose_reply_was_lost_is_answered_as_the_first_time(rig, monkeypatch):
    made = await create(rig)
    store, put_record = rig.session.store, rig.session.store.put_record

    async def twice(*args: Any, **named: Any) -> Any:
        await put_record(*args, **named)
        return await put_record(*args, **named)

    monkeypatch.setattr(store, "put_record", twice)
    path = f"/webhooks/{made['webhook_id']}"
    assert (await rig.ask("DELETE", path, If_Match='"1"')).status_code == 200
    assert_problem(await rig.ask("DELETE", path, If_Match='"1"'), 404)


async def test_a_change_that_is_written_is_answered_although_a_shard_cannot_be_told(
    rig, monkeypatch
):
    made = await create(rig)

    async def away(*_: object) -> int:
        raise Unavailable("away")

    monkeypatch.setattr(rig.session.store, "configure", away)
    path = f"/webhooks/{made['webhook_id']}"
    answer = await rig.ask("POST", f"{path}/disable")
    assert (answer.status_code, answer.json()["enabled"]) == (200, False)
    assert (await rig.ask("DELETE", path, If_Match='"2"')).status_code == 200
    # Of a new one the word comes first: nothing is made.
    assert_problem(await rig.ask("POST", "/webhooks", {**BODY, "events": ["schedule.missed"]}), 503)
    assert (await rig.ask("GET", "/webhooks")).json()["items"] == []


async def test_what_a_crash_left_untold_is_told_by_the_janitor(rig):
    made = await create(rig)
    await create(rig, BODY, Tasksched_Tenant="other")
    await set_conf(rig.session.store, "hooks:default", "missed")
    rules = Retention(
        success_ms=DAY_MS, failed_ms=DAY_MS, count_max=9, bytes_max=0, key_memory_ms=0,
        id_memory_ms=0,
    )  # fmt: skip
    janitor = Janitor(rig.session.store, rules, look_ms=1_000)
    for _ in range(2):  # a tenant each
        await janitor.clean(0)
    assert await conf(rig) == "failed missed succeeded"  # a word too many does no harm
    assert await conf(rig, "other") == "failed succeeded"
    await rig.ask("DELETE", f"/webhooks/{made['webhook_id']}", If_Match='"1"')
    assert await conf(rig) == ""


async def test_enabling_forgets_why_it_was_disabled(rig):
    made = await create(rig)
    records = rig.services.endpoints._records
    await records.disable("default", made["webhook_id"], "gone", 5, url=URL)
    path = f"/webhooks/{made['webhook_id']}"
    shown = (await rig.ask("GET", path)).json()
    assert (shown["enabled"], shown["disabled_reason"], shown["version"]) == (False, "gone", 2)
    shown = (await rig.ask("POST", f"{path}/enable", If_Match='"2"')).json()
    assert (shown["enabled"], shown["disabled_reason"], shown["version"]) == (True, None, 3)
    assert_problem(await rig.ask("POST", f"{path}/disable", If_Match='"2"'), 412)


async def test_a_tenant_has_so_many_endpoints(rig):
    for _ in range(ENDPOINTS_MAX):
        await create(rig)
    assert_problem(await rig.ask("POST", "/webhooks", BODY), 409)
    await create(rig, Tasksched_Tenant="other")


async def test_the_list_comes_in_pages_where_a_limit_is_given(rig):
    made = [(await create(rig))["webhook_id"] for _ in range(5)]
    seen: list[str] = []
    sizes, path = [], "/webhooks?limit=2"
    while path:
        answer = await rig.ask("GET", path)
        page = answer.json()
        seen += [each["webhook_id"] for each in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next_cursor"]
        assert (cursor is None) == ("link" not in answer.headers)
        path = cursor and f"/webhooks?limit=2&cursor={cursor}"
    assert [2, 2, 1] == sizes
    assert sorted(made) == sorted(seen)
    whole = (await rig.ask("GET", "/webhooks")).json()
    assert [each["webhook_id"] for each in whole["items"]] == seen
    assert_problem(await rig.ask("GET", "/webhooks?limit=0"), 422)
    assert_problem(await rig.ask("GET", "/webhooks?cursor=nobody"), 400)


ROUTES = [
    ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/enable"), ("POST", "/disable"),
    ("POST", "/rotate-secret"), ("POST", "/test"), ("GET", "/deliveries"),
    ("POST", "/deliveries/0123456789abcdefghjkm00/replay"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "rest"), ROUTES)
async def test_another_tenants_endpoint_is_not_there(rig, verb, rest):
    made = await create(rig, Tasksched_Tenant="other")
    body = {} if verb == "PATCH" else None
    for name in (made["webhook_id"], "ep_nothing", "%20", "a" * 80):
        answer = await rig.ask(verb, f"/webhooks/{name}{rest}", body, If_Match="*")
        assert_problem(answer, 404)
    assert (await rig.ask("GET", "/webhooks")).json()["items"] == []
    mine = await rig.ask("GET", f"/webhooks/{made['webhook_id']}", Tasksched_Tenant="other")
    assert mine.json()["version"] == 1


# -- secrets --------------------------------------------------------------------------------------


async def test_a_rotated_secret_is_shown_once(rig):
    made = await create(rig)
    path = f"/webhooks/{made['webhook_id']}"
    answer = await rig.ask("POST", f"{path}/rotate-secret", If_Match='"1"')
    assert answer.headers["cache-control"] == "no-store"
    assert check_secret(answer.json()["secret"]) != made["secret"]
    assert answer.json()["version"] == 2
    answer = await rig.ask("POST", f"{path}/rotate-secret", {"overlap": "1h"})
    assert answer.json()["version"] == 3
    for bad in ({"overlap": "31d"}, {"overlap": -1}, {"over": 1}):
        assert_problem(await rig.ask("POST", f"{path}/rotate-secret", bad), 422)
    assert "secret" not in (await rig.ask("GET", path)).json()


async def test_the_secret_of_the_tenant_is_shown_once(rig):
    first = (await rig.ask("POST", "/webhooks/rotate-tenant-secret")).json()
    second = (await rig.ask("POST", "/webhooks/rotate-tenant-secret", {"overlap": 0})).json()
    assert check_secret(first["secret"]) != check_secret(second["secret"])
    assert second["tenant"] == "default"


# -- deliveries -----------------------------------------------------------------------------------


async def delivery_run(rig: Rig, outcome: Outcome) -> None:
    """Whatever delivery is due runs, and ends so."""
    await rig.finish(await rig.start("http"), outcome)


async def test_a_test_event_is_delivered_listed_and_replayed(rig):
    made = await create(rig)
    path = f"/webhooks/{made['webhook_id']}"
    answer = await rig.ask("POST", f"{path}/test")
    assert answer.status_code == 202
    sent = answer.json()
    assert (sent["event"], sent["status"], sent["webhook_id"]) == (
        "webhook.test", "PENDING", made["webhook_id"],
    )  # fmt: skip
    replay = f"{path}/deliveries/{sent['delivery_id']}/replay"
    assert_problem(await rig.ask("POST", replay), 409)

    await delivery_run(rig, BROKEN)
    (failed,) = (await rig.ask("GET", f"{path}/deliveries?status=FAILED")).json()["items"]
    assert (failed["status"], failed["attempts"]) == ("FAILED", 1)
    assert failed["error"]["type"] == "ValueError"
    assert failed["timestamps"]["last_attempt_at"] is not None

    moved = "https://example.com/moved"
    await rig.ask("PATCH", path, {"url": moved}, If_Match="*")
    again = (await rig.ask("POST", replay)).json()
    assert (again["delivery_id"], again["status"]) == (sent["delivery_id"], "PENDING")
    assert (await rig.show(sent["delivery_id"]))["target"]["url"] == moved
    await delivery_run(rig, DONE)
    second = (await rig.ask("POST", replay)).json()
    assert second["delivery_id"] != sent["delivery_id"]
    assert second["message_id"] == sent["message_id"]
    assert (await rig.show(second["delivery_id"]))["payload"]["type"] == "webhook.test"
    found = (await rig.ask("GET", f"{path}/deliveries")).json()["items"]
    assert [each["status"] for each in found] == ["PENDING", "SUCCESS"]


async def test_deliveries_come_page_by_page(rig):
    made = await create(rig)
    path = f"/webhooks/{made['webhook_id']}"
    sent = {(await rig.ask("POST", f"{path}/test")).json()["delivery_id"] for _ in range(5)}
    other = await create(rig)
    await rig.ask("POST", f"/webhooks/{other['webhook_id']}/test")
    found, query = [], "?limit=2"
    while query:
        page = (await rig.ask("GET", f"{path}/deliveries{query}")).json()
        found += [each["delivery_id"] for each in page["items"]]
        query = f"?limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert sorted(found) == sorted(sent)
    assert_problem(await rig.ask("GET", f"{path}/deliveries?cursor=x"), 400)


async def test_a_disabled_endpoint_is_sent_nothing(rig):
    made = await create(rig)
    path = f"/webhooks/{made['webhook_id']}"
    sent = (await rig.ask("POST", f"{path}/test")).json()
    await delivery_run(rig, BROKEN)
    await rig.ask("POST", f"{path}/disable")
    assert_problem(await rig.ask("POST", f"{path}/test"), 409)
    replay = f"{path}/deliveries/{sent['delivery_id']}/replay"
    assert_problem(await rig.ask("POST", replay), 409)


async def test_only_a_delivery_of_the_endpoint_is_replayed(rig):
    first, second = await create(rig), await create(rig)
    sent = (await rig.ask("POST", f"/webhooks/{first['webhook_id']}/test")).json()
    await delivery_run(rig, BROKEN)
    task_id = await rig.make()
    for delivery in (sent["delivery_id"], task_id):
        path = f"/webhooks/{second['webhook_id']}/deliveries/{delivery}/replay"
        assert_problem(await rig.ask("POST", path), 404)


async def test_notifications_and_deliveries_are_shown_as_what_they_are(rig):
    made = await create(rig, {"url": URL, "events": list(EVENT_TYPES)})
    task_id = await rig.make()
    await rig.finish(await rig.start())
    sent = (await rig.ask("POST", f"/webhooks/{made['webhook_id']}/test")).json()
    found = (await rig.ask("GET", "/tasks?queue=notifications")).json()["items"]
    shown = {each["target"]["type"]: each for each in found}
    assert shown["notification"]["target"] == {
        "type": "notification", "event": "task.succeeded", "task_id": task_id,
    }  # fmt: skip
    assert shown["http"]["delivery"] == {
        "message_id": sent["message_id"],
        "event": "webhook.test",
        "endpoint_id": made["webhook_id"],
    }
    for each in found:
        for edit in ({"queue": "default"}, {"target": CHARGE}, {"notify": []}):
            assert_problem(await rig.ask("PATCH", f"/tasks/{each['task_id']}", edit), 409)
        later = {"run_at": "2030-01-01T00:00:00Z"}
        changed = await rig.ask("PATCH", f"/tasks/{each['task_id']}", later)
        assert changed.json()["target"] == each["target"]


# -- notify ---------------------------------------------------------------------------------------

TOLD = {"url": URL, "events": ["task.failed"]}


async def notify_of(rig: Rig, task_id: str) -> list[dict[str, Any]]:
    task = await rig.session.tasks.reads.task(task_id)
    assert task is not None
    return [(each.url, each.events, each.secret) for each in task.notify]  # type: ignore[misc]


async def test_a_task_says_who_is_told_and_no_answer_shows_a_secret(rig):
    secret = new_secret()
    task_id = await rig.make(notify=[{**TOLD, "secret": secret}], delay=60)
    assert await notify_of(rig, task_id) == [(URL, ("task.failed",), secret)]
    for path in (f"/tasks/{task_id}", "/tasks"):
        assert secret not in (await rig.ask("GET", path)).text
    assert (await rig.show(task_id))["notify"] == [TOLD]

    await rig.ask("PATCH", f"/tasks/{task_id}", {"priority": "high"})
    assert await notify_of(rig, task_id) == [(URL, ("task.failed",), secret)]
    both = {"url": URL, "events": ["task.succeeded", "task.failed"]}
    answer = await rig.ask("PATCH", f"/tasks/{task_id}", {"notify": [both]})
    assert answer.json()["notify"] == [both]
    assert await notify_of(rig, task_id) == [(URL, ("task.succeeded", "task.failed"), secret)]
    await rig.ask("POST", f"/tasks/{task_id}/cancel")
    names = await rig.session.gateway.command("KEYS", "*task:n*")
    assert names == []  # it is told of success and failure alone
    task_id = await rig.make(notify=[TOLD], delay=60)
    assert (await rig.ask("PATCH", f"/tasks/{task_id}", {"notify": None})).json()["notify"] == []


async def test_who_is_told_is_part_of_an_idempotent_command(rig):
    body = {"target": CHARGE, "notify": [TOLD]}
    first = await rig.ask("POST", "/tasks", body, Idempotency_Key="k")
    same = {"notify": [dict(reversed(TOLD.items()))], "target": CHARGE}
    again = await rig.ask("POST", "/tasks", same, Idempotency_Key="k")
    assert (again.status_code, again.json()["task_id"]) == (200, first.json()["task_id"])
    for other in ([], [{**TOLD, "secret": new_secret()}]):
        answer = await rig.ask("POST", "/tasks", {**body, "notify": other}, Idempotency_Key="k")
        assert assert_problem(answer, 422)["code"] == "KEY_REUSED"


async def test_an_item_of_a_batch_says_who_is_told(rig):
    answer = await rig.ask("POST", "/tasks/batch", [{"target": CHARGE, "notify": [TOLD]}])
    task_id = answer.json()["items"][0]["task_id"]
    assert (await rig.show(task_id))["notify"] == [TOLD]


async def test_a_recurring_task_keeps_the_secrets_it_does_not_show(rig):
    secret = new_secret()
    missed = {"url": URL, "events": ["task.failed", "schedule.missed"]}
    body = {"target": CHARGE, "interval": "1h", "notify": [{**missed, "secret": secret}]}
    answer = await rig.ask("PUT", "/recurring-tasks/s", body)
    assert answer.status_code == 201
    assert answer.json()["notify"] == [missed]

    async def stored() -> list[Any]:
        found = await rig.recurring.get("default", "s")
        return [each.secret for each in found.spec.template.notify]

    shown = (await rig.ask("GET", "/recurring-tasks/s")).json()
    same = await rig.ask("PUT", "/recurring-tasks/s", shown)
    assert (same.status_code, same.json()["version"]) == (200, 1)
    edited = await rig.ask("PATCH", "/recurring-tasks/s", {"priority": "low"}, If_Match="*")
    assert (edited.json()["version"], await stored()) == (2, [secret])
    other = {**missed, "url": "https://example.com/other"}
    await rig.ask("PATCH", "/recurring-tasks/s", {"notify": [other]}, If_Match="*")
    assert await stored() == [None]
    run = (await rig.ask("POST", "/recurring-tasks/s/trigger")).json()["task_id"]
    assert (await rig.show(run))["notify"] == [other]
    for bad in ({"queue": "notifications"}, {"notify": [{"url": URL, "events": ["webhook.test"]}]}):
        assert_problem(await rig.ask("PATCH", "/recurring-tasks/s", bad, If_Match="*"), 422)


async def test_with_encryption_no_secret_is_stored_in_the_clear(valkey_server):
    valkey_server.flush()
    key = "k:" + "A" * 43 + "="
    rig, session = await open_rig(valkey_server.url, encryption_keys=key)
    secret = new_secret()
    told = [{**TOLD, "secret": secret}]
    task_id = await rig.make(notify=told, delay=60)
    body = {"target": CHARGE, "interval": "1h", "notify": told}
    await rig.ask("PUT", "/recurring-tasks/s", body)
    made = await create(rig, {**BODY, "secret": secret})
    shown = (await rig.ask("GET", "/recurring-tasks/s")).json()
    assert (await rig.ask("PUT", "/recurring-tasks/s", shown)).json()["version"] == 1
    await rig.ask("PATCH", f"/tasks/{task_id}", {"priority": "high"})
    await rig.ask("POST", f"/webhooks/{made['webhook_id']}/test")
    store = session.store
    hashes = [key for keys in store.keys for key in (
        keys.task(task_id), keys.schedule("default:s"), store.global_keys.endpoints("default"),
    )]  # fmt: skip
    for name in hashes:
        assert secret.encode() not in repr(await session.gateway.command("HGETALL", name)).encode()
    ((_, _, stored),) = await notify_of(rig, task_id)
    assert stored.startswith("sealed:")
    await rig.http.aclose()
    await session.close()


async def test_changes_at_one_time_leave_the_union_of_what_stands(rig):
    made = [await create(rig, {"url": URL, "events": [event]}) for event in EVENT_TYPES[:3]]
    await asyncio.gather(
        *(create(rig, {"url": URL, "events": [event]}) for event in EVENT_TYPES[2:]),
        *(rig.ask("POST", f"/webhooks/{each['webhook_id']}/disable") for each in made),
    )
    assert await conf(rig) == "blocked cancelled missed"
    shown = (await rig.ask("GET", "/webhooks")).json()["items"]
    assert sum(each["enabled"] for each in shown) == 3
