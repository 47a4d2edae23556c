"""Sealed: the stored bodies of a namespace, found by SCAN, to be put back under another key.

Each body comes with the place it belongs to, options that hold secrets of receivers without one. A walk may meet a record twice, and does not see what is
made meanwhile; ``lua/reseal.lua`` replaces only what is still as it was read.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from tasksched.model.ids import shard_of
from tasksched.model.recurring import shard_of_schedule
from tasksched.model.seal import payload_places, schedule_place, task_place
from tasksched.store.protocol import Store
from tasksched.store.scripts import Arg

SCAN_COUNT: Final = 100
SECRET: Final = b'"secret":'


class Stored(NamedTuple):
    """One body as it stands. ``places``: those it may be sealed for, the last one its own.

    ``options`` come as the JSON they are, and have the places of their secrets (``model.endpoint``).
    """

    kind: str
    id: str
    field: str
    shard: int
    places: tuple[str, ...]
    raw: bytes
    tenant: str = ""


class Sealed:
    """The walk over all bodies, and the way back. Cheap to make; shares the store's gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gateway = store.gateway

    async def walk(self) -> AsyncIterator[list[Stored]]:
        """Every body of the namespace, a bounded batch of records at a time."""
        namespace = self._store.namespace
        for kind, read in (("task", self._of_tasks), ("schedule", self._of_schedules)):
            cursor = b"0"
            while True:
                cursor, found = await self._gateway.command(
                    "SCAN", cursor, "MATCH", f"{{{namespace}:*}}:{kind}:*", "COUNT", SCAN_COUNT
                )
                names = [key.decode().partition(f"}}:{kind}:")[2] for key in found]
                if names and (bodies := await read(names)):
                    yield bodies
                if int(cursor) == 0:
                    break

    async def reseal(self, shard: int, bodies: Sequence[tuple[Stored, bytes]]) -> list[str]:
        """Words: ``resealed``; ``changed``, where it holds other bytes by now."""
        values: dict[str, Arg] = {"clock": self._store.keys[shard].clock}
        rows = [(old.kind, old.id, old.field, old.raw, new) for old, new in bodies]
        return [word.decode() for word in await self._gateway.run("reseal", values, rows)]

    async def endpoint_tenants(self) -> list[str]:
        """The tenants that have endpoints, some perhaps twice."""
        prefix, cursor = self._store.global_keys.endpoints(""), b"0"
        tenants: list[str] = []
        while True:
            cursor, found = await self._gateway.command(
                "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", SCAN_COUNT
            )
            tenants += [key.decode().removeprefix(prefix) for key in found]
            if int(cursor) == 0:
                return tenants

    async def _of_tasks(self, task_ids: Sequence[str]) -> list[Stored]:
        shards = {task_id: shard_of(task_id, self._store.shards) for task_id in task_ids}
        known = {task_id: shard for task_id, shard in shards.items() if shard is not None}
        commands: list[tuple[Any, ...]] = []
        for task_id, shard in known.items():
            keys = self._store.keys[shard]
            fields = ("lane", "schedule", "payload", "result", "options")
            commands.append(("HMGET", keys.task(task_id), *fields))
            commands.append(("GET", keys.body(task_id)))
            commands.append(("GET", keys.checkpoint(task_id)))
        replies = iter(await self._gateway.pipeline(commands) if commands else [])
        found: list[Stored] = []
        for task_id, shard in known.items():
            (lane, schedule, payload, result, options), body, checkpoint = (
                next(replies), next(replies), next(replies),
            )  # fmt: skip
            if lane is None:
                continue
            tenant, ref = lane.decode().split(":")[2], schedule and schedule.decode()
            places = {
                "payload": (payload_places(tenant, task_id, ref), body or payload),
                "result": ((task_place(tenant, task_id, "result"),), result),
                "checkpoint": ((task_place(tenant, task_id, "checkpoint"),), checkpoint),
            }
            found += [
                Stored("task", task_id, field, shard, where, raw)
                for field, (where, raw) in places.items()
                if raw
            ]
            if options and SECRET in options:
                found.append(Stored("task", task_id, "options", shard, (), options, tenant))
        return found

    async def _of_schedules(self, names: Sequence[str]) -> list[Stored]:
        """``names``: tenant:id, some with ``:body`` behind it, which is met with its record."""
        refs = [name for name in names if name.count(":") == 1]
        count = self._store.shards
        owners = [ref.split(":") for ref in refs]
        shards = [shard_of_schedule(tenant, name, count) for tenant, name in owners]
        commands: list[tuple[Any, ...]] = []
        for ref, shard in zip(refs, shards, strict=True):
            keys = self._store.keys[shard]
            commands.append(("HMGET", keys.schedule(ref), "payload", "options"))
            commands.append(("GET", keys.schedule_body(ref)))
        replies = iter(await self._gateway.pipeline(commands) if commands else [])
        found: list[Stored] = []
        for ref, shard in zip(refs, shards, strict=True):
            (payload, options), body = next(replies), next(replies)
            if raw := body or payload:
                found.append(Stored("schedule", ref, "payload", shard, (schedule_place(ref),), raw))
            if options and SECRET in options:
                tenant = ref.partition(":")[0]
                found.append(Stored("schedule", ref, "options", shard, (), options, tenant))
        return found
