"""Names and labels: what users may call things.

Owns the alphabet of tenants, queues, schedule ids, tags and handlers, the shape of idempotency keys,
and the priority classes. Invariant: a checked name is ASCII, bounded, and matched whole, so it may
stand in a URL, a metric label or a log line without quoting; an idempotency key is free text and may not.
Deliberately not here: Redis keys (the store makes them), and repeating a refused value in the message,
since it may be huge, secret, or not encodable at all.
"""

import re
from typing import Final, Literal

from tasksched.errors import Invalid, Problem

NAME_MAX: Final = 64
HANDLER_NAME_MAX: Final = 128
KEY_MAX: Final = 255
TAGS_MAX: Final = 32

Priority = Literal["critical", "high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = ("critical", "high", "normal", "low")
"""In the order of their class: under contention an earlier one weighs more."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_name(value: object, pointer: str = "") -> str:
    """A tenant, queue, schedule id or tag: ASCII ``[A-Za-z0-9][A-Za-z0-9._-]*``, 1-64 characters.

    Raises ``Invalid`` at ``pointer``.
    """
    return _named(value, pointer, NAME_MAX)


def check_handler_name(value: object, pointer: str = "") -> str:
    """A handler's name: the alphabet of ``check_name``, 1-128 characters, since modules nest."""
    return _named(value, pointer, HANDLER_NAME_MAX)


def check_key(value: object, pointer: str = "") -> str:
    """An idempotency key from a body or a client: 1-255 characters, no control characters.

    Letters of any script are welcome and compared as they are, without normalisation. A lone
    surrogate is refused: it has no UTF-8 and could be neither hashed nor stored.
    """
    return _free_text(value, pointer, "an idempotency key")


def check_concurrency_key(value: object, pointer: str = "") -> str:
    """What tasks that must not run together have in common; the form of ``check_key``."""
    return _free_text(value, pointer, "a concurrency key")


def _free_text(value: object, pointer: str, what: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} is a string, not {_kind(value)}", pointer)
    if not 1 <= len(value) <= KEY_MAX:
        raise Invalid(f"{what} has 1 to {KEY_MAX} characters", pointer)
    if _CONTROL.search(value):
        raise Invalid(f"{what} has no control characters", pointer)
    if _SURROGATE.search(value):
        raise Invalid(f"{what} has no lone surrogates", pointer)
    return value


def check_header_key(value: object, pointer: str = "") -> str:
    """As ``check_key`` for the value of the ``Idempotency-Key`` header, quotes already removed.

    ASCII only: servers and proxies disagree on how other characters of a header are decoded, so
    one key could become two.
    """
    key = check_key(value, pointer)
    if not key.isascii():
        raise Invalid("an idempotency key in a header is ASCII; send others in the body", pointer)
    return key


def check_tags(value: object, pointer: str = "") -> tuple[str, ...]:
    """At most 32 different names, in the order given. ``Invalid`` names every bad one: ``/tags/3``."""
    if not isinstance(value, list | tuple):
        raise Invalid(f"tags are a list of names, not {_kind(value)}", pointer)
    if len(value) > TAGS_MAX:
        raise Invalid(f"at most {TAGS_MAX} tags", pointer)
    seen: dict[str, None] = {}
    problems: list[Problem] = []
    for index, item in enumerate(value):
        place = f"{pointer}/{index}"
        try:
            tag = check_name(item, place)
        except Invalid as error:
            problems += error.problems
            continue
        if tag in seen:
            problems.append(Problem(place, "this tag is there twice"))
        seen[tag] = None
    if problems:
        raise Invalid(problems=tuple(problems))
    return tuple(seen)


def check_priority(value: object, pointer: str = "") -> Priority:
    """One of ``PRIORITIES``, in lower case. Raises ``Invalid`` at ``pointer``."""
    if isinstance(value, str):
        for priority in PRIORITIES:
            if priority == value:
                return priority
    raise Invalid(f"a priority is one of {', '.join(PRIORITIES)}", pointer)


def _named(value: object, pointer: str, most: int) -> str:
    if not isinstance(value, str):
        raise Invalid(f"a name is a string, not {_kind(value)}", pointer)
    if not 1 <= len(value) <= most:
        raise Invalid(f"a name has 1 to {most} characters", pointer)
    if not _NAME.fullmatch(value):
        raise Invalid(
            "a name begins with an ASCII letter or digit and goes on with those, '.', '_' or '-'",
            pointer,
        )
    return value


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
