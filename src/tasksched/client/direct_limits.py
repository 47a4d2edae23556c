"""Direct limits: queues and tenants over Redis itself. As ``direct``, a LimitsBackend."""

from msgspec import structs

from tasksched.client.limits_backend import QueueVerb, TenantVerb
from tasksched.commands.queues import Queues
from tasksched.commands.tenant_purge import Purged, TenantPurge
from tasksched.commands.tenants import Tenants
from tasksched.model.limits import QueueRules, QueueState, TenantRules, TenantState
from tasksched.model.names import check_name
from tasksched.store.protocol import Store


class DirectLimits:
    """A LimitsBackend over one namespace's commands."""

    def __init__(self, store: Store) -> None:
        self._queues = Queues(store)
        self._tenants = Tenants(store)
        self._purge = TenantPurge(store)

    async def queues(self, tenant: str) -> list[QueueState]:
        return await self._queues.all(tenant)

    async def queue(self, tenant: str, name: str) -> QueueState:
        return await self._queues.get(tenant, name)

    async def put_queue(
        self, tenant: str, name: str, rules: QueueRules, version: int
    ) -> QueueState:
        await self._queues.put(name, structs.asdict(rules), version=version)
        return await self._queues.get(tenant, name)

    async def queue_verb(self, tenant: str, name: str, verb: QueueVerb) -> QueueState:
        match verb:
            case "pause":
                await self._queues.pause(name)
            case "drain":
                await self._queues.drain(name)
            case "resume":
                await self._queues.resume(name)
            case "share/pause":
                await self._queues.pause_share(tenant, name)
            case "share/resume":
                await self._queues.resume_share(tenant, name)
        return await self._queues.get(tenant, name)

    async def set_everything(self, tenant: str, *, paused: bool) -> None:
        del tenant  # it is about all of them
        if paused:
            await self._queues.pause_everything()
        else:
            await self._queues.resume_everything()

    async def tenants(self, tenant: str) -> list[TenantState]:
        del tenant  # whoever reaches Redis sees everybody
        return await self._tenants.all()

    async def tenant(self, tenant: str, name: str) -> TenantState:
        del tenant
        return (await self._tenants.get(name)).state

    async def put_tenant(
        self, tenant: str, name: str, rules: TenantRules, version: int
    ) -> TenantState:
        await self._tenants.put(name, limits=structs.asdict(rules), version=version)
        return await self.tenant(tenant, name)

    async def tenant_verb(self, tenant: str, name: str, verb: TenantVerb) -> TenantState:
        match verb:
            case "pause":
                await self._tenants.pause(name)
            case "drain":
                await self._tenants.drain(name)
            case "resume":
                await self._tenants.resume(name)
        return await self.tenant(tenant, name)

    async def purge_tenant(self, tenant: str, name: str) -> Purged:
        del tenant
        return await self._purge.purge(check_name(name, "/tenant"))
