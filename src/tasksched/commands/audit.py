"""Audit: who did what with the rights of an operator. A stream to which entries are only ever added.

Invariant: no entry holds a key, a payload or anything of a body, and the stream keeps about the last
ENTRIES_MAX entries, the bound of all that happens here.
"""

from typing import Final, NamedTuple

import msgspec

from tasksched.errors import Malformed
from tasksched.model.instants import format_instant
from tasksched.store.protocol import Store
from tasksched.store.replies import pairs_of

ENTRIES_MAX: Final = 10_000
TEXT_MAX: Final = 200
EXAMINED_MAX: Final = 1_000
LIMIT_MAX: Final = 500
_PLACE_DIGITS: Final = 20


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``key``: the id of the caller's; ``object``: what the path names.

    ``outcome``: ``ok``, or the code of the error that answered. ``id`` and ``at_ms``: of what is stored.
    """

    key: str
    tenant: str
    route: str
    object: str
    outcome: str
    request_id: str = ""
    id: str = ""
    at_ms: int = 0


class EntryPage(NamedTuple):
    """Entries, the latest first."""

    items: list[Entry]
    next_cursor: str | None


_FIELDS: Final = ("key", "tenant", "route", "object", "outcome", "request_id")


class Audit:
    """The entries of one namespace."""

    def __init__(self, store: Store) -> None:
        self._gateway = store.gateway
        self._home = store.global_keys.audit

    async def write(self, entry: Entry) -> None:
        """Raises Unavailable."""
        pairs = [part for name in _FIELDS for part in (name, _plain(getattr(entry, name)))]
        await self._gateway.command("XADD", self._home, "MAXLEN", "~", ENTRIES_MAX, "*", *pairs)

    async def page(
        self, *, tenant: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> EntryPage:
        """Entries of a tenant, or of all; a page may be short and yet have a cursor.

        Raises Malformed for a cursor of nobody.
        """
        end = "+" if cursor is None else f"({_place(cursor)}"
        items: list[Entry] = []
        count = min(EXAMINED_MAX, limit if tenant is None else EXAMINED_MAX)
        raw = await self._gateway.command("XREVRANGE", self._home, end, "-", "COUNT", count)
        last: str | None = None
        for stored in raw:
            entry = _read(stored)
            last = entry.id
            if tenant is None or entry.tenant == tenant:
                items.append(entry)
                if len(items) == limit:
                    return EntryPage(items, last)
        return EntryPage(items, last if len(raw) == count else None)


def told(entry: Entry) -> dict[str, str | None]:
    """An entry as users see it, over HTTP or not."""
    return {
        "id": entry.id,
        "at": format_instant(entry.at_ms),
        "key_id": entry.key or None,
        "tenant": entry.tenant,
        "route": entry.route,
        "object": entry.object,
        "outcome": entry.outcome,
        "request_id": entry.request_id or None,
    }


def _plain(text: str) -> bytes:
    return text[:TEXT_MAX].encode("utf-8", "replace")


def _read(stored: tuple[bytes, object]) -> Entry:
    place, raw = stored
    found = {name.decode(): value.decode("utf-8", "replace") for name, value in pairs_of(raw)}
    known = {name: found.get(name, "") for name in _FIELDS}
    text = place.decode()
    return Entry(**known, id=text, at_ms=int(text.partition("-")[0]))


def _place(cursor: str) -> str:
    ms, _, number = cursor.partition("-")
    parts = (ms, number)
    if any(not (p.isascii() and p.isdecimal() and len(p) <= _PLACE_DIGITS) for p in parts):
        raise Malformed("this is no cursor of ours", "?cursor")
    return cursor
