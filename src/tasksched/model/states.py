"""The states of a task and the legal moves between them.

This table is the reference; ``lua/lib/move.lua`` holds the same one and is the only code that
writes ``state``. A test compares the two and tries every state against every verb.
"""

from typing import Literal, get_args

State = Literal["PENDING", "QUEUED", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"]
STATES: tuple[State, ...] = get_args(State)

FINAL: frozenset[State] = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
WAITING: frozenset[State] = frozenset({"PENDING", "QUEUED"})

EDGES: dict[State, frozenset[State]] = {
    "PENDING": frozenset({"QUEUED", "CANCELLED", "FAILED"}),
    "QUEUED": frozenset({"RUNNING", "PENDING", "CANCELLED", "FAILED"}),
    "RUNNING": frozenset({"SUCCESS", "PENDING", "FAILED", "CANCELLED"}),
    "SUCCESS": frozenset(),
    "FAILED": frozenset({"PENDING"}),
    "CANCELLED": frozenset({"PENDING"}),
}

# How one attempt can end. LOST: its lease ran out. RELEASED: handed back, not counted.
OutcomeName = Literal["SUCCEEDED", "FAILED", "TIMED_OUT", "LOST", "RELEASED", "CANCELLED"]
OUTCOMES: tuple[OutcomeName, ...] = get_args(OutcomeName)

# Why a task is FAILED.
Reason = Literal[
    "attempts_exhausted",
    "not_retryable",
    "worker_lost",
    "expired",
    "result_too_large",
    "result_not_serialisable",
    "payload_not_readable",
    "target_not_allowed",
]
