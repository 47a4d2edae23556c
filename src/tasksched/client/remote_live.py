"""RemoteLive, RemoteCallbacks: lines, events and reports over HTTP.

Event streams are read as they come; one that breaks off, or ends before its subject does, is
Unavailable, and whoever listens goes on after what it had (``client.live``).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from tasksched.client.ask import Ask, Send, task_path
from tasksched.client.wire import decoded
from tasksched.commands.callbacks import CallbackRef, Heard
from tasksched.commands.live import EventQuery
from tasksched.errors import Unavailable
from tasksched.model import codec
from tasksched.model.callback import FailureReport
from tasksched.model.durations import format_duration
from tasksched.model.instants import parse_instant
from tasksched.model.live import Followed, Gap, Happened, LineSaid, Progressed, Quiet, StateSeen
from tasksched.model.states import FINAL, State

SILENCE_MAX_S = 45.0  # the API says something every 15 s
_EVENT_STREAM = {"Accept": "text/event-stream"}

Listen = Callable[[Ask], AsyncGenerator[str, None]]


class Block(NamedTuple):
    """One server-sent event as it came."""

    id: str
    event: str
    data: bytes


class _LineView(msgspec.Struct):
    id: str
    at: str
    attempt: int
    text: str


class _LinesView(msgspec.Struct):
    items: list[_LineView]


class _EventView(msgspec.Struct):
    task_id: str
    status: State
    queue: str
    at: str


class _HeardView(msgspec.Struct):
    cancel_requested: bool
    lease_until: str


class _ReportedView(msgspec.Struct):
    status: State


class RemoteLive:
    """``send`` asks once answered, ``listen`` gives the lines of an answer that goes on."""

    def __init__(self, send: Send, listen: Listen) -> None:
        self._send = send
        self._listen = listen

    async def lines(
        self, tenant: str, task_id: str, *, after: str | None = None, limit: int = 200
    ) -> list[LineSaid]:
        query = {"limit": str(limit), **({"after": after} if after else {})}
        reply = await self._send(Ask("GET", task_path(task_id, "/log"), tenant, query=query))
        return [_said(line) for line in decoded(reply.content, _LinesView).items]

    async def follow(
        self, tenant: str, task_id: str, after: str | None = None
    ) -> AsyncGenerator[Followed | Quiet, None]:
        ask = _stream_ask(task_path(task_id, "/log"), tenant, {}, after)
        async with aclosing(self._listen(ask)) as lines:
            async for block in _blocks(lines):
                match block.event:
                    case "line":
                        yield _said(decoded(block.data, _LineView))
                    case "progress":
                        yield decoded(block.data, Progressed)
                    case "state":
                        state: StateSeen = decoded(block.data, StateSeen)
                        yield state
                        if state.status in FINAL:
                            return
        raise Unavailable(_BROKEN_OFF)

    async def events(self, query: EventQuery) -> AsyncGenerator[Happened | Gap | Quiet, None]:
        asked = {"task_id": query.task_id, "queue": query.queue}
        named = {name: value for name, value in asked.items() if value is not None}
        if query.statuses:
            named["status"] = ",".join(query.statuses)
        ask = _stream_ask("/events", query.tenant, named, query.after)
        async with aclosing(self._listen(ask)) as lines:
            async for block in _blocks(lines):
                if not block.event:
                    yield Quiet(id=block.id)
                elif block.event == Gap.kind:
                    yield Gap(id=block.id)
                else:
                    yield _happened(block, query.tenant)
        raise Unavailable(_BROKEN_OFF)


class RemoteCallbacks:
    """Reports by POST; each may be sent again."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def heartbeat(
        self, ref: CallbackRef, *, lease_ms: int | None = None, progress: str = ""
    ) -> Heard:
        body: dict[str, Any] = {}
        if lease_ms is not None:
            body["lease"] = format_duration(lease_ms)
        if progress:
            said = msgspec.json.decode(progress)
            body |= {"progress": said["at"], "message": said["message"]}
        view = decoded(await self._report(ref, "/heartbeat", body), _HeardView)
        return Heard(view.cancel_requested, parse_instant(view.lease_until))

    async def complete(self, ref: CallbackRef, result: bytes) -> State:
        body = {"result": codec.decode(result)}
        return _status(await self._report(ref, "/complete", body))

    async def fail(self, ref: CallbackRef, report: FailureReport) -> State:
        error = {"type": report.type, "message": report.message, "details": report.details}
        body: dict[str, Any] = {"error": error, "retryable": report.retryable}
        if report.retry_after_ms is not None:
            body["retry_after"] = format_duration(report.retry_after_ms)
        return _status(await self._report(ref, "/fail", body))

    async def _report(self, ref: CallbackRef, verb: str, body: dict[str, Any]) -> bytes:
        raw = msgspec.json.encode({"fence": ref.fence, **body})
        headers = {"Tasksched-Callback-Token": ref.token}
        return (
            await self._send(Ask("POST", task_path(ref.task_id, verb), "", raw, headers=headers))
        ).content


_BROKEN_OFF = "the API ended the stream"


def _stream_ask(path: str, tenant: str, query: dict[str, str], after: str | None) -> Ask:
    headers = {**_EVENT_STREAM, **({"Last-Event-ID": after} if after else {})}
    return Ask("GET", path, tenant, query=query, headers=headers, reply_s=SILENCE_MAX_S)


async def _blocks(lines: AsyncIterator[str]) -> AsyncIterator[Block]:
    """The events of a stream; one without a name only tells its id."""
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(":")
        if line == "":
            if fields:
                yield Block(
                    fields.get("id", ""), fields.get("event", ""), fields.get("data", "").encode()
                )
            fields = {}
        elif name:
            fields[name] = value.removeprefix(" ")


def _said(view: _LineView) -> LineSaid:
    return LineSaid(id=view.id, at_ms=parse_instant(view.at), attempt=view.attempt, text=view.text)


def _happened(block: Block, tenant: str) -> Happened:
    view = decoded(block.data, _EventView)
    return Happened(
        id=block.id,
        kind=block.event,
        task_id=view.task_id,
        tenant=tenant,
        queue=view.queue,
        status=view.status,
        at_ms=parse_instant(view.at),
    )


def _status(raw: bytes) -> State:
    view: _ReportedView = decoded(raw, _ReportedView)
    return view.status
