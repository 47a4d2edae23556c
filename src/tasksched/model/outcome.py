"""How one attempt ended, as a value; and the pure rule that turns a failure into what comes next."""

from collections.abc import Callable
from typing import Literal

import msgspec

from tasksched.model.retry import Retry
from tasksched.model.states import OutcomeName
from tasksched.model.task import ErrorInfo

ERROR_TEXT_MAX = 8 * 1024
RETRY_AFTER_MAX_MS = 24 * 3_600_000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt. ``retry_ms`` set: another attempt after that; else the verdict.

    ``RELEASED`` with ``retry_ms`` is postponed by so much, not counted, and ``reason`` says why.
    ``DEFERRED`` is no end: the run goes on elsewhere, and has ``lease_ms`` until it is heard of.
    """

    kind: OutcomeName | Literal["DEFERRED"]
    retry_ms: int | None = None
    reason: str = ""
    error: ErrorInfo | None = None
    result: bytes = b""
    lease_ms: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong in an attempt, before any decision.

    ``retryable`` False: final whatever the budget says. ``retry_after_ms``: asked for by the
    handler (exactly) or by the target's Retry-After (``at_least``: the larger of both waits).
    """

    error: ErrorInfo
    kind: OutcomeName = "FAILED"
    retryable: bool = True
    reason: str = "not_retryable"
    retry_after_ms: int | None = None
    at_least: bool = True


def bounded(text: str, most: int = ERROR_TEXT_MAX) -> str:
    """``text`` in at most ``most`` bytes of UTF-8, its head and its tail kept, always encodable."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= most:
        return raw.decode()
    half = (most - 32) // 2
    head, tail = raw[:half].decode("utf-8", "ignore"), raw[-half:].decode("utf-8", "ignore")
    return f"{head}\n… {len(raw) - 2 * half} bytes …\n{tail}"


def error_info(error_type: str, message: str, traceback: str = "") -> ErrorInfo:
    """An ErrorInfo whose parts together stay within the limit of an error's text."""
    return ErrorInfo(
        bounded(error_type, 256), bounded(message, 2048), bounded(traceback, ERROR_TEXT_MAX - 2304)
    )


def judge(failure: Failure, retry: Retry, *, attempts: int, rng: Callable[[], float]) -> Outcome:
    """What a failed attempt leads to. ``attempts``: those that count in this life, this included."""
    if not failure.retryable:
        return Outcome(kind=failure.kind, reason=failure.reason, error=failure.error)
    if attempts >= retry.max_attempts:
        return Outcome(kind=failure.kind, reason="attempts_exhausted", error=failure.error)
    wait_ms = retry.delay_ms(max(attempts, 1), rng)
    if failure.retry_after_ms is not None:
        # What a target asks for is capped; what a handler asks for is its own affair.
        asked_ms = failure.retry_after_ms
        wait_ms = max(wait_ms, min(asked_ms, RETRY_AFTER_MAX_MS)) if failure.at_least else asked_ms
    return Outcome(kind=failure.kind, retry_ms=wait_ms, error=failure.error)


def judge_lost(
    retry: Retry, *, attempts: int, lost: int, worker: str, rng: Callable[[], float]
) -> Outcome:
    """What a lost lease leads to. ``lost``: in a row, this one included."""
    error = error_info("WorkerLost", f"the lease of worker {worker} ran out (lost {lost} in a row)")
    if attempts >= retry.max_attempts or lost >= retry.max_lost:
        return Outcome(kind="LOST", reason="worker_lost", error=error)
    wait_ms = retry.delay_ms(max(attempts, 1), rng)
    return Outcome(kind="LOST", retry_ms=wait_ms, error=error)
