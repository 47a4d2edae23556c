"""Problem pages: what stands behind the ``type`` of a problem, ``/problems/<code>``.

Made from the tree of errors, so every code that can be answered has a page: JSON for programs, a few
lines of HTML for whoever follows the link in a browser.
"""

import html
from typing import Final

from tasksched.errors import NotFound, TaskschedError
from tasksched.http import render
from tasksched.http.docs import GUARDS
from tasksched.http.exchange import JSON, Reply
from tasksched.http.problems import slug
from tasksched.http.schema import ProblemKindView
from tasksched.http.services import Call

_HTML: Final = (b"content-type", b"text/html; charset=utf-8")
_VARY: Final = (b"vary", b"accept")
_AGAIN: Final = "The same request may succeed later: send it again, after Retry-After where given."

# fmt: off
_TEXTS: Final = {
    "INTERNAL": "Nothing that the caller did. The request id leads to what the log of the server says.",
    "INVALID": "Something in the request breaks a rule. Every wrong member stands in errors, by JSON pointer; a wrong header or query parameter by its name.",
    "MALFORMED": "The request cannot be read: the body is no JSON in UTF-8, or a header, cursor or query has not the form it must have.",
    "TOO_LARGE": "The body or the payload is over its limit, or a batch has too many items.",
    "KEY_REUSED": "This Idempotency-Key was used before, with another command. Nothing was changed: send the first command again, or take another key.",
    "NOT_FOUND": "There is nothing of this id in this tenant, or nothing is served at this path.",
    "CONFLICT": "The state of what is there forbids it; the answer says which state that is.",
    "STALE": "Another attempt owns the task now: this one should stop and must not repeat what it reported.",
    "DRAINING": "The queue or the tenant is drained: nothing is created there, what is there still runs. Nothing was created, and an Idempotency-Key is still unused.",
    "PRECONDITION_FAILED": "If-Match names another version than the one that is there, which the answer tells: look again, then decide again. Or If-None-Match: * found something.",
    "PRECONDITION_REQUIRED": "This would change what is there. Name the version that is meant with If-Match, as ETag told it, so that nobody's change is lost.",
    "UNAUTHORIZED": "Who asks is not known here.",
    "FORBIDDEN": "Who asks may not do this; a page from another origin may change nothing while no keys are configured.",
    "TOO_MANY_REQUESTS": "Too much of this is going on at a time.",
    "RATE_LIMITED": "The tenant creates faster than it may; the member limit names the limit, Retry-After says when there is room. Nothing was created, and an Idempotency-Key is still unused.",
    "QUOTA": "As many tasks of the tenant as may be unfinished are. The member limit names the limit. Nothing was created, and an Idempotency-Key is still unused; when tasks finish there is room again.",
    "UNAVAILABLE": "Redis is away or refuses writes. What was accepted is safe.",
    "OVERLOADED": "More requests wait for Redis than may, or they wait too long, so this one was refused at once. Nothing was done; what was accepted is safe.",
    "MEMORY_BUDGET": "Redis has nearly used up its memory, so nothing new is accepted. What was accepted is dispatched, run and finished, which makes room again.",
    "UNSAFE_REDIS": "The server's configuration would lose tasks, so nothing is entrusted to it.",
    "METHOD_NOT_ALLOWED": "This path is served, but not by this method; Allow names those it has.",
    "UNSUPPORTED_MEDIA_TYPE": "The Content-Type of the body is not one that this path takes.",
    "MISDIRECTED": "The Host header names another server. While no keys are configured only localhost is served.",
}
# fmt: on


def _kinds(root: type[TaskschedError]) -> list[type[TaskschedError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _kinds(child))]


def _described(kind: type[TaskschedError]) -> ProblemKindView:
    text = _TEXTS.get(kind.code, kind.title)
    return ProblemKindView(kind.code, kind.title, kind.status, kind.retryable, text)


def _pages() -> dict[str, ProblemKindView]:
    return {slug(kind.code): _described(kind) for kind in _kinds(TaskschedError)}


async def problem(call: Call) -> Reply:
    """What a code of a problem means, as JSON, or as a page where that is asked for."""
    call.query()
    view = _pages().get(call.part("code"))
    if view is None:
        raise NotFound("there is no problem of this code")
    if "text/html" in (call.header(b"accept") or ""):
        return Reply(200, _page(view).encode(), [_HTML, _VARY, *GUARDS])
    return Reply(200, render.encode(view), [JSON, _VARY, *GUARDS])


def _page(view: ProblemKindView) -> str:
    title = html.escape(f"{view.status} {view.title}")
    lines = [f"<code>{view.code}</code>", html.escape(view.detail)]
    if view.retryable:
        lines.append(_AGAIN)
    body = "".join(f"<p>{line}</p>" for line in lines)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<link rel="stylesheet" href="../docs/docs.css"><main><h1>{title}</h1>{body}</main></html>'
    )
