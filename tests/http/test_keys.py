"""Who is let in: every route against every scope, odd spellings, what is remembered, and the audit."""

import re
from collections.abc import AsyncIterator
from urllib.parse import unquote

import httpx2
import pytest
import redis
from tests.http.conftest import CHARGE, assert_problem
from tests.http.keys_kit import Guarded, open_guarded
from tests.servers import ServerProcess

from tasksched.commands import access
from tasksched.commands.keys import Keys, KeySpec
from tasksched.errors import Overloaded, Unavailable
from tasksched.http.api import OPS, PAGES, make_api
from tasksched.http.guard import AUDITED, scope_word
from tasksched.http.openapi import Op
from tasksched.model.apikey import SCOPES, new_text

pytestmark = pytest.mark.anyio

PARTS = {
    "id": "1m8m1gam8q1d7zcgqr96m00", "code": "not-found", "tenant": "acme", "queue": "mail",
    "delivery": "1m8m1gam8q1d7zcgqr96m00",
}  # fmt: skip


def path_of(path: str) -> str:
    filled = re.sub(r"{(\w+)}", lambda part: PARTS[part[1]], path)
    return f"{filled}?unknown=1" if path == "/events" else filled  # a stream would not end


@pytest.fixture
async def api(valkey_server: ServerProcess) -> AsyncIterator[Guarded]:
    valkey_server.flush()
    async with open_guarded(valkey_server.url) as found:
        yield found


# -- the matrix -----------------------------------------------------------------------------------


def test_every_route_that_is_served_has_a_scope():
    # Each needs one to be made at all; those beside the table are few and public.
    with pytest.raises(TypeError):
        Op("GET", "/x", handler=OPS[0].handler, gives={})  # type: ignore[call-arg]
    known = {*SCOPES, "namespace", "callback", "public"}
    assert {op.scope for op in OPS} <= known
    assert {scope for _, scope, _ in PAGES} == {"public"}
    public = {op.path for op in OPS if op.scope == "public"}
    assert public == {
        "/health", "/livez", "/readyz", "/healthz", "/problems/{code}", "/openapi.json"
    }  # fmt: skip
    callbacks = {op.path for op in OPS if op.scope == "callback"}
    assert callbacks == {f"/tasks/{{id}}/{verb}" for verb in ("heartbeat", "complete", "fail")}


async def test_changes_of_what_belongs_to_all_need_admin_of_all(api: Guarded):
    found = {(op.verb, op.path) for op in OPS if op.scope == "namespace"}
    changes = {
        (op.verb, op.path)
        for op in OPS
        if op.verb != "GET" and re.match(r"/(queues|tenants|pause|resume)", op.path)
    }
    assert found == {each for each in changes if "/share/" not in each[1]}


async def test_every_route_with_every_key(api: Guarded):
    single = {scope: (await api.key(scope, tenant="acme")).text for scope in SCOPES}
    everybodys = (await api.key("admin", tenant="*")).text
    expired = (await api.key("admin", life_ms=1_000)).text
    gone = await api.key("admin")
    await api.keys.revoke(gone.id)
    await api.access.bearer(expired)  # known while it was good
    api.now_ms += 1_000
    strangers = {
        "none": None, "bad": "abc", "unknown": new_text("0123456789"),
        "wrong secret": new_text(gone.id), "expired": expired, "revoked": gone.text,
    }  # fmt: skip
    routes = [(op.verb, op.path, op.scope) for op in OPS] + [("GET", p, s) for p, s, _ in PAGES]
    for verb, pattern, needed in routes:
        where, path = (verb, pattern), path_of(pattern)
        for who, text in strangers.items():
            answer = await api.ask(verb, path, text)
            if needed == "callback" or (
                needed == "public" and (who == "none" or pattern != "/health")
            ):
                assert answer.status_code not in {401, 403}, (where, who)
            else:
                assert assert_problem(answer, 401)["code"] == "UNAUTHORIZED", (where, who)
                assert answer.headers["www-authenticate"] == 'Bearer realm="tasksched"'
        for scope, text in single.items():
            answer = await api.ask(verb, path, text)
            if needed in {"public", "callback"}:
                assert answer.status_code not in {401, 403}, (where, scope)
                continue
            word = scope_word(needed)
            if scope in {word, "admin"} and needed != "namespace":
                assert answer.status_code not in {401, 403}, (where, scope, answer.text)
                other = await api.ask(verb, path, text, Tasksched_Tenant="globex")
                assert assert_problem(other, 403)["code"] == "FORBIDDEN", where
            else:
                assert word in assert_problem(answer, 403)["detail"], (where, scope)
                asked = f'Bearer realm="tasksched", error="insufficient_scope", scope="{word}"'
                assert answer.headers["www-authenticate"] == asked
        answer = await api.ask(verb, path, everybodys)
        assert answer.status_code not in {401, 403}, (where, answer.text)


async def test_a_path_of_nobody_is_refused_like_any_other(api: Guarded):
    text = (await api.key()).text
    for verb, path in (
        ("GET", "/nothing"), ("GET", "/"), ("DELETE", "/livez"), ("POST", "/docs"),
        ("OPTIONS", "/tasks"), ("TRACE", "/tasks"), ("PUT", "/tasks/x/complete"),
    ):  # fmt: skip
        assert await api.status(verb, path) == 401, (verb, path)
        assert await api.status(verb, path, text) in {404, 405}, (verb, path)


@pytest.mark.parametrize(
    "path",
    [
        "/TASKS", "/Tasks", "/tasks/", "//tasks", "/tasks//", "/./tasks", "/livez/../tasks",
        "/livez/%2e%2e/tasks", "/%74asks", "/tasks%2f", "/tasks;/livez", "/tasks%00", "/tasks?/livez",
        "/tasks%3f/livez", "/docs/../tasks", "/v1/tasks", "/v1//tasks", "/V1/tasks", "/v1/v1/tasks",
        "/v1/livez/../tasks", "@evil", "/tasks#/livez", "http://localhost/livez/../tasks",
        "/problems/../tasks", "/tasks/x/complete/", "/tasks/x/complete/..", "/tasks/x%2Fcomplete",
    ],
)  # fmt: skip
async def test_odd_paths_are_closed(api: Guarded, path: str):
    """As a server hands them over: decoded once, and not tidied."""
    await api.key()
    for host in (
        b"localhost",
        b"a/health?x=",
        b"localhost/livez?",
        b"localhost#/livez",
        b"evil.example",
    ):
        assert await raw_status(api, path, [(b"host", host)]) == 401, (path, host)
    assert await raw_status(api, path, []) == 401


async def raw_status(
    api: Guarded, target: str, headers: list[tuple[bytes, bytes]], verb: str = "GET"
) -> int:
    """The answer to a request line as it is, whatever a client would make of it."""
    transport = api.http._transport
    assert isinstance(transport, httpx2.ASGITransport)
    path, _, query = target.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": verb,
        "scheme": "http", "path": unquote(path), "raw_path": path.encode(),
        "query_string": query.encode(), "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    told: list[int] = []

    async def send(message) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    await transport.app(scope, receive, send)
    return told[0]


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {} {}", "Bearer {}x", "Token {}", "Bearer: {}",
     "Bearer {},", "Bearer \t"],
)  # fmt: skip
async def test_what_is_no_credential(api: Guarded, value: str):
    text = (await api.key()).text
    assert text is not None
    headers = [(b"host", b"localhost"), (b"authorization", value.replace("{}", text).encode())]
    assert await raw_status(api, "/tasks", headers) == 401
    good = (b"authorization", f"bearer {text}".encode())
    assert await raw_status(api, "/tasks", [good]) == 200
    assert await raw_status(api, "/tasks", [good, good]) == 400


async def test_a_websocket_is_closed(api: Guarded):
    await api.key()
    told = []

    async def send(message) -> None:
        told.append(message["type"])

    await api.http._transport.app(
        {"type": "websocket", "path": "/tasks", "headers": []}, None, send
    )
    assert told == ["websocket.close"]


# -- tenants --------------------------------------------------------------------------------------


async def test_the_key_says_the_tenant(api: Guarded):
    acme, root = (await api.key(tenant="acme")).text, (await api.key("admin", tenant="*")).text
    made = await api.ask("POST", "/tasks", acme, {"target": CHARGE})
    assert made.status_code == 201
    path = f"/tasks/{made.json()['task_id']}"
    assert await api.status("GET", path, acme) == 200
    assert await api.status("GET", path, acme, Tasksched_Tenant="acme") == 200
    assert await api.status("GET", path, acme, Tasksched_Tenant="default") == 403
    assert await api.status("GET", path, root) == 404
    assert await api.status("GET", path, root, Tasksched_Tenant="acme") == 200
    assert await api.status("GET", path, root, Tasksched_Tenant="a b") == 422
    bound = (await api.key("admin", tenant="globex")).text
    assert await api.status("GET", path, bound, Tasksched_Tenant="acme") == 403


async def test_two_names_of_a_tenant_are_none(api: Guarded):
    root = (await api.key("admin", tenant="*")).text
    headers = [
        (b"authorization", f"Bearer {root}".encode()),
        (b"tasksched-tenant", b"acme"),
        (b"tasksched-tenant", b"globex"),
    ]
    assert await raw_status(api, "/tasks", headers) == 400


# -- open and closed --------------------------------------------------------------------------------


async def test_the_first_key_closes_the_door(api: Guarded):
    assert await api.status("GET", "/tasks") == 200
    assert await api.status("GET", "/tasks", Host="example.com") == 421
    text = (await api.key()).text
    api.now_ms += access.TTL_MS
    assert await api.status("GET", "/tasks") == 401
    assert await api.status("GET", "/tasks", text) == 200
    assert await api.status("GET", "/tasks", text, Host="example.com") == 200
    assert await api.status("GET", "/livez", Host="example.com") == 200


async def test_revoking_all_keys_does_not_open_it(api: Guarded):
    made = await api.key()
    await api.keys.revoke(made.id)
    assert await api.status("GET", "/tasks") == 401


async def test_nor_does_the_loss_of_all_data(api: Guarded, valkey_server: ServerProcess):
    await api.key()
    assert await api.status("GET", "/tasks") == 401
    valkey_server.flush()
    api.now_ms += access.TTL_MS
    assert await api.status("GET", "/tasks") == 401


async def test_strangers_can_reach_it_only_with_keys(api: Guarded):
    guarded = access.Access(api.rig.session.store, needs_keys=True)
    assert await guarded.is_open() is False


async def test_a_page_from_elsewhere_may_ask_with_a_key(api: Guarded):
    # Browsers send no key by themselves, so there is nothing that a foreign page could abuse.
    text = (await api.key()).text
    answer = await api.ask(
        "POST", "/tasks", text, {"target": CHARGE}, Origin="https://evil.example"
    )
    assert answer.status_code == 201
    assert "access-control-allow-origin" not in answer.headers


# -- what is remembered ---------------------------------------------------------------------------


async def test_a_revoked_key_is_refused_when_what_is_remembered_is_old(api: Guarded):
    made = await api.key()
    assert await api.status("GET", "/tasks", made.text) == 200
    await api.keys.revoke(made.id)
    api.now_ms += access.TTL_MS - 1
    assert await api.status("GET", "/tasks", made.text) == 200
    api.now_ms += 1
    answer = await api.ask("GET", "/tasks", made.text)
    assert assert_problem(answer, 401)["detail"] == "the API key is revoked"


async def test_an_expiry_is_exact_also_from_memory(api: Guarded):
    made = await api.key(life_ms=1_000)
    assert await api.status("GET", "/tasks", made.text) == 200
    api.now_ms += 999
    answer = await api.ask("GET", "/tasks", made.text)
    api.now_ms += 1
    assert answer.status_code in {200, 401}  # the server's clock has gone on a little as well
    answer = await api.ask("GET", "/tasks", made.text)
    assert assert_problem(answer, 401)["detail"] == "the API key is expired"


async def test_rotation_overlaps(api: Guarded):
    made = await api.key()
    other = await api.keys.rotate(made.id, overlap_ms=60_000)
    assert other.text not in {None, made.text}
    for text in (made.text, other.text):
        assert await api.status("GET", "/tasks", text) == 200
    await api.keys.rotate(made.id, overlap_ms=0)
    api.now_ms += access.TTL_MS
    for text in (made.text, other.text):
        assert await api.status("GET", "/tasks", text) == 401


async def test_keys_of_nobody_are_remembered_and_their_number_is_bounded(
    api: Guarded, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(access, "UNKNOWN_MAX", 3)
    made = await api.key()
    assert await api.status("GET", "/tasks", made.text) == 200
    before = await hgets(api)
    guess = new_text("0000000000")
    for _ in range(5):
        assert await api.status("GET", "/tasks", guess) == 401
    assert await hgets(api) == before + 1
    for n in range(9):
        assert await api.status("GET", "/tasks", new_text(f"000000000{n}")) == 401
    assert len(api.access._unknown) == 3
    assert len(api.access._known) == 1


async def hgets(api: Guarded) -> int:
    stats = await api.rig.session.gateway.command("INFO", "commandstats")
    return int(stats.get("cmdstat_hget", {}).get("calls", 0))


async def test_an_outage_lets_nobody_in_and_nobody_loses_a_key(spawn):
    server = spawn("valkey")
    async with open_guarded(server.url) as api:
        made, root = await api.key(), (await api.key("metrics")).text
        assert await api.status("GET", "/tasks", made.text) == 200
        assert await api.status("GET", "/metrics", root) == 200
        server.kill()
        api.now_ms += access.TTL_MS
        assert_problem(await api.ask("GET", "/tasks", made.text), 503)
        assert_problem(await api.ask("GET", "/tasks", new_text("0123456789")), 503)
        assert await api.status("GET", "/tasks") == 401
        assert await api.status("GET", "/livez") == 200
        assert (await api.ask("GET", "/health", root)).json() == {"status": "down"}
        # Who could read metrics before is told that Redis is away; nobody else is told anything.
        assert "tasksched_redis_up 0.0" in (await api.ask("GET", "/metrics", root)).text
        assert await api.status("GET", "/metrics", new_text("0123456789")) == 503
        assert await api.status("GET", "/metrics") == 401


async def test_an_outage_does_not_open_what_was_open(spawn):
    server = spawn("valkey")
    async with open_guarded(server.url) as api:
        assert await api.status("GET", "/tasks") == 200
        server.kill()
        api.now_ms += access.TTL_MS
        with pytest.raises(Unavailable):
            await api.access.is_open()
        assert_problem(await api.ask("GET", "/preview"), 503)


async def test_callers_do_not_pile_up_behind_a_slow_redis(
    api: Guarded, valkey_server: ServerProcess
):
    made = await api.key()
    guarded = access.Access(api.rig.session.store, waiting_max=0)
    with pytest.raises(Overloaded):
        await guarded.bearer(made.text or "")


async def test_the_last_use_is_written_once_a_minute(api: Guarded):
    made = await api.key()
    (before,) = await api.keys.list()
    assert before.last_used_ms is None
    await api.ask("GET", "/tasks", made.text)
    await api.access.close()
    (first,) = await api.keys.list()
    assert first.last_used_ms is not None
    await api.ask("GET", "/tasks", made.text)
    api.now_ms += access.USED_EVERY_MS
    await api.ask("GET", "/tasks", made.text)
    await api.access.close()
    stats = await api.rig.session.gateway.command("INFO", "commandstats")
    assert int(stats["cmdstat_hset"]["calls"]) >= 2
    (last,) = await api.keys.list()
    assert last.last_used_ms >= first.last_used_ms


# -- what is kept -----------------------------------------------------------------------------------


async def test_a_dump_of_redis_holds_no_usable_key(api: Guarded, valkey_server: ServerProcess):
    made = await api.key()
    again = await api.keys.rotate(made.id)
    await api.ask("GET", "/tasks", again.text)
    await api.access.close()
    with redis.Redis.from_url(valkey_server.url) as client:
        dump = b"\n".join(
            repr(everything(client, name)).encode() + name for name in client.scan_iter()
        )
    for text in (made.text, again.text):
        assert text is not None
        assert text.encode() not in dump
        secret = text.split("_", 2)[2]
        assert secret.encode() not in dump
        assert secret[:43].encode() not in dump
        assert secret[:20].encode() not in dump
    # And whatever looks like a key there opens nothing.
    for found in re.findall(rb"[0-9a-f]{64}", dump):
        assert await api.status("GET", "/tasks", f"ts_{made.id}_{found.decode()}") == 401


def everything(client: redis.Redis, name: bytes) -> object:
    kind = client.type(name)
    reads = {
        b"hash": client.hgetall, b"string": client.get, b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1), b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": client.xrange,
    }  # fmt: skip
    return reads[kind](name)


async def test_no_answer_and_no_log_repeats_a_key(api: Guarded, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    made = await api.key("tasks:read")
    await api.keys.revoke((await api.key()).id)
    wrong = new_text(made.id)
    for text in (made.text, wrong, f"{made.text}x", "ts_canary_canary"):
        for verb, path in (
            ("GET", "/tasks"),
            ("POST", "/tasks"),
            ("GET", "/nothing"),
            ("PUT", "/queues/a"),
        ):
            answer = await api.ask(verb, path, text)
            assert text not in f"{answer.text}{answer.headers}", path
    for text in (made.text, wrong, "canary"):
        assert text not in caplog.text


# -- health ---------------------------------------------------------------------------------------


async def test_anybody_is_told_the_status_and_operators_the_rest(api: Guarded):
    operator, reader = (await api.key("operate")).text, (await api.key("tasks:read")).text
    assert (await api.ask("GET", "/health")).json() == {"status": "degraded"}
    assert (await api.ask("GET", "/health", reader)).json() == {"status": "degraded"}
    assert {"version", "redis", "warnings"} <= set(
        (await api.ask("GET", "/health", operator)).json()
    )
    for path in ("/livez", "/readyz", "/healthz"):
        assert (await api.ask("GET", path)).json() == {"status": "ok"}


# -- audit ------------------------------------------------------------------------------------------


async def entries(api: Guarded, key: str | None) -> list[dict]:
    answer = await api.ask("GET", "/audit?limit=500", key)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_every_route_of_operators_writes_one_entry(api: Guarded):
    root = await api.key("admin", tenant="*")
    before = len(await entries(api, root.text)) + 1
    told = [op for op in OPS if op.scope in AUDITED]
    answers = [await api.ask(op.verb, path_of(op.path), root.text) for op in told]
    found = list(reversed(await entries(api, root.text)))[before:]
    assert len(told) >= 10
    for op, answer, entry in zip(told, answers, found, strict=True):
        assert entry["route"] == f"{op.verb} {op.path}"
        assert entry["key_id"] == root.id
        assert entry["request_id"] == answer.headers["x-request-id"]
        expected = "ok" if answer.is_success else answer.json()["code"]
        assert entry["outcome"] == expected
        assert entry["object"] == "/".join(PARTS[n] for n in re.findall(r"{(\w+)}", op.path))
    for op in OPS:
        if op.scope not in AUDITED:
            await api.ask(op.verb, path_of(op.path), root.text)
    assert len(await entries(api, root.text)) == before + len(told) + 1


async def test_refusals_are_entries_that_cannot_push_out_the_others(api: Guarded):
    root = (await api.key("admin", tenant="*")).text
    reader = await api.key("tasks:read", tenant="acme")
    for _ in range(3):
        assert await api.status("POST", "/pause", reader.text) == 403
    told = [e for e in await entries(api, root) if e["key_id"] == reader.id]
    assert [(e["route"], e["tenant"], e["outcome"]) for e in told] == [
        ("POST /pause", "acme", "FORBIDDEN")
    ]


async def test_a_tenant_sees_its_own_audit(api: Guarded):
    root, own = (await api.key("admin", tenant="*")).text, (await api.key("admin", tenant="acme"))
    await api.ask("POST", "/webhooks/rotate-tenant-secret", root, Tasksched_Tenant="globex")
    await api.ask("POST", "/webhooks/rotate-tenant-secret", own.text)
    told = await entries(api, own.text)
    assert {entry["tenant"] for entry in told} == {"acme"}
    assert [e["route"] for e in told if e["key_id"] == own.id] == [
        "POST /webhooks/rotate-tenant-secret"
    ]
    assert "globex" in {entry["tenant"] for entry in await entries(api, root)}


async def test_changes_of_keys_are_in_the_audit(api: Guarded):
    root = await api.key("admin", tenant="*")
    await api.keys.rotate(root.id)
    gone = await api.key()
    await api.keys.revoke(gone.id)
    told = [(e["key_id"], e["route"], e["object"]) for e in reversed(await entries(api, root.text))]
    assert told == [
        ("cli", "keys create", root.id), ("cli", "keys rotate", root.id),
        ("cli", "keys create", gone.id), ("cli", "keys revoke", gone.id),
    ]  # fmt: skip


async def test_pages_of_the_audit(api: Guarded):
    root = (await api.key("admin", tenant="*")).text
    for _ in range(4):
        await api.ask("POST", "/resume", root)
    first = (await api.ask("GET", "/audit?limit=2", root)).json()
    link = f"/audit?limit=2&cursor={first['next_cursor']}"
    second = (await api.ask("GET", link, root)).json()
    shown = [e["id"] for e in first["items"] + second["items"]]
    assert shown == sorted(set(shown), reverse=True)
    assert len(shown) == 4
    for cursor in ("x", "1-2-3", "+", "-", "1", "99999999999999999999999-1"):
        assert await api.status("GET", f"/audit?cursor={cursor}", root) == 400, cursor


# -- the description --------------------------------------------------------------------------------


async def test_the_description_tells_what_each_operation_needs(api: Guarded):
    document = (await api.ask("GET", "/openapi.json")).json()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for op in OPS:
        told = document["paths"][op.path][op.verb.lower()]
        if op.scope == "public":
            assert told["security"] == []
        elif op.scope == "callback":
            assert told["security"] == [{"callback": []}]
        else:
            assert told["security"] == [{"bearer": [scope_word(op.scope)]}]
            assert {"401", "403"} <= set(told["responses"])


async def test_as_many_keys_as_may_be(api: Guarded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tasksched.commands.keys.KEYS_MAX", 2)
    first, second = await api.key(), await api.key()
    spec = KeySpec(name="third", tenant="default", scopes=("metrics",))
    with pytest.raises(Exception, match="at most 2 keys"):
        await Keys(api.rig.session.store).create(spec)
    await api.keys.revoke(first.id)
    third = await api.keys.create(spec)
    assert {each.id for each in await api.keys.list()} == {second.id, third.id}


async def test_the_app_is_made_of_the_table(api: Guarded):
    app = make_api(api.rig.services)
    assert {route.path for route in app.routes} == {op.path for op in OPS} | {
        p for p, _, _ in PAGES
    }
