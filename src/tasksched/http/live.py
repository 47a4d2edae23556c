"""Live over HTTP: the lines of a task, and events as they happen (server-sent events).

An event stream names where it is by ``id``, so that ``Last-Event-ID`` goes on after it: of a task the
id of a line, of a tenant's events a place in all shards. It ends with its subject, with this process,
or when its reader leaves; an outage of Redis is waited for, since a browser that is answered 503 does not
ask again. Invariant: no more streams at a time than the settings allow.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import msgspec

from tasksched import clock
from tasksched.commands.live import EventQuery
from tasksched.errors import Malformed, Unavailable
from tasksched.http import parse, render
from tasksched.http.exchange import JSON, RECHECK, Reply
from tasksched.http.schema_live import (
    EventView,
    GapView,
    LinePage,
    LineView,
    ProgressView,
    StateView,
)
from tasksched.http.services import Call
from tasksched.http.tasks import PRIVATE, states_of, tenant_of
from tasksched.model import names
from tasksched.model.instants import format_instant
from tasksched.model.live import Followed, Gap, Happened, LineSaid, Progressed, Quiet, StateSeen
from tasksched.store.reads import LINES_MAX

EVENT_STREAM: Final = "text/event-stream"
COMMENT_EVERY_MS: Final = 15_000
RECONNECT_MS: Final = 1_000
OUTAGE_REST_S: Final = 1.0
_HEADERS: Final = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects would hold back what is live
]
_VARY: Final = (b"vary", b"accept")
_LINE_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")

Told = Followed | Happened | Gap | Quiet


async def log(call: Call) -> Reply:
    """What the runs of a task said, oldest first; the last 200 lines are kept.

    With ``Accept: text/event-stream`` they come as they are said: the events ``line``, ``progress`` and
    ``state``, until the task is final. ``Last-Event-ID``, or ``after``, goes on after a line.
    """
    tenant, live = tenant_of(call), call.services.live
    query = call.query("after", "limit")
    if EVENT_STREAM in (call.header(b"accept") or ""):
        after = _line_id(call.header(b"last-event-id") or query.get("after"))

        def followed(place: str | None) -> AsyncGenerator[Followed | Quiet, None]:
            return live.follow(tenant, call.task_id, place)

        return Reply(200, b"", [*_HEADERS, _VARY], _stream(call, _lasting(followed, after)))
    after = _line_id(query.get("after"))
    limit = parse.whole(query.get("limit"), "limit", default=LINES_MAX, most=LINES_MAX)
    found = await live.lines(tenant, call.task_id, after=after, limit=limit)
    page = LinePage([_line(line) for line in found], found[-1].id if len(found) == limit else None)
    return Reply(200, render.encode(page), [JSON, PRIVATE, _VARY])


async def events(call: Call) -> Reply:
    """What becomes of the tenant's tasks, as it happens: server-sent events without end.

    Named ``task.created``, ``task.queued``, ``task.started``, ``task.retrying``, ``task.succeeded``,
    ``task.failed``, ``task.cancelled``, ``task.redriven``, ``task.waiting``. After ``Last-Event-ID``
    nothing is lost or told twice, but for an event ``gap`` where the log does not reach back so far.
    """
    query = call.query("task_id", "queue", "status")
    queue = query.get("queue")
    asked = EventQuery(
        tenant=tenant_of(call),
        task_id=query.get("task_id"),
        queue=None if queue is None else names.check_name(queue, "?queue"),
        statuses=states_of(query.get("status")),
        after=call.header(b"last-event-id") or None,
    )

    def happening(place: str | None) -> AsyncGenerator[Happened | Gap | Quiet, None]:
        return call.services.live.events(msgspec.structs.replace(asked, after=place))

    return Reply(200, b"", _HEADERS, _stream(call, _lasting(happening, asked.after)))


async def _lasting(
    begin: Callable[[str | None], AsyncGenerator[Told, None]], after: str | None
) -> AsyncGenerator[Told, None]:
    """What is told from ``after`` on, through outages. One at the very beginning is raised."""
    place, heard = after, False
    while True:
        try:
            async with contextlib.aclosing(begin(place)) as told:
                async for each in told:
                    heard = True
                    if isinstance(each, LineSaid | Happened | Gap | Quiet):
                        place = each.id or place
                    yield each
            return
        except Unavailable:
            if not heard and after is None:
                raise
        yield Quiet()
        await asyncio.sleep(OUTAGE_REST_S)


async def _stream(call: Call, told: AsyncGenerator[Told, None]) -> AsyncGenerator[bytes, None]:
    """What is told as server-sent events, with a comment now and then while nothing is."""
    services = call.services
    said_ms: float | None = None
    with services.streams.one(services.settings.sse_connections_max, call.bound_tenant):
        async with contextlib.aclosing(told):
            async for each in told:
                if services.system.draining:
                    return
                await call.scope[RECHECK]()
                if not isinstance(each, Quiet):
                    said_ms = clock.mono_ms()
                    yield _frame(each)
                elif said_ms is None or clock.mono_ms() - said_ms >= COMMENT_EVERY_MS:
                    said_ms = clock.mono_ms()
                    yield _comment(each)


def _comment(quiet: Quiet) -> bytes:
    """Keeps the connection alive, and brings the place past what was not for this reader."""
    place = f"id: {quiet.id}\n" if quiet.id else ""
    return f"retry: {RECONNECT_MS}\n{place}: \n\n".encode()


def _frame(told: Followed | Happened | Gap) -> bytes:
    place = f"id: {told.id}\n" if isinstance(told, LineSaid | Happened | Gap) else ""
    return f"{place}event: {told.kind}\ndata: {render.encode(_view(told)).decode()}\n\n".encode()


def _view(told: Followed | Happened | Gap) -> Any:
    match told:
        case LineSaid():
            return _line(told)
        case Progressed():
            return ProgressView(at=told.at, message=told.message)
        case StateSeen():
            return StateView(
                status=told.status, attempt=told.attempt, cancel_requested=told.cancel_requested
            )
        case Happened():
            return EventView(
                task_id=told.task_id,
                status=told.status,
                queue=told.queue,
                at=format_instant(told.at_ms),
            )
        case Gap():
            return GapView()


def _line(line: LineSaid) -> LineView:
    return LineView(id=line.id, at=format_instant(line.at_ms), attempt=line.attempt, text=line.text)


def _line_id(text: str | None) -> str | None:
    if text is not None and not _LINE_ID.fullmatch(text):
        raise Malformed("this is no id of a line", "?after")
    return text
