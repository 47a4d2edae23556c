"""Address: a Redis URL made into a client, asyncio or blocking, alone or behind Sentinel, with TLS.

``rediss://`` and ``rediss+sentinel://`` are encrypted; certificates and host names are checked unless
a ``rediss://`` URL itself says otherwise (``?ssl_check_hostname=false``), which ``remarks`` tells. User and
password in a URL of Sentinel are those of the server; ``?sentinel_username=`` and
``?sentinel_password=`` are for the sentinels. Invariant: no text made here holds a password.
"""

import ipaddress
import re
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio as redis_asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from tasksched.errors import Invalid

SENTINEL: Final = ("redis+sentinel://", "rediss+sentinel://")
SENTINEL_PORT: Final = 26379
SERVICE: Final = "mymaster"
_SECURE: Final = ("rediss://", "rediss+sentinel://")
_PASSWORD = re.compile(r"([?&][^=&]*password[^=&]*=)[^&]*", re.IGNORECASE)
_NO: Final = frozenset({"0", "f", "false", "n", "no"})


class Tls(NamedTuple):
    """Paths of PEM files, empty where there is none: the CA, our certificate, its key."""

    ca: str = ""
    certificate: str = ""
    key: str = ""


NO_TLS: Final = Tls()


class _Sentinels(NamedTuple):
    hosts: list[tuple[str, int]]
    service: str
    server: dict[str, Any]
    sentinel: dict[str, Any]


def async_client(url: str, tls: Tls, options: dict[str, Any]) -> Any:
    """An asyncio client of the library. Raises Invalid for a URL or files it cannot use."""
    return _client(url, tls, options, redis_asyncio.Redis.from_url, AsyncSentinel)


def sync_client(url: str, tls: Tls, options: dict[str, Any]) -> Any:
    """As ``async_client``, but blocking."""
    return _client(url, tls, options, redis.Redis.from_url, Sentinel)


def remarks(url: str) -> list[str]:
    """What an operator should know about the way to Redis; empty where nothing is wrong."""
    if url.startswith("unix://"):
        return []
    query = dict(parse_qsl(urlsplit(url).query))
    if url.startswith(_SECURE):
        said = []
        if query.get("ssl_cert_reqs", "required") != "required":
            said.append("the certificate of Redis is not checked (ssl_cert_reqs in the URL)")
        if query.get("ssl_check_hostname", "true").lower() in _NO:
            said.append("the host name of Redis is not checked (ssl_check_hostname in the URL)")
        return said
    if url.startswith(SENTINEL):
        hosts = [host for host, _ in _sentinels(url).hosts]
    else:
        hosts = [urlsplit(url).hostname or "localhost"]
    far = sorted({host for host in hosts if not is_loopback(host)})
    if not far:
        return []
    return [f"what is said to Redis at {', '.join(far)} is not encrypted; use rediss://"]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def masked(url: str) -> str:
    """The URL without its passwords."""
    scheme, mark, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = f"{scheme}{mark}{user}{':***' if colon else ''}{at}{place}"
    return _PASSWORD.sub(r"\1***", shown)


def _client(
    url: str, tls: Tls, options: dict[str, Any], from_url: Callable[..., Any], sentinel: Any
) -> Any:
    secured = _tls_options(url, tls)
    try:
        if not url.startswith(SENTINEL):
            return from_url(url, **options, **secured)  # what the URL says wins
        parsed = _sentinels(url)
    except ValueError as error:
        raise Invalid(f"this URL of Redis cannot be used: {error}", "/url") from None
    secured = {"ssl": True, **secured} if url.startswith(_SECURE) else {}
    timeouts = {name: value for name, value in options.items() if name.startswith("socket_")}
    finder = sentinel(parsed.hosts, sentinel_kwargs={**timeouts, **secured, **parsed.sentinel})
    return finder.master_for(parsed.service, **{**options, **secured, **parsed.server})


def _tls_options(url: str, tls: Tls) -> dict[str, Any]:
    if not url.startswith(_SECURE):
        return {}
    _try_files(tls)
    found = {
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.certificate,
        "ssl_keyfile": tls.key,
    }
    given = {name: path for name, path in found.items() if path}
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **given}


def _try_files(tls: Tls) -> None:
    """Files that cannot be read are found out at the start, and not called an outage."""
    if bool(tls.key) and not tls.certificate:
        raise Invalid("a key without its certificate", "/redis_cert")
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
    except OSError as error:
        raise Invalid(f"the CA {tls.ca} cannot be used: {error}", "/redis_ca") from error
    if not tls.certificate:
        return
    try:
        context.load_cert_chain(tls.certificate, tls.key or None, password="")
    except (OSError, ValueError) as error:
        raise Invalid(
            f"the certificate {tls.certificate} cannot be used: {error}", "/redis_cert"
        ) from error


def _sentinels(url: str) -> _Sentinels:
    """Of ``scheme://user:password@host:port,host:port/service?db=0``. Raises ValueError."""
    rest, _, query_text = url.partition("://")[2].partition("?")
    place, _, service = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    pairs = [urlsplit(f"//{host}") for host in hosts.split(",") if host]
    if not pairs:
        raise ValueError("it names no sentinel")
    user, _, password = credentials.partition(":")
    query = dict(parse_qsl(query_text))
    server: dict[str, Any] = {"username": unquote(user), "password": unquote(password)}
    if "db" in query:
        server["db"] = int(query["db"])
    sentinel: dict[str, Any] = {
        "username": query.get("sentinel_username", ""),
        "password": query.get("sentinel_password", ""),
    }
    return _Sentinels(
        [(pair.hostname or "localhost", pair.port or SENTINEL_PORT) for pair in pairs],
        service or SERVICE,
        {name: value for name, value in server.items() if value != ""},
        {name: value for name, value in sentinel.items() if value != ""},
    )
