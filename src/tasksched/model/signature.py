"""Signatures of what is sent: Standard Webhooks, symmetric (``v1``).

What is signed is ``id.timestamp.body``, with HMAC-SHA256 and a secret that only sender and receiver
know. While a secret is replaced there are two, and one signature for each: either one verifies.
Invariant: signatures are compared in constant time, and no text repeats a secret or a signature.
"""

import base64
import hashlib
import hmac
import secrets as random_source
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tasksched import clock
from tasksched.errors import Invalid, Unauthorized

PREFIX: Final = "whsec_"
NEW_BYTES: Final = 32
BYTES_MIN, BYTES_MAX = 24, 64
TOLERANCE_S: Final = 300
TIMESTAMP_DIGITS_MAX: Final = 12


def new_secret() -> str:
    """A fresh secret: ``whsec_`` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(random_source.token_bytes(NEW_BYTES)).decode()


def check_secret(value: object, pointer: str = "/secret") -> str:
    """A secret as it is written: ``whsec_`` and base64 of 24 to 64 bytes. Raises Invalid."""
    if isinstance(value, str) and (text := value.removeprefix(PREFIX)) != value:
        try:
            found = base64.b64decode(text, validate=True)
        except ValueError:
            found = b""
        if BYTES_MIN <= len(found) <= BYTES_MAX:
            return value
    raise Invalid(f"a secret is {PREFIX} and base64 of {BYTES_MIN} to {BYTES_MAX} bytes", pointer)


def sign(secrets: Iterable[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """``v1,<base64>`` for each secret, separated by spaces. Raises Invalid for what is no secret."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return " ".join(f"v1,{_digest(secret, signed)}" for secret in secrets)


def verify(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, *, now_s: int | None = None
) -> None:
    """For receivers: raises Unauthorized unless one of the secrets signed this very message.

    ``headers``: of the request, names in any case. ``body``: its bytes as they came, before any
    parsing. ``now_s``: seconds since the epoch, default this host's clock; the message may be 300 s
    older or newer. Messages are sent at least once: remember ``webhook-id`` for as long.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = sent.get("webhook-id", ""), sent.get("webhook-timestamp", "")
    signatures = sent.get("webhook-signature", "")
    if not (message_id and timestamp and signatures):
        raise Unauthorized("webhook-id, webhook-timestamp or webhook-signature is missing")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= TIMESTAMP_DIGITS_MAX):
        raise Unauthorized("webhook-timestamp is not a number of seconds")
    now = clock.wall_ms() // 1000 if now_s is None else now_s
    if abs(now - int(timestamp)) > TOLERANCE_S:
        raise Unauthorized(f"the message is more than {TOLERANCE_S} s old or early")
    expected = sign(secrets, message_id, int(timestamp), body).split()
    if not _any_equal(expected, signatures.split(" ")):
        raise Unauthorized("no signature fits")


def _digest(secret: str, signed: bytes) -> str:
    key = base64.b64decode(check_secret(secret).removeprefix(PREFIX))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _any_equal(expected: list[str], given: list[str]) -> bool:
    """Looks at every pair, so that the time tells nothing about which one was near."""
    pairs = (
        (ours.encode(), theirs.encode("utf-8", "replace")) for ours in expected for theirs in given
    )
    return sum(hmac.compare_digest(ours, theirs) for ours, theirs in pairs) > 0
