"""Problems: every refusal as ``application/problem+json`` (RFC 9457), one shape for all.

``type`` is ``/problems/<code>``, ``code`` the word a program may test, ``errors`` names each field that
is wrong by JSON pointer; a wrong query parameter or header has the pointer ``""`` and its name beside
it. What the server could not help (5xx) is told without any detail of its inside: the request id leads
to the log, where the rest stands. No text of a caller can break the answer, whatever code points it holds.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException

from tasksched.errors import (
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    Problem,
    RateLimited,
    TaskschedError,
    Unauthorized,
    Unavailable,
)
from tasksched.http.exchange import Headers, Reply
from tasksched.http.schema import FieldError, ProblemView
from tasksched.model.durations import format_duration

CONTENT_TYPE: Final = b"application/problem+json"
TEXT_MAX: Final = 1_000
ERRORS_MAX: Final = 100
"""Of wrong fields, so many are named."""

RETRY_MS: Final = 1_000
"""When to try again, where the error does not say."""

_PUBLIC_EXTRA: Final = (
    "task_id", "task_status", "recurring_task_id", "recurring_status", "version",
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class MethodNotAllowed(TaskschedError):
    code, status, exit_code, title = "METHOD_NOT_ALLOWED", 405, 2, "Method not allowed"


class UnsupportedMediaType(TaskschedError):
    code, status, exit_code, title = "UNSUPPORTED_MEDIA_TYPE", 415, 2, "Unsupported media type"


class PreconditionRequired(TaskschedError):
    """What is there may be changed by whoever names its version alone: send ``If-Match``."""

    code, status, exit_code, title = "PRECONDITION_REQUIRED", 428, 4, "A precondition is required"


class Misdirected(TaskschedError):
    """The Host header names another server: without keys, only this machine is served."""

    code, status, exit_code, title = "MISDIRECTED", 421, 2, "Misdirected request"


def reply_of(error: Exception, request_id: str) -> Reply:
    """The answer to a request that raised. What is not of our tree becomes a bare 500."""
    known = _known(error)
    view = ProblemView(
        type=f"/problems/{slug(known.code)}",
        title=known.title,
        status=known.status,
        code=known.code,
        detail=_detail(known),
        request_id=request_id or None,
        errors=field_errors(known) if isinstance(known, Invalid) else None,
        **_extra(known.extra),
        **later_of(known),
    )
    headers: Headers = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
    return Reply(known.status, _encode(view), headers + _headers(known))


def field_errors(error: Invalid) -> list[FieldError]:
    """What is wrong, field by field; at most ERRORS_MAX."""
    return [_field(problem) for problem in error.problems[:ERRORS_MAX]]


def later_of(error: TaskschedError) -> dict[str, Any]:
    """Which limit refused, and when it may let the same through: members of a problem."""
    if not isinstance(error, RateLimited | Overloaded):
        return {}
    found = {"retry_after": format_duration(int(error.extra.get("retry_after_ms", RETRY_MS)))}
    return {**found, "limit": error.limit} if isinstance(error, RateLimited) else found


def slug(code: str) -> str:
    """The code as it stands in a URL."""
    return code.lower().replace("_", "-")


def plain(text: str) -> str:
    """``text`` bounded, and without code points that have no UTF-8."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()


def _known(error: Exception) -> TaskschedError:
    if isinstance(error, TaskschedError):
        return error
    if not isinstance(error, HTTPException):
        return TaskschedError()
    if error.status_code == 404:
        return NotFound("nothing is served at this path")
    if error.status_code == 405:
        return MethodNotAllowed(allow=(error.headers or {}).get("Allow", ""))
    return TaskschedError()  # the framework raises no other by itself


def _detail(error: TaskschedError) -> str:
    if isinstance(error, Overloaded):
        return plain(error.detail)
    if isinstance(error, Unavailable):
        return (
            "The store does not answer or refuses writes now; what was accepted is safe. Try again."
        )
    return error.title if error.status >= 500 else plain(error.detail)


def _field(problem: Problem) -> FieldError:
    detail, mark, name = plain(problem.detail), problem.pointer[:1], plain(problem.pointer[1:])
    if mark == "?":
        return FieldError("", detail, parameter=name)
    if mark == "@":
        return FieldError("", detail, header=name)
    return FieldError(plain(problem.pointer), detail)


def _extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: extra[name] for name in _PUBLIC_EXTRA if extra.get(name) is not None}
    return {
        name: plain(value) if isinstance(value, str) else value for name, value in found.items()
    }


def _headers(error: TaskschedError) -> Headers:
    if error.status in {429, 503}:
        seconds = max(math.ceil(error.extra.get("retry_after_ms", RETRY_MS) / 1_000), 1)
        return [(b"retry-after", b"%d" % seconds), *_rate_fields(error, seconds)]
    if isinstance(error, Unauthorized):
        return [(b"www-authenticate", b'Bearer realm="tasksched"')]
    if isinstance(error, Forbidden) and "scope" in error.extra:
        asked = (
            f'Bearer realm="tasksched", error="insufficient_scope", scope="{error.extra["scope"]}"'
        )
        return [(b"www-authenticate", asked.encode())]
    if isinstance(error, MethodNotAllowed) and error.extra.get("allow"):
        return [(b"allow", error.extra["allow"].encode())]
    return []


def _rate_fields(error: TaskschedError, seconds: int) -> Headers:
    """``RateLimit-Policy`` and ``RateLimit`` (draft-ietf-httpapi-ratelimit-headers) of a limit."""
    quota = error.extra.get("quota")
    if not isinstance(error, RateLimited) or quota is None:
        return []
    window_s = error.extra.get("window_s")
    window = "" if window_s is None else f";w={window_s}"
    return [
        (b"ratelimit-policy", f'"{error.limit}";q={quota}{window}'.encode()),
        (b"ratelimit", f'"{error.limit}";r=0;t={seconds}'.encode()),
    ]
