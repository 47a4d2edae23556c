"""Exchange: one request as handlers see it, one answer as they give it. Lean on purpose.

A ``Call`` reads what is asked of it and no more: header values, query parameters, the body's bytes.
A ``Reply`` is bytes with ready headers. Together they cost a fraction of Starlette's own pair, which is
why a single create stays near the price of an empty echo. Handlers raise; ``middleware`` answers.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tasksched.ending import end
from tasksched.errors import Invalid, Malformed, TaskschedError

Headers = list[tuple[bytes, bytes]]
Services_ = TypeVar("Services_")
T = TypeVar("T")

PARAMETERS_MAX: Final = 32
QUERY_BYTES_MAX: Final = 8 * 1024
TURN: Final = "tasksched.turn"
"""In the scope of a request: what to call when it begins to wait for something else than Redis."""

RECHECK: Final = "tasksched.recheck"
"""In the scope of a request: what to await now and then in a long answer. Raises Unauthorized when its
caller would not be let in any more."""

CALLER: Final = "tasksched.caller"
"""In the scope of a request: the ``Caller`` whose key it came with. Not there while none is needed."""

JSON: Final = (b"content-type", b"application/json")

SINGLE: Final = (
    b"authorization", b"content-type", b"durability", b"host", b"idempotency-key", b"if-match",
    b"last-event-id", b"origin", b"tasksched-callback-token", b"tasksched-tenant",
)  # fmt: skip
"""Headers that are refused where they are there twice: which one was meant cannot be known."""


class Reply(NamedTuple):
    """An answer. ``content-length`` is added when it is sent.

    ``parts``: sent one by one as they come, instead of the body.
    """

    status: int
    body: bytes
    headers: Headers
    parts: AsyncGenerator[bytes, None] | None = None


class Caller(NamedTuple):
    """Whose request this is, as its key says. ``tenant``: that the request is about."""

    key_id: str
    tenant: str
    is_everybodys: bool
    """The key belongs to no single tenant."""


class Call(Generic[Services_]):
    """One request."""

    __slots__ = ("_receive", "headers", "scope", "services")

    def __init__(self, scope: Scope, receive: Receive, services: Services_) -> None:
        self.scope = scope
        self.services = services
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(self.headers) != len(scope["headers"]):
            _require_single(scope["headers"], self.headers)
        self._receive = receive

    def header(self, name: bytes) -> str | None:
        """The value of the header ``name`` (lower case), None where it was not sent."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def part(self, name: str) -> str:
        """The part of the path that the route calls ``{name}``."""
        return self.scope["path_params"][name]  # type: ignore[no-any-return]

    @property
    def caller(self) -> Caller | None:
        """Who asks; None while no key is needed."""
        return self.scope.get(CALLER)

    @property
    def bound_tenant(self) -> str | None:
        """The tenant that the key belongs to; None without a key, or with one of every tenant."""
        return None if self.caller is None or self.caller.is_everybodys else self.caller.tenant

    @property
    def task_id(self) -> str:
        """The ``{id}`` of the path."""
        return self.part("id")

    @property
    def prefix(self) -> str:
        """What precedes the path of a route: ``/v1`` where the caller used it."""
        return self.scope.get("root_path", "")  # type: ignore[no-any-return]

    def query(self, *known: str) -> dict[str, str]:
        """The query parameters; one that is not known, or is there twice, is refused."""
        raw: bytes = self.scope["query_string"]
        if not raw:
            return {}
        if len(raw) > QUERY_BYTES_MAX:
            raise Malformed(f"a query string has at most {QUERY_BYTES_MAX} bytes")
        try:
            pairs = parse_qsl(
                raw.decode("latin-1"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX
            )
        except ValueError as error:
            raise Malformed(f"at most {PARAMETERS_MAX} query parameters") from error
        found: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                raise Invalid(f"unknown; known are {', '.join(known) or 'none'}", f"?{name}")
            if name in found:
                raise Invalid("this parameter is there twice", f"?{name}")
            found[name] = value
        return found

    async def body(self) -> bytes:
        """All of the body. Its size is bounded by the middleware that counts it."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            return message.get("body", b"")  # type: ignore[no-any-return]
        parts = []
        while message["type"] == "http.request":
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._receive()
        raise ClientDisconnect

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """What ``work`` gives; it ends where the client leaves before. For answers that take long.

        To be asked when nothing of the body is wanted any more. Raises ClientDisconnect.
        """
        if TURN in self.scope:
            self.scope[TURN]()
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            await end([working, leaving])

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def only(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header that may be there once. Raises Malformed."""
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise Malformed("this header is there twice", f"@{name.decode().title()}")
    return found[0] if found else None


def _require_single(headers: Headers, found: dict[bytes, bytes]) -> None:
    for name in SINGLE:
        only(headers, name)
    if sum(name == b"traceparent" for name, _ in headers) > 1:
        del found[b"traceparent"]  # W3C: then there is none


async def send_reply(reply: Reply, send: Send) -> None:
    headers = reply.headers
    if reply.status != 304:  # its length would be that of the answer it spares
        headers = [*headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def _send_parts(reply: Reply, parts: AsyncGenerator[bytes, None], send: Send) -> None:
    """What goes wrong before the first part is an error as any; after it, the answer just ends."""
    async with contextlib.aclosing(parts):
        first = await anext(parts, b"")
        await send(
            {"type": "http.response.start", "status": reply.status, "headers": reply.headers}
        )
        await send({"type": "http.response.body", "body": first, "more_body": True})
        with contextlib.suppress(TaskschedError):
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


Handler = Callable[[Call[Services_]], Awaitable[Reply]]


class Endpoint(Generic[Services_]):
    """The ASGI application of one path: a handler for each method it answers."""

    def __init__(self, handlers: Mapping[str, Handler[Services_]], services: Services_) -> None:
        self._handlers = dict(handlers)
        if "GET" in self._handlers:
            self._handlers.setdefault("HEAD", self._handlers["GET"])
        self._services = services

    @property
    def methods(self) -> list[str]:
        return list(self._handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers[scope["method"]]
        call = Call(scope, receive, self._services)
        reply = await handler(call)
        if reply.parts is None or scope["method"] == "HEAD":
            await send_reply(reply, send)
        else:
            await call.unless_gone(_send_parts(reply, reply.parts, send))
