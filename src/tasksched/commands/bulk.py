"""Bulk: what concerns many tasks at once, made together for the edges that offer it."""

from dataclasses import dataclass

from tasksched.commands.dead_letters import DeadLetters
from tasksched.commands.operations import Operations
from tasksched.commands.removal import Memory, Removal
from tasksched.commands.tenant_purge import TenantPurge
from tasksched.settings import Settings
from tasksched.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Bulk:
    """Dead letters, operations on many tasks, removal, and the purge of tenants. One per process."""

    dead_letters: DeadLetters
    operations: Operations
    removal: Removal
    tenant_purge: TenantPurge

    @classmethod
    def of(cls, store: Store, settings: Settings) -> "Bulk":
        memory = Memory.of(settings)
        return cls(
            DeadLetters(store),
            Operations(store, memory),
            Removal(store, memory),
            TenantPurge(store),
        )
