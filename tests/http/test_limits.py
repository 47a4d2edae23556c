"""Queues, tenants and concurrency keys over HTTP: what is set, what is told, what is refused."""

import pytest
from tests.http.conftest import BROKEN, CHARGE, DONE, assert_problem, pointers

from tasksched.store.limits import Limits

pytestmark = pytest.mark.anyio

ACME = {"Tasksched_Tenant": "acme"}
COUNTS = ("PENDING", "QUEUED", "RUNNING", "SUCCESS", "FAILED", "CANCELLED")


async def dispatch(rig) -> None:
    """As a scheduler does: what is asked of the homes of limits is brought there."""
    store = rig.session.store
    limits = Limits(store)
    for _ in range(3):
        for shard in range(store.shards):
            for ask in (await store.dispatch(shard)).asks:
                await limits.meet(shard, ask)


# -- queues -------------------------------------------------------------------------------------


async def test_a_queue_that_nobody_used_has_no_rules(rig):
    answer = await rig.ask("GET", "/queues/mail")
    assert (200, '"0"') == (answer.status_code, answer.headers["etag"])
    assert answer.json() == {
        "name": "mail", "version": 0, "paused": False, "draining": False, "strict": False,
        "max_running": None, "dispatch_rate": None, "paused_by": None, "in_use": 0, "allotted": 0,
        "counts": dict.fromkeys(COUNTS, 0),
    }  # fmt: skip


async def test_the_rules_of_a_queue_are_set_as_a_whole_and_read_again(rig):
    put = await rig.ask(
        "PUT", "/queues/mail", {"max_running": 3, "dispatch_rate": 0.5, "strict": True}
    )
    assert (200, '"1"') == (put.status_code, put.headers["etag"])
    assert (3, 0.5, True) == tuple(
        put.json()[n] for n in ("max_running", "dispatch_rate", "strict")
    )
    assert put.json() == (await rig.ask("GET", "/queues/mail")).json()
    assert "mail" in [each["name"] for each in (await rig.ask("GET", "/queues")).json()["items"]]
    other = (await rig.ask("PUT", "/queues/mail", {"max_running": 4})).json()
    assert (4, None, False, 2) == tuple(
        other[n] for n in ("max_running", "dispatch_rate", "strict", "version")
    )


async def test_what_get_answered_may_be_put_again_and_changes_nothing(rig):
    shown = (await rig.ask("PUT", "/queues/mail", {"max_running": 3})).json()
    assert shown == (await rig.ask("PUT", "/queues/mail", shown)).json()
    tenant = (await rig.ask("PUT", "/tenants/acme", {"weight": 2.5})).json()
    assert tenant == (await rig.ask("PUT", "/tenants/acme", tenant)).json()


async def test_what_is_written_for_scripts_are_checked_words(rig):
    body = {"max_running": 3, "dispatch_rate": 0.5, "strict": True, "paused": True}
    await rig.ask("PUT", "/queues/mail", body)
    store = rig.session.store
    told = [await store.gateway.command("HGET", keys.conf, "queue:mail") for keys in store.keys]
    assert {b"1 paused running=3 rate=0.5 strict"} == set(told)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"max_running": 0}, ["/max_running"]),
        ({"max_running": 1.5}, ["/max_running"]),
        ({"max_running": True}, ["/max_running"]),
        ({"dispatch_rate": 0}, ["/dispatch_rate"]),
        ({"dispatch_rate": 0.0001, "strict": 1}, ["/dispatch_rate", "/strict"]),
        ({"dispatch_rate": "50"}, ["/dispatch_rate"]),
        ({"weight": 2}, ["/weight"]),
        ({"name": "other"}, ["/name"]),
        ({"name": []}, ["/name"]),
        ({"name": {}}, ["/name"]),
        ([], [""]),
    ],
)
async def test_bad_rules_are_refused_at_their_place(rig, body, where):
    assert where == pointers(assert_problem(await rig.ask("PUT", "/queues/mail", body), 422))
    assert 0 == (await rig.ask("GET", "/queues/mail")).json()["version"]


async def test_a_version_that_is_named_must_be_the_one_that_is_there(rig):
    await rig.ask("PUT", "/queues/mail", {"max_running": 3}, If_Match='"0"')
    problem = assert_problem(
        await rig.ask("PUT", "/queues/mail", {"max_running": 4}, If_Match='"0"'), 412
    )
    assert 1 == problem["version"]


async def test_a_name_that_cannot_be_one_is_not_found(rig):
    for path in ("/queues/a:b", "/queues/-", "/tenants/" + "x" * 65):
        assert_problem(await rig.ask("GET", path), 404)


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(rig):
    task_id = await rig.make(queue="mail")
    paused = (await rig.ask("POST", "/queues/mail/pause")).json()
    assert ("queue", 1) == (
        paused["paused_by"],
        paused["counts"]["PENDING"] + paused["counts"]["QUEUED"],
    )
    assert [] == await rig.start()
    (why,) = (await rig.show(task_id))["why_waiting"]
    assert why == {"reason": "paused", "detail": "queue mail is paused", "what": "queue"}

    resumed = (await rig.ask("POST", "/queues/mail/resume")).json()
    assert (None, False) == (resumed["paused_by"], resumed["paused"])
    await dispatch(rig)
    assert [task_id] == [grant.id for _, grant in await rig.start()]


async def test_a_put_leaves_a_pause_alone_that_it_does_not_name(rig):
    await rig.ask("POST", "/queues/mail/pause")
    await rig.ask("PUT", "/queues/mail", {"max_running": 3})
    assert (await rig.ask("GET", "/queues/mail")).json()["paused"]
    assert not (await rig.ask("PUT", "/queues/mail", {"paused": False})).json()["paused"]


async def test_a_tenants_own_share_stands_still_alone(rig):
    await rig.ask("POST", "/queues/default/share/pause", **ACME)
    mine = (await rig.ask("POST", "/tasks", {"target": CHARGE}, **ACME)).json()["task_id"]
    other = await rig.make()
    assert [other] == [grant.id for _, grant in await rig.start()]
    shown = (await rig.ask("GET", f"/tasks/{mine}", **ACME)).json()
    assert "share" == shown["why_waiting"][0]["what"]
    assert "share" == (await rig.ask("GET", "/queues/default", **ACME)).json()["paused_by"]
    assert (await rig.ask("GET", "/queues/default")).json()["paused_by"] is None
    await rig.ask("POST", "/queues/default/share/resume", **ACME)
    await dispatch(rig)
    assert [mine] == [grant.id for _, grant in await rig.start()]


async def test_everything_stands_still_and_health_says_so(rig):
    assert {"paused": True} == (await rig.ask("POST", "/pause")).json()
    task_id = await rig.make()
    assert [] == await rig.start()
    assert "everything" == (await rig.show(task_id))["why_waiting"][0]["what"]
    assert "everything is paused" in (await rig.ask("GET", "/health")).json()["warnings"]
    assert {"paused": False} == (await rig.ask("POST", "/resume")).json()
    await dispatch(rig)
    assert [task_id] == [grant.id for _, grant in await rig.start()]


async def test_a_task_that_is_not_due_in_a_paused_queue_has_two_reasons(rig):
    await rig.ask("POST", "/queues/default/pause")
    task_id = await rig.make(delay="1h")
    assert ["paused", "not_due"] == [
        why["reason"] for why in (await rig.show(task_id))["why_waiting"]
    ]


# -- drains -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "what"), [("/queues/mail", "queue mail"), ("/tenants/default", "tenant default")]
)
async def test_a_drain_refuses_what_is_new_and_runs_what_is_there(rig, path, what):
    there = await rig.make(queue="mail")
    assert (await rig.ask("POST", f"{path}/drain")).json()["draining"]
    rig.session.tasks._doors._known.clear()
    body = {"target": CHARGE, "queue": "mail", "idempotency_key": "k"}
    problem = assert_problem(await rig.ask("POST", "/tasks", body), 409)
    assert ("DRAINING", f"{what} is drained: nothing is created") == (
        problem["code"],
        problem["detail"],
    )
    items = (await rig.ask("POST", "/tasks/batch", [body, body])).json()["items"]
    assert [409, 409] == [item["status"] for item in items]
    assert [there] == [grant.id for _, grant in await rig.start()]

    await rig.ask("POST", f"{path}/resume")
    rig.session.tasks._doors._known.clear()
    assert 201 == (await rig.ask("POST", "/tasks", body)).status_code


async def test_in_a_batch_only_what_is_drained_is_refused(rig):
    await rig.ask("POST", "/queues/mail/drain")
    bodies = [{"target": CHARGE, "queue": queue} for queue in ("mail", "other", "mail")]
    items = (await rig.ask("POST", "/tasks/batch", bodies)).json()["items"]
    assert [409, 201, 409] == [item["status"] for item in items]


async def test_a_create_that_was_made_before_a_drain_is_answered_again(rig):
    body = {"target": CHARGE, "idempotency_key": "k"}
    made = (await rig.ask("POST", "/tasks", body)).json()["task_id"]
    await rig.ask("POST", "/queues/default/drain")
    rig.session.tasks._doors._known.clear()
    again = await rig.ask("POST", "/tasks", body)
    assert (200, made) == (again.status_code, again.json()["task_id"])


# -- tenants ------------------------------------------------------------------------------------


async def test_limits_of_a_tenant_leave_retention_and_secrets_alone(rig):
    await rig.ask("PUT", "/tenants/acme", {"retention": {"count": 5}})
    secret = await rig.ask("POST", "/webhooks/rotate-tenant-secret", {}, **ACME)
    assert 200 == secret.status_code
    limits = {
        "weight": 2,
        "max_running": 3,
        "dispatch_rate": 0.125,
        "max_pending": 0,
        "create_rate": 7,
    }
    put = (await rig.ask("PUT", "/tenants/acme", limits)).json()
    assert limits == {name: put[name] for name in limits}
    assert 5 == put["retention"]["count"]
    assert {"unfinished": 0, "running": 0} == put["usage"]
    again = (await rig.ask("PUT", "/tenants/acme", {"retention": {"count": 6}})).json()
    assert (2, 6) == (again["weight"], again["retention"]["count"])


async def test_an_empty_body_takes_everything_away(rig):
    await rig.ask("PUT", "/tenants/acme", {"weight": 2, "retention": {"count": 5}})
    bare = (await rig.ask("PUT", "/tenants/acme", {})).json()
    assert (1, None) == (bare["weight"], bare["retention"]["count"])


async def test_the_version_of_a_tenant_grows_with_either_record(rig):
    await rig.ask("PUT", "/tenants/acme", {"weight": 2}, If_Match='"0"')
    put = await rig.ask("PUT", "/tenants/acme", {"retention": {"count": 5}}, If_Match='"1"')
    assert '"2"' == put.headers["etag"]
    assert_problem(await rig.ask("PUT", "/tenants/acme", {"weight": 3}, If_Match='"1"'), 412)
    assert 2 == (await rig.ask("GET", "/tenants/acme")).json()["weight"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"weight": 0.05}, ["/weight"]),
        ({"weight": 101}, ["/weight"]),
        ({"max_pending": -1}, ["/max_pending"]),
        ({"create_rate": 0.0005}, ["/create_rate"]),
        ({"strict": True}, ["/strict"]),
        ({"tenant": "other"}, ["/tenant"]),
        ({"tenant": {}}, ["/tenant"]),
        ({"tenant": []}, ["/tenant"]),
        ({"max_running": "2"}, ["/max_running"]),
    ],
)
async def test_bad_limits_are_refused_at_their_place(rig, body, where):
    assert where == pointers(assert_problem(await rig.ask("PUT", "/tenants/acme", body), 422))


async def test_tenants_are_listed_page_by_page_with_their_use(rig):
    for tenant in ("c", "a", "b"):
        await rig.ask("POST", "/tasks", {"target": CHARGE}, Tasksched_Tenant=tenant)
    await rig.ask("PUT", "/tenants/d", {"weight": 2})
    await rig.start()
    first = (await rig.ask("GET", "/tenants?limit=3")).json()
    assert ["a", "b", "c"] == [each["tenant"] for each in first["items"]]
    assert {"unfinished": 1, "running": 1} == first["items"][0]["usage"]
    rest = (await rig.ask("GET", f"/tenants?limit=3&cursor={first['next_cursor']}")).json()
    assert (["d"], None) == ([each["tenant"] for each in rest["items"]], rest["next_cursor"])


async def test_a_paused_tenant_waits_and_others_go_on(rig):
    await rig.ask("POST", "/tenants/acme/pause")
    mine = (await rig.ask("POST", "/tasks", {"target": CHARGE}, **ACME)).json()["task_id"]
    other = await rig.make()
    assert [other] == [grant.id for _, grant in await rig.start()]
    shown = (await rig.ask("GET", f"/tasks/{mine}", **ACME)).json()
    assert "tenant acme is paused" == shown["why_waiting"][0]["detail"]


# -- limits and why -----------------------------------------------------------------------------


async def many(rig, number: int, **members) -> list[str]:
    items = await rig.ask("POST", "/tasks/batch", [{"target": CHARGE, **members}] * number)
    return [item["task_id"] for item in items.json()["items"]]


async def waiting(rig, ids: list[str]) -> list[dict]:
    shown = [await rig.show(each) for each in ids]
    return [each["why_waiting"][0] for each in shown if each["status"] == "PENDING"]


async def running(rig, number: int) -> None:
    for _ in range(3):
        await dispatch(rig)
        await rig.start()
    counts = (await rig.ask("GET", "/tasks/count")).json()["by_status"]
    assert number == counts["QUEUED"] + counts["RUNNING"]


@pytest.mark.parametrize(
    ("path", "limit"),
    [("/tenants/default", "tenant max_running 2"), ("/queues/default", "queue max_running 2")],
)
async def test_a_task_says_which_limit_holds_it(rig, path, limit):
    await rig.ask("PUT", path, {"max_running": 2})
    await rig.start()
    ids = await many(rig, 5)
    await running(rig, 2)
    for why in await waiting(rig, ids):
        assert why == {
            "reason": "limit", "detail": f"{limit} (2 running of 2)", "limit": limit,
            "running": 2, "most": 2,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/tenants/default", "tenant dispatch_rate 0.5/s"),
        ("/queues/default", "queue dispatch_rate 0.5/s"),
    ],
)
async def test_a_task_says_which_rate_holds_it(rig, path, limit):
    await rig.ask("PUT", path, {"dispatch_rate": 0.5})
    await rig.start()
    ids = await many(rig, 3)
    await running(rig, 1)
    assert [limit, limit] == [why["limit"] for why in await waiting(rig, ids)]


async def test_a_queue_tells_its_permits_and_metrics_do_too(rig):
    await rig.ask("PUT", "/queues/default", {"max_running": 2})
    await rig.start()
    await many(rig, 5)
    await running(rig, 2)
    shown = (await rig.ask("GET", "/queues/default")).json()
    assert (2, 2) == (shown["in_use"], shown["allotted"])
    text = (await rig.ask("GET", "/metrics")).text
    for name in ("permits", "permits_in_use", "permits_allotted"):
        assert f'tasksched_queue_{name}{{queue="default"}} 2.0' in text
    assert 'tasksched_parked_streams{reason="running"}' in text


async def test_metrics_never_name_a_tenant_and_count_lanes_by_reason(rig):
    await rig.ask("POST", "/tenants/acme/pause")
    await rig.start()
    await rig.ask("POST", "/tasks", {"target": CHARGE}, **ACME)
    await dispatch(rig)
    text = (await rig.ask("GET", "/metrics")).text
    assert 'tasksched_parked_lanes{reason="paused"} 1.0' in text
    assert "acme" not in text
    assert (await rig.ask("GET", "/health")).json()["lag"] is None


async def test_a_limited_task_counts_for_the_lag(rig):
    await rig.ask("PUT", "/tenants/default", {"max_running": 1})
    await rig.start()
    await many(rig, 3)
    await running(rig, 1)
    assert (await rig.ask("GET", "/health")).json()["lag"] is not None


# -- concurrency keys -----------------------------------------------------------------------------


async def test_tasks_with_one_key_run_one_at_a_time_and_say_why(rig):
    await rig.start()
    ids = await many(rig, 3, concurrency_key="invoice 7")
    await running(rig, 1)
    first = await rig.show(ids[0])
    assert ("invoice 7", 1) == (first["concurrency_key"], first["concurrency_limit"])
    assert {"concurrency_key invoice 7 1"} == {why["limit"] for why in await waiting(rig, ids)}


async def test_a_limit_is_read_and_shown_and_part_of_the_command(rig):
    body = {
        "target": CHARGE,
        "concurrency_key": "k",
        "concurrency_limit": 3,
        "idempotency_key": "i",
    }
    made = (await rig.ask("POST", "/tasks", body)).json()["task_id"]
    shown = await rig.show(made)
    assert ("k", 3) == (shown["concurrency_key"], shown["concurrency_limit"])
    assert 200 == (await rig.ask("POST", "/tasks", body)).status_code
    other = await rig.ask("POST", "/tasks", {**body, "concurrency_limit": 4})
    assert "KEY_REUSED" == assert_problem(other, 422)["code"]


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"concurrency_key": ""}, ["/concurrency_key"]),
        ({"concurrency_key": "x" * 256}, ["/concurrency_key"]),
        ({"concurrency_key": "a\nb"}, ["/concurrency_key"]),
        ({"concurrency_key": 7}, ["/concurrency_key"]),
        ({"concurrency_key": "k", "concurrency_limit": 0}, ["/concurrency_limit"]),
        ({"concurrency_key": "k", "concurrency_limit": 10_001}, ["/concurrency_limit"]),
        ({"concurrency_key": "k", "concurrency_limit": True}, ["/concurrency_limit"]),
        ({"concurrency_limit": 2}, ["/concurrency_limit"]),
    ],
)
async def test_bad_keys_are_refused_at_their_place(rig, members, where):
    answer = await rig.ask("POST", "/tasks", {"target": CHARGE, **members})
    assert where == pointers(assert_problem(answer, 422))


async def test_an_edit_keeps_moves_and_takes_away_the_key(rig):
    task_id = await rig.make(delay="1h", concurrency_key="k", concurrency_limit=2)

    async def after(**members):
        shown = (await rig.ask("PATCH", f"/tasks/{task_id}", members)).json()
        return shown["concurrency_key"], shown["concurrency_limit"]

    assert ("k", 2) == await after(priority="high")
    assert ("k", 5) == await after(concurrency_limit=5)
    assert ("other", 5) == await after(concurrency_key="other")
    assert (None, None) == await after(concurrency_key=None)
    alone = await rig.ask("PATCH", f"/tasks/{task_id}", {"concurrency_limit": 2})
    assert ["/concurrency_limit"] == pointers(assert_problem(alone, 422))
    assert ("again", 1) == await after(concurrency_key="again")


async def test_an_edit_lets_a_held_task_go_on(rig):
    await rig.start()
    ids = await many(rig, 2, concurrency_key="k")
    await running(rig, 1)
    (held,) = [each for each in ids if (await rig.show(each))["status"] == "PENDING"]
    await rig.ask("PATCH", f"/tasks/{held}", {"concurrency_key": None})
    await running(rig, 2)


async def test_a_new_life_may_have_another_key(rig):
    await rig.start()
    task_id = await rig.make(concurrency_key="k")
    await dispatch(rig)
    await rig.finish(await rig.start(), BROKEN)
    assert "FAILED" == (await rig.show(task_id))["status"]
    await rig.ask(
        "POST", f"/tasks/{task_id}/retry", {"concurrency_key": "new", "concurrency_limit": 2}
    )
    shown = await rig.show(task_id)
    assert ("new", 2) == (shown["concurrency_key"], shown["concurrency_limit"])


async def test_occurrences_of_a_recurring_task_have_its_key(rig):
    body = {
        "id": "r",
        "target": CHARGE,
        "interval": "1h",
        "concurrency_key": "k",
        "concurrency_limit": 2,
    }
    made = (await rig.ask("POST", "/recurring-tasks", body)).json()
    assert ("k", 2) == (made["concurrency_key"], made["concurrency_limit"])
    run = (await rig.ask("POST", "/recurring-tasks/r/trigger")).json()["task_id"]
    assert "k" == (await rig.show(run))["concurrency_key"]
    bare = await rig.ask("PATCH", "/recurring-tasks/r", {"concurrency_key": None}, If_Match='"1"')
    assert (None, None) == (bare.json()["concurrency_key"], bare.json()["concurrency_limit"])


# -- lists ----------------------------------------------------------------------------------------


async def test_held_tasks_are_listed_with_the_others_by_due_time(rig):
    await rig.start()
    await many(rig, 4, concurrency_key="k", run_at="2020-01-01T00:00:00Z")
    await many(rig, 3, run_at="2020-01-02T00:00:00Z", target={**CHARGE, "version": "9"})
    await running(rig, 1)
    found, cursor = [], ""
    while cursor is not None:
        page = (await rig.ask("GET", f"/tasks?status=PENDING&limit=2{cursor}")).json()
        found += page["items"]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert 6 == len({each["task_id"] for each in found}) == len(found)
    times = [each["timestamps"]["run_at"] for each in found]
    assert times == sorted(times)
    counts = (await rig.ask("GET", "/tasks/count")).json()["by_status"]
    assert 6 == counts["PENDING"]


async def test_filters_hold_for_held_tasks_too(rig):
    await rig.start()
    await many(rig, 3, concurrency_key="k", queue="mail")
    await running(rig, 1)
    for query, number in (
        ("queue=mail", 2),
        ("queue=other", 0),
        ("handler=charge", 2),
        ("handler=x", 0),
    ):
        items = (await rig.ask("GET", f"/tasks?status=PENDING&{query}")).json()["items"]
        assert number == len(items), query


async def test_bulk_operations_meet_held_tasks(rig):
    await rig.start()
    ids = await many(rig, 3, concurrency_key="k")
    await running(rig, 1)
    held = [each for each in ids if (await rig.show(each))["status"] == "PENDING"]
    body = {"filter": {"status": "PENDING"}}
    assert 2 == (await rig.ask("POST", "/tasks/cancel", {**body, "dry_run": True})).json()["count"]
    assert 2 == (await rig.ask("POST", "/tasks/cancel", body)).json()["done"]
    assert {"CANCELLED"} == {(await rig.show(each))["status"] for each in held}


async def test_a_bulk_edit_of_the_limit_skips_tasks_without_a_key(rig):
    keyed = await rig.make(delay="1h", concurrency_key="k")
    bare = await rig.make(delay="1h")
    body = {"filter": {"queue": "default"}, "changes": {"concurrency_limit": 4}}
    done = (await rig.ask("POST", "/tasks/edit", body)).json()
    assert (1, 1) == (done["done"], done["skipped"])
    assert 4 == (await rig.show(keyed))["concurrency_limit"]
    assert (await rig.show(bare))["concurrency_limit"] is None


# -- the corpus -----------------------------------------------------------------------------------


async def test_priority_fairness_004_a_tenants_limit_holds_and_others_use_the_rest(rig):
    """priority-fairness-004: a limit of 2 with ten workers idle; A and B have 20 tasks of a second."""
    await rig.ask("PUT", "/tenants/A", {"max_running": 2})
    await rig.start()
    for tenant in "AB":
        await rig.ask("POST", "/tasks/batch", [{"target": CHARGE}] * 20, Tasksched_Tenant=tenant)
    at_once, seconds = {"A": 0, "B": 0}, 0
    while await unfinished(rig):
        started = []
        for _ in range(6):
            await dispatch(rig)
            started += await rig.start(slots=10 - len(started)) if len(started) < 10 else []
        for tenant in "AB":
            now = sum(grant.tenant == tenant for _, grant in started)
            at_once[tenant] = max(at_once[tenant], now)
        await rig.finish(started, DONE)
        seconds += 1
        assert seconds <= 12
    assert 2 == at_once["A"]
    assert at_once["B"] >= 8


async def unfinished(rig) -> int:
    items = (await rig.ask("GET", "/tenants")).json()["items"]
    return sum(each["usage"]["unfinished"] for each in items)


async def test_queues_come_in_pages_where_a_limit_is_given(rig):
    for name in ("d", "b", "a", "c"):
        assert (await rig.ask("PUT", f"/queues/{name}", {"max_running": 1})).status_code == 200
    first = (await rig.ask("GET", "/queues?limit=3")).json()
    assert ["a", "b", "c"] == [each["name"] for each in first["items"]]
    rest = (await rig.ask("GET", f"/queues?limit=3&cursor={first['next_cursor']}")).json()
    assert (["d"], None) == ([each["name"] for each in rest["items"]], rest["next_cursor"])
    assert 4 == len((await rig.ask("GET", "/queues")).json()["items"])
    other = await rig.ask("GET", f"/tenants?cursor={first['next_cursor']}")
    assert_problem(other, 400)
