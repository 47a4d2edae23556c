"""Hooks: what scripts are told of a tenant's webhook endpoints: the events that any of them wants.

It stands in the settings as ``hooks:<tenant>``. Who changes an endpoint says it anew
(``store.webhooks``); what several changes at once, or a crash between a record and the word of it, may
leave untold, the janitors tell.
"""

from collections.abc import Iterable
from typing import Final

from tasksched.model.endpoint import Endpoint, words
from tasksched.store.protocol import Store
from tasksched.store.records import Records, home_conf, set_conf

_FIELD: Final = "hooks:"


def field_of(tenant: str) -> str:
    """The setting's name."""
    return _FIELD + tenant


def wanted_by(endpoints: Iterable[Endpoint]) -> str:
    """The union of what the enabled ones want, as scripts read it."""
    return words(event for each in endpoints if each.enabled for event in each.events)


async def told(store: Store) -> list[tuple[str, str]]:
    """Tenant and words, of every tenant that ever had an endpoint."""
    conf = await home_conf(store)
    return [
        (field.removeprefix(_FIELD), value.partition(" ")[2])
        for field, value in conf.items()
        if field.startswith(_FIELD)
    ]


async def mend(store: Store, tenant: str, said: str) -> None:
    """Adds the words that are missing. One too many is left: somebody may be about to write the
    record it is for.
    """
    home = store.global_keys.endpoints(tenant)
    found, _ = await Records(store, home, Endpoint).readable()
    wanted = set(wanted_by(kept.value for kept in found.values()).split())
    if not wanted.issubset(said.split()):
        await set_conf(store, field_of(tenant), " ".join(sorted(wanted.union(said.split()))))
