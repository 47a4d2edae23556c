"""Recurring tasks over HTTP: parse, ask ``commands.recurring``, render. One function a route.

What is there is replaced, edited and removed only by whoever names its version (``If-Match``, else 428);
the same definition again is no change and needs none. A create without an id gets one: from the tenant
and the ``Idempotency-Key``, where there is one, so that a repeated request finds what it made. The next
time moves with every run and the version does not, so an ETag is for changing and never answers 304.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, get_args

import msgspec

from tasksched import clock
from tasksched.errors import Conflict, Invalid, KeyReused, Malformed, NotFound, PreconditionFailed
from tasksched.http import parse, parse_recurring, render, render_recurring
from tasksched.http.exchange import JSON, Headers, Reply
from tasksched.http.paging import limit_of, next_link, read_cursor, write_cursor
from tasksched.http.parse_recurring import Source
from tasksched.http.problems import PreconditionRequired
from tasksched.http.schema import Durability
from tasksched.http.schema_recurring import (
    PREVIEW_DEFAULT,
    READ_ONLY,
    RecurringView,
    RemovedView,
    TriggeredView,
)
from tasksched.http.services import Call
from tasksched.http.tasks import (
    EDIT_TYPES,
    PRIVATE,
    REPLAYED,
    durability_of,
    json_body,
    no_options,
    reached,
    tenant_of,
)
from tasksched.model import ids, names
from tasksched.model.recurring import Schedule, ScheduleSpec, ScheduleStatus, occurrence_id
from tasksched.model.schedule.preview import PREVIEW_MAX
from tasksched.model.schedule.preview import preview as preview_of
from tasksched.store.protocol import Changed

STATUSES: Final = get_args(ScheduleStatus)
ANY_TRIES: Final = 5
_NEW_ID_LENGTH: Final = 21


# -- what requests have in common -----------------------------------------------------------------


def _id_of(call: Call) -> str:
    """The id in the path. What can be none is not found."""
    found = parse_recurring.check_id(call.task_id)
    if found is None:
        raise NotFound("there is no recurring task of this id")
    return found


async def _reached(call: Call, tenant: str, schedule_id: str, asked: Durability) -> Durability:
    """The durability of what was just written: that of the shard where the occurrences live, too."""
    ref = f"{tenant}:{schedule_id}"
    shard = call.services.recurring.schedules.shard_of(ref)
    return await reached(call, occurrence_id(ref, 0, "", shard), asked)


async def _view(call: Call, schedule: Schedule) -> RecurringView:
    standings = await call.services.recurring.standings([schedule])
    return render_recurring.recurring_view(schedule, standings[0])


async def _changed_reply(
    call: Call, schedule: Schedule, asked: Durability, *, created: bool | None = None
) -> Reply:
    """The recurring task after a change; ``created`` where it may have been made by this request."""
    view = await _view(call, schedule)
    spec = schedule.spec
    view.durability = await _reached(call, spec.template.tenant, spec.id, asked)
    if created is None:
        return _reply(view, 200, [])
    view.created = created
    where = (b"location", f"{call.prefix}/recurring-tasks/{spec.id}".encode())
    return _reply(view, 201 if created else 200, [where])


def _reply(view: RecurringView, status: int, headers: Headers) -> Reply:
    etag = (b"etag", b'"%d"' % view.version)
    return Reply(status, render.encode(view), [JSON, PRIVATE, etag, *headers])


def _require_match(call: Call, schedule: Schedule | None = None) -> str:
    """The header ``If-Match``, which must be there. Raises PreconditionRequired."""
    given = call.header(b"if-match")
    if given is None:
        raise _required(schedule)
    return given


def _required(schedule: Schedule | None) -> PreconditionRequired:
    extra: dict[str, Any] = {}
    if schedule is not None:
        extra = {"recurring_task_id": schedule.spec.id, "version": schedule.version}
    return PreconditionRequired(
        "this would change what is there: name its version with If-Match", **extra
    )


async def _put(
    call: Call, if_match: str, make: Callable[[Schedule], ScheduleSpec]
) -> tuple[Changed, Schedule]:
    """Replace the definition by what ``make`` makes of it. ``If-Match: *`` is tried again on a race."""
    recurring = call.services.recurring
    version = parse.version_of(if_match)
    for left in range(ANY_TRIES, 0, -1):
        before = await recurring.get(tenant_of(call), _id_of(call))
        expected = before.version if version is None else version
        try:
            return await recurring.put(make(before), version=expected)
        except PreconditionFailed:
            if version is not None or left == 1:
                raise
    raise AssertionError("the last try returns or raises")


# -- creating -------------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Create a recurring task.

    Without an ``id`` it gets one. With one, the same definition again answers 200, another one 409.
    """
    raw = await json_body(call)
    call.query()
    asked = durability_of(call)
    key = parse.key_of(call.header(b"idempotency-key"))
    tenant = tenant_of(call)
    source = Source(tenant, None, call.services.settings.payload_bytes_max)
    body = parse.decode_json(raw)
    made_id = _new_id if key is None else partial(_keyed_id, tenant, key)
    spec = parse_recurring.definition(body, source, made_id)
    changed, schedule = await call.services.recurring.put(spec)
    is_named = body.get("id") is not None
    # A new id is known to this request alone: finding it means that a reply of the store was lost.
    if changed.word == "created" or (changed.word == "same" and key is None and not is_named):
        return await _changed_reply(call, schedule, asked, created=True)
    if changed.word == "exists":
        raise _taken(changed, spec.id, by_key=not is_named)
    reply = await _changed_reply(call, schedule, asked, created=False)
    return reply if key is None else reply._replace(headers=[*reply.headers, REPLAYED])


def _new_id() -> str:
    """A new id, later ones behind earlier ones."""
    return "s" + ids.mint(0, clock.wall_ms())[:_NEW_ID_LENGTH]


def _keyed_id(tenant: str, key: str) -> str:
    """The id that this idempotency key has in this tenant, for ever."""
    return "k" + hashlib.sha256(f"{tenant}\0schedule\0{key}".encode()).hexdigest()[:32]


def _taken(changed: Changed, schedule_id: str, *, by_key: bool) -> Exception:
    if by_key:
        return KeyReused(pointer="@Idempotency-Key", recurring_task_id=schedule_id)
    return Conflict(
        f"recurring task {schedule_id} exists with another definition",
        recurring_task_id=schedule_id,
        recurring_status=changed.state,
        version=changed.version,
    )


async def put(call: Call) -> Reply:
    """Create a recurring task under this id, or replace its definition.

    The same definition again changes nothing. Replacing another one needs ``If-Match``;
    ``If-None-Match: *`` creates only. The members that GET alone tells are left unread.
    """
    raw = await json_body(call)
    call.query()
    asked = durability_of(call)
    tenant = tenant_of(call)
    if_match = call.header(b"if-match")
    only_create = parse.demands_absence(call.header(b"if-none-match"))
    if only_create and if_match is not None:
        raise Malformed("If-Match and If-None-Match contradict each other", "@If-None-Match")
    source = Source(
        tenant, names.check_name(call.task_id, "?id"), call.services.settings.payload_bytes_max
    )
    body = parse_recurring.read_only_allowed(parse.decode_json(raw), source)
    spec = parse_recurring.definition(body, source, str)
    if if_match is None:
        changed, schedule = await call.services.recurring.put(spec)
        _require_free(changed, schedule, only_create=only_create)
    else:
        try:
            changed, schedule = await _put(call, if_match, lambda _: spec)
        except NotFound as error:
            raise PreconditionFailed("there is nothing of this id", **error.extra) from error
    return await _changed_reply(call, schedule, asked, created=changed.word == "created")


def _require_free(changed: Changed, schedule: Schedule, *, only_create: bool) -> None:
    """Raises for what is there already, unless it is the same and that is enough."""
    if only_create and changed.word != "created":
        raise PreconditionFailed(
            "it is there already", recurring_task_id=schedule.spec.id, version=changed.version
        )
    if changed.word == "exists":
        raise _required(schedule)


# -- looking --------------------------------------------------------------------------------------


async def get(call: Call) -> Reply:
    """The recurring task as it stands; the answer may be PUT again."""
    call.query()
    schedule = await call.services.recurring.get(tenant_of(call), _id_of(call))
    return _reply(await _view(call, schedule), 200, [])


async def list_(call: Call) -> Reply:
    """Recurring tasks, those that run next first.

    A page may be short, even empty, and yet have a cursor. What runs in between moves to a later
    place, so it may be seen twice.
    """
    query = call.query("status", "limit", "cursor")
    tenant, status = tenant_of(call), query.get("status")
    if status is not None and status not in STATUSES:
        raise Invalid(f"a status is one of {', '.join(STATUSES)}", "?status")
    asked = f"recurring {tenant} {status}"
    place = read_cursor(query.get("cursor"), asked)
    recurring = call.services.recurring
    found, then = await recurring.page(
        tenant, place, limit=limit_of(query.get("limit")), status=status
    )
    cursor = write_cursor(then, asked)
    body = render_recurring.page(found, await recurring.standings(found), cursor)
    return Reply(200, body, [JSON, PRIVATE, *next_link(call, query, cursor)])


async def next_fires(call: Call) -> Reply:
    """The next nominal times, with notes about daylight saving; none while it is not ACTIVE."""
    query = call.query("n")
    n = parse.whole(query.get("n"), "n", default=PREVIEW_DEFAULT, most=PREVIEW_MAX)
    fires = await call.services.recurring.next_fires(tenant_of(call), _id_of(call), n)
    return Reply(200, render_recurring.next_fires(fires), [JSON, PRIVATE])


async def runs(call: Call) -> Reply:
    """What became of each nominal time, newest first: the last 100 entries of seven days."""
    call.query()
    found = await call.services.recurring.ledger(tenant_of(call), _id_of(call))
    return Reply(200, render_recurring.ledger(found), [JSON, PRIVATE])


async def preview(call: Call) -> Reply:
    """The next nominal times of a rule that is not stored, with notes about daylight saving."""
    raw = await json_body(call)
    call.query()
    asked = parse_recurring.preview(parse.decode_json(raw))
    after_ms = clock.wall_ms() if asked.after_ms is None else asked.after_ms
    rule = asked.rule if asked.rule.is_bound else asked.rule.bind("", after_ms)
    fires = preview_of(rule, after_ms, asked.n)
    return Reply(200, render_recurring.preview(rule, fires), [JSON, PRIVATE])


# -- changing -------------------------------------------------------------------------------------


async def edit(call: Call) -> Reply:
    """Change members of a definition; what is not named stays."""
    raw = await json_body(call, EDIT_TYPES)
    call.query()
    asked = durability_of(call)
    tenant, schedule_id = tenant_of(call), _id_of(call)
    body = parse.decode_json(raw)
    source = Source(tenant, schedule_id, call.services.settings.payload_bytes_max)

    def merge(before: Schedule) -> ScheduleSpec:
        merged = parse_recurring.merged(body, _definition_of(before))
        spec = parse_recurring.definition(merged, source, str)
        if "payload" in body:
            return spec
        return parse_recurring.replaced_payload(spec, before.spec.template.payload)

    before = await call.services.recurring.get(tenant, schedule_id)
    _, schedule = await _put(call, _require_match(call, before), merge)
    return await _changed_reply(call, schedule, asked)


def _definition_of(schedule: Schedule) -> dict[str, Any]:
    """The members that a PUT takes, but for the payload, which stays in the form it is stored in."""
    members: dict[str, Any] = msgspec.to_builtins(render_recurring.definition_view(schedule))
    return {name: value for name, value in members.items() if name not in READ_ONLY}


async def remove(call: Call) -> Reply:
    """Remove a recurring task: what waits is cancelled, what runs may finish."""
    await no_options(call)
    asked = durability_of(call)
    tenant, schedule_id = tenant_of(call), _id_of(call)
    recurring = call.services.recurring
    version = parse.version_of(_require_match(call, await recurring.get(tenant, schedule_id)))
    await recurring.remove(tenant, schedule_id, version=version)
    level = await _reached(call, tenant, schedule_id, asked)
    return Reply(200, render.encode(RemovedView(schedule_id, level)), [JSON, PRIVATE])


async def pause(call: Call) -> Reply:
    """Stop firing; what is overdue is settled first, and a fixed delay's waiting run is held."""
    await no_options(call)
    asked = durability_of(call)
    version = parse.version_of(call.header(b"if-match"))
    tenant, schedule_id = tenant_of(call), _id_of(call)
    await call.services.recurring.pause(tenant, schedule_id, version=version)
    return await _changed_reply(call, await call.services.recurring.get(tenant, schedule_id), asked)


async def resume(call: Call) -> Reply:
    """Fire again; nothing is owed for the time of the pause."""
    await no_options(call)
    asked = durability_of(call)
    version = parse.version_of(call.header(b"if-match"))
    tenant, schedule_id = tenant_of(call), _id_of(call)
    await call.services.recurring.resume(tenant, schedule_id, version=version)
    return await _changed_reply(call, await call.services.recurring.get(tenant, schedule_id), asked)


async def trigger(call: Call) -> Reply:
    """Make an extra occurrence now. It moves nothing, and nothing waits for it."""
    await no_options(call)
    asked = durability_of(call)
    tenant, schedule_id = tenant_of(call), _id_of(call)
    task_id = await call.services.recurring.trigger(tenant, schedule_id)
    level = await reached(call, task_id, asked)
    where = (b"location", f"{call.prefix}/tasks/{task_id}".encode())
    view = TriggeredView(task_id, schedule_id, level)
    return Reply(201, render.encode(view), [JSON, PRIVATE, where])


async def backfill(call: Call) -> Reply:
    """Make occurrences for a range of nominal times that are past, so many a second.

    What has one on record gets no second one, so asking twice is safe. ``dry_run`` only counts.
    """
    raw = await json_body(call)
    call.query()
    asked = durability_of(call)
    want = parse_recurring.backfill(parse.decode_json(raw))
    tenant, schedule_id = tenant_of(call), _id_of(call)
    found = await call.services.recurring.backfill(
        tenant, schedule_id, want.span_ms, dry_run=want.dry_run, rate=want.rate
    )
    view = render_recurring.backfilled(found, dry_run=want.dry_run)
    if not want.dry_run:
        view.durability = await _reached(call, tenant, schedule_id, asked)
    return Reply(200, render.encode(view), [JSON, PRIVATE])
