"""Ask: one request to the HTTP API, as the backends over HTTP make it and their sender sends it."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import httpx2

REPLY_S = 30.0


class Ask(NamedTuple):
    """One request. ``repeatable``: sending it twice does no more than sending it once."""

    method: str
    path: str
    tenant: str
    body: bytes | None = None
    query: Mapping[str, str] = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})
    repeatable: bool = True
    reply_s: float = REPLY_S


Send = Callable[[Ask], Awaitable[httpx2.Response]]


def task_path(task_id: str, rest: str = "") -> str:
    """The path of a task; an id that could not be one is asked for in a form that cannot mislead."""
    safe = task_id if task_id.isascii() and task_id.isalnum() else "unknown"
    return f"/tasks/{safe}{rest}"
