"""Callbacks over HTTP: whoever runs a task elsewhere renews its lease, completes or fails it.

Proof is the header ``Tasksched-Callback-Token`` of that attempt; tenant and key are not asked for. The
token is never answered, and no text of ours repeats it. A result over the limit is refused with 413 and
changes nothing: the run is still open, to be completed with less or failed.
"""

from typing import Any, Final

from tasksched.commands.callbacks import CallbackRef
from tasksched.errors import Invalid
from tasksched.http import parse, render
from tasksched.http.exchange import JSON, Reply
from tasksched.http.parse import Members
from tasksched.http.schema_live import (
    MEMBERS,
    CallbackErrorBody,
    CompleteBody,
    FailBody,
    HeardView,
    HeartbeatBody,
    ReportedView,
)
from tasksched.http.services import Call
from tasksched.http.tasks import durability_of, json_body, reached
from tasksched.model import codec
from tasksched.model.callback import (
    FailureReport,
    details_text,
    progress_text,
    read_fence,
    read_lease,
)
from tasksched.model.durations import parse_duration
from tasksched.model.instants import format_instant
from tasksched.model.states import State

_NO_STORE: Final = (b"cache-control", b"no-store")
_NULL: Final = codec.encode(None)


async def heartbeat(call: Call) -> Reply:
    """A run that goes on elsewhere lives: renew its lease, say how far it is, hear of a cancel."""
    members = await _members(call, HeartbeatBody)
    fence = _fence(members)
    lease_ms = members.take("lease", read_lease, None, None)
    at = members.take("progress", _number, None, None)
    message = members.take("message", _text, None, None)
    members.finish()
    ref = _ref(call, fence)
    progress = progress_text(at, message)
    heard = await call.services.callbacks.heartbeat(ref, lease_ms=lease_ms, progress=progress)
    view = HeardView(
        task_id=ref.task_id,
        fence=ref.fence,
        cancel_requested=heard.cancel_requested,
        lease_until=format_instant(heard.lease_until_ms),
    )
    return Reply(200, render.encode(view), [JSON, _NO_STORE])


async def complete(call: Call) -> Reply:
    """A run that goes on elsewhere has succeeded.

    The same report again is answered as the first time; another one, or one for an attempt that is
    over, 409. A result over the limit is refused (413), and the run stays open.
    """
    members = await _members(call, CompleteBody)
    fence = _fence(members)
    most = call.services.settings.result_bytes_max
    result = members.take("result", parse.payload_rule(most), _NULL)
    members.finish()
    ref = _ref(call, fence)
    return await _reported(call, ref, await call.services.callbacks.complete(ref, result))


async def fail(call: Call) -> Reply:
    """A run that goes on elsewhere has failed; the task's policy decides what follows."""
    members = await _members(call, FailBody)
    fence = _fence(members)
    if not members.has("error"):
        members.refuse("error", "an error is needed")
    report = members.take("error", _report, _NO_REPORT, _NO_REPORT)
    retryable = members.take("retryable", parse.flag, True, True)
    retry_after_ms = members.take("retry_after", parse_duration, None, None)
    members.finish()
    ref = _ref(call, fence)
    told = FailureReport(
        type=report.type,
        message=report.message,
        details=report.details,
        retryable=retryable,
        retry_after_ms=retry_after_ms,
    )
    return await _reported(call, ref, await call.services.callbacks.fail(ref, told))


async def _reported(call: Call, ref: CallbackRef, status: State) -> Reply:
    asked = durability_of(call)
    view = ReportedView(
        task_id=ref.task_id,
        fence=ref.fence,
        status=status,
        durability=await reached(call, ref.task_id, asked),
    )
    return Reply(200, render.encode(view), [JSON, _NO_STORE])


async def _members(call: Call, body: Any) -> Members:
    call.query()
    durability_of(call)  # refused before anything is done
    return Members(parse.decode_json(await json_body(call)), "", MEMBERS[body])


def _ref(call: Call, fence: str) -> CallbackRef:
    """Without a token nobody is known, as with a wrong one."""
    return CallbackRef(call.task_id, fence, call.header(b"tasksched-callback-token") or "")


def _fence(members: Members) -> str:
    if not members.has("fence"):
        members.refuse("fence", "the fence of the attempt is needed")
    return members.take("fence", read_fence, "", "")


_NO_REPORT: Final = FailureReport(message="")  # stands in until `finish` raises


def _report(value: object, pointer: str) -> FailureReport:
    members = Members(value, pointer, MEMBERS[CallbackErrorBody])
    if not members.has("message"):
        members.refuse("message", "a message is needed")
    report = FailureReport(
        type=members.take("type", _text, "Error", "Error"),
        message=members.take("message", _text, "", ""),
        details=members.take("details", _details, "", ""),
    )
    members.finish()
    return report


def _details(value: object, pointer: str) -> str:
    codec.encode(value, pointer)
    return details_text(value)


def _text(value: object, pointer: str) -> str:
    if not isinstance(value, str):
        raise Invalid("a string is needed", pointer)
    return value


def _number(value: object, pointer: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid("a number is needed", pointer)
    codec.encode(value, pointer)
    return value
