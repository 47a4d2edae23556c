"""Export of a tenant: all that it has, a JSON line each, in the shapes in which the API shows it.

First ``{"tenant": …}``, then ``{"recurring_task": …}``, ``{"webhook": …}`` (without secrets) and
``{"task": …}`` with payload and result, and at last ``{"end": {…}}`` with how many there were: an export
without it is not whole. Nothing stands still meanwhile: a task that moves on may be told twice, and the
later line holds. Deliveries of webhooks are left out.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from tasksched.commands.endpoints import Endpoints
from tasksched.commands.listing import TaskQuery, list_tasks
from tasksched.commands.recurring import Recurring
from tasksched.commands.tasks import Tasks
from tasksched.commands.tenants import Tenants
from tasksched.http import render, render_recurring
from tasksched.http.exchange import RECHECK, Reply
from tasksched.http.limits import named_tenant, tenant_view
from tasksched.http.services import Call
from tasksched.http.tasks import PRIVATE
from tasksched.http.webhooks import view_of
from tasksched.settings import Settings

LINES: Final = "application/x-ndjson"
PAGE: Final = 50
"""Tasks read together: with their bodies they may be large."""


class Source(NamedTuple):
    """What an export reads from."""

    tenants: Tenants
    recurring: Recurring
    endpoints: Endpoints
    tasks: Tasks
    settings: Settings


async def export(call: Call) -> Reply:
    """All that a tenant has, a JSON line each; the last one is ``{"end": …}``."""
    call.query()
    tenant, services = named_tenant(call), call.services
    source = Source(
        services.tenants,
        services.recurring,
        services.endpoints,
        services.tasks,
        services.settings,
    )
    name = f'attachment; filename="{tenant}.ndjson"'.encode()
    headers = [(b"content-type", LINES.encode()), PRIVATE, (b"content-disposition", name)]
    return Reply(200, b"", headers, _streamed(call, export_of(source, tenant)))


async def _streamed(call: Call, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    services = call.services
    with services.streams.one(services.settings.sse_connections_max, call.bound_tenant):
        async with aclosing(parts):
            async for part in parts:
                if services.system.draining:
                    return
                await call.scope[RECHECK]()
                yield part


async def export_of(source: Source, tenant: str) -> AsyncGenerator[bytes, None]:
    """The lines, some at a time. An outage is raised; what was told until then is right."""
    told = {"recurring_tasks": 0, "webhooks": 0, "tasks": 0}
    found = await source.tenants.get(tenant)
    yield _lines("tenant", [tenant_view(found, source.settings)])
    async for schedules in _recurring(source.recurring, tenant):
        told["recurring_tasks"] += len(schedules)
        yield _lines("recurring_task", schedules)
    webhooks = [view_of(endpoint) for endpoint in await source.endpoints.list(tenant)]
    told["webhooks"] += len(webhooks)
    yield _lines("webhook", webhooks)
    async for tasks in _tasks(source.tasks, tenant):
        told["tasks"] += len(tasks)
        yield _lines("task", tasks)
    yield _lines("end", [told])


def _lines(kind: str, views: Sequence[Any]) -> bytes:
    return b"".join(render.encode({kind: view}) + b"\n" for view in views)


async def _recurring(recurring: Recurring, tenant: str) -> AsyncGenerator[list[Any], None]:
    place = None
    while True:
        found, place = await recurring.page(tenant, place, limit=PAGE)
        standings = await recurring.standings(found)
        yield [
            render_recurring.recurring_view(schedule, standing)
            for schedule, standing in zip(found, standings, strict=True)
        ]
        if place is None:
            return


async def _tasks(tasks: Tasks, tenant: str) -> AsyncGenerator[list[Any], None]:
    cursor = None
    while True:
        query = TaskQuery(tenant=tenant, limit=PAGE, cursor=cursor)
        page = await list_tasks(tasks.reads, query)
        found = await tasks.get_many(tenant, [each.id for each in page.items])
        yield [render.whole_view(task) for task in found]
        cursor = page.next_cursor
        if cursor is None:
            return
