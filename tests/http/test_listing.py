"""GET /tasks and /tasks/count: every task once, in order, whatever happens between two pages."""

import pytest
from tests.http.conftest import BROKEN, CHARGE, DONE, assert_problem

from tasksched.commands import listing
from tasksched.commands.listing import TaskQuery, list_tasks

pytestmark = pytest.mark.anyio

DUE = "2030-01-01T00:00:00Z"


async def make_many(rig, count: int, **members) -> list[str]:
    body = [{"target": CHARGE, **members}] * count
    answer = await rig.ask("POST", "/tasks/batch", body)
    return [item["task_id"] for item in answer.json()["items"]]


async def walk(rig, query: str) -> list[dict]:
    """All items of all pages."""
    items, cursor, pages = [], "", 0
    while cursor is not None:
        answer = await rig.ask("GET", f"/tasks?{query}" + (f"&cursor={cursor}" if cursor else ""))
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        pages += 1
        assert pages < 1_000
    return items


def ids(items: list[dict]) -> list[str]:
    return [item["task_id"] for item in items]


@pytest.mark.parametrize("limit", [7, 50, 500])
async def test_thousands_with_equal_due_times_are_listed_once_each(rig, limit):
    equal = await make_many(rig, 2_000, run_at=DUE)
    apart = await make_many(rig, 300, run_at="2030-01-02T00:00:00Z")
    count = 400 if limit == 7 else 2_300
    query = f"status=PENDING&limit={limit}" + (f"&due_from={apart and '2030-01-02T00:00:00Z'}" if limit == 7 else "")  # fmt: skip

    found = await walk(rig, query)

    times = [item["timestamps"]["run_at"] for item in found]
    assert times == sorted(times)
    assert sorted(ids(found)) == sorted(apart if count == 400 else equal + apart)


async def test_changes_between_pages_shift_nothing(rig):
    made = await make_many(rig, 200, run_at=DUE)
    first = (await rig.ask("GET", "/tasks?status=PENDING&limit=100")).json()
    seen = ids(first["items"])
    for task_id in seen[:90]:
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
    await make_many(rig, 50, run_at="2029-01-01T00:00:00Z")

    rest = await rig.ask("GET", f"/tasks?status=PENDING&limit=500&cursor={first['next_cursor']}")

    assert sorted(seen + ids(rest.json()["items"])) == sorted(made)


async def test_without_a_status_the_phases_follow_each_other(rig):
    await rig.start()  # announces the worker
    await make_many(rig, 3)
    await rig.finish(await rig.start(), BROKEN)
    await make_many(rig, 2)
    await rig.finish(await rig.start(), DONE)
    for task_id in await make_many(rig, 2, run_at=DUE):
        await rig.ask("POST", f"/tasks/{task_id}/cancel")
    await make_many(rig, 2)
    await rig.start()
    await make_many(rig, 4, run_at=DUE)
    await rig.make(queue="unread")

    for limit in (1, 2, 3, 500):
        found = await walk(rig, f"limit={limit}")
        states = [item["status"] for item in found]
        assert states == ["RUNNING"] * 2 + ["QUEUED"] + ["PENDING"] * 4 + [
            *["CANCELLED"] * 2, *["SUCCESS"] * 2, *["FAILED"] * 3,
        ]  # fmt: skip
        assert len(set(ids(found))) == 14
    assert "payload" not in found[0]
    assert "result" not in found[-4]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("queue=a", 3), ("queue=b", 2), ("queue=none", 0), ("priority=high", 2), ("tag=x", 2),
        ("tag=y", 1), ("handler=charge", 5), ("handler=billing.*", 2), ("handler=billing.a", 1),
        ("handler=*", 7), ("handler=bill", 0), ("status=PENDING", 8), ("status=RUNNING", 0),
        ("status=FAILED,SUCCESS", 0), ("due_from=2030-01-01T00:00:00Z", 5),
        ("due_to=2030-01-01T00:00:00Z", 5),
        ("due_from=2030-01-01T00:00:00Z&due_to=2030-01-01T00:00:00Z", 2),
        ("queue=a&tag=x&priority=normal", 2), ("due_from=2040-01-01T00:00:00Z", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", ["PENDING", "CANCELLED"])
async def test_filters(rig, query, count, status):
    later, latest = "2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z"
    tasks = [
        {"queue": "a", "tags": ["x"], "delay": "1h"},
        {"queue": "a", "tags": ["x", "y"], "delay": "1h"},
        {"queue": "a", "run_at": later},
        {"queue": "b", "priority": "high", "run_at": later},
        {"queue": "b", "priority": "high", "run_at": latest},
        {"target": {"type": "handler", "name": "billing.a"}, "delay": "1h"},
        {"target": {"type": "handler", "name": "billing.b", "version": "2"}, "run_at": latest},
        {"target": {"type": "http", "url": "https://a.example/"}, "run_at": latest},
    ]
    for task in tasks:
        task_id = await rig.make(**task)
        if status == "CANCELLED":
            await rig.ask("POST", f"/tasks/{task_id}/cancel")
    query = query.replace("status=PENDING", f"status={status}")

    assert len(await walk(rig, f"{query}&limit=3")) == count


async def test_only_ones_own_tasks_are_listed(rig):
    await rig.start()
    await rig.ask("POST", "/tasks", {"target": CHARGE}, Tasksched_Tenant="other")
    await rig.ask("POST", "/tasks", {"target": CHARGE, "delay": 9}, Tasksched_Tenant="other")

    mine = await rig.ask("GET", "/tasks")
    theirs = await rig.ask("GET", "/tasks", Tasksched_Tenant="other")

    assert [] == mine.json()["items"]
    assert ["QUEUED", "PENDING"] == [item["status"] for item in theirs.json()["items"]]


async def test_a_call_examines_a_bounded_number(rig, monkeypatch):
    monkeypatch.setattr(listing, "EXAMINED_MAX", 150)
    await make_many(rig, 400, run_at=DUE)
    await make_many(rig, 3, run_at="2030-01-01T00:00:01Z", tags=["rare"])

    first = (await rig.ask("GET", "/tasks?tag=rare")).json()

    assert first["items"] == []
    assert first["next_cursor"] is not None
    assert len(await walk(rig, "tag=rare")) == 3


async def test_a_cursor_is_bound_to_its_filter_and_tenant(rig):
    await make_many(rig, 10, run_at=DUE)
    cursor = (await rig.ask("GET", "/tasks?limit=5")).json()["next_cursor"]

    other_limit = await rig.ask("GET", f"/tasks?limit=500&cursor={cursor}")
    other_filter = await rig.ask("GET", f"/tasks?queue=a&cursor={cursor}")
    other_tenant = await rig.ask("GET", f"/tasks?cursor={cursor}", Tasksched_Tenant="other")

    assert len(other_limit.json()["items"]) == 5
    for refused in (other_filter, other_tenant):
        assert assert_problem(refused, 400)["errors"][0]["parameter"] == "cursor"


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "AAAA", "W10", "é", "a" * 300, "WzksbnVsbCwiIiwiIl0", "bnVsbA", "%00", "===="],
)
async def test_a_made_up_cursor_is_malformed(rig, cursor):
    assert_problem(await rig.ask("GET", f"/tasks?cursor={cursor}"), 400)


async def test_forged_places_are_refused(rig):
    query = TaskQuery(limit=5)
    for number, score, task_id in [
        (-1, 1, "0" * 23),
        (9, None, ""),
        (0, 2**60, "0" * 23),
        (0, 1, "x"),
    ]:
        place = None if score is None else listing.Place(score, task_id)
        cursor = listing._write_cursor(query, number, place)
        assert_problem(await rig.ask("GET", f"/tasks?limit=5&cursor={cursor}"), 400)


async def test_a_full_page_that_ends_the_list_has_no_cursor(rig):
    await make_many(rig, 5, run_at=DUE)

    page = await list_tasks(rig.session.tasks.reads, TaskQuery(status=("PENDING",), limit=5))

    assert [5, None] == [len(page.items), page.next_cursor]


async def test_a_list_never_walks_the_key_space(rig):
    """retention-listing-004"""
    await make_many(rig, 100, run_at=DUE)
    await rig.session.gateway.command("CONFIG", "RESETSTAT")

    await rig.ask("GET", "/tasks?limit=50")

    stats = await rig.session.gateway.command("INFO", "commandstats")
    assert not {"cmdstat_keys", "cmdstat_scan"} & set(stats)


async def test_counts(rig):
    await make_many(rig, 3, queue="a", delay="1h")
    await make_many(rig, 2, queue="b", delay="1h")
    await rig.ask("POST", f"/tasks/{await rig.make(queue='b', delay='1h')}/cancel")
    await rig.ask("POST", "/tasks", {"target": CHARGE}, Tasksched_Tenant="other")

    found = (await rig.ask("GET", "/tasks/count")).json()

    assert found["total"] == 6
    assert found["by_status"]["PENDING"] == 5
    assert found["by_status"]["CANCELLED"] == 1
    assert found["by_queue"]["b"]["PENDING"] == 2
    queues = (await rig.ask("GET", "/queues")).json()["items"]
    assert [q["name"] for q in queues] == ["a", "b"]
    assert queues[0]["counts"]["PENDING"] == 3
