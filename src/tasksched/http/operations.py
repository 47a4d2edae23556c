"""Operations over HTTP: cancel, edit or delete all tasks that match; look at what goes on; stop it.

Small operations have ended when they are answered (200); larger ones go on (202) in the schedulers,
whatever becomes of the process that took them.
"""

from tasksched.commands.operations import Request
from tasksched.http import parse, parse_bulk, render, render_bulk
from tasksched.http.exchange import JSON, Reply
from tasksched.http.paging import limit_of, next_link, read_cursor, write_cursor
from tasksched.http.services import Call
from tasksched.http.tasks import PRIVATE, json_body, no_options, tenant_of
from tasksched.model.operation import Kind, Operation


async def begin(call: Call, kind: Kind, asked: parse_bulk.Asked) -> Reply:
    """Starts the operation, or with ``dry_run`` counts what it would be for."""
    call.query()
    request = Request(
        kind=kind,
        tenant=tenant_of(call),
        filter=asked.filter,
        changes=asked.changes,
        rate=asked.rate,
    )
    operations = call.services.bulk.operations
    if asked.dry_run:
        count = await operations.count(request)
        return Reply(200, render_bulk.counted(count), [JSON, PRIVATE])
    operation = await operations.start(request)
    place = f"{call.prefix}/operations/{operation.id}".encode()
    reply = _reply(operation, 202 if operation.state == "RUNNING" else 200)
    return reply._replace(headers=[*reply.headers, (b"location", place)])


def _reply(operation: Operation, status: int = 200) -> Reply:
    body = render.encode(render_bulk.operation_view(operation))
    return Reply(status, body, [JSON, PRIVATE])


async def cancel_many(call: Call) -> Reply:
    """Cancel all tasks that match: those that wait at once, those that run by request."""
    raw = await json_body(call)
    return await begin(call, "cancel", parse_bulk.task_request(parse.decode_json(raw)))


async def edit_many(call: Call) -> Reply:
    """Change all waiting tasks that match; what is not named stays."""
    raw = await json_body(call)
    most = call.services.settings.payload_bytes_max
    return await begin(call, "edit", parse_bulk.edit_request(parse.decode_json(raw), most))


async def delete_many(call: Call) -> Reply:
    """Remove all tasks that match and do not run; those that wait are cancelled first."""
    raw = await json_body(call)
    return await begin(call, "delete", parse_bulk.task_request(parse.decode_json(raw)))


async def operations_list(call: Call) -> Reply:
    """Operations on many tasks, the newest first."""
    query = call.query("limit", "cursor")
    tenant = tenant_of(call)
    asked = f"operations {tenant}"
    place = read_cursor(query.get("cursor"), asked)
    limit = limit_of(query.get("limit"))
    found, then = await call.services.bulk.operations.page(tenant, place, limit)
    cursor = write_cursor(then, asked)
    headers = [JSON, PRIVATE, *next_link(call, query, cursor)]
    return Reply(200, render_bulk.operation_page(found, cursor), headers)


async def operation_get(call: Call) -> Reply:
    """How far an operation has got."""
    call.query()
    return _reply(await call.services.bulk.operations.get(tenant_of(call), call.part("id")))


async def operation_stop(call: Call) -> Reply:
    """Stop an operation; what it has done stays done."""
    await no_options(call)
    return _reply(await call.services.bulk.operations.stop(tenant_of(call), call.part("id")))
