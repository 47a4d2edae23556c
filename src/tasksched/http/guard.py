"""The guard: routes every request, and lets through whom its operation admits. Plain ASGI.

It stands around all that answers and denies unless told otherwise: what it runs is the operation that it
judged, found once by ``scope["path"]`` and the method, so no spelling of a URL and no Host header can part
the two. Each operation says its scope in the table of ``api``; a path of nobody is refused to strangers like
any other. While no key was ever made, this machine's own programs are served and nobody else.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasksched import clock, log
from tasksched.commands.access import Access, Bearer
from tasksched.commands.audit import Audit, Entry
from tasksched.errors import Forbidden, TaskschedError, Unauthorized, Unavailable
from tasksched.http.exchange import CALLER, RECHECK, Caller, only
from tasksched.http.middleware import REQUEST_ID, require_loopback
from tasksched.http.openapi import OpScope
from tasksched.http.services import Call, Services
from tasksched.model import apikey
from tasksched.model.names import check_name

ROUTE: Final = "tasksched.route"
_NAMED: Final = "tasksched.named_tenant"
BLIND: Final = "tasksched.blind"
"""In the scope of a request: who asks is known from before an outage only; tell nothing of the store."""

SCOPE_WORDS: Final[Mapping[OpScope, apikey.Scope]] = {"namespace": "admin"}
AUDITED: Final = frozenset[OpScope]({"operate", "admin", "namespace"})
REFUSAL_EVERY_MS: Final = 60_000
"""Refusals of one key at one route are written once in so long: they must not push out what was done."""
_REFUSALS_MAX: Final = 1_000
_log = log.get("http")

Scopes = Mapping[tuple[str, str], OpScope]


class Found(NamedTuple):
    """Where a request leads. ``scope`` None: no operation answers it."""

    route: BaseRoute | None
    path: str
    scope: OpScope | None


class Guard:
    """Decides, then hands on to ``dispatch`` through the layers between."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        services: Services,
        routes: Sequence[BaseRoute],
        scopes: Scopes,
        now: Callable[[], int] = clock.mono_ms,
    ) -> None:
        """``scopes``: (path of a route, method) → what it needs."""
        self._app = app
        self._access: Access = services.access
        self._audit: Audit = services.audit
        self._tenant = services.settings.tenant
        self._routes = routes
        self._scopes = scopes
        self._now = now
        self._refused: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        found = self._find(scope)
        if found.scope == "public":
            if self._access.seems_open:
                require_loopback(scope)
        elif await self._is_open(scope, found):
            require_loopback(scope)
            scope[_NAMED] = _tenant_header(scope)
            scope[RECHECK] = partial(self._recheck, None)
        elif found.scope != "callback":
            scope[CALLER] = await self._caller(scope, found)
            scope[RECHECK] = partial(self._recheck, key_text(scope))
        if found.route is None:
            raise HTTPException(404)
        scope[ROUTE] = found.route
        if found.scope in AUDITED:
            await self._audited(found, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _find(self, scope: Scope) -> Found:
        """The first route that answers the method, else the first that knows the path."""
        known: tuple[BaseRoute, Scope] | None = None
        for route in self._routes:
            match, told = route.matches(scope)
            if match is Match.FULL:
                scope.update(told)
                return self._found(route, scope["method"])
            if match is Match.PARTIAL and known is None:
                known = route, told
        if known is None:
            return Found(None, "", None)
        scope.update(known[1])
        return self._found(known[0], scope["method"])

    def _found(self, route: BaseRoute, method: str) -> Found:
        path = cast("str", getattr(route, "path", ""))
        return Found(route, path, self._scopes.get((path, method)))

    # -- who asks ---------------------------------------------------------------------------------

    async def _is_open(self, scope: Scope, found: Found) -> bool:
        try:
            return await self._access.is_open()
        except Unavailable:
            if found.path != "/metrics" or not self._access.was_seen_open:
                raise
            scope[BLIND] = True
            return True

    async def _caller(self, scope: Scope, found: Found) -> Caller:
        bearer = await self._bearer(scope, found)
        if found.scope is not None:
            try:
                self._require(bearer, found.scope)
            except Forbidden as error:
                if found.scope in AUDITED:
                    await self._note_refusal(found, scope, bearer, error)
                raise
        return _caller_of(scope, bearer, self._tenant)

    async def _bearer(self, scope: Scope, found: Found) -> Bearer:
        text = key_text(scope)
        try:
            return await self._access.bearer(text)
        except Unavailable:
            bearer = self._access.remembered(text) if found.path == "/metrics" else None
            if bearer is None:
                raise
            scope[BLIND] = True
            return bearer

    def _require(self, bearer: Bearer, needed: OpScope) -> None:
        word = scope_word(needed)
        if not bearer.key.may(word):
            raise Forbidden(f"this needs a key with the scope {word}", scope=word)
        if needed == "namespace" and bearer.key.tenant != apikey.ANY_TENANT:
            raise Forbidden(
                "this concerns every tenant: it needs a key with the scope admin for the tenant *",
                scope=word,
            )

    async def _recheck(self, text: str | None) -> None:
        with contextlib.suppress(Unavailable):  # then there is nothing to tell either
            if text is not None:
                await self._access.bearer(text)
            elif not await self._access.is_open():
                raise Unauthorized("this needs an API key since a while ago")

    # -- audit ------------------------------------------------------------------------------------

    async def _audited(self, found: Found, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the operation; what came of it is written before it is answered."""
        is_told = False

        async def send_noting(message: Message) -> None:
            nonlocal is_told
            if message["type"] == "http.response.start" and not is_told:
                is_told = True
                await self._write(found, scope, "ok")
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            if not is_told:
                code = error.code if isinstance(error, TaskschedError) else "INTERNAL"
                await self._write(found, scope, code)
            raise

    async def _note_refusal(
        self, found: Found, scope: Scope, bearer: Bearer, error: TaskschedError
    ) -> None:
        name, now_ms = (bearer.id, f"{scope['method']} {found.path}"), self._now()
        before_ms = self._refused.get(name)
        if before_ms is not None and now_ms - before_ms < REFUSAL_EVERY_MS:
            return
        self._refused[name] = now_ms
        self._refused.move_to_end(name)
        while len(self._refused) > _REFUSALS_MAX:
            self._refused.popitem(last=False)
        caller = Caller(bearer.id, bearer.key.tenant, is_everybodys=False)
        await self._write(found, {**scope, CALLER: caller}, error.code)

    async def _write(self, found: Found, scope: Scope, outcome: str) -> None:
        caller: Caller | None = scope.get(CALLER)
        entry = Entry(
            key=caller.key_id if caller else "",
            tenant=caller.tenant if caller else scope.get(_NAMED) or self._tenant,
            route=f"{scope['method']} {found.path}",
            object="/".join(str(part) for part in scope.get("path_params", {}).values()),
            outcome=outcome,
            request_id=scope.get(REQUEST_ID, ""),
        )
        try:
            await self._audit.write(entry)
        except TaskschedError as error:
            _log.error("audit.lost", key=entry.key, route=entry.route, error=str(error))


async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
    """What the guard found, run."""
    route: BaseRoute = scope[ROUTE]
    await route.handle(scope, receive, send)


def scope_word(needed: OpScope) -> apikey.Scope:
    """The scope that a key must have for it."""
    return SCOPE_WORDS.get(needed) or cast("apikey.Scope", needed)


async def sees_details(call: Call) -> bool:
    """Whether the caller of a public page may see more than anybody: a key with ``operate`` may.

    Raises Unauthorized for a key that is not valid. While Redis does not answer, nobody may who needs one.
    """
    access = call.services.access
    if access.seems_open:
        try:
            if await access.is_open():
                return True
        except Unavailable:
            return access.was_seen_open
    if call.header(b"authorization") is None:
        return False
    try:
        bearer = await access.bearer(key_text(call.scope))
    except Unavailable:
        return False
    return bearer.key.may("operate")


def key_text(scope: Scope) -> str:
    """The key of a request. Raises Unauthorized where there is none, Malformed where there are two."""
    given = only(scope["headers"], b"authorization")
    if given is None:
        raise Unauthorized("this needs an API key: send it as Authorization: Bearer ts_…")
    scheme, _, text = given.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthorized("send one API key as Authorization: Bearer ts_…")
    return text.strip()


def _caller_of(scope: Scope, bearer: Bearer, default: str) -> Caller:
    """Raises Forbidden where a header names a tenant that is not the key's."""
    named, own = _tenant_header(scope), bearer.key.tenant
    if own == apikey.ANY_TENANT:
        return Caller(bearer.id, named or default, is_everybodys=True)
    if named not in {None, own}:
        raise Forbidden("the API key belongs to another tenant than Tasksched-Tenant names")
    return Caller(bearer.id, own, is_everybodys=False)


def _tenant_header(scope: Scope) -> str | None:
    given = only(scope["headers"], b"tasksched-tenant")
    return None if given is None else check_name(given.decode("latin-1"), "@Tasksched-Tenant")
