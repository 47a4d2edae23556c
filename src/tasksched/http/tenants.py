"""Tenants over HTTP: what is set for one of them. A caller sees no tenant but its own."""

from tasksched.errors import NotFound
from tasksched.http import parse, parse_bulk, render_bulk
from tasksched.http.exchange import JSON, Reply
from tasksched.http.services import Call
from tasksched.http.tasks import PRIVATE, json_body, tenant_of
from tasksched.model.tenant import TenantSettings
from tasksched.store.records import Kept


async def tenant_get(call: Call) -> Reply:
    """The settings of a tenant."""
    call.query()
    tenant = _own(call)
    return _reply(call, tenant, await call.services.tenants.get(tenant))


async def tenant_put(call: Call) -> Reply:
    """Set how long what a tenant's tasks leave behind is kept; what is not named goes by default."""
    raw = await json_body(call)
    call.query()
    tenant, version = _own(call), parse.version_of(call.header(b"if-match"))
    choice = parse_bulk.retention(parse.decode_json(raw))
    kept = await call.services.tenants.put_retention(tenant, choice, version=version)
    return _reply(call, tenant, kept)


def _own(call: Call) -> str:
    """The tenant of the path, which must be the caller's own. Raises NotFound."""
    tenant = tenant_of(call)
    if call.part("tenant") != tenant:
        raise NotFound("no such tenant")
    return tenant


def _reply(call: Call, tenant: str, kept: Kept[TenantSettings]) -> Reply:
    body = render_bulk.tenant(tenant, kept, call.services.settings)
    return Reply(200, body, [JSON, PRIVATE, (b"etag", b'"%d"' % kept.version)])
