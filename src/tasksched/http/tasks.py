"""Tasks over HTTP: parse, ask ``commands.tasks``, render. One function a route.

A create answers 201 with what is known without reading anything back; a replay 200 with the task as it
is now. ``Prefer: wait=n`` (or ``?wait=n``) holds the answer until the task is final, WAIT_MAX_MS at most.
Whoever names a ``Durability`` is told which one was reached. The tenant comes from a header of its own
while no keys are configured, and never from a body.
"""

import re
from typing import Final, get_args

from tasksched.commands.explain import why_waiting
from tasksched.commands.listing import TaskQuery, list_tasks
from tasksched.commands.tasks import Changes
from tasksched.errors import Conflict, Invalid, PreconditionFailed
from tasksched.http import parse, render
from tasksched.http.exchange import JSON, Headers, Reply
from tasksched.http.paging import limit_of, next_link
from tasksched.http.problems import UnsupportedMediaType
from tasksched.http.schema import ChangedView, CountView, Durability, TaskView
from tasksched.http.schema_bulk import DeletedView
from tasksched.http.services import Call
from tasksched.model import names
from tasksched.model.durations import parse_duration
from tasksched.model.filters import check_handler_pattern
from tasksched.model.instants import parse_instant
from tasksched.model.states import FINAL, STATES, WAITING, State
from tasksched.model.task import Created, Task
from tasksched.model.trace import heard_traceparent

WAIT_MAX_MS: Final = 60_000
DURABILITIES: Final[tuple[Durability, ...]] = get_args(Durability)
JSON_TYPES: Final = frozenset({"application/json"})
EDIT_TYPES: Final = frozenset({"application/json", "application/merge-patch+json"})

PRIVATE = (b"cache-control", b"private, no-cache")
_FIRST_ETAG = (b"etag", b'"1"')
REPLAYED = (b"idempotency-replayed", b"true")
_NO_CHANGE = Changes()
_WAIT = re.compile(r"wait\s*=\s*\"?([0-9]{1,9})\"?")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")


# -- what requests have in common -----------------------------------------------------------------


def tenant_of(call: Call) -> str:
    """Whose request this is: its key says so, or a header while none is needed. Raises Invalid."""
    if call.caller is not None:
        return call.caller.tenant
    given = call.header(b"tasksched-tenant")
    if given is None:
        return call.services.settings.tenant
    return names.check_name(given, "@Tasksched-Tenant")


def trace_of(call: Call) -> str | None:
    """The trace that a create belongs to, where its request says so."""
    return heard_traceparent(call.header(b"traceparent"))


def durability_of(call: Call) -> Durability:
    """The durability that is asked for. Raises Invalid."""
    given = call.header(b"durability")
    if given is None:
        return "memory"
    for level in DURABILITIES:
        if level == given:
            return level
    raise Invalid(f"a durability is one of {', '.join(DURABILITIES)}", "@Durability")


async def reached(call: Call, task_id: str, asked: Durability) -> Durability:
    """The durability that what was just written has, never more than is known."""
    return "memory" if asked == "memory" else await call.services.tasks.reach(task_id, asked)


async def json_body(call: Call, types: frozenset[str] = JSON_TYPES) -> bytes:
    """The bytes of a body that must be there and say that it is JSON."""
    require_type(call, types)
    return await call.body()


def require_type(call: Call, types: frozenset[str]) -> str:
    """The media type of the body, one of ``types``. Raises UnsupportedMediaType."""
    given = (call.header(b"content-type") or "").partition(";")[0].strip().lower()
    if given not in types:
        raise UnsupportedMediaType(f"send the body as {' or '.join(sorted(types))}")
    return given


async def no_options(call: Call) -> None:
    """The body of a verb: nothing, or an empty JSON object."""
    call.query()
    raw = await call.body()
    if raw:
        require_type(call, JSON_TYPES)
        parse.no_members(parse.decode_json(raw))


def waits_ms(call: Call, query: dict[str, str]) -> tuple[int, Headers]:
    """How long to hold the answer, and the header that says a preference was heard."""
    if "wait" in query:
        return min(_wait_ms(query["wait"]), WAIT_MAX_MS), []
    wait_s = _preferred_wait_s(call.header(b"prefer"))
    if wait_s is None:
        return 0, []
    wait_ms = min(wait_s * 1_000, WAIT_MAX_MS)
    return wait_ms, [(b"preference-applied", b"wait=%d" % (wait_ms // 1_000))]


def _preferred_wait_s(header: str | None) -> int | None:
    """``wait=n`` of ``Prefer`` (RFC 7240). What cannot be read is no preference."""
    if header is None:
        return None
    for part in header.split(","):
        found = _WAIT.fullmatch(part.partition(";")[0].strip().lower())
        if found:
            return int(found[1])
    return None


def _wait_ms(text: str) -> int:
    """The value of ``?wait=``: seconds, or a duration with units. Raises Invalid."""
    value = float(text) if _SECONDS.fullmatch(text) else text
    return parse_duration(value, "?wait")


def task_reply(view: TaskView, status: int = 200, headers: Headers | None = None) -> Reply:
    etag = (b"etag", b'"%d"' % view.version)
    return Reply(status, render.encode(view), [JSON, PRIVATE, etag, *(headers or [])])


def _location(call: Call, task_id: str) -> tuple[bytes, bytes]:
    return (b"location", f"{call.prefix}/tasks/{task_id}".encode())


# -- creating ---------------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Create a task."""
    raw = await json_body(call)
    query = call.query("wait")
    wait_ms, heard = waits_ms(call, query)
    asked = durability_of(call)
    key = parse.key_of(call.header(b"idempotency-key"))
    most = call.services.settings.payload_bytes_max
    source = parse.Source(tenant_of(call), key, most, trace_of(call))
    spec = parse.task_spec(parse.decode_json(raw), source)
    made = await call.services.tasks.submit(spec)
    level = await reached(call, made.id, asked)
    if wait_ms:
        return await _awaited(call, made, level, wait_ms, heard)
    if made.created:
        headers = [JSON, _FIRST_ETAG, _location(call, made.id), *heard]
        return Reply(201, render.created(made, level), headers)
    return _replay(call, made, level, made.task)


async def _awaited(
    call: Call, made: Created, level: Durability, wait_ms: int, heard: Headers
) -> Reply:
    task = made.task
    if made.created or (task is not None and task.status not in FINAL):
        waiting = call.services.tasks.wait(tenant_of(call), made.id, wait_ms)
        task = await call.unless_gone(waiting)
    reply = _replay(call, made, level, task)
    if made.created:
        headers = [field for field in reply.headers if field != REPLAYED]
        return Reply(201, reply.body, headers + heard)
    return Reply(reply.status, reply.body, reply.headers + heard)


def _replay(call: Call, made: Created, level: Durability, task: Task | None) -> Reply:
    """The whole task, with what became of this request beside it."""
    if task is None:
        # Retention took the task and left the memory of its key.
        body = {"task_id": made.id, "status": None, "created": False, "durability": level}
        return Reply(200, render.encode(body), [JSON, REPLAYED])
    view = render.whole_view(task)
    view.created = made.created
    view.durability = level
    return task_reply(view, 200, [_location(call, made.id), REPLAYED])


# -- looking ----------------------------------------------------------------------------------------


async def get(call: Call) -> Reply:
    """The task as it stands."""
    query = call.query("wait")
    tenant, tasks = tenant_of(call), call.services.tasks
    wait_ms, heard = waits_ms(call, query)
    if wait_ms:
        task = await call.unless_gone(tasks.wait(tenant, call.task_id, wait_ms))
    else:
        task = await tasks.get(tenant, call.task_id)
    if parse.none_match(call.header(b"if-none-match"), task.version):
        return Reply(304, b"", [PRIVATE, (b"etag", b'"%d"' % task.version), *heard])
    view = render.whole_view(task)
    view.why_waiting = await why_waiting(tasks.reads, task) if task.status in WAITING else []
    return task_reply(view, 200, heard)


async def attempts(call: Call) -> Reply:
    """The execution log of a task, oldest first."""
    call.query()
    found = await call.services.tasks.attempts(tenant_of(call), call.task_id)
    return Reply(200, render.attempts(found), [JSON, PRIVATE])


async def list_(call: Call) -> Reply:
    """Tasks by filter: the running ones, those that wait by due time, the finished newest first."""
    query = call.query(
        "status", "queue", "priority", "handler", "tag", "due_from", "due_to", "limit", "cursor"
    )
    page = await list_tasks(call.services.tasks.reads, _task_query(tenant_of(call), query))
    headers = [JSON, PRIVATE, *next_link(call, query, page.next_cursor)]
    return Reply(200, render.page(page.items, page.next_cursor), headers)


def _task_query(tenant: str, query: dict[str, str]) -> TaskQuery:
    def name(parameter: str) -> str | None:
        value = query.get(parameter)
        return None if value is None else names.check_name(value, f"?{parameter}")

    def instant(parameter: str) -> int | None:
        value = query.get(parameter)
        return None if value is None else parse_instant(value, f"?{parameter}")

    priority, handler = query.get("priority"), query.get("handler")
    return TaskQuery(
        tenant=tenant,
        status=states_of(query.get("status")),
        queue=name("queue"),
        priority=None if priority is None else names.check_priority(priority, "?priority"),
        handler=None if handler is None else check_handler_pattern(handler, "?handler"),
        tag=name("tag"),
        due_from_ms=instant("due_from"),
        due_to_ms=instant("due_to"),
        limit=limit_of(query.get("limit")),
        cursor=query.get("cursor"),
    )


def states_of(text: str | None) -> tuple[State, ...]:
    """The states that ``?status=`` names. Raises Invalid."""
    if text is None:
        return ()
    wanted = text.split(",")
    found = tuple(state for state in STATES if state in wanted)
    if set(found) != set(wanted):
        raise Invalid(f"a status is one of {', '.join(STATES)}, or several with commas", "?status")
    return found


async def count(call: Call) -> Reply:
    """How many tasks there are, by status and by queue."""
    call.query()
    found = await call.services.system.counts(tenant_of(call))
    view = CountView(found.total, dict(found.by_status), dict(found.by_queue))
    return Reply(200, render.encode(view), [JSON, PRIVATE])


# -- changing ---------------------------------------------------------------------------------------


async def edit(call: Call) -> Reply:
    """Change a task that waits; what is not named stays."""
    raw = await json_body(call, EDIT_TYPES)
    call.query()
    asked = durability_of(call)
    version = parse.version_of(call.header(b"if-match"))
    tenant, tasks = tenant_of(call), call.services.tasks
    changes = parse.changes(parse.decode_json(raw), call.services.settings.payload_bytes_max)
    if changes == _NO_CHANGE:
        await _require_waiting(call, version)
    else:
        await tasks.edit(tenant, call.task_id, changes, version=version)
    view = render.whole_view(await tasks.get(tenant, call.task_id))
    view.durability = await reached(call, call.task_id, asked)
    return task_reply(view)


async def _require_waiting(call: Call, version: int | None) -> None:
    """An edit that names nothing changes nothing, and is refused where an edit would be."""
    task = await call.services.tasks.get(tenant_of(call), call.task_id, bodies=False)
    if version is not None and version != task.version:
        raise PreconditionFailed(
            f"the version is {task.version}", version=task.version, task_status=task.status
        )
    if task.status not in WAITING:
        raise Conflict(
            f"task {task.id} does not wait any more: it is {task.status}", task_status=task.status
        )


async def cancel(call: Call) -> Reply:
    """Cancel a task: at once before it starts; a request to one that runs."""
    await no_options(call)
    asked = durability_of(call)
    version = parse.version_of(call.header(b"if-match"))
    changed = await call.services.tasks.cancel(tenant_of(call), call.task_id, version=version)
    view = _changed(call, changed.state, changed.version)
    view.cancel_requested = True
    return await _changed_reply(call, view, asked, 202 if changed.word == "requested" else 200)


async def run_now(call: Call) -> Reply:
    """Make a task that waits due at once."""
    await no_options(call)
    asked = durability_of(call)
    version = parse.version_of(call.header(b"if-match"))
    changed = await call.services.tasks.run_now(tenant_of(call), call.task_id, version=version)
    return await _changed_reply(call, _changed(call, changed.state, changed.version), asked)


async def retry(call: Call) -> Reply:
    """Give a failed or cancelled task a new life with a new budget of attempts, changed on the way."""
    call.query()
    changes = await _optional_changes(call)
    asked = durability_of(call)
    version = parse.version_of(call.header(b"if-match"))
    tenant, tasks = tenant_of(call), call.services.tasks
    changed = await tasks.redrive(tenant, call.task_id, changes, version=version)
    return await _changed_reply(call, _changed(call, changed.state, changed.version), asked)


async def _optional_changes(call: Call) -> Changes | None:
    """The changes in the body; None where there is no body, or one that changes nothing."""
    raw = await call.body()
    if not raw:
        return None
    require_type(call, JSON_TYPES)
    body = parse.decode_json(raw)
    if body is None:
        return None
    found = parse.changes(body, call.services.settings.payload_bytes_max)
    return None if found == _NO_CHANGE else found


async def delete(call: Call) -> Reply:
    """Remove a task: a finished one at once, one that waits is cancelled first."""
    await no_options(call)
    version = parse.version_of(call.header(b"if-match"))
    await call.services.bulk.removal.delete(tenant_of(call), call.task_id, version=version)
    return Reply(200, render.encode(DeletedView(call.task_id)), [JSON, PRIVATE])


def _changed(call: Call, status: str, version: int) -> ChangedView:
    state = next(state for state in STATES if state == status)
    return ChangedView(task_id=call.task_id, status=state, version=version)


async def _changed_reply(
    call: Call, view: ChangedView, asked: Durability, status: int = 200
) -> Reply:
    view.durability = await reached(call, view.task_id, asked)
    etag = (b"etag", b'"%d"' % view.version)
    return Reply(status, render.encode(view), [JSON, PRIVATE, etag])
