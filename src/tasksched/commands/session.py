"""Session: a connected namespace with what commands need, opened and closed as one.

Opening reads (or makes) the namespace's record, so it needs Redis; nothing is listened to until
somebody waits for a result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasksched.commands.admission import Admission
from tasksched.commands.callbacks import Callbacks
from tasksched.commands.live import Live
from tasksched.commands.tasks import Tasks
from tasksched.commands.waiter import Waiter
from tasksched.model.seal import Bodies, Codec, codec_of
from tasksched.settings import Settings
from tasksched.store.acl import Role
from tasksched.store.address import Tls
from tasksched.store.connect import PATIENCE_MS, Gateway
from tasksched.store.durability import Durability
from tasksched.store.namespace import namespace_secret, open_namespace
from tasksched.store.permissions import require_roles
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
    bodies: Bodies
    callbacks: Callbacks
    live: Live
    admission: Admission

    async def close(self) -> None:
        await self.tasks.close()
        await self.live.close()
        await self.admission.close()
        await self.gateway.close()


async def open_session(
    settings: Settings,
    *,
    keeps_lease: bool = False,
    patience_ms: int = PATIENCE_MS,
    codec: Codec | None = None,
    roles: Sequence[Role] = (),
) -> Session:
    """Connects to ``settings.url``. Raises Unavailable, or Unsafe for a record that contradicts.

    ``roles``: what this process is; Unsafe where its Redis user may not do what they need.

    ``keeps_lease``: see ``open_namespace``. ``patience_ms``: how long calls repeat in an outage.
    ``codec`` seals payloads and results instead of the keys of the settings.
    """
    bodies = Bodies(codec or codec_of(settings.encryption_keys))
    gateway = Gateway.open(settings.url, patience_ms=patience_ms, tls=tls_of(settings))
    try:
        await require_roles(gateway, settings.namespace, roles, unsafe=settings.unsafe_redis)
        shards = await open_namespace(
            gateway,
            settings.namespace,
            shards=settings.shards,
            told="shards" in settings.sources,
            lease_ms=settings.lease_ms,
            keeps_lease=keeps_lease,
        )
        secret = await namespace_secret(gateway, settings.namespace)
    except BaseException:
        await gateway.close()
        raise
    store = Store(gateway, settings.namespace, shards, secret=secret)
    waiter = Waiter()
    channels = [keys.finished for keys in store.keys]
    waiter.listener = Listener(gateway, channels, lambda _, text: waiter.heard(text), waiter.all)
    durability = Durability(gateway, store.keys)
    tasks = Tasks(store, waiter, durability, bodies)
    callbacks = Callbacks(
        store,
        bodies,
        lease_ms=settings.callback_lease_ms,
        result_bytes_max=settings.result_bytes_max,
    )
    live = Live(store, _live_waiter(gateway, store))
    admission = Admission.of(gateway, settings)
    return Session(settings, gateway, store, tasks, durability, bodies, callbacks, live, admission)


def tls_of(settings: Settings) -> Tls:
    return Tls(settings.redis_ca, settings.redis_cert, settings.redis_key)


def _live_waiter(gateway: Gateway, store: Store) -> Waiter:
    """Of those who follow tasks: they want to know of lines and progress as well."""
    waiter = Waiter()
    channels = [channel for keys in store.keys for channel in (keys.live, keys.finished)]
    waiter.listener = Listener(gateway, channels, lambda _, text: waiter.heard(text), waiter.all)
    return waiter
