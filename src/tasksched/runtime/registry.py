"""Registry: the handlers one program knows, by route, with their policies.

A worker announces the routes of its registry, and the store delivers nothing else to it. A handler
has a route for its own version and for each that it accepts; payloads of those are upgraded step by step.
The same entries tell producers the defaults of a handler (queue, retry, timeout).
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tasksched.errors import Invalid
from tasksched.model.names import check_handler_name, check_name
from tasksched.model.notify import Receiver
from tasksched.model.receivers import check_queue
from tasksched.model.retry import Retry
from tasksched.model.task import DEFAULT_RETRY, HTTP_ROUTE, Concurrency, HandlerTarget

Mode = Literal["async", "thread"]
Upgrade = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that runs tasks. ``wants_ctx``: its first parameter is the Ctx of the run.

    ``accepts``: older versions, the oldest first, that it runs beside its own; None stands for tasks
    that name none. ``process``: it runs in a process of its own (``runtime.cells``).
    """

    name: str
    function: Callable[..., Any]
    mode: Mode
    wants_ctx: bool
    version: str | None = None
    accepts: tuple[str | None, ...] = ()
    process: bool = False
    queue: str = "default"
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = None
    lease_ms: int | None = None
    notify: tuple[Receiver, ...] = ()
    concurrency: Concurrency | None = None
    upgrades: dict[str | None, Upgrade] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        check_handler_name(self.name, "/name")
        check_queue(self.queue, "/queue")
        for version in (self.version, *self.accepts):
            if version is not None:
                check_name(version, "/version")
        if len({self.version, *self.accepts}) <= len(self.accepts):
            raise Invalid("accepts names each older version once, and not its own", "/accepts")
        if self.name == HTTP_ROUTE:
            raise Invalid(f"{HTTP_ROUTE!r} is the name of HTTP targets", "/name")

    @property
    def target(self) -> HandlerTarget:
        return HandlerTarget(self.name, self.version)

    @property
    def routes(self) -> dict[str, str | None]:
        """Route → version: its own first, then what it accepts."""
        versions = (self.version, *self.accepts)
        return {HandlerTarget(self.name, version).route: version for version in versions}

    def add_upgrade(self, version: str | None, upgrade: Upgrade) -> None:
        """``upgrade`` makes of a payload of ``version`` one of the next. Raises Invalid."""
        if version not in self.accepts:
            raise Invalid(f"{self.name} does not accept version {version!r}", "/version")
        if version in self.upgrades:
            raise Invalid(f"there is an upgrade from version {version!r} already", "/version")
        if inspect.iscoroutinefunction(upgrade):
            raise Invalid("an upgrade is a plain function, not a coroutine", "/version")
        self.upgrades[version] = upgrade

    def steps_from(self, version: str | None) -> list[tuple[str | None, Upgrade]]:
        """The upgrades that a payload of ``version`` goes through, in their order."""
        if version not in self.accepts:
            return []
        passed = self.accepts[self.accepts.index(version) :]
        return [(each, self.upgrades[each]) for each in passed if each in self.upgrades]


class Registry:
    """Handlers by route. One function per route; a second one is refused."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        for route in handler.routes:
            if route in self._handlers:
                raise Invalid(f"a handler for {route!r} is registered already", "/name")
        self._handlers |= dict.fromkeys(handler.routes, handler)

    def get(self, route: str) -> Handler | None:
        return self._handlers.get(route)

    @property
    def routes(self) -> list[str]:
        return sorted(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter({id(handler): handler for handler in self._handlers.values()}.values())
