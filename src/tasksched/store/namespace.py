"""Namespace: what is recorded once and checked by every process at its start.

The number of shards is part of every id, so it is fixed when a namespace is made: a process that
was told another number takes the recorded one, or refuses when it was told explicitly. A record
with a newer ``schema`` than this code knows is refused. The namespace's lease goes to every shard's
clock, where the scripts find it.
"""

import secrets
from collections.abc import Sequence

from tasksched.errors import Unsafe
from tasksched.store.connect import Gateway
from tasksched.store.keys import NamespaceKeys, ShardKeys

SCHEMA = 1


async def open_namespace(
    gateway: Gateway, namespace: str, *, shards: int, told: bool, lease_ms: int, keeps_lease: bool
) -> int:
    """The number of shards of this namespace; makes it if it is new.

    ``told``: somebody asked for this very number. ``keeps_lease``: the caller is a role of the
    installation, whose lease is the namespace's; a producer leaves it as it is. Raises Unsafe when that contradicts the record
    or the record is of a newer schema, Unavailable when Redis does not answer.
    """
    meta = NamespaceKeys(namespace).meta
    found, schema = await gateway.command("HMGET", meta, "shards", "schema")
    if found is None or schema is None:
        await gateway.pipeline(
            [("HSETNX", meta, "shards", shards), ("HSETNX", meta, "schema", SCHEMA)]
        )
        found, schema = await gateway.command("HMGET", meta, "shards", "schema")
    if int(schema) > SCHEMA:
        raise Unsafe(
            f"namespace {namespace} is of schema {int(schema)}; this program knows {SCHEMA}"
        )
    number = int(found)
    if told and number != shards:
        raise Unsafe(
            f"namespace {namespace} has {number} shards, not {shards}: the number is fixed when a "
            "namespace is made; drain into a new namespace to change it"
        )
    clocks = [ShardKeys.of(namespace, n).clock for n in range(number)]
    await _keep_lease(gateway, clocks, lease_ms, only_missing=not keeps_lease)
    return number


async def namespace_secret(gateway: Gateway, namespace: str) -> bytes:
    """What callback tokens are made with; made once, with the namespace's first session."""
    meta = NamespaceKeys(namespace).meta
    found = await gateway.command("HGET", meta, "secret")
    if found is None:
        await gateway.command("HSETNX", meta, "secret", secrets.token_urlsafe(32))
        found = await gateway.command("HGET", meta, "secret")
    return bytes(found)


async def _keep_lease(
    gateway: Gateway, clocks: Sequence[str], lease_ms: int, *, only_missing: bool
) -> None:
    """Writes only what differs: a process must be able to start on a server that is full."""
    known = await gateway.pipeline([("HGET", each, "lease_ms") for each in clocks])
    changed = [
        ("HSET", each, "lease_ms", lease_ms)
        for each, stored in zip(clocks, known, strict=True)
        if stored is None or (int(stored) != lease_ms and not only_missing)
    ]
    if changed:
        await gateway.pipeline(changed)
