"""What is done by hand, what is listed, and what a schedule leaves behind."""

import pytest
from tests.http.conftest import BROKEN, CHARGE, assert_problem, pointers
from tests.http.recurring_kit import (
    AFTER,
    DAILY,
    EVERY,
    PATH,
    advance,
    fire,
    ledger,
    look,
    make,
    make_of,
    run,
    set_clock,
)

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


async def verb(rig, name, schedule_id="s1", **headers):
    return await rig.ask("POST", f"{PATH}/{schedule_id}/{name}", **headers)


# -- pause and resume -----------------------------------------------------------------------------


async def test_pause_and_resume(rig):
    set_clock(rig)
    await make_of(rig, EVERY)

    paused = await verb(rig, "pause", If_Match='"1"')
    again = await verb(rig, "pause")
    advance(rig, 10 * 60_000)
    resumed = await verb(rig, "resume", If_Match='"2"')
    once_more = await verb(rig, "resume")

    assert [paused.status_code, paused.json()["status"], paused.json()["next_run_at"]] == [200, "PAUSED", None]  # fmt: skip
    assert paused.headers["etag"] == '"2"'
    assert again.json()["version"] == 2
    assert resumed.json()["status"] == "ACTIVE"
    assert resumed.json()["next_run_at"] == "2026-03-02T10:11:00.000Z"
    assert [once_more.status_code, once_more.json()["version"]] == [200, 3]
    assert await run(rig) == []


async def test_a_pause_settles_what_is_overdue(rig):
    set_clock(rig)
    await make_of(rig, EVERY)
    advance(rig, 60_000)

    await verb(rig, "pause")

    assert [entry["outcome"] for entry in await ledger(rig)] == ["fired"]


async def test_another_version_stops_the_verbs(rig):
    await make(rig)

    assert assert_problem(await verb(rig, "pause", If_Match='"9"'), 412)["version"] == 1
    await verb(rig, "pause")
    assert_problem(await verb(rig, "resume", If_Match='"1"'), 412)
    assert_problem(await verb(rig, "resume", If_Match="x"), 400)


async def test_what_has_ended_cannot_be_paused(rig):
    set_clock(rig)
    await make_of(rig, {**EVERY, "max_runs": 1})
    advance(rig, 60_000)
    await run(rig)

    problem = assert_problem(await verb(rig, "pause"), 409)

    assert [problem["recurring_task_id"], problem["recurring_status"]] == ["s1", "ENDED"]
    assert_problem(await verb(rig, "resume"), 409)
    assert (await look(rig))["runs"] == 1


@pytest.mark.parametrize("name", ["pause", "resume", "trigger"])
async def test_a_verb_takes_no_options(rig, name):
    await make(rig)

    answer = await rig.ask("POST", f"{PATH}/s1/{name}", {"force": True})

    assert pointers(assert_problem(answer, 422)) == ["/force"]
    assert (await rig.ask("POST", f"{PATH}/s1/{name}", {})).status_code in {200, 201}


# -- trigger --------------------------------------------------------------------------------------


async def test_a_trigger_makes_an_extra_run(rig):
    set_clock(rig)
    await make(rig, payload={"a": 1})
    before = await look(rig)

    answer = await verb(rig, "trigger")
    another = await verb(rig, "trigger")

    assert answer.status_code == 201
    task_id = answer.json()["task_id"]
    assert answer.headers["location"] == f"/tasks/{task_id}"
    assert another.json()["task_id"] != task_id
    task = await rig.show(task_id)
    assert [task["payload"], task["recurring_task_id"]] == [{"a": 1}, "s1"]
    assert sorted(await run(rig)) == sorted([task_id, another.json()["task_id"]])
    assert await look(rig) == before
    newest = (await ledger(rig))[0]
    assert [newest["outcome"], newest["by_hand"], newest["lateness"]] == ["fired", True, None]
    assert newest["task_id"] == another.json()["task_id"]


# -- backfill -------------------------------------------------------------------------------------


async def test_a_backfill_counts_first_and_makes_none_twice(rig):
    set_clock(rig)
    await make(rig, cron="0 * * * *", timezone="UTC")
    span = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T05:00:00Z"}

    async def fill(**members):
        return await rig.ask("POST", f"{PATH}/s1/backfill", {**span, **members})

    dry = (await fill(dry_run=True)).json()
    assert dry == {"dry_run": True, "count": 6, "exact": True, "task_ids": []}
    assert (await rig.ask("GET", "/tasks/count")).json()["total"] == 0

    made = (await fill(rate=2)).json()
    assert [made["count"], len(made["task_ids"]), made["durability"]] == [6, 6, "memory"]
    due = [(await rig.show(task_id))["timestamps"]["run_at"] for task_id in made["task_ids"]]
    assert due[:3] == [f"2026-03-02T10:00:0{text}Z" for text in ("0.000", "0.500", "1.000")]
    nominal = (await rig.show(made["task_ids"][1]))["nominal_at"]
    assert nominal == "2026-03-01T01:00:00.000Z"

    again = (await fill()).json()
    assert [again["count"], again["task_ids"]] == [6, []]


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, ["/from", "/to"]),
        ({"from": "x", "to": 5, "dry_run": 1, "rate": 0, "y": 1}, ["/y", "/from", "/to", "/dry_run", "/rate"]),
        ({"from": "2026-03-01T02:00:00Z", "to": "2026-03-01T01:00:00Z"}, ["/to"]),
        ({"from": "2026-03-01T02:00:00Z", "to": "2026-03-03T01:00:00Z"}, ["/to"]),
        ({"from": "2026-03-01T02:00:00", "to": "2026-03-01T01:00:00Z"}, ["/from"]),
        ({"from": "0001-01-01T00:00:00Z", "to": "2026-03-01T01:00:00Z"}, ["/to"]),
        ({"from": None, "to": "2026-03-01T01:00:00Z"}, ["/from"]),
        *(({"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T00:00:00Z", "rate": rate}, ["/rate"])
          for rate in (-1, 0.001, 10_001, True, "5", 10**400)),
        ([], [""]),
    ],
)  # fmt: skip
async def test_a_backfill_that_cannot_be(rig, body, wrong):
    set_clock(rig)
    await make(rig, cron="* * * * *")

    answer = await rig.ask("POST", f"{PATH}/s1/backfill", body)

    assert pointers(assert_problem(answer, 422)) == wrong


async def test_a_large_range_is_counted_up_to_the_cap(rig):
    set_clock(rig)
    await make(rig, cron="* * * * *")
    span = {"from": "0001-01-01T00:00:00Z", "to": "2026-03-01T05:00:00Z", "dry_run": True}

    answer = await rig.ask("POST", f"{PATH}/s1/backfill", span)

    assert [answer.json()["count"], answer.json()["exact"]] == [10_001, False]


async def test_a_fixed_delay_has_no_past(rig):
    await make_of(rig, AFTER)
    span = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T05:00:00Z"}

    assert_problem(await rig.ask("POST", f"{PATH}/s1/backfill", span), 422)


# -- next and runs --------------------------------------------------------------------------------


async def test_next_tells_what_the_clock_does(rig):
    set_clock(rig, "2026-03-27T12:00:00Z")
    await make(rig)

    found = (await rig.ask("GET", f"{PATH}/s1/next?n=3")).json()["next"]

    assert [one["at"] for one in found] == [
        "2026-03-28T01:30:00.000Z", "2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z",
    ]  # fmt: skip
    assert [one["local"] for one in found][1] == "2026-03-29T03:00:00+02:00"
    assert found[0]["note"] is None
    assert "does not exist on 29 March 2026" in found[1]["note"]
    assert len((await rig.ask("GET", f"{PATH}/s1/next")).json()["next"]) == 10


@pytest.mark.parametrize("query", ["n=0", "n=1001", "n=x", "n=", "n=1.5", "n=%D9%A3", "m=1"])
async def test_next_of_how_many(rig, query):
    await make(rig)

    problem = assert_problem(await rig.ask("GET", f"{PATH}/s1/next?{query}"), 422)

    assert problem["errors"][0]["parameter"] == query.partition("=")[0]


async def test_the_ledger_has_every_outcome(rig):
    set_clock(rig)
    await make_of(rig, EVERY)
    advance(rig, 60_000)
    await fire(rig)
    started = await rig.start()
    advance(rig, 60_500)
    await fire(rig)  # while the first one runs
    await rig.finish(started)
    advance(rig, 5 * 60_000)
    await fire(rig)  # five at once

    entries = await ledger(rig)

    assert [entry["outcome"] for entry in entries] == [
        "fired", "coalesced", "skipped_overlap", "fired",
    ]  # fmt: skip
    last, merged, _, first = entries
    assert first == {
        "outcome": "fired", "nominal_at": "2026-03-02T10:01:00.000Z",
        "first_at": "2026-03-02T10:01:00.000Z", "last_at": "2026-03-02T10:01:00.000Z",
        "count": 1, "exact": True, "lateness": "0s", "task_id": first["task_id"], "by_hand": False,
    }  # fmt: skip
    assert [merged["count"], merged["first_at"], merged["last_at"]] == [
        4, "2026-03-02T10:03:00.000Z", "2026-03-02T10:06:00.000Z",
    ]  # fmt: skip
    assert last["lateness"] == "500ms"
    task = await rig.show(last["task_id"])
    assert [task["recurring_task_id"], task["nominal_at"], task["missed"]] == [
        "s1", "2026-03-02T10:07:00.000Z", 5,
    ]  # fmt: skip
    found = await look(rig)
    assert [found["runs"], found["last_run_at"]] == [2, "2026-03-02T10:07:00.000Z"]
    assert found["next_run_at"] == "2026-03-02T10:08:00.000Z"


async def test_a_task_of_nobody_says_nothing_of_recurring(rig):
    task = await rig.show(await rig.make())

    assert not {"recurring_task_id", "nominal_at", "missed"} & set(task)


async def test_occurrences_are_listed_as_tasks(rig):
    set_clock(rig)
    await make_of(rig, EVERY)
    advance(rig, 60_000)
    await fire(rig)

    (item,) = (await rig.ask("GET", "/tasks")).json()["items"]

    assert [item["recurring_task_id"], item["missed"]] == ["s1", 0]


async def test_the_next_run_of_a_fixed_delay_is_the_one_that_waits(rig):
    set_clock(rig)
    await make_of(rig, AFTER)
    assert (await look(rig))["next_run_at"] == "2026-03-02T10:01:00.000Z"

    advance(rig, 60_000)
    await fire(rig)
    started = await rig.start()
    running = await look(rig)
    advance(rig, 10_000)
    await rig.finish(started)
    waiting = await look(rig)
    paused = (await verb(rig, "pause")).json()
    listed = (await rig.ask("GET", PATH)).json()["items"][0]
    resumed = (await verb(rig, "resume")).json()

    assert [running["next_run_at"], running["last_run_at"]] == [None, "2026-03-02T10:01:00.000Z"]
    assert [waiting["next_run_at"], waiting["last_run_at"]] == [
        "2026-03-02T10:02:10.000Z", "2026-03-02T10:01:00.000Z",
    ]  # fmt: skip
    assert paused["next_run_at"] is None
    assert listed["next_run_at"] is None
    assert resumed["next_run_at"] == "2026-03-02T10:02:10.000Z"


async def test_a_chain_that_wants_success_tells_why_it_stands_still(rig):
    set_clock(rig)
    await make_of(rig, {**AFTER, "after": "success"})
    advance(rig, 60_000)
    await fire(rig)
    await rig.finish(await rig.start(), BROKEN)

    found = await look(rig)

    assert found["status"] == "BLOCKED"
    assert found["reason"]
    assert found["next_run_at"] is None
    blocked = (await rig.ask("GET", f"{PATH}?status=BLOCKED")).json()["items"]
    assert [one["recurring_task_id"] for one in blocked] == ["s1"]


async def test_policies_are_kept_and_work(rig):
    set_clock(rig)
    policy = {"catch_up": "none", "misfire_grace": "10s", "overlap": "allow", "jitter": "20s"}
    await make_of(rig, {**EVERY, **policy})
    advance(rig, 3 * 60_000 + 5_000)
    await fire(rig)

    entries = await ledger(rig)

    found = await look(rig)
    assert {name: found[name] for name in policy} == policy
    assert [(one["outcome"], one["count"]) for one in entries] == [("fired", 1), ("missed", 2)]
    task = await rig.show(entries[0]["task_id"])
    assert "2026-03-02T10:03:00.000Z" <= task["timestamps"]["run_at"] < "2026-03-02T10:03:20.000Z"
    assert task["nominal_at"] == "2026-03-02T10:03:00.000Z"


# -- lists ----------------------------------------------------------------------------------------


async def test_a_list_page_by_page(rig):
    set_clock(rig)
    for n in range(23):
        await make_of(rig, {**EVERY, "interval": 60 + n % 5, "payload": n}, f"s{n:02}")
        await make_of(rig, EVERY, f"paused{n}")
        await verb(rig, "pause", f"paused{n}")
        await rig.ask("PUT", f"{PATH}/o{n}", EVERY, Tasksched_Tenant="other")

    seen, path, pages = [], f"{PATH}?limit=10", 0
    while path:
        answer = await rig.ask("GET", path)
        page = answer.json()
        assert len(page["items"]) <= 10
        assert all("payload" not in item for item in page["items"])
        seen += page["items"]
        pages += 1
        link = answer.headers.get("link")
        assert (link is None) == (page["next_cursor"] is None)
        path = link and link.removeprefix("<").removesuffix('>; rel="next"')

    assert pages == 5
    assert len({item["recurring_task_id"] for item in seen}) == len(seen) == 46
    active = [item["next_run_at"] for item in seen if item["status"] == "ACTIVE"]
    assert active == sorted(active)
    assert [item["status"] for item in seen] == ["ACTIVE"] * 23 + ["PAUSED"] * 23


async def test_a_list_of_one_status(rig):
    for n in range(5):
        await make(rig, f"s{n}")
    await verb(rig, "pause", "s3")

    paused = (await rig.ask("GET", f"{PATH}?status=PAUSED&limit=1")).json()

    assert [item["recurring_task_id"] for item in paused["items"]] == ["s3"]
    assert paused["next_cursor"] is None
    assert (await rig.ask("GET", f"{PATH}?status=ENDED")).json()["items"] == []


async def test_a_full_last_page_has_no_cursor(rig):
    for n in range(4):
        await make(rig, f"s{n}")

    first = (await rig.ask("GET", f"{PATH}?limit=2")).json()
    second = (await rig.ask("GET", f"{PATH}?limit=2&cursor={first['next_cursor']}")).json()

    assert [len(first["items"]), len(second["items"]), second["next_cursor"]] == [2, 2, None]


async def test_cursors_of_nobody(rig):
    for n in range(3):
        await make(rig, f"s{n}")
    cursor = (await rig.ask("GET", f"{PATH}?limit=1")).json()["next_cursor"]
    tasks = await rig.ask("POST", "/tasks/batch", [{"target": CHARGE}] * 3)
    assert tasks.status_code == 200
    of_tasks = (await rig.ask("GET", "/tasks?limit=1")).json()["next_cursor"]

    for query in (f"status=ACTIVE&cursor={cursor}", "cursor=x", "cursor=", f"cursor={of_tasks}",
                  "cursor=" + "a" * 300, "cursor=W10", f"cursor={cursor[:-2]}", "cursor=%C3%A9"):  # fmt: skip
        problem = assert_problem(await rig.ask("GET", f"{PATH}?{query}"), 400)
        assert problem["errors"][0]["parameter"] == "cursor"
    other = await rig.ask("GET", f"{PATH}?cursor={cursor}", Tasksched_Tenant="b")
    assert_problem(other, 400)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "status=RUNNING", "status=", "nope=1"]
)
async def test_bad_filters(rig, query):
    problem = assert_problem(await rig.ask("GET", f"{PATH}?{query}"), 422)

    assert problem["errors"][0]["parameter"] == query.partition("=")[0]


async def test_daily_is_listed_with_its_sentence(rig):
    await make_of(rig, DAILY)

    (item,) = (await rig.ask("GET", PATH)).json()["items"]

    assert item["description"] == "At 02:30 every day, Europe/Paris"
