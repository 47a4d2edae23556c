"""HTTP targets: one request per attempt, guarded, bounded, and read as success, retry or the end.

The payload goes out as a JSON body with headers that name task, attempt and fence; the idempotency
key is the task's id, the same in every attempt; where there are secrets, the bytes sent are signed
(``model.signature``). How many requests a host gets is decided by ``runtime.hosts``: a run that gets
no turn is handed back. A target that says so answers 202 and tells the verdict later. Invariant: a
connection is made only to an address that was checked after the one resolution it came from;
redirects are not followed, proxies and .netrc not looked up, nothing is decompressed, and no more of
an answer is read than is kept. Whoever asks puts a deadline around the call (``runtime.executor``).
What the record says of a failed connection is a coarse word: addresses, ports and foreign texts stay
out of it.
"""

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict
from yarl import URL

from tasksched import clock, log
from tasksched.errors import Invalid, TaskschedError, TooLarge
from tasksched.model import codec
from tasksched.model.http_rules import (
    BODILESS,
    METHODS,
    check_headers,
    check_url,
    date_ms,
    host_of,
    parse_address,
    retry_after_ms,
)
from tasksched.model.instants import format_instant
from tasksched.model.outcome import Failure, Outcome, error_info
from tasksched.model.signature import sign
from tasksched.model.task import HttpTarget
from tasksched.runtime.egress import Egress, TargetNotAllowedError
from tasksched.runtime.hosts import Hosts
from tasksched.store.protocol import Grant

RETRYABLE = frozenset({408, 425, 429})
ACCEPTED, GONE, NOT_IMPLEMENTED = 202, 410, 501
CHUNK = 16 * 1024
CALLBACK_LEASE_MS = 300_000
NO_SECRETS_REST_MS = 1000  # before the next try of a run whose secrets could not be read
FRAME = 64  # bytes of an encoded result around its body
USER_AGENT = f"tasksched/{version('tasksched')}"

# OpenSSL's X509_V_ERR codes. Its own texts repeat the name that was asked for.
_CERTIFICATE_FAULTS: Final = {
    9: "not valid yet",
    10: "expired",
    18: "self-signed",
    62: "made out to another name",
    64: "made out to another name",
}

_encode_json = msgspec.json.Encoder().encode
_log = log.get("http_target")


async def _no_secrets(_: Grant) -> Sequence[str]:
    return ()


async def _nothing(_: Grant) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What requests need to know from elsewhere, and whom they tell.

    ``secrets``: to sign with, the newest first; none = unsigned. ``token``: what the target of this
    run shows when it calls back. ``gone``: the receiver of a delivery wants no more of them.
    """

    secrets: Callable[[Grant], Awaitable[Sequence[str]]] = _no_secrets
    token: Callable[[Grant], str] = lambda _: ""
    gone: Callable[[Grant], Awaitable[None]] = _nothing


class PinnedResolver(AbstractResolver):
    """Resolves once per connection and hands out what was checked, nothing else."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The checked addresses of the host; TargetNotAllowedError if any is refused."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM
        )
        self._egress.check(host, [str(entry[4][0]) for entry in found])
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        pass


class HttpTargets:
    """The HTTP client of one worker. Call it with a grant; ``close`` at the end."""

    def __init__(
        self,
        egress: Egress,
        *,
        hosts: Hosts | None = None,
        hooks: Hooks | None = None,
        callback_lease_ms: int = CALLBACK_LEASE_MS,
        response_bytes_max: int = 64 * 1024,
        result_bytes_max: int = codec.RESULT_MAX,
    ) -> None:
        self._egress = egress
        self._hosts = hosts or Hosts()
        self._hooks = hooks or Hooks()
        self._callback_lease_ms = callback_lease_ms
        self._result_bytes_max = result_bytes_max
        self._body_max = max(0, min(response_bytes_max, result_bytes_max - FRAME))
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, grant: Grant) -> bytes | Failure | Outcome:
        """The encoded result of the request, or what went wrong; an Outcome where that decides
        already: RELEASED (no turn at the host), DEFERRED (a callback comes).

        Raises only cancellation.
        """
        target = grant.options.http
        if target is None:
            return _final("Invalid", "the record has no target", "not_retryable")
        try:
            body = _body_of(target, grant.payload)
        except Invalid as error:
            return _final("Invalid", error.detail, "payload_not_readable")
        try:
            url = self._checked(target)
            headers = self._headers(target, grant, has_body=body is not None)
        except Invalid as error:
            return _final("target_not_allowed", error.detail, "target_not_allowed")
        except TargetNotAllowedError:
            return _not_allowed()
        try:
            headers.update(await self._signature(grant, body or b""))
        except TaskschedError as error:
            return _unsigned(grant, error)
        return await self._in_turn(_Request(target, url, headers, body, grant))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _checked(self, target: HttpTarget) -> URL:
        """The target checked again: records may come from elsewhere than our own edge."""
        if target.method not in METHODS:
            raise Invalid(f"a method is one of {', '.join(METHODS)}")
        text = check_url(target.url)
        url = URL(text, encoded=True)
        host = host_of(text)
        if (url.raw_host or "").lower().removesuffix(".") != host:
            raise Invalid("the host of the URL can be read in two ways")
        if parse_address(host) is not None:
            self._egress.check(host, [host])
        return url

    def _headers(self, target: HttpTarget, grant: Grant, *, has_body: bool) -> "CIMultiDict[str]":
        headers = CIMultiDict(check_headers(target.headers))
        headers.update(
            {
                "User-Agent": USER_AGENT,
                "Accept-Encoding": "identity",
                "Idempotency-Key": f'"{grant.id}"',
                "Tasksched-Task-Id": grant.id,
                "Tasksched-Attempt": str(grant.attempt),
                "Tasksched-Fence": grant.fence,
                "Tasksched-Due": format_instant(grant.due_ms),
            }
        )
        if grant.options.traceparent is not None:
            headers["traceparent"] = grant.options.traceparent
        if has_body:
            headers["Content-Type"] = "application/json"
        if target.is_async and (token := self._hooks.token(grant)):
            headers["Tasksched-Callback-Token"] = token
        return headers

    async def _signature(self, grant: Grant, body: bytes) -> dict[str, str]:
        """The headers of Standard Webhooks over exactly the bytes sent; none without secrets."""
        secrets = await self._hooks.secrets(grant)
        if not secrets:
            return {}
        delivery = grant.options.delivery
        message = delivery.message if delivery else grant.id
        at_s = grant.started_ms // 1000
        return {
            "webhook-id": message,
            "webhook-timestamp": str(at_s),
            "webhook-signature": sign(secrets, message, at_s, body),
        }

    async def _in_turn(self, request: "_Request") -> bytes | Failure | Outcome:
        """The request, as soon as its host has a place; handed back if it has none."""
        host = host_of(request.target.url)
        turn = await self._hosts.enter(f"{request.url.scheme}://{host}:{request.url.port}")
        if isinstance(turn, Outcome):
            return turn
        met = _Met()
        try:
            answer = await self._request(request, met)
        except asyncio.CancelledError as error:
            if error.args == ("timeout",):  # who cancels says why (``runtime.context``)
                met.is_alive = False
            raise
        finally:
            self._hosts.leave(turn, is_alive=met.is_alive)
        delivery = request.grant.options.delivery
        if met.status == GONE and delivery is not None and delivery.endpoint is not None:
            await self._tell_gone(request.grant)
        return answer

    async def _request(self, request: "_Request", met: "_Met") -> bytes | Failure | Outcome:
        try:
            async with self._client().request(
                request.target.method,
                request.url,
                headers=request.headers,
                data=request.body,
                allow_redirects=False,
            ) as response:
                met.status, met.is_alive = response.status, response.status < 500
                if response.status == ACCEPTED and request.target.is_async:
                    return Outcome(kind="DEFERRED", lease_ms=self._callback_lease_ms)
                if 200 <= response.status < 300:
                    return await self._result(response)
                return _refused(response, request.grant.options.retry.max_ms)
        except TargetNotAllowedError:
            return _not_allowed()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            met.is_alive = False
            return Failure(error=error_info("HttpConnection", _coarse(error)))

    async def _tell_gone(self, grant: Grant) -> None:
        try:
            await self._hooks.gone(grant)
        except TaskschedError as error:  # the next delivery will be answered the same
            _log.warning("endpoint.not_disabled", task_id=grant.id, error=type(error).__name__)

    async def _result(self, response: aiohttp.ClientResponse) -> bytes:
        raw = bytearray()
        with contextlib.suppress(aiohttp.ClientPayloadError):  # cut short: a success all the same
            while len(raw) <= self._body_max and (chunk := await response.content.read(CHUNK)):
                raw += chunk
        cut = len(raw) > self._body_max or not response.content.at_eof()
        if cut:
            response.close()
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            return codec.encode({"status": response.status, "body": None})
        return self._encoded(response.status, response.content_type, bytes(raw), cut=cut)

    def _encoded(self, status: int, content_type: str, raw: bytes, *, cut: bool) -> bytes:
        """``{"status", "body"}``: JSON as the value it is, anything else as text."""
        if not cut and (content_type.endswith(("/json", "+json"))):
            with contextlib.suppress(Invalid, TooLarge, ValueError, RecursionError):
                found = {"status": status, "body": msgspec.json.decode(raw)}
                return codec.encode(found, most=self._result_bytes_max)
        # A byte that is no UTF-8 becomes three: cut again, between two characters.
        wide = raw.decode("utf-8", "replace").encode()
        result: dict[str, Any] = {"status": status, "body": None}
        if wide:
            result["body"] = wide[: self._body_max].decode("utf-8", "ignore")
        if cut or len(wide) > self._body_max:
            result["truncated"] = True
        return codec.encode(result, most=self._result_bytes_max)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=PinnedResolver(self._egress), use_dns_cache=False, limit=0
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                trust_env=False,
                auto_decompress=False,
                read_bufsize=CHUNK,
            )
        return self._session


class _Request(NamedTuple):
    """What is sent, and for which run."""

    target: HttpTarget
    url: URL
    headers: "CIMultiDict[str]"
    body: bytes | None
    grant: Grant


@dataclass(slots=True)
class _Met:
    """What the host showed of itself, also where the request was cut off."""

    status: int = 0
    is_alive: bool | None = None


def _body_of(target: HttpTarget, payload: bytes | None) -> bytes | None:
    if not payload or target.method in BODILESS:
        return None
    return _encode_json(codec.decode(payload))


def _refused(response: aiohttp.ClientResponse, most_ms: int) -> Failure:
    """What an answer other than 2xx means. ``most_ms``: the longest wait the task's policy knows."""
    status = response.status
    text = f"the target answered {status}"
    if 300 <= status < 400:
        text += ": redirects are not followed"
    retryable = status in RETRYABLE or (status >= 500 and status != NOT_IMPLEMENTED)
    asked_ms: int | None = None
    if retryable:
        # An HTTP date is compared with the target's own clock where the answer shows it.
        now_ms = date_ms(response.headers.get("Date")) or clock.wall_ms()
        asked_ms = retry_after_ms(response.headers.get("Retry-After"), now_ms)
    return Failure(
        error=error_info("HttpStatus", text),
        retryable=retryable,
        retry_after_ms=None if asked_ms is None else min(asked_ms, most_ms),
    )


def _coarse(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the target's name could not be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        code = cause.verify_code if isinstance(cause, ssl.SSLCertVerificationError) else 0
        fault = _CERTIFICATE_FAULTS.get(code, "not trusted")
        return f"the target's certificate is not valid: {fault}"
    if isinstance(error, aiohttp.ClientSSLError):
        return "the TLS handshake with the target failed"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "the target could not be connected to"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the target's answer is not HTTP, or its headers are too large"
    return "the connection to the target was lost"


def _final(kind: str, text: str, reason: str) -> Failure:
    return Failure(error=error_info(kind, text), retryable=False, reason=reason)


def _unsigned(grant: Grant, error: TaskschedError) -> Failure | Outcome:
    """Nothing is sent without the signature it should have."""
    _log.warning("secrets.failed", task_id=grant.id, error=type(error).__name__)
    if not error.retryable:
        return _final("Invalid", "the secrets to sign with cannot be used", "not_retryable")
    wait_ms = int(NO_SECRETS_REST_MS * (0.5 + random.random()))
    return Outcome(kind="RELEASED", retry_ms=wait_ms, reason="secrets_unavailable")


def _not_allowed() -> Failure:
    text = "the target is at an address that must not be reached"
    return _final("target_not_allowed", text, "target_not_allowed")
