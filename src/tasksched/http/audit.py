"""Audit over HTTP: who did what with the rights of an operator."""

from typing import Final

import msgspec

from tasksched.commands.audit import told
from tasksched.http import render
from tasksched.http.exchange import JSON, Reply
from tasksched.http.paging import limit_of, next_link
from tasksched.http.schema_audit import AuditPage, EntryView
from tasksched.http.services import Call
from tasksched.http.tasks import tenant_of

_NO_STORE: Final = (b"cache-control", b"no-store")


async def page(call: Call) -> Reply:
    """What was done that needs operate or admin, the latest first; about the last 10,000 requests.

    A key of one tenant is shown what was done in that tenant.
    """
    query = call.query("limit", "cursor")
    caller, cursor = call.caller, query.get("cursor")
    sees_all = caller is None or caller.is_everybodys
    tenant = None if sees_all else tenant_of(call)
    limit = limit_of(query.get("limit"))
    found = await call.services.audit.page(tenant=tenant, limit=limit, cursor=cursor)
    body = render.encode(
        AuditPage(
            [msgspec.convert(told(entry), EntryView) for entry in found.items], found.next_cursor
        )
    )
    return Reply(200, body, [JSON, _NO_STORE, *next_link(call, query, found.next_cursor)])
