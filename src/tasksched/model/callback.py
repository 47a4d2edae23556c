"""Callback tokens: who may report the verdict of a run that goes on elsewhere.

A token is a function of the namespace's secret, the task and the fence of one attempt, so it is worth
nothing for any other attempt, and can be checked before the worker has said that it let go.
"""

import hashlib
import hmac
import math
from base64 import urlsafe_b64encode
from typing import Any

import msgspec

from tasksched.errors import Invalid
from tasksched.model.durations import DAY_MS, SECOND_MS, Duration, parse_duration
from tasksched.model.outcome import bounded

LEASE_MS = 300_000
"""How long a run is left alone before it is heard of, unless somebody says otherwise."""


def callback_token(secret: bytes, task_id: str, fence: str) -> str:
    """The token of this attempt, 32 characters that are safe in a header."""
    digest = hmac.digest(secret, f"callback\0{task_id}\0{fence}".encode(), hashlib.sha256)
    return urlsafe_b64encode(digest[:24]).decode()


def is_token(secret: bytes, task_id: str, fence: str, token: str) -> bool:
    """Whether ``token`` is that of this attempt, in a time that tells nothing about it."""
    expected = callback_token(secret, task_id, fence)
    return hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace"))


LEASE_MIN_MS, LEASE_MAX_MS = SECOND_MS, 30 * DAY_MS
MESSAGE_MAX = 1024
_FENCE_MAX = 1 << 63


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a callback says of a run that failed. ``retry_after_ms``: not before that."""

    type: str = "Error"
    message: str
    details: str = ""
    retryable: bool = True
    retry_after_ms: int | None = None


def read_fence(value: object, pointer: str = "/fence") -> str:
    """A fence as text or as a whole number. Raises Invalid."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 < value < _FENCE_MAX:
        raise Invalid("a fence is a positive whole number, or one as a string", pointer)
    return str(value)


def read_lease(value: object, pointer: str = "/lease") -> int:
    """The ms for which a run that goes on elsewhere is left alone. Raises Invalid."""
    lease: Duration = value  # type: ignore[assignment]  # whatever it is, it is checked there
    lease_ms = parse_duration(lease, pointer)
    if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
        raise Invalid("the lease of a run that goes on elsewhere is from 1 s to 30 d", pointer)
    return lease_ms


def progress_text(at: object, message: object) -> str:
    """Progress as the record holds it; empty where nothing is said. Raises Invalid."""
    if at is None and not message:
        return ""
    if at is not None and (
        isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at)
    ):
        raise Invalid("progress is a finite number", "/progress")
    if message is not None and not isinstance(message, str):
        raise Invalid("a message is a string", "/message")
    return msgspec.json.encode({"at": at, "message": bounded(message or "", MESSAGE_MAX)}).decode()


def details_text(details: Any) -> str:
    """Whatever JSON tells more of an error, as the text that is kept."""
    if details is None or isinstance(details, str):
        return details or ""
    return msgspec.json.encode(details).decode()
