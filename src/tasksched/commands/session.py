"""Session: a connected namespace with what commands need, opened and closed as one.

Opening reads (or makes) the namespace's record, so it needs Redis; nothing is listened to until
somebody waits for a result.
"""

from dataclasses import dataclass

from tasksched.commands.tasks import Tasks
from tasksched.commands.waiter import Waiter
from tasksched.settings import Settings
from tasksched.store.connect import PATIENCE_MS, Gateway
from tasksched.store.durability import Durability
from tasksched.store.namespace import open_namespace
from tasksched.store.protocol import Store
from tasksched.store.wake import Listener


@dataclass(frozen=True, slots=True)
class Session:
    """One namespace on one gateway, in one event loop."""

    settings: Settings
    gateway: Gateway
    store: Store
    tasks: Tasks
    durability: Durability

    async def close(self) -> None:
        await self.tasks.close()
        await self.gateway.close()


async def open_session(
    settings: Settings, *, keeps_lease: bool = False, patience_ms: int = PATIENCE_MS
) -> Session:
    """Connects to ``settings.url``. Raises Unavailable, or Unsafe for a record that contradicts.

    ``keeps_lease``: see ``open_namespace``. ``patience_ms``: how long calls repeat in an outage.
    """
    gateway = Gateway.open(settings.url, patience_ms=patience_ms)
    try:
        shards = await open_namespace(
            gateway,
            settings.namespace,
            shards=settings.shards,
            told="shards" in settings.sources,
            lease_ms=settings.lease_ms,
            keeps_lease=keeps_lease,
        )
    except BaseException:
        await gateway.close()
        raise
    store = Store(gateway, settings.namespace, shards)
    waiter = Waiter()
    channels = [keys.finished for keys in store.keys]
    waiter.listener = Listener(gateway, channels, lambda _, text: waiter.heard(text), waiter.all)
    durability = Durability(gateway, store.keys)
    return Session(settings, gateway, store, Tasks(store, waiter, durability), durability)
