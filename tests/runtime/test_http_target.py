"""HTTP targets against a server that answers whatever bytes a test wants."""

import asyncio
import gzip
import json
import socket
import time

import pytest
from tests.runtime.kit import until
from tests.runtime.targets import LOOPBACK, Target, brief, caller, grant_to, resolving

from tasksched.errors import NotFound, Unavailable
from tasksched.model import codec
from tasksched.model.notify import Delivery
from tasksched.model.outcome import Outcome
from tasksched.model.signature import new_secret, verify
from tasksched.model.task import HttpTarget
from tasksched.runtime.egress import Egress
from tasksched.runtime.hosts import Hosts
from tasksched.runtime.http_target import Hooks, HttpTargets

pytestmark = pytest.mark.anyio


@pytest.fixture
async def target():
    async with Target() as each:
        yield each


@pytest.fixture
async def call():
    async with caller() as attempt:
        yield attempt


# -- requests ---------------------------------------------------------------------------------------


async def test_a_request_carries_the_payload_and_names_the_attempt(target, call):
    outcome = await call(
        target.url, {"a": [1, 2.5, "ü"]}, id="t123", attempt=3, headers=[("X-Mine", "yes")]
    )

    assert "SUCCEEDED" == outcome.kind
    (head, body) = target.requests[0]
    lines = head.split("\r\n")
    assert "POST /hook?x=1 HTTP/1.1" == lines[0]
    assert {"a": [1, 2.5, "ü"]} == json.loads(body)
    sent = dict(line.split(": ", 1) for line in lines[1:] if line)
    assert {
        "Tasksched-Task-Id": "t123",
        "Tasksched-Attempt": "3",
        "Tasksched-Fence": "451584000000000",
        "Tasksched-Due": "2025-11-24T16:00:00.000Z",
        "Idempotency-Key": '"t123"',
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "X-Mine": "yes",
        "Host": f"127.0.0.1:{target.port}",
    }.items() <= sent.items()
    assert sent["User-Agent"].startswith("tasksched/")


@pytest.mark.parametrize("trace", [None, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"])
async def test_a_request_is_in_the_trace_of_its_task(target, call, trace):
    await call(target.url, traceparent=trace)

    lines = [line for line in target.requests[0][0].split("\r\n") if "traceparent" in line]
    assert lines == ([] if trace is None else [f"traceparent: {trace}"])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_some_methods_have_no_body(target, call, method):
    await call(target.url, {"a": 1}, method=method)

    head, body = target.requests[0]
    assert head.startswith(f"{method} /hook?x=1 ")
    assert b"" == body
    assert "content-type" not in head.lower()


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_the_others_have_one(target, call, method):
    await call(target.url, [1], method=method)

    assert b"[1]" == target.requests[0][1]


async def test_without_a_payload_no_body_is_sent(target, call):
    await call(target.url)

    assert b"" == target.requests[0][1]


@pytest.mark.parametrize("name", ["User-Agent", "Content-Type", "user-agent"])
async def test_our_own_headers_win(target, call, name):
    await call(target.url, 1, headers=[(name, "mine")])

    assert ": mine" not in target.requests[0][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": [("Host", "evil")]},
        {"headers": [("X", "a\r\nEvil: 1")]},
        {"headers": [("Tasksched-Fence", "1")]},
        {"method": "CONNECT"},
        {"method": "GET /evil HTTP/1.1\r\nX: "},
    ],
)
async def test_a_record_from_elsewhere_is_checked_again(target, call, changes):
    outcome = await call(target.url, **changes)

    assert ("FAILED", None, "target_not_allowed", "target_not_allowed") == brief(outcome)
    assert [] == target.requests


async def test_a_payload_that_cannot_be_read_is_final(target, call):
    assert "payload_not_readable" == (await call(target.url, b"\xff\xfe")).reason


async def test_the_environment_and_netrc_are_not_looked_up(target, call, monkeypatch, tmp_path):
    async with Target() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password hunter2\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        await call(target.url)

        assert 0 == proxy.connections
        assert "authorization" not in target.requests[0][0].lower()


# -- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "kept"),
    [
        (b'{"ok": [1, 2.5]}', "application/json", {"ok": [1, 2.5]}),
        (b"[]", "application/problem+json; charset=utf-8", []),
        (b'{"ok": 1', "application/json", '{"ok": 1'),
        (b'"\\ud800"', "application/json", '"\\ud800"'),
        (b"1e999", "application/json", "1e999"),
        (b"[" * 5000, "application/json", "[" * 5000),
        (b"plain \xff", "text/plain", "plain \ufffd"),
        (b"", "application/json", None),
        (b"{}", "text/html", "{}"),
    ],
)
async def test_the_result_is_the_status_and_the_body(target, call, body, content_type, kept):
    target.says(201, body, Content_Type=content_type)

    outcome = await call(target.url)

    assert {"status": 201, "body": kept} == codec.decode(outcome.result)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
async def test_2xx_is_success(target, call, status):
    target.says(status)

    assert "SUCCEEDED" == (await call(target.url)).kind


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_some_statuses_are_retried(target, call, status):
    target.says(status, b"secret")

    outcome = await call(target.url)

    assert ("FAILED", 30_000, "", "HttpStatus") == brief(outcome)
    assert f"the target answered {status}" == outcome.error.message


@pytest.mark.parametrize(
    "status", [300, 301, 302, 303, 304, 307, 308, 400, 401, 404, 409, 410, 422, 501]
)
async def test_the_others_are_final(target, call, status):
    """webhook-target-003: a redirect is an answer, and not followed."""
    target.says(status, b"", Location=f"http://127.0.0.1:{target.port}/elsewhere")

    assert ("FAILED", None, "not_retryable", "HttpStatus") == brief(await call(target.url))
    assert 1 == len(target.requests)


async def test_the_last_attempt_at_a_failing_target_ends_it(target, call):
    target.says(500)

    assert "attempts_exhausted" == (await call(target.url, attempt=5)).reason


@pytest.mark.parametrize(
    ("status", "headers", "retry_ms"),
    [
        (429, {"Retry-After": "120"}, 120_000),
        (503, {"Retry-After": "5"}, 30_000),
        (
            429,
            {
                "Retry-After": "Mon, 02 Mar 2026 10:02:00 GMT",
                "Date": "Mon, 02 Mar 2026 10:00:00 GMT",
            },
            120_000,
        ),
        (429, {"Retry-After": "soon"}, 30_000),
        (429, {"Retry-After": "-1"}, 30_000),
        (429, {"Retry-After": "864000"}, 3_600_000),
        (500, {"Retry-After": "9" * 500}, 3_600_000),
        (404, {"Retry-After": "5"}, None),
    ],
)
async def test_retry_after_is_the_larger_wait_and_capped(target, call, status, headers, retry_ms):
    """webhook-target-002"""
    target.says(status, b"", **{name.replace("-", "_"): value for name, value in headers.items()})

    assert retry_ms == (await call(target.url)).retry_ms


# -- bounds -----------------------------------------------------------------------------------------


async def test_a_huge_body_is_cut_and_not_waited_for(target, call):
    target.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"
    target.endless = b"x" * 65536

    result = codec.decode((await call(target.url, timeout_ms=10_000)).result)

    assert result["truncated"]
    assert 60_000 < len(result["body"]) <= 65_536


async def test_bytes_that_grow_as_text_stay_within_the_result(target, call):
    target.says(200, b"\xff" * 60_000)

    outcome = await call(target.url)

    assert "SUCCEEDED" == outcome.kind
    assert len(outcome.result) <= codec.RESULT_MAX


async def test_json_that_grows_as_msgpack_is_kept_as_text(target, call):
    target.says(200, b"[" + b"1.5," * 15_000 + b"0]", Content_Type="application/json")

    outcome = await call(target.url)

    assert "SUCCEEDED" == outcome.kind
    assert codec.decode(outcome.result)["body"].startswith("[1.5,")


async def test_a_body_cut_short_is_a_success_all_the_same(target, call):
    target.answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf"

    async def closing(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(target.answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    result = codec.decode((await call(f"http://127.0.0.1:{port}/")).result)
    server.close()

    assert {"status": 200, "body": "half", "truncated": True} == result


async def test_nothing_is_decompressed(target, call):
    target.says(
        200, gzip.compress(b"0" * 10_000_000), Content_Encoding="gzip", Content_Type="text/plain"
    )

    assert {"status": 200, "body": None} == codec.decode((await call(target.url)).result)


@pytest.mark.parametrize(
    ("answer", "endless", "every_s"),
    [
        (b"", b"", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", 0.05),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.05),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.05),
    ],
    ids=["silence", "drip", "headers without end", "1xx without end", "chunks without end"],
)
async def test_the_deadline_is_for_the_whole_exchange(target, call, answer, endless, every_s):
    """webhook-target-005"""
    target.answer, target.endless, target.every_s = answer, endless, every_s

    started = time.monotonic()
    outcome = await call(target.url, timeout_ms=400)

    assert ("TIMED_OUT", 30_000, "", "HttpTimeout") == brief(outcome)
    assert 0.35 < time.monotonic() - started < 2


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["no http", "huge header", "many headers", "negative length"],
)
async def test_an_answer_that_is_not_http_is_retried(target, call, answer):
    target.answer = answer

    assert ("FAILED", 30_000, "", "HttpConnection") == brief(await call(target.url))


async def test_a_closed_port_is_retried_and_its_address_not_told(call):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    outcome = await call(f"http://127.0.0.1:{port}/")

    assert ("FAILED", 30_000, "", "HttpConnection") == brief(outcome)
    assert str(port) not in outcome.error.message
    assert "127.0" not in outcome.error.message
    assert "" == outcome.error.traceback


async def test_a_target_without_tls_is_retried(call):
    async def plain(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    outcome = await call(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    server.close()

    assert ("FAILED", 30_000, "", "HttpConnection") == brief(outcome)


# -- addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "[::ffff:127.0.0.1]", "0.0.0.0", "[64:ff9b::7f00:1]",
     "2130706433", "127.1"],
)  # fmt: skip
async def test_a_refused_address_ends_the_task_and_is_not_told(target, call, host):
    outcome = await call(f"http://{host}:{target.port}/", allow=())

    assert ("FAILED", None, "target_not_allowed", "target_not_allowed") == brief(outcome)
    assert 0 == target.connections
    assert "127" not in outcome.error.message


async def test_a_name_is_resolved_once_and_the_checked_address_connected_to(
    target, call, monkeypatch
):
    asked = await resolving(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])

    outcome = await call(f"http://name.example:{target.port}/")

    assert "SUCCEEDED" == outcome.kind
    assert ["name.example"] == asked
    assert f"Host: name.example:{target.port}" in target.requests[0][0]


@pytest.mark.parametrize("host", ["NAME.Example", "Name.EXAMPLE."])
async def test_a_host_may_have_capitals(target, call, monkeypatch, host):
    await resolving(monkeypatch, ["127.0.0.1"])

    assert "SUCCEEDED" == (await call(f"http://{host}:{target.port}/")).kind


async def test_a_name_with_one_bad_address_is_refused(target, call, monkeypatch):
    await resolving(monkeypatch, ["93.184.216.34", "127.0.0.1"])

    outcome = await call(f"http://name.example:{target.port}/", allow=())

    assert "target_not_allowed" == outcome.reason
    assert 0 == target.connections


async def test_a_name_that_turns_bad_later_is_refused_then(target, call, monkeypatch):
    await resolving(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])

    assert "SUCCEEDED" == (await call(f"http://name.example:{target.port}/")).kind
    assert "target_not_allowed" == (await call(f"http://name.example:{target.port}/")).reason


async def test_a_name_that_does_not_resolve_is_retried(call, monkeypatch):
    async def getaddrinfo(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    outcome = await call("http://nowhere.example/")

    assert ("FAILED", 30_000, "", "HttpConnection") == brief(outcome)
    assert "could not be resolved" in outcome.error.message


async def test_a_cancelled_request_closes_its_connection(target):
    target.answer = b""
    http = HttpTargets(Egress(LOOPBACK))
    asking = asyncio.create_task(http(grant_to(HttpTarget(target.url))))
    await until(lambda: target.requests != [])
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await http.close()


# -- signatures -------------------------------------------------------------------------------------

MESSAGE = Delivery(message="msg_1", event="task.failed", endpoint="e1")


@pytest.fixture
async def asked():
    """``await asked(grant, **collaborators)``: what one call says, without an executor."""
    opened = []

    async def ask(grant, *, hosts=None, **hooks):
        http = HttpTargets(Egress(LOOPBACK), hosts=hosts, hooks=Hooks(**hooks))
        opened.append(http)
        return await http(grant)

    yield ask
    for http in opened:
        await http.close()


def giving(*secrets):
    async def read(_grant):
        return secrets

    return read


def headers_of(request):
    return dict(line.split(": ", 1) for line in request[0].split("\r\n")[1:] if line)


@pytest.mark.parametrize(
    ("method", "payload"),
    [("POST", {"a": "ü"}), ("POST", ...), ("PUT", [1]), ("GET", {"a": 1}), ("DELETE", ...)],
)
@pytest.mark.parametrize("count", [1, 2])
async def test_the_bytes_sent_are_signed_with_every_secret(target, asked, method, payload, count):
    secrets = [new_secret() for _ in range(count)]
    request = HttpTarget(target.url, method)

    await asked(grant_to(request, payload, id="t123"), secrets=giving(*secrets))

    sent, body = headers_of(target.requests[0]), target.requests[0][1]
    assert ("t123", "1764000000") == (sent["webhook-id"], sent["webhook-timestamp"])
    for secret in secrets:
        verify([secret], sent, body, now_s=1_764_000_000)


async def test_what_is_signed_is_not_changed_by_a_content_encoding(target, asked):
    secret, request = new_secret(), HttpTarget(target.url, "POST", (("Content-Encoding", "gzip"),))

    await asked(grant_to(request, {"a": 1}), secrets=giving(secret))

    assert b'{"a":1}' == target.requests[0][1]
    verify([secret], headers_of(target.requests[0]), b'{"a":1}', now_s=1_764_000_000)


async def test_a_delivery_has_the_id_of_its_message_in_every_attempt(target, asked):
    for attempt in (1, 2):
        grant = grant_to(HttpTarget(target.url), {}, delivery=MESSAGE, attempt=attempt)
        await asked(grant, secrets=giving(new_secret()))

    assert ["msg_1", "msg_1"] == [headers_of(each)["webhook-id"] for each in target.requests]


async def test_without_secrets_nothing_is_signed(target, asked):
    await asked(grant_to(HttpTarget(target.url)))

    assert "webhook-" not in target.requests[0][0].lower()


async def test_nothing_is_sent_while_the_secrets_cannot_be_read(target, asked):
    async def away(_grant):
        raise Unavailable("redis is away")

    outcome = await asked(grant_to(HttpTarget(target.url)), secrets=away)

    assert ("RELEASED", "secrets_unavailable") == (outcome.kind, outcome.reason)
    assert 500 <= outcome.retry_ms <= 1500
    assert [] == target.requests


async def test_a_secret_that_is_none_is_final_and_not_repeated(target, asked):
    failure = await asked(grant_to(HttpTarget(target.url)), secrets=giving("hunter2"))

    assert (False, "not_retryable") == (failure.retryable, failure.reason)
    assert "hunter2" not in repr(failure)
    assert [] == target.requests


# -- callbacks and receivers that are gone ----------------------------------------------------------


def token_of(grant):
    return f"token of {grant.fence}"


async def test_202_of_an_asynchronous_target_defers_the_verdict(target, asked):
    target.says(202, b"later")

    outcome = await asked(grant_to(HttpTarget(target.url, is_async=True)), token=token_of)

    assert Outcome(kind="DEFERRED", lease_ms=300_000) == outcome
    sent = headers_of(target.requests[0])
    assert "token of 451584000000000" == sent["Tasksched-Callback-Token"]


@pytest.mark.parametrize("status", [200, 201, 204])
async def test_another_2xx_of_an_asynchronous_target_is_the_verdict(target, asked, status):
    target.says(status)

    answer = await asked(grant_to(HttpTarget(target.url, is_async=True)), token=token_of)

    assert {"status": status, "body": None} == codec.decode(answer)


async def test_a_failure_of_an_asynchronous_target_is_one(target, asked):
    target.says(500)

    answer = await asked(grant_to(HttpTarget(target.url, is_async=True)), token=token_of)

    assert ("HttpStatus", True) == (answer.error.type, answer.retryable)


async def test_other_targets_get_no_token_and_202_is_success(target, asked):
    target.says(202)

    answer = await asked(grant_to(HttpTarget(target.url)), token=token_of)

    assert {"status": 202, "body": None} == codec.decode(answer)
    assert "callback" not in target.requests[0][0].lower()


@pytest.mark.parametrize(
    ("status", "delivery", "told"),
    [
        (410, MESSAGE, ["e1"]),
        (410, Delivery(message="msg_1", event="task.failed", secret="s"), []),
        (410, None, []),
        (404, MESSAGE, []),
        (500, MESSAGE, []),
        (200, MESSAGE, []),
    ],
)
async def test_410_tells_that_the_endpoint_is_gone(target, asked, status, delivery, told):
    target.says(status)
    gone = []

    async def note(grant):
        gone.append(grant.options.delivery.endpoint)

    answer = await asked(grant_to(HttpTarget(target.url), delivery=delivery), gone=note)

    assert told == gone
    if status == 410:
        assert (False, "not_retryable") == (answer.retryable, answer.reason)


@pytest.mark.parametrize("error", [Unavailable("away"), NotFound("deleted meanwhile")])
async def test_410_is_final_also_if_nobody_can_be_told(target, asked, error):
    target.says(410)

    async def failing(_grant):
        raise error

    answer = await asked(grant_to(HttpTarget(target.url), delivery=MESSAGE), gone=failing)

    assert (False, "not_retryable") == (answer.retryable, answer.reason)


# -- hosts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "is_open"),
    [
        (500, True),
        (503, True),
        (429, False),
        (408, False),
        (404, False),
        (302, False),
        (200, False),
    ],
)
async def test_5xx_in_a_row_open_the_circuit_and_other_answers_do_not(
    target, asked, status, is_open
):
    target.says(status)
    hosts = Hosts(failures=2)
    for _ in range(2):
        await asked(grant_to(HttpTarget(target.url)), hosts=hosts)

    answer = await asked(grant_to(HttpTarget(target.url)), hosts=hosts)

    assert is_open == (isinstance(answer, Outcome) and answer.reason == "circuit_open")
    assert (2 if is_open else 3) == len(target.requests)


async def test_failed_connections_open_the_circuit(asked):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    hosts = Hosts(failures=2)
    answers = [await asked(grant_to(HttpTarget(url)), hosts=hosts) for _ in range(3)]

    assert ["HttpConnection", "HttpConnection"] == [each.error.type for each in answers[:2]]
    assert "circuit_open" == answers[2].reason


async def test_a_refused_address_says_nothing_about_its_host(asked, monkeypatch):
    await resolving(monkeypatch, ["10.0.0.1"])
    hosts = Hosts(failures=1)
    for url in ("http://169.254.169.254/", "http://name.example/"):
        await asked(grant_to(HttpTarget(url)), hosts=hosts)

    assert 0 == hosts.known


@pytest.mark.parametrize(("why", "is_open"), [("timeout", True), (None, False), ("cancel", False)])
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
async def test_of_cancelled_requests_only_those_out_of_time_count(
    target, asked, why, is_open, answer
):
    target.answer = answer
    hosts = Hosts(failures=1)
    asking = asyncio.create_task(asked(grant_to(HttpTarget(target.url)), hosts=hosts))
    await until(lambda: target.requests != [])
    asking.cancel(why)
    with pytest.raises(asyncio.CancelledError):
        await asking

    target.says(200)
    answer = await asked(grant_to(HttpTarget(target.url)), hosts=hosts)

    assert is_open == (isinstance(answer, Outcome) and answer.reason == "circuit_open")


async def test_tenants_share_the_places_of_a_host(target, asked):
    """One of them holds the only place: the other is handed back, and not counted."""
    target.answer = b""
    hosts = Hosts(concurrency=1)
    holder = grant_to(HttpTarget(target.url), lane="default:normal:acme:http")
    holding = asyncio.create_task(asked(holder, hosts=hosts))
    await until(lambda: target.requests != [])
    other = grant_to(HttpTarget(target.url + "&y=2"), lane="default:normal:umbrella:http")

    outcome = await asked(other, hosts=hosts)

    assert ("RELEASED", "host_busy") == (outcome.kind, outcome.reason)
    assert 500 <= outcome.retry_ms <= 1500
    assert 1 == target.connections
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    target.says(200)
    assert isinstance(await asked(other, hosts=hosts), bytes)
    assert 0 == hosts.known
