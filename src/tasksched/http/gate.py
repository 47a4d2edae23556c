"""The gate: how many requests may wait for Redis in one process, and for how long. Plain ASGI.

Beyond the bound, or while the oldest create waits longer than ``api_slow``, further creates are refused
at once and before their bodies are read, so that a slow Redis costs neither memory nor a caller's time.
Creates leave a share of the places to reads and to operators. A request counts from when its body is
complete (a slow uploader waits for nobody) until it is answered, or begins to wait for something else than
Redis: a result, an event. The pages and ``/livez`` ask Redis nothing and always pass.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasksched import clock
from tasksched.errors import Overloaded, TaskschedError
from tasksched.http.exchange import TURN
from tasksched.http.services import Services

CREATES_SHARE: Final = 0.75
"""Of the places, so many are open to creates."""

RETRY_AFTER_MS: Final = 1_000
_ID: Final = r"[^/]+"
_CREATES: Final = re.compile(
    rf"POST /tasks|POST /tasks/batch|POST /tasks/{_ID}/retry|POST /dead-letters/redrive"
    rf"|POST /recurring-tasks|(?:PUT|PATCH) /recurring-tasks/{_ID}"
    rf"|POST /recurring-tasks/{_ID}/(?:trigger|backfill)"
)
_LONG: Final = re.compile(
    rf"POST /tasks/batch|POST /dead-letters/redrive|POST /recurring-tasks/{_ID}/backfill"
)
_FREE: Final = re.compile(r"(?:GET|HEAD) (?:/livez|/openapi\.json|/docs.*|/problems/.*)")


class Gate:
    """Lets requests through, refuses those that are too many, and counts what was refused."""

    def __init__(
        self, app: ASGIApp, *, services: Services, now: Callable[[], int] = clock.mono_ms
    ) -> None:
        self._app = app
        self._admission = services.admission
        self._refusals = services.refusals
        self._most = services.settings.api_waiting_max
        self._slow_ms = services.settings.api_slow_ms
        self._now = now
        self._creates: OrderedDict[object, int] = OrderedDict()
        self._long: set[object] = set()  # creates of many: only their single calls tell of slowness
        self._others: set[object] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = f"{scope['method']} {_path(scope)}" if scope["type"] == "http" else ""
        if not route or _FREE.fullmatch(route):
            await self._app(scope, receive, send)
            return
        try:
            if _CREATES.fullmatch(route):
                await self._create(scope, receive, send, is_long=bool(_LONG.fullmatch(route)))
            else:
                await self._other(scope, receive, send)
        except TaskschedError as error:
            self._refusals.note(error)
            raise

    async def _create(self, scope: Scope, receive: Receive, send: Send, *, is_long: bool) -> None:
        self._require_speed()
        await self._admission.admit()
        turn = object()

        async def receive_whole() -> Message:
            message = await receive()
            if not message.get("more_body") and message["type"] == "http.request":
                self._require_speed()
                if is_long:
                    self._long.add(turn)
                else:
                    self._creates[turn] = self._now()
            return message

        def leave() -> None:
            self._creates.pop(turn, None)
            self._long.discard(turn)

        scope[TURN] = leave
        try:
            await self._app(scope, receive_whole, send)
        finally:
            leave()

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._waiting() + len(self._others) >= self._most:
            raise _overloaded("more requests wait for Redis than may")
        turn = object()
        self._others.add(turn)
        scope[TURN] = lambda: self._others.discard(turn)
        try:
            await self._app(scope, receive, send)
        finally:
            self._others.discard(turn)

    def _waiting(self) -> int:
        """Creates that wait."""
        return len(self._creates) + len(self._long)

    def _require_speed(self) -> None:
        """Raises Overloaded where one more create would wait too long, or be one too many."""
        if self._waiting() >= self._most * CREATES_SHARE:
            raise _overloaded("more creates wait for Redis than may")
        began_ms = next(iter(self._creates.values()), None)
        oldest_ms = 0 if began_ms is None else self._now() - began_ms
        if max(oldest_ms, self._admission.waiting_ms()) > self._slow_ms:
            raise _overloaded("Redis is slow now: creates wait too long for it")


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path[len(scope.get("root_path", "")) :]


def _overloaded(why: str) -> Overloaded:
    return Overloaded(f"{why}; nothing was done", retry_after_ms=RETRY_AFTER_MS)
