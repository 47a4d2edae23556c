"""Whatever arrives: never a 500, always problem+json, and the pointer of what is wrong."""

import json
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.http.conftest import CHARGE, assert_problem, pointers

from tasksched.http.api import OPS

pytestmark = pytest.mark.anyio

TARGET = b'{"type":"handler","name":"charge"}'


def with_payload(raw: bytes) -> bytes:
    return b'{"target":' + TARGET + b',"payload":' + raw + b"}"


def with_member(name: str, raw: bytes) -> bytes:
    return b'{"target":' + TARGET + b',"' + name.encode() + b'":' + raw + b"}"


UNREADABLE = {
    "empty": b"",
    "space": b"  \n",
    "word": b"nope",
    "half": b'{"target":',
    "two values": b"{}{}",
    "single quotes": b"{'target': 1}",
    "comment": b"{} // hi",
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"target":1}'.encode("utf-16"),
    "invalid utf-8": with_payload(b'"\xff\xfe"'),
    "overlong utf-8": with_payload(b'"\xc0\x80"'),
    "surrogate utf-8": with_payload(b'"\xed\xa0\x80"'),
    "raw control": with_payload(b'"\x01"'),
    "nan": with_payload(b"NaN"),
    "infinity": with_payload(b"[-Infinity]"),
    "leading zero": with_payload(b"01"),
    "hex": with_payload(b"0x10"),
    "bomb of arrays": b"[" * 100_000,
    "bomb of objects": b'{"a":' * 100_000,
    "bomb in payload": with_payload(b"[" * 100_000 + b"]" * 100_000),
}

INVALID = [
    ("array", b"[]", [""]),
    ("string", b'"x"', [""]),
    ("null", b"null", [""]),
    ("number", b"5", [""]),
    ("true", b"true", [""]),
    ("no target", b"{}", ["/target"]),
    ("null target", b'{"target":null}', ["/target"]),
    ("unknown", with_member("nope", b"1"), ["/nope"]),
    ("tenant in body", with_member("tenant", b'"a"'), ["/tenant"]),
    ("status in body", with_member("status", b'"SUCCESS"'), ["/status"]),
    ("reserved queue", with_member("queue", b'"notifications"'), ["/queue"]),
    ("notify no list", with_member("notify", b"{}"), ["/notify"]),
    ("notify empty", with_member("notify", b"[{}]"), ["/notify/0/url", "/notify/0/events"]),
    (
        "notify schedule event",
        with_member("notify", b'[{"url":"https://a.example/","events":["schedule.missed"]}]'),
        ["/notify/0/events/0"],
    ),
    (
        "notify wrong everywhere",
        with_member("notify", b'[{"url":"ftp://a","events":[],"secret":"x","more":1}]'),
        ["/notify/0/more", "/notify/0/url", "/notify/0/events", "/notify/0/secret"],
    ),
    (
        "notify twice",
        with_member("notify", b"[%s,%s]" % ((b'{"url":"https://a.example/","events":["task.failed"]}',) * 2)),
        ["/notify/1/url"],
    ),
    ("unknown with slash", with_member("a/b~c", b"1"), ["/a~1b~0c"]),
    ("unknown surrogate", with_member("\\ud800", b"1"), ["/?"]),
    ("lone surrogate", with_payload(b'"\\ud800"'), ["/payload"]),
    ("surrogate deep", with_payload(b'{"a":["\\udfff"]}'), ["/payload/a/0"]),
    ("surrogate key", with_payload(b'{"\\ud800":1}'), ["/payload"]),
    ("huge integer", with_payload(b"1" * 5_000), ["/payload"]),
    ("huge negative", with_payload(b"[-" + b"1" * 5_000 + b"]"), ["/payload/0"]),
    ("2^64", with_payload(b"18446744073709551616"), ["/payload"]),
    ("1e400", with_payload(b'{"x":1e400}'), ["/payload/x"]),
    ("33 levels", with_payload(b"[" * 33 + b"]" * 33), ["/payload" + "/0" * 32]),
    ("200 levels", with_payload(b"[" * 200 + b"]" * 200), ["/payload" + "/0" * 32]),
    ("queue with nul", with_member("queue", b'"a\\u0000b"'), ["/queue"]),
    ("queue newline", with_member("queue", b'"a\\n"'), ["/queue"]),
    ("queue colon", with_member("queue", b'"a:b"'), ["/queue"]),
    ("queue brace", with_member("queue", b'"{ts:1}"'), ["/queue"]),
    ("queue long", with_member("queue", b'"' + b"a" * 65 + b'"'), ["/queue"]),
    ("queue surrogate", with_member("queue", b'"\\ud800"'), ["/queue"]),
    ("queue null", with_member("queue", b"null"), ["/queue"]),
    ("queue number", with_member("queue", b"5"), ["/queue"]),
    ("priority", with_member("priority", b'"urgent"'), ["/priority"]),
    ("priority number", with_member("priority", b"1"), ["/priority"]),
    ("tags no list", with_member("tags", b'"a"'), ["/tags"]),
    ("bad tags", with_member("tags", b'["a","","b c","a"]'), ["/tags/1", "/tags/2", "/tags/3"]),
    ("33 tags", with_member("tags", json.dumps([f"t{n}" for n in range(33)]).encode()), ["/tags"]),
    ("retry list", with_member("retry", b"[]"), ["/retry"]),
    ("retry unknown", with_member("retry", b'{"tries":3}'), ["/retry/tries"]),
    ("retry zero", with_member("retry", b'{"max_attempts":0}'), ["/retry/max_attempts"]),
    ("retry nan", with_member("retry", b'{"backoff":{"factor":"2"}}'), ["/retry/backoff/factor"]),
    ("retry huge", with_member("retry", b'{"max_attempts":1e400}'), ["/retry/max_attempts"]),
    ("key number", with_member("idempotency_key", b"5"), ["/idempotency_key"]),
    ("key surrogate", with_member("idempotency_key", b'"\\ud83d"'), ["/idempotency_key"]),
    ("target string", b'{"target":"charge"}', ["/target"]),
    ("target no type", b'{"target":{"name":"a"}}', ["/target/type"]),
    ("target type", b'{"target":{"type":"shell"}}', ["/target/type"]),
    ("target type list", b'{"target":{"type":[]}}', ["/target/type"]),
    ("no name", b'{"target":{"type":"handler"}}', ["/target/name"]),
    ("name http", b'{"target":{"type":"handler","name":"http"}}', ["/target/name"]),
    ("name at", b'{"target":{"type":"handler","name":"a@1"}}', ["/target/name"]),
    ("name nul", b'{"target":{"type":"handler","name":"a\\u0000"}}', ["/target/name"]),
    ("version", b'{"target":{"type":"handler","name":"a","version":2}}', ["/target/version"]),
    ("handler url", b'{"target":{"type":"handler","name":"a","url":"x"}}', ["/target/url"]),
    ("no url", b'{"target":{"type":"http"}}', ["/target/url"]),
    ("ftp", b'{"target":{"type":"http","url":"ftp://a.example/"}}', ["/target/url"]),
    ("userinfo", b'{"target":{"type":"http","url":"http://a:b@c.example/"}}', ["/target/url"]),
    ("url crlf", b'{"target":{"type":"http","url":"http://a.example/\\r\\nX: 1"}}', ["/target/url"]),
    ("url surrogate", b'{"target":{"type":"http","url":"http://\\ud800.example"}}', ["/target/url"]),
    ("method", b'{"target":{"type":"http","url":"http://a.example/","method":"TRACE"}}', ["/target/method"]),
    ("method case", b'{"target":{"type":"http","url":"http://a.example/","method":"post"}}', ["/target/method"]),
    ("host header", b'{"target":{"type":"http","url":"http://a.example/","headers":{"Host":"b"}}}', ["/target/headers/Host"]),
    ("header value", b'{"target":{"type":"http","url":"http://a.example/","headers":{"X-A":"a\\r\\nb"}}}', ["/target/headers/X-A"]),
    ("several", b'{"target":{"type":"http","url":5,"method":"X"},"queue":"-","delay":-1,"x":1}',
     ["/x", "/delay", "/target/url", "/target/method", "/queue"]),
]  # fmt: skip


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("route", ["create", "batch", "edit", "cancel"])
async def test_what_is_no_json_is_malformed(rig, route, raw):
    task_id = await rig.make(delay="1h")
    verb, path = {
        "create": ("POST", "/tasks"),
        "batch": ("POST", "/tasks/batch"),
        "edit": ("PATCH", f"/tasks/{task_id}"),
        "cancel": ("POST", f"/tasks/{task_id}/cancel"),
    }[route]
    if route == "cancel" and raw == b"":
        return  # that one takes no options

    answer = await rig.ask(verb, path, raw)

    assert assert_problem(answer, 400)["code"] == "MALFORMED"
    assert (await rig.show(task_id))["version"] == 1


@pytest.mark.parametrize(("name", "raw", "wrong"), INVALID, ids=[row[0] for row in INVALID])
async def test_every_wrong_field_is_named(rig, name, raw, wrong):
    answer = await rig.ask("POST", "/tasks", raw)

    assert pointers(assert_problem(answer, 422)) == wrong
    assert (await rig.ask("GET", "/tasks/count")).json()["total"] == 0


@pytest.mark.parametrize(("name", "raw", "wrong"), INVALID, ids=[row[0] for row in INVALID])
async def test_every_wrong_field_of_an_edit_is_named(rig, name, raw, wrong):
    if name == "no target":
        return  # an edit need not name one
    task_id = await rig.make(delay="1h")

    answer = await rig.ask("PATCH", f"/tasks/{task_id}", raw)

    problem = assert_problem(answer, 422)
    if name == "null target":
        assert pointers(problem) == ["/target"]
    elif name.startswith("key"):
        assert pointers(problem) == ["/idempotency_key"]  # unknown to an edit
    else:
        assert sorted(pointers(problem)) == sorted(wrong)
    assert (await rig.show(task_id))["version"] == 1


@pytest.mark.parametrize(("name", "raw", "wrong"), INVALID, ids=[row[0] for row in INVALID])
async def test_in_a_batch_the_item_alone_is_refused(rig, name, raw, wrong):
    if raw.startswith(b"["):
        return
    good = b'{"target":' + TARGET + b"}"

    answer = await rig.ask("POST", "/tasks/batch", b"[" + good + b"," + raw + b"," + good + b"]")

    assert answer.status_code == 200
    items = answer.json()["items"]
    assert [item["status"] for item in items] == [201, 422, 201]
    assert pointers(items[1]) == wrong


async def test_nul_and_controls_are_welcome_in_payload_strings(rig):
    text = "a\0b\x01\u2028\u202e"

    assert (await rig.show(await rig.make(payload=text)))["payload"] == text


async def test_of_a_member_that_is_there_twice_the_last_counts(rig):
    raw = b'{"target":' + TARGET + b',"payload":1,"payload":2}'

    answer = await rig.ask("POST", "/tasks", raw)

    assert (await rig.show(answer.json()["task_id"]))["payload"] == 2


@pytest.mark.parametrize(
    "media",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"],
)
@pytest.mark.parametrize("path", ["/tasks", "/tasks/batch"])
async def test_a_body_must_say_that_it_is_json(rig, path, media):
    headers = {} if media is None else {"Content-Type": media}

    answer = await rig.http.request("POST", path, content=b"{}", headers=headers)

    assert_problem(answer, 415)


async def test_json_may_name_its_charset(rig):
    body = json.dumps({"target": CHARGE})

    answer = await rig.ask("POST", "/tasks", body, Content_Type="Application/JSON; charset=utf-8")

    assert answer.status_code == 201


@pytest.mark.parametrize("tenant", ["", "a b", "a:b", "{x}", "é", "a" * 65, "../x"])
async def test_a_tenant_is_a_name(rig, tenant):
    answer = await rig.http.request(
        "POST", "/tasks", json={"target": CHARGE}, headers={b"Tasksched-Tenant": tenant.encode()}
    )

    assert assert_problem(answer, 422)["errors"][0]["header"] == "Tasksched-Tenant"


IDS = [
    "a", "A", "a:b", "a:b:c", "{x}", "*", "%3F", "[a]", "a%2Fb", "a%20b", "%C3%A9", "e%CC%81",
    "%E2%80%AEabc", "a" * 128, "a" * 129, "6F9619FF-8B86-D011-B42D-00CF4FC964FF",
    "6f9619ff-8b86-d011-b42d-00cf4fc964ff", "{6f9619ff-8b86-d011-b42d-00cf4fc964ff}",
    "6f9619ff8b86d011b42d00cf4fc964ff", "%00", "%0A", "..", "%2e%2e", "%FF%FE", "0" * 23,
    "z" * 23, "0" * 22 + "%0A",
]  # fmt: skip


@pytest.mark.parametrize("task_id", IDS)
async def test_what_is_no_id_is_not_found(rig, task_id):
    """ids-002, ids-004"""
    for verb, path, body in [
        ("GET", "", None), ("GET", "/attempts", None), ("PATCH", "", {"queue": "a"}),
        ("POST", "/cancel", None), ("POST", "/run-now", None), ("POST", "/retry", None),
    ]:  # fmt: skip
        answer = await rig.ask(verb, f"/tasks/{task_id}{path}", body)
        # Some spellings leave the path of a task behind; then it is a path nobody serves.
        assert_problem(answer, 404, 405)
    assert (await rig.ask("GET", "/tasks")).status_code == 200


async def test_ids_are_case_sensitive(rig):
    """ids-002"""
    task_id = await rig.make()

    assert_problem(await rig.ask("GET", f"/tasks/{task_id.upper()}"), 404)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "limit=1e3", "limit=-1", "limit=%D9%A3", "limit=1000000000",
     "status=DONE", "status=", "status=pending", "queue=", "queue=a:b", "queue=*", "tag=a%20b",
     "handler=", "handler=a*b", "handler=**", "priority=urgent", "due_from=yesterday", "due_to=1",
     "due_from=2026-01-01T00:00:00", "nope=1", "limit=1&limit=2", "queue=%FF", "queue=%00"],
)  # fmt: skip
async def test_bad_filters_are_refused_by_name(rig, query):
    answer = await rig.ask("GET", f"/tasks?{query}")

    problem = assert_problem(answer, 422)
    assert problem["errors"][0]["parameter"] == query.partition("=")[0]


@pytest.mark.parametrize("query", ["&".join(f"a{n}=1" for n in range(100)), "a" * 10_000])
async def test_a_monstrous_query_is_malformed(rig, query):
    assert_problem(await rig.ask("GET", f"/tasks?{query}"), 400)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["handler", "http", "2030-01-01T00:00:00Z", "1h", "UTC", "high", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
NAMES = ("target", "payload", "run_at", "timezone", "delay", "queue", "priority", "retry", "timeout",
         "lease", "expires_at", "tags", "idempotency_key", "tenant", "x")  # fmt: skip
BODIES = st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6) | ANYTHING
TARGETS = st.just(CHARGE) | st.dictionaries(
    st.sampled_from(["type", "name", "version", "url", "method", "headers"]), ANYTHING, max_size=4
)
EXPECTED = {200, 201, 400, 404, 409, 412, 413, 415, 422}


@given(BODIES, TARGETS, st.booleans())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_json_whatever_breaks_a_write(rig, body, target, named):
    if named and isinstance(body, dict):
        body = {**body, "target": target}
    raw = json.dumps(body).encode()

    created = await rig.ask("POST", "/tasks", raw)
    batch = await rig.ask("POST", "/tasks/batch", b"[" + raw + b"]")
    path = created.headers.get("location", "/tasks/" + "0" * 23)
    edited = await rig.ask("PATCH", path, raw)
    read = await rig.ask("GET", path)

    for answer in (created, batch, edited, read):
        assert answer.status_code in EXPECTED, (raw, answer.text)
        if answer.status_code >= 400:
            assert_problem(answer, answer.status_code)
    assert all(item["status"] in EXPECTED for item in batch.json()["items"])


@given(st.binary(max_size=200))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_bytes_whatever_break_a_write(rig, raw):
    for verb, path in (
        ("POST", "/tasks"),
        ("POST", "/tasks/batch"),
        ("PATCH", "/tasks/" + "0" * 23),
    ):
        answer = await rig.ask(verb, path, raw)
        assert answer.status_code in EXPECTED


@given(
    st.sampled_from(
        ["status", "queue", "handler", "tag", "priority", "due_from", "limit", "cursor"]
    ),
    st.text(max_size=40).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_filter_whatever_breaks_a_list(rig, name, value):
    answer = await rig.http.get("/tasks", params={name: value})

    assert answer.status_code in {200, 400, 422}


WRITES = [
    (op.verb, op.path, name)
    for op in OPS
    for taken in op.takes.values()
    for shape in (taken, *get_args(taken))
    for name in getattr(shape, "__struct_encode_fields__", ())
]


@pytest.mark.parametrize(("verb", "path", "name"), WRITES)
async def test_a_list_or_an_object_in_the_place_of_anything_breaks_nothing(rig, verb, path, name):
    where = path.format(id="0" * 23, queue="a", tenant="default", code="x", delivery="0" * 23)
    for odd in ([], {}, [[]], [{}], {"a": []}, {"type": [], "url": {}}):
        for body in ({name: odd}, {"target": CHARGE, "cron": "0 0 * * *", name: odd}):
            sent = [body] if path == "/tasks/batch" else body
            answer = await rig.ask(verb, where, sent)
            assert answer.status_code < 500, (body, answer.text)
