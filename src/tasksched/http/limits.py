"""Limits over HTTP: queues, tenants, and the pause of everything: parse, ask the commands, render.

Queues belong to the namespace. A caller whose key belongs to one tenant sees no other one; whoever needs
no key, or has one for all tenants, operates the whole namespace.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from tasksched.commands.tenants import TenantView as Tenant
from tasksched.errors import Invalid, NotFound
from tasksched.http import parse, parse_bulk
from tasksched.http.exchange import JSON, Headers, Reply
from tasksched.http.paging import LIMIT_DEFAULT, cut, next_link
from tasksched.http.render import encode
from tasksched.http.render_bulk import retention_views
from tasksched.http.schema_limits import (
    QUEUE_RULES,
    QUEUE_TOLD,
    TENANT_RULES,
    TENANT_TOLD,
    EverythingView,
    QueuePage,
    QueueView,
    TenantItem,
    TenantPage,
    TenantPurgeView,
    TenantView,
    UsageView,
)
from tasksched.http.services import Call
from tasksched.http.tasks import PRIVATE, json_body, no_options, tenant_of
from tasksched.model import names
from tasksched.model.limits import CHECKS, QueueState, TenantState
from tasksched.settings import Settings
from tasksched.store.reads import Place

_QUEUES: Final = "queues"
_TENANTS: Final = "tenants"


# -- queues -------------------------------------------------------------------------------------


async def queue_list(call: Call) -> Reply:
    """The queues that hold tasks of the tenant or have rules, with both."""
    query = call.query("limit", "cursor")
    found = await call.services.queues.all(tenant_of(call))
    shown, cursor = cut(found, lambda each: Place(0, each.name), query, _QUEUES)
    page = QueuePage([_queue(each) for each in shown], cursor)
    return _json(page, next_link(call, query, cursor))


async def queue_get(call: Call) -> Reply:
    """A queue: its rules, its tasks, who stands still."""
    call.query()
    return await _queue_reply(call)


async def queue_put(call: Call) -> Reply:
    """Set the rules of a queue, as a whole."""
    raw = await json_body(call)
    call.query()
    name, version = _queue_of(call), parse.version_of(call.header(b"if-match"))
    given = _given(parse.decode_json(raw), QUEUE_RULES, QUEUE_TOLD, {"name": name})
    await call.services.queues.put(name, given, version=version)
    return await _queue_reply(call)


async def queue_pause(call: Call) -> Reply:
    """Nothing of a queue starts any more, for all tenants; what runs goes on."""
    await no_options(call)
    await call.services.queues.pause(_queue_of(call))
    return await _queue_reply(call)


async def queue_drain(call: Call) -> Reply:
    """Nothing is created in a queue any more; what is there still runs."""
    await no_options(call)
    await call.services.queues.drain(_queue_of(call))
    return await _queue_reply(call)


async def queue_resume(call: Call) -> Reply:
    """End the pause and the drain of a queue."""
    await no_options(call)
    await call.services.queues.resume(_queue_of(call))
    return await _queue_reply(call)


async def share_pause(call: Call) -> Reply:
    """What the tenant has in a queue does not start; other tenants go on."""
    await no_options(call)
    await call.services.queues.pause_share(tenant_of(call), _queue_of(call))
    return await _queue_reply(call)


async def share_resume(call: Call) -> Reply:
    """End the pause of the tenant's own share of a queue."""
    await no_options(call)
    await call.services.queues.resume_share(tenant_of(call), _queue_of(call))
    return await _queue_reply(call)


async def everything_pause(call: Call) -> Reply:
    """Nothing starts in the whole namespace; what runs goes on."""
    await no_options(call)
    await call.services.queues.pause_everything()
    return _json(EverythingView(paused=True))


async def everything_resume(call: Call) -> Reply:
    """End the pause of everything; what is paused by itself stays so."""
    await no_options(call)
    await call.services.queues.resume_everything()
    return _json(EverythingView(paused=False))


def _queue_of(call: Call) -> str:
    """The queue of the path. Raises NotFound for what cannot be one."""
    return _path_name(call, "queue")


def _path_name(call: Call, part: str) -> str:
    try:
        return names.check_name(call.part(part))
    except Invalid:
        raise NotFound(f"no such {part}") from None


async def _queue_reply(call: Call) -> Reply:
    state = await call.services.queues.get(tenant_of(call), _queue_of(call))
    return _json(_queue(state), [(b"etag", b'"%d"' % state.version)])


def _queue(state: QueueState) -> QueueView:
    return QueueView(
        name=state.name,
        version=state.version,
        paused_by=state.paused_by,
        in_use=state.in_use,
        allotted=state.allotted,
        counts=state.counts,
        **structs.asdict(state.rules),
    )


# -- tenants ------------------------------------------------------------------------------------


async def tenant_list(call: Call) -> Reply:
    """The tenants that have tasks or settings, with their limits and their use of them."""
    query = call.query("limit", "cursor")
    found = await call.services.tenants.all()
    if not _operates(call):
        found = [each for each in found if each.name == tenant_of(call)]
    asked = {"limit": str(LIMIT_DEFAULT), **query}
    shown, cursor = cut(found, lambda each: Place(0, each.name), asked, _TENANTS)
    page = TenantPage([_item(each) for each in shown], cursor)
    return _json(page, next_link(call, query, cursor))


async def tenant_get(call: Call) -> Reply:
    """The settings of a tenant, and its use of its limits."""
    call.query()
    return await _tenant_reply(call)


async def tenant_put(call: Call) -> Reply:
    """Set the retention of a tenant as a whole, or its limits as a whole, or both."""
    raw = await json_body(call)
    call.query()
    tenant, version = named_tenant(call), parse.version_of(call.header(b"if-match"))
    body = parse.decode_json(raw)
    known = ("retention", *TENANT_RULES)
    given = _given(body, known, TENANT_TOLD, {"tenant": tenant})
    retention = given.pop("retention", None)
    takes_all = not given and "retention" not in body
    if "retention" in body or takes_all:
        retention = parse_bulk.retention({"retention": body.get("retention")})
    await call.services.tenants.put(
        tenant,
        retention=retention,
        limits=given if given or takes_all else None,
        version=version,
    )
    return await _tenant_reply(call)


async def tenant_pause(call: Call) -> Reply:
    """Nothing of a tenant starts any more; what runs goes on."""
    await no_options(call)
    await call.services.tenants.pause(named_tenant(call))
    return await _tenant_reply(call)


async def tenant_drain(call: Call) -> Reply:
    """Nothing is created for a tenant any more; what it has still runs."""
    await no_options(call)
    await call.services.tenants.drain(named_tenant(call))
    return await _tenant_reply(call)


async def tenant_resume(call: Call) -> Reply:
    """End the pause and the drain of a tenant."""
    await no_options(call)
    await call.services.tenants.resume(named_tenant(call))
    return await _tenant_reply(call)


async def tenant_purge(call: Call) -> Reply:
    """Remove all that a tenant has, and revoke its keys: a bounded part, asked for again until ``done``.

    The tenant is paused and drained meanwhile, and what runs is asked to stop.
    """
    raw = await json_body(call)
    call.query()
    tenant = named_tenant(call)
    members = parse.Members(parse.decode_json(raw), "", ("confirm",))
    if members.take("confirm", names.check_name, None, None) != tenant:
        members.refuse("confirm", "repeat the name of the tenant here: all of it is removed")
    members.finish()
    purged = await call.services.bulk.tenant_purge.purge(tenant)
    return _json(TenantPurgeView(tenant=tenant, **structs.asdict(purged)))


def _operates(call: Call) -> bool:
    """Whether the caller may be about any tenant."""
    return call.caller is None or call.caller.is_everybodys


def named_tenant(call: Call) -> str:
    """The tenant of the path. Raises NotFound where the caller belongs to another one."""
    tenant = _path_name(call, "tenant")
    if tenant != tenant_of(call) and not _operates(call):
        raise NotFound("no such tenant")
    return tenant


async def _tenant_reply(call: Call) -> Reply:
    found = await call.services.tenants.get(named_tenant(call))
    return _json(
        tenant_view(found, call.services.settings), [(b"etag", b'"%d"' % found.state.version)]
    )


def tenant_view(found: Tenant, settings: Settings) -> TenantView:
    retention, defaults = retention_views(found.settings, settings)
    item = structs.asdict(_item(found.state))
    return TenantView(**item, retention=retention, defaults=defaults)


def _item(state: TenantState) -> TenantItem:
    return TenantItem(
        tenant=state.name,
        version=state.version,
        usage=UsageView(state.unfinished, state.running),
        **structs.asdict(state.rules),
    )


# -- what both have in common -------------------------------------------------------------------


def _given(
    body: Any, known: tuple[str, ...], told: tuple[str, ...], mine: Mapping[str, str]
) -> dict[str, Any]:
    """The rules that the body names, checked. Raises Invalid, also where it is about another one."""
    members = parse.Members(body, "", (*known, *told))
    for name, value in mine.items():
        if body.get(name) not in (None, value):
            members.refuse(name, "this is not the one that the request is about")
    found = {
        name: members.take(name, CHECKS[name], None, None)
        for name in known
        if name in body and name in CHECKS
    }
    members.finish()
    return found


def _json(view: Any, headers: Headers | None = None) -> Reply:
    return Reply(200, encode(view), [JSON, PRIVATE, *(headers or [])])
