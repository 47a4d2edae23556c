"""Remote recurring: recurring tasks over the HTTP API. As ``remote``, a RecurringBackend.

Where no version is named, ``If-Match: *`` says so, and the server sorts out a race. What changes
nothing when it is asked twice is sent again after a lost reply; a trigger is not, nor is a removal,
whose second answer would be that there is nothing.
"""

import msgspec

from tasksched.client import wire_recurring as wire
from tasksched.client.ask import Ask, Send
from tasksched.client.recurring_backend import Fill, Kept, RecurringPage
from tasksched.client.schedule_options import RecurringChanges
from tasksched.commands.recurring import Backfilled
from tasksched.errors import Invalid, NotFound
from tasksched.model.names import check_name
from tasksched.model.recurring import LedgerEntry, Schedule, ScheduleSpec, ScheduleStatus

PATH = "/recurring-tasks"


class RemoteRecurring:
    """A RecurringBackend over HTTP."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def create(self, spec: ScheduleSpec) -> Kept:
        body = msgspec.json.encode(wire.definition_body(spec))
        reply = await self._send(Ask("POST", PATH, spec.template.tenant, body))
        return wire.read_kept(reply.content)

    async def replace(self, spec: ScheduleSpec, version: int) -> Schedule:
        body = msgspec.json.encode(wire.definition_body(spec))
        headers = {"If-Match": f'"{version}"'}
        ask = Ask("PUT", _path(spec.id), spec.template.tenant, body, headers=headers)
        return wire.read_schedule((await self._send(ask)).content)

    async def get(self, tenant: str, schedule_id: str) -> Schedule:
        reply = await self._send(Ask("GET", _path(schedule_id), tenant))
        return wire.read_schedule(reply.content)

    async def page(
        self, tenant: str, status: ScheduleStatus | None, cursor: str | None, limit: int
    ) -> RecurringPage:
        named = {"status": status, "cursor": cursor, "limit": str(limit)}
        asked = {name: value for name, value in named.items() if value is not None}
        reply = await self._send(Ask("GET", PATH, tenant, query=asked))
        return wire.read_page(reply.content)

    async def edit(
        self, tenant: str, schedule_id: str, changes: RecurringChanges, version: int | None
    ) -> Schedule:
        body = msgspec.json.encode(wire.changes_body(changes))
        ask = Ask("PATCH", _path(schedule_id), tenant, body, headers=_match(version))
        return wire.read_schedule((await self._send(ask)).content)

    async def pause(self, tenant: str, schedule_id: str, version: int | None) -> Schedule:
        return await self._turn(tenant, _path(schedule_id, "/pause"), version)

    async def resume(self, tenant: str, schedule_id: str, version: int | None) -> Schedule:
        return await self._turn(tenant, _path(schedule_id, "/resume"), version)

    async def _turn(self, tenant: str, path: str, version: int | None) -> Schedule:
        ask = Ask("POST", path, tenant, headers=_match(version))
        return wire.read_schedule((await self._send(ask)).content)

    async def remove(self, tenant: str, schedule_id: str, version: int | None) -> None:
        path, headers = _path(schedule_id), _match(version)
        await self._send(Ask("DELETE", path, tenant, headers=headers, repeatable=False))

    async def trigger(self, tenant: str, schedule_id: str) -> str:
        path = _path(schedule_id, "/trigger")
        reply = await self._send(Ask("POST", path, tenant, repeatable=False))
        return wire.read_triggered(reply.content)

    async def backfill(self, tenant: str, schedule_id: str, fill: Fill) -> Backfilled:
        body = msgspec.json.encode(wire.backfill_body(fill))
        reply = await self._send(Ask("POST", _path(schedule_id, "/backfill"), tenant, body))
        return wire.read_backfilled(reply.content)

    async def ledger(self, tenant: str, schedule_id: str) -> list[LedgerEntry]:
        reply = await self._send(Ask("GET", _path(schedule_id, "/runs"), tenant))
        return wire.read_ledger(reply.content)


def _path(schedule_id: str, rest: str = "") -> str:
    """The path of a recurring task. Raises NotFound for what can be the id of none."""
    try:
        return f"{PATH}/{check_name(schedule_id)}{rest}"
    except Invalid:
        raise NotFound(f"no recurring task {schedule_id}") from None


def _match(version: int | None) -> dict[str, str]:
    return {"If-Match": "*" if version is None else f'"{version}"'}
