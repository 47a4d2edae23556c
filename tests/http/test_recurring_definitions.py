"""Recurring tasks come, are looked at, change and go: POST, PUT, GET, PATCH, DELETE."""

import asyncio

import pytest
from tests.http.conftest import CHARGE, assert_problem, pointers
from tests.http.recurring_kit import (
    AFTER,
    CASES,
    DAILY,
    EVERY,
    PATH,
    advance,
    fire,
    look,
    make,
    make_of,
    run,
    set_clock,
)

from tasksched.http.schema_recurring import DEFINITION, READ_ONLY
from tasksched.model.names import check_name
from tasksched.model.zones import TZDATA_VERSION

pytestmark = pytest.mark.anyio

FULL = {
    "target": {"type": "http", "url": "https://a.example/x", "method": "PUT", "headers": {"X-A": "b"}},
    "payload": {"a": [1, 2.5, None]}, "queue": "billing", "priority": "high",
    "retry": {"max_attempts": 7, "backoff": {"factor": 1.5}}, "timeout": "90s", "lease": 45,
    "tags": ["a", "b"], "rrule": "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9", "timezone": "Asia/Tokyo",
    "start_at": "2026-03-03T09:00:00", "end_at": "2030-01-01T00:00:00Z", "on_gap": "skip",
    "on_fold": "both", "max_runs": 10, "overlap": "queue", "catch_up": "all", "catch_up_limit": 5,
    "misfire_grace": "1h", "jitter": 30, "owner": "app",
}  # fmt: skip


# -- POST -----------------------------------------------------------------------------------------


async def test_a_new_one_gets_an_id_and_says_when(rig):
    set_clock(rig)
    answer = await rig.ask("POST", PATH, DAILY)

    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert check_name(found["recurring_task_id"])
    assert answer.headers["location"] == f"{PATH}/{found['recurring_task_id']}"
    assert answer.headers["etag"] == '"1"'
    assert [found["status"], found["version"], found["created"]] == ["ACTIVE", 1, True]
    assert found["next_run_at"] == "2026-03-03T01:30:00.000Z"
    assert found["description"] == "At 02:30 every day, Europe/Paris"
    assert found["durability"] == "memory"


async def test_ids_sort_by_creation(rig, monkeypatch):
    made = []
    for n in range(20):
        monkeypatch.setattr("tasksched.clock.wall_ms", lambda n=n: 1_772_445_600_000 + n)
        made.append((await rig.ask("POST", PATH, DAILY)).json()["recurring_task_id"])

    assert made == sorted(set(made))


async def test_the_prefix_is_kept(rig):
    answer = await rig.ask("POST", f"/v1{PATH}", {**DAILY, "id": "a"})

    assert answer.headers["location"] == f"/v1{PATH}/a"


async def test_an_id_of_ones_own(rig):
    first = await rig.ask("POST", PATH, {**DAILY, "id": "nightly"})
    again = await rig.ask("POST", PATH, {**DAILY, "id": "nightly"})
    other = await rig.ask("POST", PATH, {**DAILY, "id": "nightly", "payload": 1})

    assert [first.status_code, again.status_code] == [201, 200]
    assert again.json()["created"] is False
    assert "idempotency-replayed" not in again.headers
    problem = assert_problem(other, 409)
    assert [problem["recurring_task_id"], problem["recurring_status"]] == ["nightly", "ACTIVE"]
    assert (await look(rig, "nightly"))["version"] == 1


async def test_a_key_makes_one(rig):
    first = await rig.ask("POST", PATH, DAILY, Idempotency_Key='"k"')
    again = await rig.ask("POST", PATH, DAILY, Idempotency_Key="k")
    other = await rig.ask("POST", PATH, {**DAILY, "payload": 1}, Idempotency_Key="k")

    assert [first.status_code, again.status_code] == [201, 200]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["recurring_task_id"] == first.json()["recurring_task_id"]
    assert assert_problem(other, 422)["code"] == "KEY_REUSED"
    assert len((await rig.ask("GET", PATH)).json()["items"]) == 1


async def test_a_key_belongs_to_its_tenant(rig):
    answers = [
        await rig.ask("POST", PATH, DAILY, Idempotency_Key="k", Tasksched_Tenant=tenant)
        for tenant in ("a", "b")
    ]

    assert [answer.status_code for answer in answers] == [201, 201]


async def test_one_spelling_is_as_good_as_another(rig):
    await make(rig, interval="90m", cron=None, timezone=None)

    answer = await rig.ask("PUT", f"{PATH}/s1", {"interval": 5400.0, "target": CHARGE})

    assert answer.status_code == 200


async def test_a_bad_key_is_refused(rig):
    answer = await rig.ask("POST", PATH, DAILY, Idempotency_Key="")

    assert assert_problem(answer, 422)["errors"][0]["header"] == "Idempotency-Key"


async def test_fifty_at_once_make_one(rig):
    answers = await asyncio.gather(
        *(rig.ask("POST", PATH, DAILY, Idempotency_Key="k") for _ in range(50))
    )

    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]


async def test_fifty_identical_puts_at_once(rig):
    """schedule-edit-010"""
    set_clock(rig)
    times = CASES["schedule-edit-010"]["input"]["times"]
    body = {"target": CHARGE, "interval": 2}
    answers = await asyncio.gather(*(rig.ask("PUT", f"{PATH}/s", body) for _ in range(times)))

    assert sorted(a.status_code for a in answers) == [200] * (times - 1) + [201]
    ran = []
    for _ in range(10):
        advance(rig, 1_000)
        ran += await run(rig)
    assert len(ran) == CASES["schedule-edit-010"]["expected"]["runs_in_next_10_s"]
    assert (await look(rig, "s"))["runs"] == 5


async def test_durability_is_told(rig, monkeypatch):
    monkeypatch.setattr("tasksched.store.durability.WAIT_MS", 5)
    for verb, path, body, headers in [
        ("POST", PATH, {**DAILY, "id": "a"}, {}),
        ("POST", f"{PATH}/a/trigger", None, {}),
        ("POST", f"{PATH}/a/pause", None, {}),
        ("DELETE", f"{PATH}/a", None, {"If_Match": "*"}),
    ]:
        answer = await rig.ask(verb, path, body, Durability="replicated", **headers)
        assert answer.json()["durability"] == "memory", path
    assert_problem(await rig.ask("POST", PATH, DAILY, Durability="paper"), 422)


# -- GET and round trips --------------------------------------------------------------------------


async def test_everything_is_shown_as_it_is_meant(rig):
    set_clock(rig)
    await make_of(rig, FULL)
    found = await look(rig)

    assert {name: found[name] for name in FULL if name not in {"retry", "start_at", "end_at"}} == {
        **{name: FULL[name] for name in FULL if name not in {"retry", "start_at", "end_at"}},
        "timeout": "1m30s", "lease": "45s", "jitter": "30s", "rrule": found["rrule"],
    }  # fmt: skip
    assert found["start_at"] == "2026-03-03T00:00:00.000Z"
    assert found["retry"]["max_attempts"] == 7
    assert found["retry"]["backoff"]["factor"] == 1.5
    assert found["timestamps"] == {
        "created_at": "2026-03-02T10:00:00.000Z", "updated_at": "2026-03-02T10:00:00.000Z",
    }  # fmt: skip
    assert [found["runs"], found["reason"], found["last_run_at"]] == [0, None, None]
    assert found["tzdata_version"] == TZDATA_VERSION
    assert found["tenant"] == "default"
    assert "after" not in found


BODIES = {
    "cron": DAILY,
    "every": EVERY,
    "after": {**AFTER, "after": "success"},
    "full": FULL,
    "null payload": {**DAILY, "payload": None},
    "large payload": {**DAILY, "payload": "x" * 5_000},
    "hash": {**DAILY, "cron": "H H(0-7) * * *"},
    "alias": {**DAILY, "cron": "@daily"},
    "none": {**EVERY, "catch_up": "none", "misfire_grace": "10s"},
    "grace zero": {**EVERY, "misfire_grace": 0},
    "count": {"target": CHARGE, "rrule": "FREQ=DAILY;COUNT=3"},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_what_was_got_may_be_put(rig, body):
    await make_of(rig, body)
    found = await look(rig)

    again = await rig.ask("PUT", f"{PATH}/s1", found)
    with_match = await rig.ask("PUT", f"{PATH}/s1", found, If_Match='"1"')

    assert again.status_code == 200, again.text
    assert with_match.status_code == 200
    assert await look(rig) == found


async def test_a_put_is_about_one(rig):
    found = {**await make(rig), "recurring_task_id": "s2", "tenant": "x"}

    answer = await rig.ask("PUT", f"{PATH}/s1", found)

    assert pointers(assert_problem(answer, 422)) == ["/recurring_task_id"]
    found["recurring_task_id"] = None
    assert pointers(assert_problem(await rig.ask("PUT", f"{PATH}/s1", found), 422)) == ["/tenant"]
    answer = await rig.ask("PUT", f"{PATH}/s1", {**DAILY, "id": "s2"})
    assert pointers(assert_problem(answer, 422)) == ["/id"]


async def test_a_post_takes_nothing_that_is_only_told(rig):
    found = await make(rig)
    told = [f"/{name}" for name in found if name in READ_ONLY]

    assert pointers(assert_problem(await rig.ask("POST", PATH, found), 422)) == told


async def test_a_tenant_sees_its_own(rig):
    await make(rig)

    for verb, path, body, headers in [
        ("GET", "", None, {}), ("PATCH", "", {"payload": 1}, {"If_Match": "*"}),
        ("DELETE", "", None, {"If_Match": "*"}), ("POST", "/pause", None, {}),
        ("POST", "/resume", None, {}), ("POST", "/trigger", None, {}), ("GET", "/next", None, {}),
        ("GET", "/runs", None, {}),
        ("POST", "/backfill", {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, {}),
    ]:  # fmt: skip
        answer = await rig.ask(verb, f"{PATH}/s1{path}", body, Tasksched_Tenant="b", **headers)
        assert_problem(answer, 404)
    assert (await rig.ask("GET", PATH, Tasksched_Tenant="b")).json()["items"] == []
    assert (await rig.ask("PUT", f"{PATH}/s1", EVERY, Tasksched_Tenant="b")).status_code == 201


# -- PUT, PATCH, DELETE: preconditions ------------------------------------------------------------


async def test_a_put_creates_or_replaces_or_does_nothing(rig):
    first = await rig.ask("PUT", f"{PATH}/s1", DAILY)
    same = await rig.ask("PUT", f"{PATH}/s1", DAILY)
    blind = await rig.ask("PUT", f"{PATH}/s1", EVERY)
    wrong = await rig.ask("PUT", f"{PATH}/s1", EVERY, If_Match='"7"')
    weak = await rig.ask("PUT", f"{PATH}/s1", EVERY, If_Match='W/"1"')
    right = await rig.ask("PUT", f"{PATH}/s1", EVERY, If_Match='"1"')
    any_ = await rig.ask("PUT", f"{PATH}/s1", DAILY, If_Match="*")

    assert [first.status_code, same.status_code] == [201, 200]
    assert first.headers["location"] == f"{PATH}/s1"
    assert [first.json()["created"], same.json()["created"]] == [True, False]
    problem = assert_problem(blind, 428)
    assert [problem["code"], problem["version"]] == ["PRECONDITION_REQUIRED", 1]
    assert assert_problem(wrong, 412)["version"] == 1
    assert_problem(weak, 412)
    assert [right.status_code, right.json()["version"], right.headers["etag"]] == [200, 2, '"2"']
    assert right.json()["interval"] == "1m"
    assert "cron" not in right.json()
    assert [any_.status_code, any_.json()["version"]] == [200, 3]


async def test_a_put_that_shall_only_create(rig):
    first = await rig.ask("PUT", f"{PATH}/s1", DAILY, If_None_Match="*")
    again = await rig.ask("PUT", f"{PATH}/s1", DAILY, If_None_Match="*")
    other = await rig.ask("PUT", f"{PATH}/s1", EVERY, If_None_Match="*")

    assert first.status_code == 201
    assert_problem(again, 412)
    assert_problem(other, 412)
    assert_problem(await rig.ask("PUT", f"{PATH}/s1", DAILY, If_None_Match='"1"'), 400)
    assert_problem(await rig.ask("PUT", f"{PATH}/s1", DAILY, If_None_Match="*", If_Match="*"), 400)


@pytest.mark.parametrize("match", ['"1"', "*"])
async def test_a_put_that_shall_only_replace(rig, match):
    assert_problem(await rig.ask("PUT", f"{PATH}/s1", DAILY, If_Match=match), 412)
    assert_problem(await rig.ask("GET", f"{PATH}/s1"), 404)


async def test_a_match_that_cannot_be_read(rig):
    await make(rig)

    for verb, body in [("PUT", EVERY), ("PATCH", {"payload": 1}), ("DELETE", None)]:
        assert_problem(await rig.ask(verb, f"{PATH}/s1", body, If_Match="1"), 400)


async def test_an_edit_and_a_removal_need_a_match(rig):
    await make(rig)

    for verb, body in [("PATCH", {"payload": 1}), ("DELETE", None)]:
        assert_problem(await rig.ask(verb, f"{PATH}/s1", body), 428)
        assert_problem(await rig.ask(verb, f"{PATH}/s1", body, If_Match='"2"'), 412)
        assert_problem(await rig.ask(verb, f"{PATH}/s2", body), 404)
        assert_problem(await rig.ask(verb, f"{PATH}/s2", body, If_Match='"1"'), 404)
    assert (await look(rig))["version"] == 1


async def test_of_two_edits_of_one_version_one_wins(rig):
    await make(rig)
    answers = await asyncio.gather(
        *(rig.ask("PATCH", f"{PATH}/s1", {"payload": n}, If_Match='"1"') for n in range(20))
    )

    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 19


async def test_edits_of_any_version_all_come_through(rig):
    await make(rig)
    answers = [await rig.ask("PATCH", f"{PATH}/s1", {"payload": n}, If_Match="*") for n in range(3)]

    assert [answer.json()["version"] for answer in answers] == [2, 3, 4]


async def test_removal(rig):
    set_clock(rig)
    await make_of(rig, EVERY)
    advance(rig, 60_000)
    await fire(rig)
    (entry,) = (await rig.ask("GET", f"{PATH}/s1/runs")).json()["items"]

    answer = await rig.ask("DELETE", f"{PATH}/s1", If_Match='"1"')

    assert answer.status_code == 200
    assert answer.json() == {"recurring_task_id": "s1", "durability": "memory"}
    assert_problem(await rig.ask("GET", f"{PATH}/s1"), 404)
    assert_problem(await rig.ask("DELETE", f"{PATH}/s1", If_Match='"1"'), 404)
    assert (await rig.show(entry["task_id"]))["status"] == "CANCELLED"


# -- PATCH ----------------------------------------------------------------------------------------


async def test_a_partial_edit_keeps_the_zone(rig):
    """schedule-edit-007"""
    case = CASES["schedule-edit-007"]["expected"]
    set_clock(rig)
    await make(rig, cron="0 8 * * *", timezone=case["timezone"])

    answer = await rig.ask("PATCH", f"{PATH}/s1", {"payload": 2}, If_Match='"1"')

    found = answer.json()
    assert [found["timezone"], found["payload"], found["version"]] == [case["timezone"], 2, 2]
    assert found["next_run_at"] == f"2026-03-02T{case['next_slot_hour_utc']}:00:00.000Z"


EDITS = [
    ({}, {}),
    ({"payload": None}, {"payload": None}),
    ({"queue": "mail", "tags": ["z"]}, {"queue": "mail", "tags": ["z"]}),
    ({"tags": None, "owner": None, "max_runs": None}, {"tags": [], "owner": None, "max_runs": None}),
    ({"queue": None, "overlap": None}, {"queue": "default", "overlap": "skip"}),
    ({"timeout": None, "lease": None, "jitter": None}, {"timeout": None, "lease": None, "jitter": None}),
    ({"target": CHARGE}, {"target": {**CHARGE, "version": None}}),
    ({"timezone": "UTC"}, {"timezone": "UTC"}),
    ({"end_at": None}, {"end_at": None}),
    ({"catch_up": "one", "catch_up_limit": None}, {"catch_up": "one", "catch_up_limit": 100}),
    ({"rrule": "FREQ=DAILY"}, {"rrule": "FREQ=DAILY"}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "changed"), EDITS, ids=[str(row[0]) for row in EDITS])
async def test_an_edit_changes_what_it_names(rig, edit, changed):
    set_clock(rig)
    await make_of(rig, FULL)
    before = await look(rig)

    answer = await rig.ask("PATCH", f"{PATH}/s1", edit, If_Match='"1"')

    assert answer.status_code == 200, answer.text
    after = await look(rig)
    assert {n: after[n] for n in DEFINITION if n in after} == {
        n: v for n, v in {**before, **changed}.items() if n in DEFINITION
    }
    assert after["version"] == (1 if not edit else 2)


async def test_a_large_payload_stays(rig):
    await make(rig, payload="x" * 5_000)

    answer = await rig.ask("PATCH", f"{PATH}/s1", {"queue": "a"}, If_Match="*")

    assert answer.json()["payload"] == "x" * 5_000


@pytest.mark.parametrize("media", ["application/json", "application/merge-patch+json"])
async def test_a_rule_takes_the_place_of_another(rig, media):
    set_clock(rig)
    await make(rig, on_gap="skip")

    every = await rig.ask(
        "PATCH", f"{PATH}/s1", {"interval": "1h"}, If_Match="*", Content_Type=media
    )
    after = await rig.ask("PATCH", f"{PATH}/s1", {"delay": 30, "after": "success"}, If_Match="*")
    cron = await rig.ask("PATCH", f"{PATH}/s1", {"cron": "0 5 * * *"}, If_Match="*")

    assert every.json()["next_run_at"] == "2026-03-02T11:00:00.000Z"
    assert "cron" not in every.json()
    assert [after.json()["delay"], after.json()["after"]] == ["30s", "success"]
    assert cron.json()["description"] == "At 05:00 every day, Europe/Paris"
    assert cron.json()["on_gap"] == "next"
    assert "after" not in cron.json()


async def test_wrong_edits_name_the_member(rig):
    await make(rig)

    for edit, wrong in [
        ({"cron": None}, [""]), ({"cron": "* * *"}, ["/cron"]), ({"target": None}, ["/target"]),
        ({"cron": "1 1 1 1 1", "interval": 5}, ["/cron", "/interval"]), ({"delay": 5, "overlap": "allow"}, ["/overlap"]),
        ({"status": "PAUSED"}, ["/status"]), ({"id": "s2"}, ["/id"]), ([], [""]), ({"after": "success"}, ["/after"]),
    ]:  # fmt: skip
        answer = await rig.ask("PATCH", f"{PATH}/s1", edit, If_Match="*")
        assert pointers(assert_problem(answer, 422)) == wrong, edit
    assert (await look(rig))["version"] == 1


async def test_an_edit_never_fires_by_itself(rig):
    set_clock(rig)
    await make_of(rig, EVERY)

    await rig.ask("PATCH", f"{PATH}/s1", {"interval": "5m"}, If_Match="*")
    await fire(rig)

    assert (await look(rig))["next_run_at"] == "2026-03-02T10:05:00.000Z"
    assert (await rig.ask("GET", "/tasks/count")).json()["total"] == 0


async def test_an_edit_to_what_is_over_is_refused(rig):
    set_clock(rig)
    await make(rig)

    edit = {"end_at": "2026-01-01T00:00:00Z"}
    answer = await rig.ask("PATCH", f"{PATH}/s1", edit, If_Match="*")

    assert pointers(assert_problem(answer, 422)) == ["/cron"]
    assert (await look(rig))["status"] == "ACTIVE"


async def test_what_has_ended_may_be_put_again(rig):
    set_clock(rig)
    body = {**EVERY, "end_at": "2026-03-02T10:01:00Z"}
    await make_of(rig, body)
    advance(rig, 60_000)
    await run(rig)

    again = await rig.ask("PUT", f"{PATH}/s1", body)
    edited = await rig.ask("PATCH", f"{PATH}/s1", {"end_at": None}, If_Match="*")

    assert [again.status_code, again.json()["status"]] == [200, "ENDED"]
    assert again.json()["next_run_at"] is None
    assert [edited.json()["status"], edited.json()["next_run_at"]] == [
        "ACTIVE", "2026-03-02T10:02:00.000Z",
    ]  # fmt: skip
