"""Payloads and results as bytes: msgpack inside, JSON at the HTTP edge.

The domain is JSON's: null, booleans, strings without lone surrogates, integers from -2^63 to
2^64-1, finite floats, arrays, objects with string keys, 32 levels at most. Tuples become lists.
Nothing else goes in, and nothing is ever unpickled. ``b""`` stands for "no payload at all".
"""

import hashlib
import math
from typing import Any

import msgpack
import msgspec

from tasksched.errors import Invalid, TooLarge

DEPTH_MAX = 32
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
PAYLOAD_MAX = 256 * 1024
RESULT_MAX = 64 * 1024

_pack = msgpack.Packer(autoreset=True).pack


def encode(value: object, pointer: str = "", *, most: int = PAYLOAD_MAX) -> bytes:
    """``value`` as bytes. Raises Invalid naming the place, or TooLarge over ``most`` bytes."""
    _check(value, pointer, 1)
    try:
        packed: bytes = _pack(value)
    except (UnicodeEncodeError, ValueError, OverflowError, TypeError) as error:
        raise Invalid(f"cannot be encoded: {error}", pointer) from error
    if len(packed) > most:
        raise TooLarge(f"{len(packed)} bytes encoded; the limit is {most}", pointer)
    return packed


def decode(data: bytes) -> Any:
    """What ``encode`` was given. Raises Invalid when the bytes are not ours."""
    try:
        return msgpack.unpackb(data, strict_map_key=True)
    except Exception as error:
        raise Invalid(f"stored bytes cannot be read: {error}") from error


def _check(value: Any, pointer: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, pointer)
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise Invalid("integers range from -2^63 to 2^64-1", pointer)
    elif kind is float:
        if not math.isfinite(value):
            raise Invalid("numbers must be finite", pointer)
    elif kind in {dict, list, tuple}:
        if depth > DEPTH_MAX:
            raise Invalid(f"nested deeper than {DEPTH_MAX} levels", pointer)
        _check_members(value, pointer, depth)
    elif value is not None and kind is not bool:
        raise Invalid(f"{kind.__name__} is not JSON", pointer)


def _check_members(value: Any, pointer: str, depth: int) -> None:
    if type(value) is not dict:
        for n, item in enumerate(value):
            # A plain text is the usual case, and making its pointer costs more than looking.
            if type(item) is not str or not item.isascii():
                _check(item, f"{pointer}/{n}", depth + 1)
        return
    for name, item in value.items():
        if type(name) is not str:
            raise Invalid("object keys must be strings", pointer)
        _check_text(name, pointer)
        if type(item) is not str or not item.isascii():
            _check(item, f"{pointer}/{name}", depth + 1)


def _check_text(text: str, pointer: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Invalid("strings must not hold lone surrogates", pointer) from None


def canonical(value: Any) -> Any:
    """The same value with one spelling: sorted keys, and ``2.0`` as ``2``."""
    if isinstance(value, dict):
        return {name: canonical(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and INT_MIN <= value <= INT_MAX:
        return int(value)
    return value


def fingerprint(command: Any) -> str:
    """32 hex digits that are equal exactly when two normalised commands are."""
    return hashlib.sha256(msgspec.msgpack.encode(canonical(command))).hexdigest()[:32]
