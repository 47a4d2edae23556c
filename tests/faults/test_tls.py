"""TLS to Redis: who is trusted, who is refused, and what is told. Certificates are made here."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from tests.servers import NAMES, ServerProcess

from tasksched.commands.session import open_session, tls_of
from tasksched.errors import Invalid, Unavailable
from tasksched.model.outcome import Outcome
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.settings import Settings
from tasksched.store.address import Tls, masked, remarks, sync_client
from tasksched.store.beats import SyncBeats
from tasksched.store.checks import check_server
from tasksched.store.connect import Gateway
from tasksched.store.protocol import Store

pytestmark = pytest.mark.anyio

PASSWORD = "s3cret"
WRONG = "wr0ng-one"


class Paths(NamedTuple):
    ca: str
    other_ca: str
    certificate: str
    key: str


class Certified(NamedTuple):
    ca: trustme.CA
    place: Path
    host: str


class Secured(NamedTuple):
    """Servers with TLS on loopback: for ``localhost``, for another name, and for known clients."""

    port: int
    named_port: int
    known_port: int
    paths: Paths

    def url(self, port: int = 0, password: str = PASSWORD) -> str:
        return f"rediss://:{password}@localhost:{port or self.port}/0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_paths(place: Path) -> tuple[trustme.CA, Paths]:
    ca, other = trustme.CA(), trustme.CA()
    client = ca.issue_cert("client@example.org")
    ca.cert_pem.write_to_path(place / "ca.pem")
    other.cert_pem.write_to_path(place / "other.pem")
    client.cert_chain_pems[0].write_to_path(place / "client.pem")
    client.private_key_pem.write_to_path(place / "client.key")
    names = ("ca.pem", "other.pem", "client.pem", "client.key")
    return ca, Paths(*(str(place / name) for name in names))


def start(spawn: Callable[..., ServerProcess], name: str, certified: Certified, asks: str) -> int:
    """A server whose certificate is for that host; skipped where it was built without TLS."""
    ca, place, host = certified
    port = free_port()
    made = ca.issue_cert(host)
    made.cert_chain_pems[0].write_to_path(place / f"{host}.pem")
    made.private_key_pem.write_to_path(place / f"{host}.key")
    try:
        server = spawn(
            name, "--tls-port", str(port), "--tls-cert-file", str(place / f"{host}.pem"),
            "--tls-key-file", str(place / f"{host}.key"), "--tls-ca-cert-file",
            str(place / "ca.pem"), "--tls-auth-clients", asks,
        )  # fmt: skip
    except RuntimeError as error:
        if "Failed finding TLS support" not in str(error):
            raise
        pytest.skip(f"{name} was built without TLS")
    with sync_client(server.url, Tls(), {}) as plain:
        plain.config_set("requirepass", PASSWORD)
    return port


@pytest.fixture(params=NAMES)
def secured(
    request: pytest.FixtureRequest, spawn: Callable[..., ServerProcess], tmp_path: Path
) -> Secured:
    ca, paths = write_paths(tmp_path)
    ports = [
        start(spawn, request.param, Certified(ca, tmp_path, host), asks)
        for host, asks in (("localhost", "no"), ("redis.example.org", "no"), ("localhost", "yes"))
    ]
    return Secured(*ports, paths)


async def story(settings: Settings) -> None:
    """A task through all its states, and a beat from the blocking client."""
    session = await open_session(settings)
    beats = SyncBeats(settings.url, session.store, tls_of(settings))
    try:
        made = await session.tasks.submit(TaskSpec(target=HandlerTarget("work")))
        await session.store.announce(0, "w", 60_000, ("queue:*", "route:work"))
        await session.store.dispatch(0)
        _, _, (grant,) = await session.store.take(0, "w", call=1, slots=1, lease_ms=30_000)
        assert grant.id == made.id
        waiting = asyncio.create_task(session.tasks.wait("default", made.id, 10_000))
        await asyncio.to_thread(beats.present, "w", {"host": "h"}, now_ms=0, ttl_ms=60_000)
        await session.store.settle(0, [(grant.id, grant.fence, Outcome(kind="SUCCEEDED"))])
        assert (await waiting).status == "SUCCESS"
        assert [f for f in await check_server(session.gateway) if f.name == "transport"] == []
    finally:
        beats.close()
        await session.close()


async def refusal(url: str, tls: Tls) -> str:
    """What is said where neither client gets through; it names no password."""
    gateway = Gateway.open(url, tls=tls)
    with pytest.raises(Unavailable) as refused:
        await gateway.command("PING")
    await gateway.close()
    beats = SyncBeats(url, Store(gateway, "ts", 1), tls)
    with pytest.raises(Unavailable) as also_refused:
        beats.absent("w")
    beats.close()
    for said in (refused.value, also_refused.value):
        assert PASSWORD not in repr(said)
        assert WRONG not in repr(said)
    return f"{refused.value} / {also_refused.value}"


async def test_the_right_ca_is_trusted(secured: Secured):
    await story(Settings(url=secured.url(), shards=1, redis_ca=secured.paths.ca))


async def test_without_its_ca_a_server_is_refused(secured: Secured):
    assert "certificate verify failed" in await refusal(secured.url(), Tls())


async def test_another_ca_is_refused(secured: Secured):
    told = await refusal(secured.url(), Tls(secured.paths.other_ca))
    assert told.count("certificate verify failed") == 2


async def test_a_certificate_for_another_host_is_refused(secured: Secured):
    told = await refusal(secured.url(secured.named_port), Tls(secured.paths.ca))
    assert told.lower().count("hostname mismatch") == 2


async def test_the_url_may_switch_the_host_name_check_off_and_that_is_told(secured: Secured):
    url = secured.url(secured.named_port) + "?ssl_check_hostname=false"
    gateway = Gateway.open(url, tls=Tls(secured.paths.ca))
    found = {finding.text: finding.level for finding in await check_server(gateway)}
    await gateway.close()
    assert found["the host name of Redis is not checked (ssl_check_hostname in the URL)"] == "warn"


async def test_a_server_that_asks_for_clients_certificates_gets_ours(secured: Secured):
    paths, url = secured.paths, secured.url(secured.known_port)
    files = {"redis_ca": paths.ca, "redis_cert": paths.certificate, "redis_key": paths.key}
    await story(Settings(url=url, shards=1, **files))
    await refusal(url, Tls(paths.ca))


async def test_a_wrong_password_is_refused_and_not_repeated_in_the_error(secured: Secured):
    told = await refusal(secured.url(password=WRONG), Tls(secured.paths.ca))
    assert told.count("password") == 2


async def test_plain_text_to_a_port_with_tls_fails(secured: Secured):
    await refusal(secured.url().replace("rediss://", "redis://"), Tls())


# -- without a server -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tls", "names"),
    [
        (Tls("/nowhere/ca.pem"), "/redis_ca"),
        (Tls("", "/nowhere/cert.pem"), "/redis_cert"),
        (Tls("", "", "/nowhere/key.pem"), "/redis_cert"),
    ],
)
def test_files_that_cannot_be_read_are_wrong_settings_and_no_outage(tls: Tls, names: str):
    with pytest.raises(Invalid) as refused:
        Gateway.open("rediss://localhost", tls=tls)
    assert [problem.pointer for problem in refused.value.problems] == [names]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://localhost/0", ""), ("redis://127.0.0.1", ""), ("redis://[::1]:6379", ""),
        ("unix:///run/redis.sock", ""), ("rediss://db.example.org", ""),
        ("redis://u:p@db.example.org:6379/0", "Redis at db.example.org is not encrypted"),
        ("redis://10.0.0.7", "Redis at 10.0.0.7 is not encrypted"),
        ("redis+sentinel://u:p@localhost,s2:1/m", "Redis at s2 is not encrypted"),
        ("rediss+sentinel://s1,s2/m", ""),
        ("rediss://db?ssl_cert_reqs=none", "certificate of Redis is not checked"),
    ],
)  # fmt: skip
def test_what_is_told_of_the_way_to_redis(url: str, told: str):
    found = "; ".join(remarks(url))
    assert (told in found) is True
    assert (found == "") is (told == "")
    assert "p@" not in found
    assert ":p@" not in masked(url)


def test_sentinel_gets_the_same_certificates_and_a_login_of_its_own(tmp_path: Path):
    _, paths = write_paths(tmp_path)
    url = "rediss+sentinel://u:p%40@s1,[::1]:7/main?db=3&sentinel_username=w&sentinel_password=q"
    client = sync_client(url, Tls(paths.ca, paths.certificate, paths.key), {"socket_timeout": 5.0})
    pool = client.connection_pool
    files = {
        "ssl_ca_certs": paths.ca, "ssl_certfile": paths.certificate, "ssl_keyfile": paths.key,
        "ssl_cert_reqs": "required", "ssl_check_hostname": True,
    }  # fmt: skip
    assert pool.service_name == "main"
    assert "SSL" in pool.connection_class.__name__
    wanted = {**files, "username": "u", "password": "p@", "db": 3}
    assert {name: pool.connection_kwargs.get(name) for name in wanted} == wanted
    sentinels = pool.sentinel_manager.sentinels
    found = [each.connection_pool.connection_kwargs for each in sentinels]
    assert [(each["host"], each["port"]) for each in found] == [("s1", 26379), ("::1", 7)]
    wanted = {**files, "username": "w", "password": "q", "socket_timeout": 5.0}
    for each in found:
        assert {name: each.get(name) for name in wanted} == wanted
    client.close()


async def test_the_asyncio_client_of_sentinel_is_encrypted_too(tmp_path: Path):
    _, paths = write_paths(tmp_path)
    gateway = Gateway.open("rediss+sentinel://u:p@s1/main", tls=Tls(paths.ca))
    pool = gateway.redis.connection_pool
    assert pool.connection_kwargs["ssl_ca_certs"] == paths.ca
    assert pool.sentinel_manager.sentinel_kwargs["ssl"] is True
    assert "password" not in pool.sentinel_manager.sentinel_kwargs
    await gateway.close()


@pytest.mark.parametrize(
    "url", ["redis+sentinel:///m", "redis://h:port", "redis+sentinel://h/m?db=x"]
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str):
    with pytest.raises(Invalid) as refused:
        Gateway.open(url.replace("//h", "//u:s3cret@h"))
    assert PASSWORD not in str(refused.value)
