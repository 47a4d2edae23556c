"""Registry: the handlers one program knows, by route, with their policies.

A worker announces the routes of its registry, and the store delivers nothing else to it. The same
entries tell producers the defaults of a handler (queue, retry, timeout).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tasksched.errors import Invalid
from tasksched.model.names import check_handler_name, check_name
from tasksched.model.retry import Retry
from tasksched.model.task import DEFAULT_RETRY, HTTP_ROUTE, HandlerTarget

Mode = Literal["async", "thread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that runs tasks. ``wants_ctx``: its first parameter is the Ctx of the run."""

    name: str
    function: Callable[..., Any]
    mode: Mode
    wants_ctx: bool
    version: str | None = None
    queue: str = "default"
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = None
    lease_ms: int | None = None

    def __post_init__(self) -> None:
        check_handler_name(self.name, "/name")
        check_name(self.queue, "/queue")
        if self.version is not None:
            check_name(self.version, "/version")
        if self.name == HTTP_ROUTE:
            raise Invalid(f"{HTTP_ROUTE!r} is the name of HTTP targets", "/name")

    @property
    def target(self) -> HandlerTarget:
        return HandlerTarget(self.name, self.version)


class Registry:
    """Handlers by route. One function per route; a second one is refused."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        route = handler.target.route
        if route in self._handlers:
            raise Invalid(f"a handler for {route!r} is registered already", "/name")
        self._handlers[route] = handler

    def get(self, route: str) -> Handler | None:
        return self._handlers.get(route)

    @property
    def routes(self) -> list[str]:
        return sorted(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())
