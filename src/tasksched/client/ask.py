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
