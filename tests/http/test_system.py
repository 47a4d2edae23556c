"""Probes, health, metrics, the description, and what every request passes."""

import asyncio
import json
import re

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route
from tests.http.conftest import BROKEN, CHARGE, assert_problem, open_rig

from tasksched.http import middleware, tasks
from tasksched.http.api import OPS, PAGES, make_api
from tasksched.http.parse import _CHANGES, _TASK
from tasksched.http.schema import RetryBody
from tasksched.model.retry import Retry

pytestmark = pytest.mark.anyio

PROBES = ("/livez", "/readyz", "/healthz", "/health", "/metrics", "/stats", "/workers", "/queues")


# -- probes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [*PROBES, "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"]
)
@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_every_page_is_served_under_both_prefixes(rig, path, prefix):
    assert (await rig.ask("GET", prefix + path)).status_code == 200


async def test_health_of_a_lonely_server(rig):
    found = (await rig.ask("GET", "/health")).json()

    assert found["status"] == "degraded"
    assert found["redis"]["role"] == "master"
    assert found["redis"]["maxmemory_policy"] == "noeviction"
    assert found["redis"]["aof"] is False
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["redis"]["version"])
    assert [0, 0, None] == [found["workers"], found["schedulers"], found["lag"]]
    assert {"no scheduler is alive", "no worker is alive"} <= set(found["warnings"])


@pytest.mark.parametrize("where", ["lane", "parked", "full", "unread"])
async def test_lag_is_seen_wherever_the_oldest_task_waits(rig, where):
    past = {"target": CHARGE, "run_at": "2020-01-01T00:00:00Z"}
    store = rig.session.store
    if where in {"full", "unread"}:
        await rig.start()
    await rig.ask("POST", "/tasks/batch", [past] * (600 if where == "full" else 1))
    if where in {"full", "parked"}:
        for shard in range(store.shards):
            await store.dispatch(shard)

    found = (await rig.ask("GET", "/health")).json()

    assert found["lag"] is not None
    if where != "unread":  # there, the time of handing over is known
        assert re.match(r"\d+d", found["lag"])


async def test_a_future_task_is_no_lag(rig):
    await rig.make(delay="1h")

    assert (await rig.ask("GET", "/health")).json()["lag"] is None


async def test_members_are_counted(rig):
    store = rig.session.store
    await store.enlist(store.global_keys.schedulers, "s1", 60_000)
    await store.enlist(store.global_keys.workers, "w1", 60_000)
    await rig.session.gateway.command(
        "HSET", store.global_keys.worker("w1"), "host", "h", "slots", "9", "since", "1764000000000"
    )

    health = (await rig.ask("GET", "/health")).json()
    (worker,) = (await rig.ask("GET", "/workers")).json()["items"]

    assert [1, 1] == [health["schedulers"], health["workers"]]
    assert not [text for text in health["warnings"] if "alive" in text]
    assert [worker["worker"], worker["slots"]] == ["w1", 9]
    assert worker["since"] == "2025-11-24T16:00:00.000Z"


async def test_draining_ends_readiness_and_nothing_else(rig):
    rig.system.draining = True

    assert_problem(await rig.ask("GET", "/readyz"), 503)
    assert_problem(await rig.ask("GET", "/healthz"), 503)
    assert (await rig.ask("GET", "/livez")).status_code == 200
    assert (await rig.ask("POST", "/tasks", {"target": CHARGE})).status_code == 201


async def test_while_redis_is_away(spawn, monkeypatch):
    monkeypatch.setattr("tasksched.store.connect.PATIENCE_MS", 100)
    monkeypatch.setattr("tasksched.store.connect.Gateway.run.__kwdefaults__", {"patience_ms": 100})
    server = spawn("valkey")
    rig, session = await open_rig(server.url)
    server.kill()

    ready = await rig.ask("GET", "/readyz")
    health = await rig.ask("GET", "/health")
    metrics = await rig.ask("GET", "/metrics")
    create = await rig.ask("POST", "/tasks", {"target": CHARGE})
    listed = await rig.ask("GET", "/tasks")
    alive = await rig.ask("GET", "/livez")
    await rig.http.aclose()
    await session.close()

    assert_problem(ready, 503)
    assert [503, "down"] == [health.status_code, health.json()["status"]]
    assert "tasksched_redis_up 0.0" in metrics.text
    for refused in (create, listed):
        problem = assert_problem(refused, 503)
        assert refused.headers["retry-after"] == "1"
        assert problem["code"] == "UNAVAILABLE"
        assert str(server.socket) not in refused.text
    assert alive.status_code == 200


async def test_out_of_memory_refuses_creates_with_a_time_to_wait(spawn):
    server = spawn("valkey", "--maxmemory", "1")
    rig, session = await open_rig_full(server)
    answer = await rig.ask("POST", "/tasks", {"target": CHARGE})
    await rig.http.aclose()
    await session.close()

    assert_problem(answer, 503)
    assert answer.headers["retry-after"] == "5"


async def open_rig_full(server):
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        client.config_set("maxmemory", 0)
        rig, session = await open_rig(server.url)
        client.config_set("maxmemory", 1)
    return rig, session


# -- metrics --------------------------------------------------------------------------------------


async def test_metrics_tell_tasks_moves_and_members(rig):
    await rig.make(queue="a", delay="1h")
    await rig.make(queue="b")
    await rig.finish(await rig.start(), BROKEN)

    text = (await rig.ask("GET", "/metrics")).text

    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["tasksched_redis_up",] == 1
    assert found["tasksched_tasks", "a", "PENDING"] == 1
    assert found["tasksched_tasks", "b", "FAILED"] == 1
    assert found["tasksched_moves_total", "b", "RUNNING"] == 1
    assert found["tasksched_workers",] == 0
    assert found["tasksched_lag_seconds",] == 0
    assert [name for name in found if name[0] == "tasksched_build_info"]
    assert all(name[0].startswith("tasksched_") for name in found)


async def test_labels_are_bounded(rig):
    queues = [{"target": CHARGE, "queue": f"q{n}", "delay": 9} for n in range(250)]
    await rig.ask("POST", "/tasks/batch", queues)

    text = (await rig.ask("GET", "/metrics")).text

    assert 'tasksched_tasks{queue="_other",state="PENDING"} 50.0' in text
    assert len(text.splitlines()) < 2_000


async def test_stats(rig):
    await rig.make(queue="a", delay="1h")

    found = (await rig.ask("GET", "/stats")).json()

    assert found["by_status"]["PENDING"] == 1
    assert found["moves"] == {"a": {"PENDING": 1}}
    assert found["lag"] is None


# -- what every request passes --------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:80", "127.0.0.1:65535"]
)
async def test_loopback_hosts_are_served(rig, host):
    assert (await rig.ask("GET", "/livez", Host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "testserver", "", "localhost.evil.example", "evil.example:8000", "127.0.0.2",
     "127.0.0.1.nip.io", "[::2]", "a/health?x=", "localhost@evil.example", "localhost:", "0.0.0.0",
     "user:pw@localhost", "localhost, evil.example"],
)  # fmt: skip
async def test_foreign_hosts_are_not(rig, host):
    answer = await rig.ask("GET", "/livez", Host=host)

    assert assert_problem(answer, 421)["code"] == "MISDIRECTED"


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:3000", 201), ("http://127.0.0.1", 201), ("http://evil.example", 403),
     ("null", 403), ("http://[bad", 403), ("http://localhost.evil.example", 403)],
)  # fmt: skip
async def test_a_foreign_page_may_not_write(rig, origin, status):
    answer = await rig.ask("POST", "/tasks", {"target": CHARGE}, Origin=origin)

    assert answer.status_code == status
    assert (await rig.ask("GET", "/livez", Origin=origin)).status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("given", ["abc-1", "0af7651916cd43dd8448eb211c80319c", "a:b_c.d"])
async def test_a_request_id_goes_through(rig, given):
    assert (await rig.ask("GET", "/livez", X_Request_ID=given)).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "é", "a" * 129, "<script>", "-a", 'x"y'])
async def test_a_request_id_that_is_no_word_is_replaced(rig, given):
    answer = await rig.http.get("/livez", headers={b"X-Request-ID": given.encode()})

    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    ("verb", "path", "allow"),
    [
        ("DELETE", "/tasks", {"POST", "GET", "HEAD"}),
        ("PUT", "/tasks/batch", {"POST"}),
        ("TRACE", "/tasks", {"POST", "GET", "HEAD"}),
        ("OPTIONS", "/tasks", {"POST", "GET", "HEAD"}),
        ("POST", "/livez", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_names_the_right_ones(rig, verb, path, allow):
    answer = await rig.ask(verb, path)

    assert_problem(answer, 405)
    assert set(re.split(", ?", answer.headers["allow"])) == allow


@pytest.mark.parametrize("path", ["/", "/nope", "/tasks/", "//tasks", "/v1", "/v1/", "/v1/v1/tasks", "/v2/tasks", "/Tasks", "/tasks/x/y", "/docs/", "/docs/../api.py", "/%2e%2e/x"])  # fmt: skip
async def test_an_unknown_path_is_not_found(rig, path):
    assert_problem(await rig.ask("GET", path), 404)


async def test_a_surprise_is_a_bare_500_and_logged(rig, monkeypatch, caplog):
    async def boom(*args, **kwargs):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(rig.session.tasks, "submit", boom)
    answer = await rig.ask("POST", "/tasks", {"target": CHARGE}, X_Request_ID="find-me")

    problem = assert_problem(answer, 500)
    assert problem["code"] == "INTERNAL"
    assert "secret" not in answer.text
    assert "find-me" in caplog.text
    assert "secret detail" in caplog.text


async def test_a_refusal_of_the_store_tells_nothing_of_its_inside(rig):
    task_id = await rig.make()
    key = f"{{ts:{int(task_id[-1])}}}:task:{task_id}"
    await rig.session.gateway.command("DEL", key)
    await rig.session.gateway.command("SET", key, "no hash")

    answer = await rig.ask("GET", f"/tasks/{task_id}")

    assert assert_problem(answer, 500)["detail"] == "Internal error"
    assert "WRONGTYPE" not in answer.text


async def test_a_client_that_leaves_while_sending_gets_no_answer(rig):
    api = rig.http._transport.app
    sent = []
    messages = iter([
        {"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"},
    ])  # fmt: skip

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/tasks", "query_string": b"", "headers": headers}  # fmt: skip
    await api(scope, receive, send)

    assert sent == []


async def test_many_waiters_do_not_stand_in_the_way(rig):
    task_id = await rig.make(delay="1h")
    waiting = [asyncio.create_task(rig.ask("GET", f"/tasks/{task_id}?wait=30")) for _ in range(50)]
    await asyncio.sleep(0)

    assert (await rig.ask("POST", f"/tasks/{task_id}/cancel")).status_code == 200

    answers = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert {a.json()["status"] for a in answers} == {"CANCELLED"}


# -- the description ------------------------------------------------------------------------------


async def test_the_description_has_every_route(rig):
    api = make_api(rig.services)
    document = (await rig.ask("GET", "/openapi.json")).json()

    pages = {path for path, _, _ in PAGES}
    routed = {
        (route.path, verb)
        for route in api.routes
        if isinstance(route, Route) and route.path not in pages
        for verb in route.methods - {"HEAD"}
    }
    described = {
        (path, verb.upper()) for path, verbs in document["paths"].items() for verb in verbs
    }
    assert routed == described
    assert document["openapi"] == "3.1.0"
    assert all(op["summary"] for verbs in document["paths"].values() for op in verbs.values())
    names = [op["operationId"] for verbs in document["paths"].values() for op in verbs.values()]
    assert len(names) == len(set(names))


async def test_every_reference_of_the_description_leads_somewhere(rig):
    text = (await rig.ask("GET", "/openapi.json")).text
    document = json.loads(text)

    for ref in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found = document
        for step in ref.split("/"):
            found = found[step]
        assert found


async def test_what_is_described_is_what_is_read():
    assert set(_TASK) == {
        "target", "payload", "run_at", "timezone", "delay", "queue", "priority", "retry",
        "timeout", "lease", "expires_at", "tags", "notify", "idempotency_key",
        "concurrency_key", "concurrency_limit", "traceparent",
    }  # fmt: skip
    assert set(_CHANGES) == set(_TASK) - {"idempotency_key", "traceparent"}
    assert Retry.parse({}) == Retry(RetryBody().max_attempts, max_lost=RetryBody().max_lost)
    assert {op.handler for op in OPS} >= {tasks.create, tasks.get, tasks.edit}


async def test_the_page_takes_nothing_from_elsewhere(rig):
    page = await rig.ask("GET", "/docs")

    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        text = (await rig.ask("GET", path)).text
        assert not re.search(r"https?://|@import|eval\(|innerHTML|style=|onload=", text)


def test_loopback_is_told_by_name_alone():
    assert middleware.is_loopback("localhost:1")
    assert not middleware.is_loopback("localhost\n")
