"""LimitsBackend: the requests about queues and tenants, whoever carries them. As ``backend``."""

from typing import Literal, Protocol

from tasksched.commands.tenant_purge import Purged
from tasksched.model.limits import QueueRules, QueueState, TenantRules, TenantState

QueueVerb = Literal["pause", "drain", "resume", "share/pause", "share/resume"]
TenantVerb = Literal["pause", "drain", "resume"]


class LimitsBackend(Protocol):
    """What a transport does about limits. ``tenant``: who asks."""

    async def queues(self, tenant: str) -> list[QueueState]:
        """Those that hold tasks of the tenant or have rules, by name."""
        ...

    async def queue(self, tenant: str, name: str) -> QueueState: ...

    async def put_queue(
        self, tenant: str, name: str, rules: QueueRules, version: int
    ) -> QueueState:
        """Raises PreconditionFailed for another version."""
        ...

    async def queue_verb(self, tenant: str, name: str, verb: QueueVerb) -> QueueState: ...

    async def set_everything(self, tenant: str, *, paused: bool) -> None: ...

    async def tenants(self, tenant: str) -> list[TenantState]:
        """Those that have tasks or settings, as far as the caller may see them, by name."""
        ...

    async def tenant(self, tenant: str, name: str) -> TenantState: ...

    async def put_tenant(
        self, tenant: str, name: str, rules: TenantRules, version: int
    ) -> TenantState:
        """Raises PreconditionFailed for another version."""
        ...

    async def tenant_verb(self, tenant: str, name: str, verb: TenantVerb) -> TenantState: ...

    async def purge_tenant(self, tenant: str, name: str) -> Purged:
        """The next part of it; to be asked again until it says ``done``."""
        ...
