"""Trace context: which trace of the producer a task belongs to (W3C Trace Context, level 1).

A ``traceparent`` is ``00-<32 hex>-<16 hex>-<2 hex>``: version, trace, the span that made the task, and
flags. It is kept as it came and handed on as it is: we record no spans of our own, so whoever runs the
task links its spans to the producer's.
"""

import re
from typing import Final

from tasksched.errors import Invalid

_FORM: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LATER: Final = re.compile(r"(?!00|ff)[0-9a-f]{2}(-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})(?:-.*)?")


def check_traceparent(value: object, pointer: str = "") -> str:
    """A ``traceparent`` that somebody wrote down. Raises Invalid."""
    if isinstance(value, str) and _FORM.fullmatch(value):
        return value
    raise Invalid(
        "a traceparent is 00-<trace, 32 hex digits>-<span, 16>-<flags, 2>, lower case, no id all zero",
        pointer,
    )


def heard_traceparent(header: str | None) -> str | None:
    """What a request's header says. One that cannot be read is none, as the standard wants it.

    Of a later version the part that every version has is kept, as version 00.
    """
    text = (header or "").strip()
    if later := _LATER.fullmatch(text):
        text = f"00{later[1]}"
    return text if _FORM.fullmatch(text) else None
