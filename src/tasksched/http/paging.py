"""Paging: the limit of a page, the cursor to the next, and the link that carries it (RFC 8288).

A cursor is a place in an index, bound to what was asked: one of another list or filter is refused. It
is opaque to callers and worth nothing to them, so it is not signed; whatever it holds is checked.
"""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from tasksched.commands.listing import CURSOR_MAX, LIMIT_MAX, SCORE_MAX
from tasksched.errors import Malformed
from tasksched.http import parse
from tasksched.http.exchange import Headers
from tasksched.http.services import Call
from tasksched.store.reads import NEVER_MS, Place

T = TypeVar("T")

LIMIT_DEFAULT: Final = 50

_decoder: Final = msgspec.json.Decoder(tuple[int, str, str])
_REF = re.compile(r"[A-Za-z0-9._:-]{1,130}")


def limit_of(text: str | None) -> int:
    """The value of ``?limit=``. Raises Invalid."""
    return parse.whole(text, "limit", default=LIMIT_DEFAULT, most=LIMIT_MAX)


def write_cursor(place: Place | None, asked: str) -> str | None:
    """The cursor for what follows ``place`` in the list that ``asked`` names; None at the end."""
    if place is None:
        return None
    raw = msgspec.json.encode((place.score, place.id, _mark(asked)))
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_cursor(text: str | None, asked: str) -> Place | None:
    """The place of a cursor. Raises Malformed for one of another filter, or of nobody."""
    if text is None:
        return None
    try:
        if len(text) > CURSOR_MAX:
            raise ValueError("too long")
        score, ref, mark = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=="))
    except (ValueError, msgspec.DecodeError) as error:
        raise Malformed("this is no cursor of ours", "?cursor") from error
    if mark != _mark(asked):
        raise Malformed("this cursor belongs to another filter; begin again without", "?cursor")
    if not _REF.fullmatch(ref) or (abs(score) > SCORE_MAX and score != NEVER_MS):
        raise Malformed("this is no cursor of ours", "?cursor")
    return Place(score, ref)


def _mark(asked: str) -> str:
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def cut(
    items: Sequence[T], place_of: Callable[[T], Place], query: Mapping[str, str], asked: str
) -> tuple[list[T], str | None]:
    """The page of a short list that ``?limit=`` and ``?cursor=`` ask for; without a limit all of it.

    ``items`` stand in the order of their places.
    """
    after = read_cursor(query.get("cursor"), asked)
    left = [each for each in items if after is None or place_of(each) > after]
    most = limit_of(query["limit"]) if "limit" in query else len(left)
    shown = left[:most]
    return shown, write_cursor(place_of(shown[-1]) if len(left) > most else None, asked)


def next_link(call: Call, query: Mapping[str, str], cursor: str | None) -> Headers:
    """``Link: <…>; rel="next"``, the same request with the next cursor; nothing at the end."""
    if cursor is None:
        return []
    path: str = call.scope["path"]
    target = f"{path}?{urlencode({**query, 'cursor': cursor})}"
    return [(b"link", f'<{target}>; rel="next"'.encode("ascii"))]
