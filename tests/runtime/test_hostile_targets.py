"""Targets that mean harm, against real sockets: where requests go, what is read, and what is told.

What one answer means is in ``test_http_target.py``, the pure rules are in
``tests/model/test_http_rules.py``.
"""

import asyncio
import gzip
import json
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from tests.cases.test_corpus import CASES
from tests.model.test_http_rules import BAD_URLS, CLOSED, ODD_ADDRESSES, WRAP
from tests.runtime.targets import LOOPBACK, Target, brief, caller

from tasksched.errors import Invalid
from tasksched.runtime.egress import Egress, TargetNotAllowedError

pytestmark = pytest.mark.anyio

REFUSED = ("FAILED", None, "target_not_allowed", "target_not_allowed")
RETRIED = ("FAILED", 30_000, "", "HttpConnection")
REBINDING = next(case for case in CASES if case["id"] == "webhook-target-001")


@pytest.fixture
async def target():
    async with Target() as each:
        yield each


@pytest.fixture
async def call():
    async with caller() as attempt:
        yield attempt


@pytest.fixture
def network(monkeypatch):
    """Watches names being asked for and addresses being connected to; nothing leaves the host."""
    return Network(monkeypatch)


class Network:
    """``rounds``: what a name resolves to, first, second, and so on."""

    def __init__(self, monkeypatch):
        self.rounds, self.asked, self.connected = [["93.184.216.34"]], [], []
        self._connect = asyncio.SelectorEventLoop.sock_connect
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)
        monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", self._watched())

    def _resolve(self, host, port, *_, **__):
        addresses = self.rounds[min(len(self.asked), len(self.rounds) - 1)]
        self.asked.append(host)
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM, 6, "", (address, port, 0, 0) if ":" in address else (address, port),
            )
            for address in addresses
        ]  # fmt: skip

    def _watched(self):
        async def sock_connect(loop, sock, address):
            self.connected.append(address[0])
            if not address[0].startswith("127."):
                raise ConnectionRefusedError
            await self._connect(loop, sock, address)

        return sock_connect


# -- 1, 2, 3, 6, 7: addresses and spellings -----------------------------------------------------------


@pytest.mark.parametrize("host", ODD_ADDRESSES)
async def test_an_odd_spelling_of_an_address_is_not_even_resolved(target, call, network, host):
    assert REFUSED == brief(await call(f"http://{host}:{target.port}/", allow=()))
    assert ([], [], 0) == (network.asked, network.connected, target.connections)


@pytest.mark.parametrize(
    "url", [*BAD_URLS, "http://a.com/\r\nX: y", "\thttp://a.com", "http://a.com/\0"]
)
async def test_a_url_that_can_be_read_in_two_ways_is_not_even_resolved(call, network, url):
    """User info, backslashes, controls, other schemes: also from a record nobody checked."""
    assert REFUSED == brief(await call(url))
    assert ([], []) == (network.asked, network.connected)


@pytest.mark.parametrize("address", CLOSED)
async def test_a_closed_address_is_reached_neither_literally_nor_by_a_name(call, network, address):
    network.rounds = [[address]]
    literal = f"[{address}]" if ":" in address else address

    assert REFUSED == brief(await call(f"http://{literal}/", allow=()))
    assert REFUSED == brief(await call("http://name.example/", allow=()))
    assert [] == network.connected


@pytest.mark.parametrize("wrapper", WRAP)
async def test_a_wrapped_address_is_not_reached(call, network, wrapper):
    """Also where the operator opened all of IPv6: what is inside stays closed."""
    wrapped = socket.inet_ntop(socket.AF_INET6, WRAP[wrapper](0xA9FE_A9FE).to_bytes(16, "big"))
    network.rounds = [[wrapped]]

    assert REFUSED == brief(await call(f"http://[{wrapped}]/", allow=("::/0",)))
    assert REFUSED == brief(await call("http://name.example/", allow=("::/0",)))
    assert [] == network.connected


@pytest.mark.parametrize("allow", [(), ("10.0.0.0/8", "name.example", "8.8.8.8")])
def test_what_an_operator_closes_stays_closed_whatever_is_allowed(allow):
    egress = Egress(allow, deny=("10.9.0.0/16", "8.8.8.0/24", "2a00::/16"))

    for address in ("10.9.1.1", "8.8.8.8", "2a00::1", "::ffff:10.9.1.1", "::ffff:8.8.8.8"):
        with pytest.raises(TargetNotAllowedError):
            egress.check("name.example", ["1.1.1.1", address])
    egress.check("name.example", ["1.1.1.1"])


@pytest.mark.parametrize("item", ["internal.example", "10.0.0.1/8", "", "x"])
def test_only_networks_can_be_closed(item):
    with pytest.raises(Invalid):
        Egress(deny=[item])


# -- 4: rebinding -------------------------------------------------------------------------------------


async def test_a_name_that_changes_between_check_and_connect_does_not_matter(target, call, network):
    """webhook-target-001: public when it is asked for, loopback a moment later."""
    first, second = REBINDING["input"]["dns"]
    network.rounds = [[first], [second]]
    url = f"http://name.example:{target.port}/"

    outcome = await call(url, allow=(first,))

    assert RETRIED == brief(outcome)  # nothing answers at the public address here
    assert ["name.example"] == network.asked
    assert [first] == network.connected
    assert REBINDING["expected"]["connected_to_loopback"] == (target.connections > 0)
    assert REFUSED == brief(await call(url, allow=(first,)))
    assert [first] == network.connected


async def test_the_peer_of_the_socket_is_the_checked_address(call, network):
    network.rounds = [["127.0.0.9"], ["127.0.0.1"]]
    peers = []

    async def serve(reader, writer):
        peers.append(writer.get_extra_info("sockname")[0])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    outcome = await call(f"http://name.example:{port}/", allow=("127.0.0.9",))
    server.close()

    assert ("SUCCEEDED", ["127.0.0.9"], ["name.example"]) == (outcome.kind, peers, network.asked)


@pytest.mark.parametrize(
    "addresses",
    [["93.184.216.34", "127.0.0.1"], ["127.0.0.1", "93.184.216.34"], ["93.184.216.34", "::1"],
     ["93.184.216.34"] * 20 + ["169.254.169.254"]],
)  # fmt: skip
async def test_one_bad_address_among_good_ones_refuses_the_name(call, network, addresses):
    network.rounds = [addresses]

    assert REFUSED == brief(await call("http://name.example/", allow=()))
    assert [] == network.connected


# -- 5, 8: redirects, proxies -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/meta-data/", "//127.0.0.1:{port}/", "http://127.0.0.1:{port}/",
     "file:///etc/passwd", "gopher://127.0.0.1:{port}/", "/elsewhere", "http://[::ffff:127.0.0.1]/"],
)  # fmt: skip
async def test_a_redirect_is_final_and_leads_nowhere(target, call, network, status, location):
    async with Target() as other:
        target.says(status, b"moved", Location=location.format(port=other.port))

        outcome = await call(target.url)

        assert ("FAILED", None, "not_retryable", "HttpStatus") == brief(outcome)
        assert (1, 0) == (len(target.requests), other.connections)
    assert ["127.0.0.1"] == network.connected
    assert b"" == outcome.result


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_proxies_of_the_environment_see_nothing(call, target, monkeypatch, scheme):
    async with Target() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy"):
            for spelling in (name, name.upper()):
                monkeypatch.setenv(spelling, f"http://user:pass@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        await call(f"{scheme}://127.0.0.1:{target.port}/", timeout_ms=500)

        assert (0, 1) == (proxy.connections, target.connections)


async def test_no_file_of_the_home_folder_gives_credentials(call, target, monkeypatch, tmp_path):
    for name in (".netrc", "_netrc"):
        (tmp_path / name).write_text("default login a password hunter2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    await call(target.url)

    assert "authorization" not in target.requests[0][0].lower()


# -- 9: headers ---------------------------------------------------------------------------------------

OURS = [
    "Host", "Content-Length", "Transfer-Encoding", "Connection", "TE", "Trailer", "Upgrade",
    "Expect", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Proxy-X", "webhook-id",
    "Webhook-Signature", "webhook-x", "tasksched-fence", "Tasksched-Callback-Token", "Idempotency-Key", "Accept-Encoding",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", [*OURS, *(name.upper() for name in OURS), "X Y", "X:", "", "X\r\nY"]
)
async def test_a_header_that_is_not_the_users_is_never_sent(target, call, name):
    assert REFUSED == brief(await call(target.url, headers=[(name, "x")]))
    assert 0 == target.connections


@pytest.mark.parametrize(
    "value", ["a\r\nEvil: 1", "a\nb", "a\rb", "a\0b", "a\x1b[2J", "\u0130", " a"]
)
async def test_a_value_that_could_end_its_line_is_never_sent(target, call, value):
    assert REFUSED == brief(await call(target.url, headers=[("X", value)]))
    assert 0 == target.connections


@pytest.mark.parametrize(
    "headers",
    [
        [(f"X-{n}", "") for n in range(65)],
        [("X", "x" * 8192)],
        [(f"X-{n}", "x" * 200) for n in range(64)],
    ],
)
async def test_too_many_headers_are_never_sent(target, call, headers):
    assert REFUSED == brief(await call(target.url, headers=headers))
    assert 0 == target.connections


async def test_the_headers_that_arrive_are_those_that_were_meant(target, call):
    meant = [
        (f"X-{n}!#$%&'*+.^_`|~", text) for n, text in enumerate(["", "a  b\tc", '",;:', "~" * 99])
    ]
    meant += [("Cookie", "a=b"), ("Authorization", "Bearer x"), ("X-Twice", "1"), ("X-Twice", "2")]

    await call(target.url, {}, headers=meant)

    lines = [line for line in target.requests[0][0].split("\r\n")[1:] if line]
    names = {name.lower() for name, _ in meant}
    sent = [tuple(re.split(r": ?", line, maxsplit=1)) for line in lines]
    assert meant == [pair for pair in sent if pair[0].lower() in names]
    assert {
        "host", "accept", "user-agent", "accept-encoding", "idempotency-key", "content-type", "content-length",
        "tasksched-task-id", "tasksched-attempt", "tasksched-fence", "tasksched-due",
    } == {pair[0].lower() for pair in sent} - names  # fmt: skip


# -- 10: answers --------------------------------------------------------------------------------------

TAKEN_MAX = 16 * 1024 * 1024  # what kernels and streams buffer on the way; the answers have no end


@pytest.mark.parametrize(
    ("answer", "endless", "meaning"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536, "SUCCEEDED"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b"x" * 65536, "SUCCEEDED"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n", "SUCCEEDED"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", gzip.compress(bytes(10**7)), "SUCCEEDED"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n", b"\xcf\xff\xff" * 20_000, "SUCCEEDED"),
        (b"HTTP/1.1 500 X\r\n\r\n", b"x" * 65536, "HttpStatus"),
        (b"HTTP/1.1 404 X\r\n\r\n", b"x" * 65536, "HttpStatus"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 4096, "HttpConnection"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65536, "HttpConnection"),
        (b"HTTP/1.1 200 ", b"O" * 65536, "HttpConnection"),
    ],
    ids=["until close", "10^12", "chunks", "gzip", "brotli", "500", "404", "headers", "one header", "reason"],
)  # fmt: skip
async def test_an_answer_without_end_is_left_soon(target, call, answer, endless, meaning):
    target.answer, target.endless = answer, endless

    outcome = await call(target.url, timeout_ms=20_000)

    assert meaning == (outcome.error.type if outcome.error else outcome.kind)
    assert target.sent < TAKEN_MAX
    assert len(outcome.result) <= 65_536


@pytest.mark.parametrize(
    ("answer", "endless"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"", b"HTTP/1.1 103 X\r\nA: b\r\n\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"e" * 65536),
    ],
    ids=["100", "103", "chunk extension"],
)
async def test_a_flood_of_which_nothing_is_kept_ends_with_the_deadline(
    target, call, answer, endless
):
    target.answer, target.endless = answer, endless

    assert ("TIMED_OUT", 30_000, "", "HttpTimeout") == brief(await call(target.url, timeout_ms=300))


@pytest.mark.parametrize(
    ("raw", "meaning"),
    [
        (b"", RETRIED),
        (b"HTTP/1.1 2", RETRIED),
        (b"HTTP/1.1 200 OK\r\nX: y", RETRIED),
        (b"SSH-2.0-OpenSSH_9.2\r\n", RETRIED),
        (b"\x15\x03\x01\x00\x02\x02\x28", RETRIED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", RETRIED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello", RETRIED),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal", "truncated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhal\r\n9\r\n", "truncated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhal\r\nzz\r\n", RETRIED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_reset", [False, True])
async def test_half_an_answer_and_garbage(call, raw, meaning, is_reset):
    """Success is by the status; a body that ends too soon, or in an error, is marked."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        if is_reset:
            await asyncio.sleep(0.05)  # for what was written to be read
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    outcome = await call(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    server.close()

    if meaning == "truncated":
        assert ("SUCCEEDED", True) == (outcome.kind, b"truncated" in outcome.result)
    elif meaning is None:
        assert ("FAILED", None, "not_retryable", "HttpStatus") == brief(outcome)
    else:
        assert meaning == brief(outcome)


# -- TLS ----------------------------------------------------------------------------------------------

AUTHORITY, STRANGER = trustme.CA(), trustme.CA()


@pytest.fixture
def trusting(monkeypatch):
    """The authority of these tests is trusted, as one of the system's would be."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)


@pytest.mark.parametrize(
    ("issuer", "name", "days", "text"),
    [
        (AUTHORITY, "name.example", (-1, 1), None),
        (AUTHORITY, "other.example", (-1, 1), "made out to another name"),
        (AUTHORITY, "127.0.0.1", (-1, 1), "made out to another name"),
        (AUTHORITY, "name.example", (-2, -1), "expired"),
        (AUTHORITY, "name.example", (1, 2), "not valid yet"),
        (STRANGER, "name.example", (-1, 1), "not trusted"),
    ],
)
@pytest.mark.usefixtures("trusting")
async def test_a_certificate_is_checked_against_the_name(network, issuer, name, days, text):
    network.rounds = [["127.0.0.1"]]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    begin, end = (datetime.now(UTC) + timedelta(days=each) for each in days)
    issuer.issue_cert(name, not_before=begin, not_after=end).configure_cert(context)

    async with Target(context) as target, caller() as call:
        outcome = await call(f"https://name.example:{target.port}/")

        if text is None:
            assert ("SUCCEEDED", 1) == (outcome.kind, len(target.requests))
        else:
            assert RETRIED == brief(outcome)
            assert f"the target's certificate is not valid: {text}" == outcome.error.message
            assert [] == target.requests


# -- 11: what is told -------------------------------------------------------------------------------


async def test_a_port_scan_learns_nothing(call, target):
    """Closed, open, with TLS or without, literal or by name: one and the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    urls = [
        f"{scheme}://{host}:{port}/"
        for scheme in ("http", "https")
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")
        for port in (target.port, closed, 1, 65535)
    ]
    outcomes = [await call(url, allow=()) for url in urls]

    assert 1 == len(set(map(repr, outcomes)))
    assert 0 == target.connections


CANARY = "canary7f3a"
ANSWERS = {
    "refused": b"HTTP/1.1 403 CANARY\r\nX-CANARY: CANARY\r\nContent-Length: 6\r\n\r\nCANARY",
    "busy": b"HTTP/1.1 503 CANARY\r\nRetry-After: CANARY\r\nDate: CANARY\r\nContent-Length: 6\r\n\r\nCANARY",
    "redirect": b"HTTP/1.1 302 X\r\nLocation: http://CANARY.example/CANARY\r\n\r\n",
    "garbage": b"CANARY CANARY\r\n\r\n",
    "bad header": b"HTTP/1.1 200 OK\r\nCANARY CANARY\x00: x\r\n\r\n",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: CANARY\r\n\r\n",
    "cookie": b"HTTP/1.1 400 X\r\nSet-Cookie: CANARY; expires=CANARY\r\nContent-Length: 0\r\n\r\n",
    "large": b"HTTP/1.1 200 OK\r\nX: " + b"CANARY" * 10_000 + b"\r\n\r\n",
    "silence": b"",
}


@pytest.mark.parametrize(
    "kind", [*ANSWERS, "closed port", "not allowed", "bad url", "bad header sent"]
)
async def test_errors_and_logs_repeat_nothing_of_the_exchange(call, target, caplog, capfd, kind):
    caplog.set_level("DEBUG")
    target.answer = ANSWERS.get(kind, b"").replace(b"CANARY", CANARY.encode())
    host = f"127.0.0.1:{target.port}"
    if kind == "closed port":
        with socket.create_server(("127.0.0.1", 0)) as server:
            host = f"127.0.0.1:{server.getsockname()[1]}"
    url = f"http://{host}/{CANARY}?token={CANARY}"
    outcome = await call(
        f"http://{CANARY}@{host}/" if kind == "bad url" else url,
        {"secret": CANARY},
        headers=[("Authorization", CANARY + ("\n" if kind == "bad header sent" else ""))],
        allow=() if kind == "not allowed" else LOOPBACK,
        timeout_ms=300,
    )

    told = json.dumps([outcome.error.type, outcome.error.message])
    assert outcome.kind in {"FAILED", "TIMED_OUT"}
    assert not re.search(rf"{CANARY}|127\.0|{host.partition(':')[2]}", told)
    output = capfd.readouterr()
    logged = "".join(repr(record.__dict__) for record in caplog.records) + output.out + output.err
    assert CANARY not in logged + outcome.error.traceback
