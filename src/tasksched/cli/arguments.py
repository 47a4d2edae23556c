"""Arguments of a handler on a command line: JSON values or plain strings.

``42``, ``true``, ``null``, ``[1,2]`` and ``"quoted"`` are JSON; what is not JSON is the string itself.
``name=value`` is a named argument. All are named, or none: without the handler at hand nobody could
tell where the named ones belong.
"""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

import re
from collections.abc import Sequence
from typing import Any

from tasksched.errors import Invalid

_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def payload_of(arguments: Sequence[str]) -> bytes:
    """The payload that these arguments make; empty for none. Raises Invalid."""
    from tasksched.model import codec

    named = [found for each in arguments if (found := _NAMED.fullmatch(each))]
    if named and len(named) < len(arguments):
        raise Invalid(
            "name all arguments or none; a text that contains '=' is given in JSON quotes, "
            "as '\"a=b\"'",
            "/payload",
        )
    if named:
        values = {found[1]: value_of(found[2]) for found in named}
        if len(values) < len(named):
            raise Invalid("an argument is there twice", "/payload")
        return codec.encode(values, "/payload")
    if arguments:
        return codec.encode([value_of(each) for each in arguments], "/payload")
    return b""


def value_of(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def payload_json(text: bytes) -> bytes:
    """The payload that a JSON text is. Raises Invalid."""
    import msgspec

    from tasksched.model import codec

    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"--payload is not JSON: {error}", "/payload") from error
    return codec.encode(value, "/payload")
