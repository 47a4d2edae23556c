"""Middleware: what every request passes, outermost first. Plain ASGI, no request objects.

Each class does one thing and its price is a closure or two: a request id in and out, errors to
problem+json (Starlette's own 404 and 405 among them), the prefix ``/v1``, and the size of a body, by its header and by count. Nothing here knows a route but the
one whose body may be larger.
"""

import random
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasksched import log
from tasksched.errors import Forbidden, TaskschedError, TooLarge
from tasksched.http.exchange import only, send_reply
from tasksched.http.problems import Misdirected, reply_of

REQUEST_ID: Final = "tasksched.request_id"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
VERSION_PREFIX: Final = "/v1"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::[0-9]{1,5})?")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_log = log.get("http")


class RequestIds:
    """``X-Request-ID``: the caller's, where it is a plain word, else a new one; always answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        if given is None or not _REQUEST_ID.fullmatch(given):
            given = b"%032x" % random.getrandbits(128)
        scope[REQUEST_ID] = given.decode()
        field = (b"x-request-id", given)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], field]
            await send(message)

        await self._app(scope, receive, send_with_id)


class Problems:
    """Whatever is raised inside becomes problem+json. A surprise is logged and told as a bare 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except ClientDisconnect:
            return
        except Exception as error:
            _note(error, scope)
            if started:
                raise  # half an answer is out: the server can only cut the connection
            await send_reply(reply_of(error, scope.get(REQUEST_ID, "")), send)


def _note(error: Exception, scope: Scope) -> None:
    where = {
        "request_id": scope.get(REQUEST_ID, ""),
        "method": scope["method"],
        "path": scope["path"],
    }
    if isinstance(error, HTTPException):
        return
    if not isinstance(error, TaskschedError) or error.status == 500:
        _log.error("http.failed", exc_info=error, **where)
    elif error.status > 500:
        _log.warning("http.unavailable", error=str(error), **where)


def require_loopback(scope: Scope) -> None:
    """For a server without keys: only this machine's own programs are served.

    Host must be a loopback name, else a foreign page whose name resolves to 127.0.0.1 could read
    and write here (DNS rebinding); and a page from elsewhere must not change anything (Origin).
    Raises Misdirected, Forbidden, Malformed.
    """
    host = only(scope["headers"], b"host")
    if host is None or not is_loopback(host.decode("latin-1")):
        raise Misdirected(
            "without API keys only the host names localhost, 127.0.0.1 and [::1] are served"
        )
    origin = only(scope["headers"], b"origin")
    if origin is not None and scope["method"] not in _SAFE:
        check_origin(origin.decode("latin-1"))


def is_loopback(host: str) -> bool:
    """Whether the value of a Host header names this machine, whatever the port."""
    found = _HOST.fullmatch(host.lower())
    return found is not None and found[1] in LOOPBACK


def check_origin(origin: str) -> None:
    """Raises Forbidden for a page that is not this machine's."""
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        netloc = ""
    if not is_loopback(netloc):
        raise Forbidden("without API keys a page from another origin may not change anything")


class Versions:
    """Every route also under ``/v1``: the prefix becomes part of ``root_path``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root: str = scope.get("root_path", "")
            if scope["path"].startswith(f"{root}{VERSION_PREFIX}/"):
                scope["root_path"] = root + VERSION_PREFIX
        await self._app(scope, receive, send)


class BodyLimits:
    """Refuses a body over its limit: by Content-Length before it is read, else by counting."""

    def __init__(self, app: ASGIApp, *, most: int, larger: Mapping[str, int]) -> None:
        self._app = app
        self._most = most
        self._larger = dict(larger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE:
            await self._app(scope, receive, send)
            return
        route = scope["path"][len(scope.get("root_path", "")) :]
        most = self._larger.get(route, self._most)
        length = _header(scope, b"content-length")
        if length is not None and length.isdigit():
            # The server holds the body to its declared length, so nothing is counted.
            if len(length) > 15 or int(length) > most:
                raise _too_large(most)
            await self._app(scope, receive, send)
            return
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > most:
                    raise _too_large(most)
            return message

        await self._app(scope, receive_counted, send)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body has more than {most} bytes")


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return value  # type: ignore[no-any-return]
    return None
