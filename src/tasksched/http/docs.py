"""Docs: one small page that shows ``/openapi.json``, with no file from anywhere else.

The page is empty of inline code, so its policy forbids everything that is not ours. Files are read once,
when the module is imported: they are a few kilobytes.
"""

from pathlib import Path
from typing import Final

from tasksched.http.exchange import Headers, Reply
from tasksched.http.services import Call

_STATIC = Path(__file__).parent / "static"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS: Final[Headers] = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


def _file(name: str, media: str) -> Reply:
    return Reply(200, (_STATIC / name).read_bytes(), [(b"content-type", media.encode()), *GUARDS])


_PAGE = _file("docs.html", "text/html; charset=utf-8")
_SCRIPT = _file("docs.js", "text/javascript; charset=utf-8")
_STYLE = _file("docs.css", "text/css; charset=utf-8")


async def page(_: Call) -> Reply:
    """The documentation as a page."""
    return _PAGE


async def script(_: Call) -> Reply:
    return _SCRIPT


async def style(_: Call) -> Reply:
    return _STYLE
