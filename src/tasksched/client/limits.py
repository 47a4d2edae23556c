"""Limits: queues and tenants as a program sees them: ``app.queues``, ``app.tenants``.

::

    await app.queues.set("mail", max_running=10, dispatch_rate=50)
    await app.queues.pause("mail")
    await app.tenants.set("acme", weight=2, max_pending=10_000)
    await app.tenants.purge("acme")

``set`` changes what is named and leaves the rest; None takes a limit away. Every coroutine has a twin
``…_sync``.
"""

import asyncio
from builtins import list as List  # noqa: N812 - a method here is called list
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack

from msgspec import structs

from tasksched import clock
from tasksched.client.limits_backend import LimitsBackend, QueueVerb, TenantVerb
from tasksched.client.link import Link
from tasksched.commands.tenant_purge import Purged
from tasksched.errors import Conflict, PreconditionFailed
from tasksched.model.durations import Duration, format_duration, parse_duration
from tasksched.model.limits import QueueState, TenantState
from tasksched.model.names import check_name

TRIES: Final = 5

PURGE_USUAL: Final = "5m"
PAUSE_S: Final = 0.5
"""Between two requests of a purge, where the first removed nothing: what runs needs time to stop."""

COUNTED: Final = ("tasks", "recurring_tasks", "webhooks", "api_keys")
"""What each request of a purge says of itself alone."""

S = TypeVar("S", QueueState, TenantState)
R = TypeVar("R")


class QueueLimits(TypedDict, total=False):
    """What can be set for a queue."""

    paused: bool
    draining: bool
    strict: bool
    max_running: int | None
    dispatch_rate: float | None


class TenantLimits(TypedDict, total=False):
    """What can be set for a tenant."""

    paused: bool
    draining: bool
    weight: float | None
    max_running: int | None
    dispatch_rate: float | None
    max_pending: int | None
    create_rate: float | None


class _Limited(Generic[S]):
    def __init__(self, link: Link) -> None:
        self._link = link

    async def _limits(self) -> LimitsBackend:
        return (await self._link.backend()).limits

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._link.run(work)


async def changed(
    get: Callable[[], Awaitable[S]],
    put: Callable[[Any, int], Awaitable[S]],
    given: dict[str, Any],
) -> S:
    """Reads, changes and writes under the version read. Raises Invalid, Conflict."""
    for _ in range(TRIES):
        state = await get()
        rules = state.rules.changed(given)
        if rules == state.rules:
            return state
        try:
            return await put(rules, state.version)
        except PreconditionFailed:
            continue
    raise Conflict("this changes faster than it can be set")


async def purged(
    ask: Callable[[], Awaitable[Purged]],
    name: str,
    timeout_ms: int,
    told: Callable[[Purged], None] = lambda _: None,
) -> Purged:
    """Asks until it is done: the sums, which ``told`` hears after each request. Raises TimeoutError."""
    until_ms = clock.mono_ms() + timeout_ms
    sums = dict.fromkeys(COUNTED, 0)
    while True:
        part = await ask()
        removed = {field: getattr(part, field) for field in COUNTED}
        sums = {field: sums[field] + removed[field] for field in COUNTED}
        found = structs.replace(part, **sums)
        told(found)
        if found.done:
            return found
        left_ms = until_ms - clock.mono_ms()
        if left_ms <= 0:
            raise TimeoutError(
                f"tenant {name} is not purged after {format_duration(timeout_ms)}: "
                f"tasks left {found.left}, still running {found.running}"
            )
        if not any(removed.values()):
            await asyncio.sleep(min(PAUSE_S, left_ms / 1000))


class Queues(_Limited[QueueState]):
    """The queues of the namespace. ``counts`` are those of the app's tenant."""

    async def list(self) -> List[QueueState]:
        """Those that hold tasks of the tenant or have rules, by name."""
        return await (await self._limits()).queues(self._link.tenant)

    async def get(self, name: str) -> QueueState:
        """A queue that nobody ever used is empty and has no rules."""
        return await (await self._limits()).queue(self._link.tenant, _queue(name))

    async def set(self, name: str, **limits: Unpack[QueueLimits]) -> QueueState:
        """Changes what is named. Raises Invalid, Conflict."""
        backend, tenant = await self._limits(), self._link.tenant
        _queue(name)
        return await changed(
            lambda: backend.queue(tenant, name),
            lambda rules, version: backend.put_queue(tenant, name, rules, version),
            dict(limits),
        )

    async def pause(self, name: str) -> QueueState:
        """Nothing of it starts any more, for all tenants; what runs goes on."""
        return await self._verb(name, "pause")

    async def drain(self, name: str) -> QueueState:
        """Nothing is created there any more; what is there still runs."""
        return await self._verb(name, "drain")

    async def resume(self, name: str) -> QueueState:
        """Ends a pause and a drain."""
        return await self._verb(name, "resume")

    async def pause_share(self, name: str) -> QueueState:
        """What the app's tenant has there does not start; other tenants go on."""
        return await self._verb(name, "share/pause")

    async def resume_share(self, name: str) -> QueueState:
        return await self._verb(name, "share/resume")

    async def pause_everything(self) -> None:
        """Nothing starts in the whole namespace; what runs goes on."""
        await (await self._limits()).set_everything(self._link.tenant, paused=True)

    async def resume_everything(self) -> None:
        """Ends that pause; what is paused by itself stays so."""
        await (await self._limits()).set_everything(self._link.tenant, paused=False)

    async def _verb(self, name: str, verb: QueueVerb) -> QueueState:
        return await (await self._limits()).queue_verb(self._link.tenant, _queue(name), verb)

    def list_sync(self) -> List[QueueState]:
        return self._run(self.list())

    def get_sync(self, name: str) -> QueueState:
        return self._run(self.get(name))

    def set_sync(self, name: str, **limits: Unpack[QueueLimits]) -> QueueState:
        return self._run(self.set(name, **limits))

    def pause_sync(self, name: str) -> QueueState:
        return self._run(self.pause(name))

    def drain_sync(self, name: str) -> QueueState:
        return self._run(self.drain(name))

    def resume_sync(self, name: str) -> QueueState:
        return self._run(self.resume(name))

    def pause_share_sync(self, name: str) -> QueueState:
        return self._run(self.pause_share(name))

    def resume_share_sync(self, name: str) -> QueueState:
        return self._run(self.resume_share(name))

    def pause_everything_sync(self) -> None:
        self._run(self.pause_everything())

    def resume_everything_sync(self) -> None:
        self._run(self.resume_everything())


class Tenants(_Limited[TenantState]):
    """The tenants of the namespace, as far as the caller may see them."""

    async def list(self) -> List[TenantState]:
        """Those that have tasks, or for which something is set, by name."""
        return await (await self._limits()).tenants(self._link.tenant)

    async def get(self, name: str) -> TenantState:
        return await (await self._limits()).tenant(self._link.tenant, _tenant(name))

    async def set(self, name: str, **limits: Unpack[TenantLimits]) -> TenantState:
        """Changes what is named. Raises Invalid, Conflict."""
        backend, mine = await self._limits(), self._link.tenant
        _tenant(name)
        return await changed(
            lambda: backend.tenant(mine, name),
            lambda rules, version: backend.put_tenant(mine, name, rules, version),
            dict(limits),
        )

    async def pause(self, name: str) -> TenantState:
        """Nothing of it starts any more; what runs goes on."""
        return await self._verb(name, "pause")

    async def drain(self, name: str) -> TenantState:
        """Nothing is created for it any more; what it has still runs."""
        return await self._verb(name, "drain")

    async def resume(self, name: str) -> TenantState:
        """Ends a pause and a drain."""
        return await self._verb(name, "resume")

    async def purge(self, name: str, timeout: Duration = PURGE_USUAL) -> Purged:
        """Removes all that it has and revokes its keys, for ever; what runs is asked to stop.

        The counts are those of all requests. Raises Invalid; TimeoutError where it is not done then:
        the tenant stays paused and drained, and the next purge goes on from there.
        """
        backend, mine = await self._limits(), self._link.tenant
        _tenant(name)
        timeout_ms = parse_duration(timeout, "/timeout")
        return await purged(lambda: backend.purge_tenant(mine, name), name, timeout_ms)

    async def _verb(self, name: str, verb: TenantVerb) -> TenantState:
        return await (await self._limits()).tenant_verb(self._link.tenant, _tenant(name), verb)

    def list_sync(self) -> List[TenantState]:
        return self._run(self.list())

    def get_sync(self, name: str) -> TenantState:
        return self._run(self.get(name))

    def set_sync(self, name: str, **limits: Unpack[TenantLimits]) -> TenantState:
        return self._run(self.set(name, **limits))

    def pause_sync(self, name: str) -> TenantState:
        return self._run(self.pause(name))

    def drain_sync(self, name: str) -> TenantState:
        return self._run(self.drain(name))

    def resume_sync(self, name: str) -> TenantState:
        return self._run(self.resume(name))

    def purge_sync(self, name: str, timeout: Duration = PURGE_USUAL) -> Purged:
        return self._run(self.purge(name, timeout))


def _queue(name: str) -> str:
    return check_name(name, "/queue")


def _tenant(name: str) -> str:
    return check_name(name, "/tenant")


class Limiting:
    """What an app offers about queues and tenants."""

    _link: Link

    @property
    def queues(self) -> Queues:
        """Their rules and pauses; the pause of everything."""
        return Queues(self._link)

    @property
    def tenants(self) -> Tenants:
        """Their limits, weights and pauses."""
        return Tenants(self._link)
