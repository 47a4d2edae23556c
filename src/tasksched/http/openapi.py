"""OpenAPI: the description at ``/openapi.json``, made from the route table and the Structs alone.

What a route takes and gives is said once, in the table of ``api``; summaries are the first paragraphs of
the handlers, shapes the Structs of ``schema``. Version 3.1, whose schemas are plain JSON Schema. Every
error of the tree is one response, ``Problem``, under the statuses that its route can answer.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from tasksched.http.exchange import Handler
from tasksched.http.schema import NothingBody, ProblemView
from tasksched.http.schema_bulk import RedriveChangesBody
from tasksched.http.schema_webhooks import RotateBody
from tasksched.http.services import VERSION, Services
from tasksched.model.apikey import Scope

_OPTIONAL: Final = frozenset({NothingBody, RedriveChangesBody, RotateBody})
_REF: Final = "#/components/schemas/{name}"


OpScope = Scope | Literal["namespace", "callback", "public"]
"""What an operation needs: a scope of the key; ``namespace``: admin of no single tenant, for what concerns
all of them; ``callback``: the token of an attempt, and no key; ``public``: nothing."""


class Op(NamedTuple):
    """One route of the API: where it is, what it needs, who answers it, what it takes and gives.

    ``gives``: status → a Struct (as JSON), a media type, or None for no body. ``takes``: media type →
    schema type. ``hears``: parameters by their key in ``PARAMETERS``, as ``?limit`` or ``If-Match``.
    """

    verb: str
    path: str
    scope: OpScope
    handler: Handler[Services]
    gives: Mapping[int, Any]
    takes: Mapping[str, Any] = {}
    hears: Sequence[str] = ()
    refuses: Sequence[int] = ()


_TEXT: Final = {"type": "string"}
_SECONDS: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}

PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "Tasksched-Tenant": (
        "Whose request this is, without API keys or with one of every tenant",
        _TEXT,
    ),
    "Idempotency-Key": ("Quoted or bare; the same key and command again answers 200", _TEXT),
    "traceparent": (
        "The trace that the task belongs to (W3C); one that cannot be read is none",
        _TEXT,
    ),
    "Prefer": ("`wait=20`: answer when the task is final, or after so many seconds", _TEXT),
    "Durability": (
        "What to wait for; the answer says what was reached",
        {"enum": ["memory", "replicated", "fsync"]},
    ),
    "If-Match": ('Change only this version: `"3"`', _TEXT),
    "If-None-Match": ("Answer 304 while the version is this one", _TEXT),
    "If-None-Match *": ("`*`: create only", _TEXT),
    "?wait": ("Answer when the task is final, or after so long; at most a minute", _SECONDS),
    "?status": ("One state, or several with commas", _TEXT),
    "?recurring_status": ("One state", {"enum": ["ACTIVE", "PAUSED", "BLOCKED", "ENDED"]}),
    "?n": ("How many", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}),
    "?queue": ("The queue", _TEXT),
    "?priority": ("The priority", {"enum": ["critical", "high", "normal", "low"]}),
    "?handler": ("A handler's name; `billing.*` for all that begin so", _TEXT),
    "?tag": ("A tag", _TEXT),
    "?reason": ("Why it was final, such as attempts_exhausted", _TEXT),
    "?fingerprint": ("The group of failures of one kind", _TEXT),
    "?finished_from": ("The verdict was then or later; RFC 3339", _TEXT),
    "?finished_to": ("The verdict was then or earlier; RFC 3339", _TEXT),
    "?due_from": ("Due then or later; RFC 3339", _TEXT),
    "?due_to": ("Due then or earlier; RFC 3339", _TEXT),
    "?limit": (
        "Items of a page",
        {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
    ),
    "Tasksched-Callback-Token": ("What the attempt was given to report with", _TEXT),
    "Last-Event-ID": ("Of an event stream: go on after this event", _TEXT),
    "?after": ("Lines after the one of this id", _TEXT),
    "?line_limit": (
        "Lines of a page",
        {"type": "integer", "minimum": 1, "maximum": 200, "default": 200},
    ),
    "?task_id": ("Of this task alone", _TEXT),
    "?group_limit": (
        "Groups of a page",
        {"type": "integer", "minimum": 1, "maximum": 100, "default": 50},
    ),
    "?cursor": ("The next_cursor of the page before, with the same filter", _TEXT),
}


_SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, ts_…, whose scopes include the one named, or admin. "
        "While no key was ever made, this machine is served without.",
    },
    "callback": {
        "type": "apiKey",
        "in": "header",
        "name": "Tasksched-Callback-Token",
        "description": "What the attempt was given to report with.",
    },
}


def describe(ops: Sequence[Op]) -> bytes:
    """The document as JSON."""
    structs = sorted({s for op in ops for s in _structs(op)} | {ProblemView}, key=_name_of)
    schemas, components = msgspec.json.schema_components(structs, ref_template=_REF)
    shapes = dict(zip(structs, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for op in ops:
        paths.setdefault(op.path, {})[op.verb.lower()] = _operation(op, shapes)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "tasksched",
            "version": VERSION,
            "description": "Durable task scheduling on Redis. All routes also under /v1.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Problem": _problem_response(shapes[ProblemView])},
            "securitySchemes": _SCHEMES,
        },
    }
    # Docstrings mark code with two backticks, Markdown with one.
    return msgspec.json.format(msgspec.json.encode(document).replace(b"``", b"`"), indent=1)


def _name_of(struct: type) -> str:
    return struct.__name__


def _structs(op: Op) -> list[type]:
    """The Structs an operation mentions."""
    return [kind for kind in (*op.gives.values(), *op.takes.values()) if isinstance(kind, type)]


def _operation(op: Op, shapes: Mapping[type, Any]) -> dict[str, Any]:
    first, _, rest = (inspect.getdoc(op.handler) or "").partition("\n\n")
    found: dict[str, Any] = {
        "operationId": _operation_id(op),
        "summary": " ".join(first.split()).rstrip("."),
        "responses": {str(status): _response(kind, shapes) for status, kind in op.gives.items()},
    }
    if rest:
        found["description"] = rest
    found["security"] = _security(op.scope)
    for status in (*op.refuses, *(() if op.scope in {"public", "callback"} else (401, 403))):
        found["responses"][str(status)] = {"$ref": "#/components/responses/Problem"}
    found["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
    parameters = [_parameter(name) for name in op.hears]
    for name in re.findall(r"{(\w+)}", op.path):
        parameters.insert(0, {"name": name, "in": "path", "required": True, "schema": _TEXT})
    if parameters:
        found["parameters"] = parameters
    if op.takes:
        content = {media: {"schema": _shape(kind, shapes)} for media, kind in op.takes.items()}
        required = _OPTIONAL.isdisjoint(op.takes.values())
        found["requestBody"] = {"required": required, "content": content}
    return found


def _security(scope: OpScope) -> list[dict[str, list[str]]]:
    if scope == "public":
        return []
    if scope == "callback":
        return [{"callback": []}]
    return [{"bearer": ["admin" if scope == "namespace" else scope]}]


def _operation_id(op: Op) -> str:
    """Handlers of different modules may have one name: those of tasks have it alone."""
    name, of = op.handler.__name__.strip("_"), op.handler.__module__.rpartition(".")[2]
    return f"{of}_{name}" if of in {"recurring", "webhooks"} else name


def _parameter(name: str) -> dict[str, Any]:
    description, schema = PARAMETERS[name]
    place = "query" if name.startswith("?") else "header"
    label = name.removeprefix("?").removesuffix(" *")
    for of in ("recurring_", "line_", "group_"):
        label = label.removeprefix(of)
    return {
        "name": label,
        "in": place,
        "description": description,
        "schema": schema,
    }


def _response(kind: Any, shapes: Mapping[type, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "No body"}
    if isinstance(kind, str):
        return {"description": kind, "content": {kind: {"schema": _TEXT}}}
    first = (kind.__doc__ or "").partition("\n")[0] if isinstance(kind, type) else "JSON"
    media = {"application/json": {"schema": _shape(kind, shapes)}}
    return {"description": first, "content": media}


def _shape(kind: Any, shapes: Mapping[type, Any]) -> Any:
    """The schema of a Struct, or of a list of one (written as ``[Struct]``)."""
    if isinstance(kind, tuple):
        return {"type": "array", "items": shapes[kind[0]], "maxItems": 10_000}
    return shapes[kind] if isinstance(kind, type) else kind


def _problem_response(shape: Any) -> dict[str, Any]:
    return {
        "description": "What went wrong (RFC 9457)",
        "headers": {
            "Retry-After": {
                "description": "Seconds, on 429 and 503",
                "schema": {"type": "integer"},
            },
            "RateLimit-Policy": {
                "description": "On 429: the quota and its window",
                "schema": _TEXT,
            },
            "RateLimit": {"description": "On 429: what remains, and the reset", "schema": _TEXT},
        },
        "content": {"application/problem+json": {"schema": shape}},
    }
