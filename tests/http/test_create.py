"""POST /tasks and /tasks/batch: what is made, once, and what is answered."""

import asyncio

import pytest
from tests.http.conftest import CHARGE, DONE, assert_problem, open_rig, pointers
from tests.servers import ServerProcess

from tasksched.commands.session import open_session
from tasksched.model import codec

pytestmark = pytest.mark.anyio

BODY = {"target": CHARGE, "payload": {"cents": 100}}


async def test_a_create_says_where_the_task_is(rig):
    answer = await rig.ask("POST", "/tasks", BODY)

    body = answer.json()
    assert answer.status_code == 201
    assert body["status"] == "PENDING"
    assert body["created"] is True
    assert body["durability"] == "memory"
    assert body["version"] == 1
    assert answer.headers["location"] == f"/tasks/{body['task_id']}"
    assert answer.headers["etag"] == '"1"'
    shown = await rig.show(body["task_id"])
    assert shown["payload"] == {"cents": 100}
    assert shown["timestamps"]["run_at"] == body["run_at"]
    assert shown["target"] == {**CHARGE, "version": None}


async def test_every_field_comes_back_as_it_was_meant(rig):
    asked = {
        "target": {
            "type": "http",
            "url": "https://example.com/hook?a=1",
            "method": "PUT",
            "headers": {"X-Thing": "1"},
        },
        "payload": [1, 2.5, None, {"a": "é"}],
        "run_at": "2030-01-01T01:00:00+01:00",
        "queue": "billing",
        "priority": "high",
        "retry": {"max_attempts": 3, "backoff": {"initial": 2, "max": "PT5M", "jitter": "none"}},
        "timeout": "1h30m",
        "lease": 60,
        "expires_at": "2030-01-02T00:00:00Z",
        "tags": ["a", "b.c"],
    }

    answer = await rig.ask("POST", "/v1/tasks", asked)

    assert answer.status_code == 201, answer.text
    assert answer.headers["location"].startswith("/v1/tasks/")
    shown = (await rig.ask("GET", answer.headers["location"])).json()
    for name in ("target", "payload", "queue", "priority", "tags", "timeout"):
        assert shown[name] == asked[name], name
    assert shown["timestamps"]["run_at"] == "2030-01-01T00:00:00.000Z"
    assert shown["expires_at"] == "2030-01-02T00:00:00.000Z"
    assert shown["lease"] == "1m"
    assert shown["retry"] == {
        "max_attempts": 3,
        "max_lost": 3,
        "backoff": {"initial": "2s", "factor": 2, "max": "5m", "jitter": "none"},
    }


async def test_what_was_answered_may_be_sent_again(rig):
    first = await rig.show(await rig.make(payload=1, timeout="90s", tags=["x"], retry={}))
    names = ("target", "payload", "queue", "priority", "retry", "timeout", "lease", "tags")
    again = {name: first[name] for name in (*names, "expires_at")}

    second = await rig.ask("POST", "/tasks", again)

    assert second.status_code == 201, second.text
    shown = await rig.show(second.json()["task_id"])
    assert {name: shown[name] for name in again} == again


async def test_no_payload_is_not_null(rig):
    without, null = await rig.make(), await rig.make(payload=None)

    assert "payload" not in await rig.show(without)
    assert (await rig.show(null))["payload"] is None


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 2**53 + 1, 0.1])
async def test_numbers_keep_their_digits(rig, number):
    assert (await rig.show(await rig.make(payload=number)))["payload"] == number


# -- idempotency ----------------------------------------------------------------------------------


async def test_same_key_same_body_is_a_replay(rig):
    """idempotency-005"""
    first = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")
    second = await rig.ask("POST", "/tasks", b'{"payload": {"cents": 1e2}, "target": {"name":"charge","type":"handler"}}', Idempotency_Key='"K"')  # fmt: skip

    assert [201, 200] == [first.status_code, second.status_code]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    body = second.json()
    assert body["created"] is False
    assert body["task_id"] == first.json()["task_id"]
    assert body["payload"] == {"cents": 100}
    assert second.headers["etag"] == f'"{body["version"]}"'


async def test_a_replay_shows_the_task_as_it_is_now(rig):
    await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")
    await rig.finish(await rig.start())

    body = (await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")).json()

    assert body["status"] == "SUCCESS"
    assert body["result"] == {"ok": True}


async def test_same_key_other_body_is_refused(rig):
    """idempotency-006"""
    await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")

    other = await rig.ask("POST", "/tasks", {**BODY, "payload": 2}, Idempotency_Key="K")

    assert assert_problem(other, 422)["code"] == "KEY_REUSED"
    assert (await rig.ask("GET", "/tasks/count")).json()["total"] == 1


async def test_keys_are_per_tenant(rig):
    """idempotency-002"""
    first = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K", Tasksched_Tenant="a")
    second = await rig.ask(
        "POST", "/tasks", {**BODY, "payload": 2}, Idempotency_Key="K", Tasksched_Tenant="b"
    )

    assert [201, 201] == [first.status_code, second.status_code]
    assert first.json()["task_id"] != second.json()["task_id"]
    foreign = await rig.ask("GET", f"/tasks/{first.json()['task_id']}", Tasksched_Tenant="b")
    assert_problem(foreign, 404)


KEYS = [
    ("", 422), ("a" * 255, 201), ("a" * 256, 422), ("with space", 201), ("new\nline", 422),
    ("nul\0", 422), ("../../x", 201), ("{k}", 201), ("k:1", 201),
]  # fmt: skip


@pytest.mark.parametrize(("key", "status"), KEYS, ids=lambda v: repr(v)[:12])
async def test_form_of_the_key_in_a_body(rig, key, status):
    """idempotency-004"""
    answer = await rig.ask("POST", "/tasks", {**BODY, "idempotency_key": key})

    assert answer.status_code == status
    if status == 422:
        assert pointers(assert_problem(answer, 422)) == ["/idempotency_key"]


@pytest.mark.parametrize(
    ("header", "status"),
    [(b"", 422), (b'""', 422), (b'"open', 422), (b'"a\\"b"', 201), (b"a" * 255, 201),
     (b"a" * 256, 422), (b"with space", 201), ("ключ".encode(), 422), (b"emoji-\xf0\x9f\x98\x80", 422),
     (b"tab\there", 422), (b"../../x", 201), (b"{k}", 201), (b"k:1", 201)],
)  # fmt: skip
async def test_form_of_the_key_in_a_header(rig, header, status):
    """idempotency-004"""
    answer = await rig.http.request(
        "POST", "/tasks", json=BODY, headers={b"Idempotency-Key": header}
    )

    assert answer.status_code == status
    if status == 422:
        assert assert_problem(answer, 422)["errors"][0]["header"] == "Idempotency-Key"


@pytest.mark.parametrize("key", ["ключ", "emoji-😀", "é"])
async def test_keys_of_any_script_in_a_body(rig, key):
    """idempotency-004"""
    asked = {**BODY, "idempotency_key": key}

    statuses = [(await rig.ask("POST", "/tasks", asked)).status_code for _ in range(2)]

    assert statuses == [201, 200]


async def test_header_and_body_must_agree(rig):
    asked = {**BODY, "idempotency_key": "K"}

    differs = await rig.ask("POST", "/tasks", asked, Idempotency_Key="L")
    agrees = await rig.ask("POST", "/tasks", asked, Idempotency_Key='"K"')

    assert pointers(assert_problem(differs, 422)) == ["/idempotency_key"]
    assert agrees.status_code == 201


async def test_a_refused_request_does_not_use_the_key_up(rig):
    bad = await rig.ask("POST", "/tasks", {**BODY, "queue": "-"}, Idempotency_Key="K")
    good = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")

    assert [422, 201] == [bad.status_code, good.status_code]


async def test_fifty_identical_requests_at_once_make_one_task(rig):
    """idempotency-008"""
    answers = await asyncio.gather(
        *(rig.ask("POST", "/tasks", BODY, Idempotency_Key="K") for _ in range(50))
    )

    assert sorted(a.status_code for a in answers) == [200] * 49 + [201]
    assert len({a.json()["task_id"] for a in answers}) == 1
    assert (await rig.ask("GET", "/tasks/count")).json()["total"] == 1


# -- sizes and cost -------------------------------------------------------------------------------


def payload_of(encoded_bytes: int) -> str:
    """A string whose encoding has exactly so many bytes."""
    text = "x" * (encoded_bytes - 5)
    assert len(codec.encode(text, most=1 << 30)) == encoded_bytes
    return text


@pytest.mark.parametrize(("size", "status"), [(262_144, 201), (262_145, 413), (10 * 2**20, 413)])
async def test_payload_limit(rig, size, status):
    """payload-result-001"""
    answer = await rig.ask("POST", "/tasks", {**BODY, "payload": payload_of(size)})

    assert answer.status_code == status
    if status == 413:
        assert_problem(answer, 413)
    else:
        assert len((await rig.show(answer.json()["task_id"]))["payload"]) == size - 5


async def test_a_gigabyte_is_refused_by_its_header_alone(rig):
    """payload-result-001"""
    headers = {"Content-Type": "application/json", "Content-Length": str(2**30)}

    async def body():
        raise AssertionError("read")
        yield b""

    answer = await rig.http.request("POST", "/tasks", content=body(), headers=headers)

    assert_problem(answer, 413)


async def test_a_streamed_body_is_counted(rig):
    async def body():
        for _ in range(1_000):
            yield b" " * 64 * 1024

    answer = await rig.http.request(
        "POST", "/tasks", content=body(), headers={"Content-Type": "application/json"}
    )

    assert_problem(answer, 413)


async def test_concurrent_creates_share_script_calls(rig):
    await rig.make()  # the script is known now
    before = await rig.evalshas()

    answers = await asyncio.gather(*(rig.ask("POST", "/tasks", BODY) for _ in range(64)))

    assert {a.status_code for a in answers} == {201}
    assert len({a.json()["task_id"] for a in answers}) == 64
    assert await rig.evalshas() - before <= 8


# -- waiting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/tasks", {"Prefer": "respond-async, wait=20"}), ("/tasks?wait=20", {}), ("/tasks?wait=20s", {})],
)  # fmt: skip
async def test_a_create_may_wait_for_the_result(rig, path, headers):
    await rig.start()  # announces the worker
    asking = asyncio.create_task(rig.ask("POST", path, BODY, **headers))
    started = []
    while not started:
        started = await rig.start()
        await asyncio.sleep(0.01)
    await rig.finish(started)

    answer = await asking

    assert answer.status_code == 201
    assert answer.json()["status"] == "SUCCESS"
    assert answer.json()["result"] == {"ok": True}
    assert answer.json()["created"] is True
    assert "idempotency-replayed" not in answer.headers
    assert answer.headers.get("preference-applied") == ("wait=20" if headers else None)


async def test_a_wait_ends_with_the_task_as_it_stands(rig):
    answer = await rig.ask("POST", "/tasks?wait=0.05", {**BODY, "delay": "1h"})

    assert answer.status_code == 201
    assert answer.json()["status"] == "PENDING"
    shown = await rig.ask("GET", answer.headers["location"] + "?wait=50ms")
    assert shown.json()["status"] == "PENDING"


async def test_a_longer_wait_is_cut_to_a_minute(rig):
    await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")
    await rig.finish(await rig.start(), DONE)

    answer = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K", Prefer="wait=100000")

    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=60"
    assert answer.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("wait", ["-1", "x", "nan", "1e400", "60m5", ""])
async def test_a_wait_that_is_no_duration_is_refused(rig, wait):
    answer = await rig.ask("POST", f"/tasks?wait={wait}", BODY)

    assert assert_problem(answer, 422)["errors"][0]["parameter"] == "wait"


# -- durability -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["memory", "replicated", "fsync"])
async def test_durability_tells_what_was_reached(rig, level, monkeypatch):
    monkeypatch.setattr("tasksched.store.durability.WAIT_MS", 50)

    answer = await rig.ask("POST", "/tasks", BODY, Durability=level)

    assert answer.status_code == 201
    assert answer.json()["durability"] == "memory"  # no replica, no append-only file


async def test_durability_with_an_append_only_file(spawn):
    server: ServerProcess = spawn("valkey", "--appendonly", "yes", "--appendfsync", "always")
    rig, session = await open_rig(server.url)
    one = await rig.ask("POST", "/tasks", BODY, Durability="fsync")
    many = await rig.ask("POST", "/tasks/batch", [BODY] * 3, Durability="fsync")
    cancelled = await rig.ask("POST", f"{one.headers['location']}/cancel", Durability="fsync")
    await rig.http.aclose()
    await session.close()

    assert one.json()["durability"] == "fsync"
    assert {item["durability"] for item in many.json()["items"]} == {"fsync"}
    assert cancelled.json()["durability"] == "fsync"


async def test_an_unknown_durability_is_refused(rig):
    answer = await rig.ask("POST", "/tasks", BODY, Durability="disk")

    assert assert_problem(answer, 422)["errors"][0]["header"] == "Durability"


# -- batches --------------------------------------------------------------------------------------


async def test_a_batch_answers_each_item_in_order(rig):
    items = [BODY, {"target": CHARGE, "queue": "no good"}, 5, {**BODY, "idempotency_key": "K"}]

    answer = await rig.ask("POST", "/tasks/batch", [*items, {**BODY, "idempotency_key": "K"}])

    found = answer.json()["items"]
    assert answer.status_code == 200
    assert [item["status"] for item in found] == [201, 422, 422, 201, 200]
    assert found[1]["errors"][0]["pointer"] == "/queue"
    assert found[1]["code"] == "INVALID"
    assert found[3]["task_id"] == found[4]["task_id"]
    assert found[4]["created"] is False


@pytest.mark.parametrize("media", ["application/x-ndjson", "application/jsonl"])
async def test_a_batch_of_lines(rig, media):
    lines = b'{"target":{"type":"handler","name":"charge"}}\r\n\n{bad\n{"target":{"type":"handler","name":"a"}}'

    answer = await rig.ask("POST", "/tasks/batch", lines, Content_Type=media)

    assert [item["status"] for item in answer.json()["items"]] == [201, 400, 201]


async def test_a_batch_key_makes_a_key_for_each_item(rig):
    items = [BODY, {**BODY, "idempotency_key": "own"}, BODY]

    first = (await rig.ask("POST", "/tasks/batch", items, Idempotency_Key="K")).json()["items"]
    again = (await rig.ask("POST", "/tasks/batch", items, Idempotency_Key="K")).json()["items"]
    single = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K#2")
    own = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="own")

    assert [item["status"] for item in again] == [200, 200, 200]
    assert [i["task_id"] for i in first] == [i["task_id"] for i in again]
    assert single.json()["task_id"] == first[2]["task_id"]
    assert own.json()["task_id"] == first[1]["task_id"]


async def test_ten_thousand_items_and_not_one_more(rig):
    item = b'{"target":{"type":"handler","name":"charge"},"delay":60}'

    full = await rig.ask("POST", "/tasks/batch", b"[" + b",".join([item] * 10_000) + b"]")
    over = await rig.ask("POST", "/tasks/batch", b"[" + b",".join([item] * 10_001) + b"]")

    assert [i["status"] for i in full.json()["items"]] == [201] * 10_000
    assert_problem(over, 413)
    assert (await rig.ask("GET", "/tasks/count")).json()["total"] == 10_000


async def test_one_large_item_does_not_spoil_a_batch(rig):
    items = [BODY, {**BODY, "payload": "x" * 300_000}, BODY]

    answer = await rig.ask("POST", "/tasks/batch", items)

    assert [item["status"] for item in answer.json()["items"]] == [201, 413, 201]


async def test_an_empty_batch_is_no_work(rig):
    assert (await rig.ask("POST", "/tasks/batch", [])).json() == {"items": []}


async def test_two_processes_share_their_keys(rig, valkey_server):
    other = await open_session(rig.session.settings)
    first = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="K")
    found = await other.tasks.get("default", first.json()["task_id"])
    await other.close()

    assert found.id == first.json()["task_id"]


# -- traces ---------------------------------------------------------------------------------------

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-00"


async def test_a_task_keeps_the_trace_it_was_created_in(rig):
    made = await rig.ask("POST", "/tasks", BODY, traceparent=TRACE)
    task_id = made.json()["task_id"]
    edited = await rig.ask("PATCH", f"/tasks/{task_id}", {"tags": ["x"]})

    assert edited.status_code == 200, edited.text
    shown = await rig.show(task_id)
    assert (shown["traceparent"], shown["tags"]) == (TRACE, ["x"])


@pytest.mark.parametrize(("member", "kept"), [({"traceparent": OTHER}, OTHER), ({"traceparent": None}, None), ({}, TRACE)])  # fmt: skip
async def test_the_body_says_more_than_the_header(rig, member, kept):
    made = await rig.ask("POST", "/tasks/batch", [{"target": CHARGE, **member}], traceparent=TRACE)

    (item,) = made.json()["items"]
    assert (await rig.show(item["task_id"]))["traceparent"] == kept


async def test_a_trace_that_cannot_be_read_is_none_in_a_header_and_refused_in_a_body(rig):
    made = await rig.ask("POST", "/tasks", BODY, traceparent="00-nonsense")
    refused = await rig.ask("POST", "/tasks", {"target": CHARGE, "traceparent": "00-nonsense"})

    assert made.status_code == 201
    assert (await rig.show(made.json()["task_id"]))["traceparent"] is None
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/traceparent")


async def test_a_repeated_command_may_come_in_another_trace(rig):
    first = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="T", traceparent=TRACE)
    second = await rig.ask("POST", "/tasks", BODY, Idempotency_Key="T", traceparent=OTHER)

    assert [201, 200] == [first.status_code, second.status_code]
    assert second.json()["traceparent"] == TRACE
