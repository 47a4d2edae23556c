"""What an HTTP target may be: its URL, its headers, and the addresses it may resolve to.

Pure rules, shared by the edge that creates a task and the worker that makes the request. Invariant: a
URL that passes means the same to every parser (no user info, backslash, control or non-ASCII
character, and a host that is a plain dotted quad, a bracketed IPv6 literal or a DNS name), so that
what was checked is what is connected to. ``ipaddress.is_private`` and ``is_global`` are not asked:
they call NAT64 of the metadata service global. The list here is our own, and an address that carries
an IPv4 one inside (mapped, compatible, translated, 6to4, Teredo, NAT64) is judged by both.
Deliberately not here: resolving names, and what an operator allows (``runtime.egress``).
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

from tasksched.errors import Invalid, Problem

URL_MAX: Final = 2048
HOST_MAX: Final = 253
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024
PROBLEMS_MAX: Final = 20
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
BODILESS: Final = frozenset({"GET", "HEAD"})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# RFC 3986, without user info and fragment; brackets are let into a query, where many use them.
_PATH = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*"
_QUERY = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]]|%[0-9A-Fa-f]{2})*"
_URL = re.compile(
    rf"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._\-]+)"
    rf"(?::(?P<port>[0-9]{{1,5}}))?(?P<path>/{_PATH})?(?:\?(?P<query>{_QUERY}))?"
)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_QUAD = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
# What inet_aton would take for a number: "1", "0x7f000001", "0177".
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f]")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_OURS = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade",
        "expect", "keep-alive", "accept-encoding", "idempotency-key",
    }
)  # fmt: skip
_OUR_PREFIXES = ("proxy-", "webhook-", "tasksched-")

# Each network with the reason it is closed. 168.63.129.16 is a public address that answers, inside
# one cloud, as its metadata service.
DENIED: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",
        "::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
        "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10",
        "fec0::/10", "ff00::/8",
    )
)  # fmt: skip

# Prefixes that carry an IPv4 address, and how far its lowest bit is from the right.
_WRAPPERS: Final = tuple(
    (ipaddress.IPv6Network(text), shift)
    for text, shift in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated (SIIT)
        ("64:ff9b::/96", 0),  # NAT64
        ("64:ff9b:1::/48", 0),  # local NAT64 with a prefix of 96 bits
        ("2002::/16", 80),  # 6to4
        ("2001::/32", 64),  # Teredo: the server
    )
)
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")


def check_url(value: object, pointer: str = "/url") -> str:
    """A URL a worker may be sent to. Raises Invalid at ``pointer``; never repeats the value.

    Says nothing about the address: names resolve when the request is made, and a worker may allow
    what others refuse.
    """
    if not isinstance(value, str):
        raise Invalid("a URL is a string", pointer)
    if refusal := _spelling_refusal(value):
        raise Invalid(refusal, pointer)
    found = _URL.fullmatch(value)
    if found is None:
        raise Invalid("not a URL of RFC 3986 with a scheme and a host", pointer)
    if found["scheme"].lower() not in {"http", "https"}:
        raise Invalid("the scheme is http or https", pointer)
    if found["port"] is not None and not 1 <= int(found["port"]) <= 65535:
        raise Invalid("a port is from 1 to 65535", pointer)
    if refusal := _host_refusal(found["host"]):
        raise Invalid(refusal, pointer)
    return value


def _spelling_refusal(value: str) -> str | None:
    """What parsers read in different ways, before any of them has read it."""
    if not 1 <= len(value) <= URL_MAX:
        return f"a URL has 1 to {URL_MAX} characters"
    if not value.isascii():
        return "a URL is ASCII: percent-encode the path, spell the host as xn--"
    if _CONTROL.search(value):
        return "a URL has no white space and no control characters"
    if "\\" in value:
        return "a URL has no backslash"
    if "#" in value:
        return "a fragment is never sent: leave it out"
    if "@" in value.partition("://")[2].partition("/")[0].partition("?")[0]:
        return "a URL has no user name or password: use a header"
    return None


def host_of(url: str) -> str:
    """The host of a URL that ``check_url`` passed, in lower case, without brackets or final dot."""
    found = _URL.fullmatch(url)
    assert found is not None
    return found["host"].lower().strip("[]").removesuffix(".")


def _host_refusal(host: str) -> str | None:
    if host.startswith("["):
        return None if ":" in host and parse_address(host[1:-1]) else "not an IPv6 address"
    labels = host.removesuffix(".").split(".")
    if _QUAD.fullmatch(host):
        return None if parse_address(host) else "not an IPv4 address"
    if _NUMBER.fullmatch(labels[-1]):
        # Resolvers read "127.1", "2130706433" and "0x7f000001" as addresses.
        return "an IPv4 address is written as four plain decimal numbers"
    if len(host) > HOST_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        return "not a host name"
    return None


def check_headers(value: object, pointer: str = "/headers") -> tuple[tuple[str, str], ...]:
    """The headers of a target as pairs, in order: from an object, or from a list of pairs.

    Raises Invalid naming every bad one: ``/headers/X-Name`` (of a list: ``/headers/2``). Values,
    which may be secret, are never repeated.
    """
    pairs = list(_pairs(value, pointer))
    if len(pairs) > HEADERS_MAX:
        raise Invalid(f"at most {HEADERS_MAX} headers", pointer)
    problems = [
        Problem(place, refusal)
        for place, name, text in pairs
        if (refusal := _header_refusal(name, text)) is not None
    ]
    if problems:
        raise Invalid(problems=tuple(problems[:PROBLEMS_MAX]))
    if sum(len(name) + len(text) + 4 for _, name, text in pairs) > HEADERS_BYTES_MAX:
        raise Invalid(f"headers have at most {HEADERS_BYTES_MAX} bytes together", pointer)
    return tuple((name, text) for _, name, text in pairs)


def _pairs(value: object, pointer: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, Mapping):
        for name, text in value.items():
            yield f"{pointer}/{_token(name)}", name, text
        return
    if not isinstance(value, list | tuple):
        raise Invalid("headers are an object of names and values", pointer)
    for n, pair in enumerate(value):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Invalid("a header is a pair of name and value", f"{pointer}/{n}")
        yield f"{pointer}/{n}", pair[0], pair[1]


def _header_refusal(name: object, text: object) -> str | None:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        return "a header's name is a token of RFC 9110"
    if name.lower() in _OURS or name.lower().startswith(_OUR_PREFIXES):
        return "this header is set by tasksched or belongs to the connection"
    if not isinstance(text, str):
        return "a header's value is a string"
    if text and not _VALUE.fullmatch(text):
        return "a header's value is printable ASCII without white space around it"
    return None


def _token(name: object) -> str:
    """``name`` as part of a JSON pointer (RFC 6901), bounded and encodable whatever it holds."""
    text = str(name)[:64].encode("utf-8", "replace").decode()
    return text.replace("~", "~0").replace("/", "~1")


def is_denied(address: Address) -> bool:
    """Whether the address, as it stands, is in a network that targets may not be in."""
    return any(address in network for network in DENIED if network.version == address.version)


def embedded(address: Address) -> list[ipaddress.IPv4Address]:
    """Every IPv4 address that this one may lead to in the end."""
    number = int(address)
    if isinstance(address, ipaddress.IPv4Address) or number < 2:  # "::" and "::1" carry none
        return []
    found = [number >> shift for prefix, shift in _WRAPPERS if address in prefix]
    if address in _TEREDO:
        found.append(~number)  # the client's, inverted
    if address in _LOCAL_NAT64:
        # RFC 6052 with 48 bits: two octets, then one that is zero, then two octets.
        found.append((number >> 64 & 0xFFFF) << 16 | (number >> 40 & 0xFFFF))
    return [ipaddress.IPv4Address(inner & 0xFFFF_FFFF) for inner in found]


def parse_address(text: str) -> Address | None:
    """An address as resolvers give it (a zone is dropped); None for a name."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """The wait a ``Retry-After`` asks for: seconds or an HTTP date; None for anything else."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return int(text[:12]) * 1000
    return date_wait_ms(text, now_ms)


def date_wait_ms(text: str, now_ms: int) -> int | None:
    at_ms = date_ms(text)
    return at_ms - now_ms if at_ms is not None and at_ms > now_ms else None


def date_ms(text: str | None) -> int | None:
    """An HTTP date, ms since the epoch; None for what is none."""
    try:
        found = parsedate_to_datetime(text or "")
        return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return None
