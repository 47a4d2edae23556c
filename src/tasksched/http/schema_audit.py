"""Schema of the audit: what ``GET /audit`` gives, and what of ``/health`` is for everybody."""

from typing import Literal

from msgspec import Struct


class EntryView(Struct, kw_only=True):
    """One request with the rights of an operator. ``outcome``: ``ok``, or the code of its error.

    ``key_id``: of the caller's key; ``cli`` for keys that were changed at Redis itself, null where no key
    was needed. ``object``: what the path named.
    """

    id: str
    at: str
    key_id: str | None
    tenant: str
    route: str
    object: str
    outcome: str
    request_id: str | None


class AuditPage(Struct):
    """Entries, the latest first. A page may be short and yet have a cursor."""

    items: list[EntryView]
    next_cursor: str | None


class HealthStatusView(Struct):
    """How the system is, for everybody."""

    status: Literal["ok", "degraded", "down"]
