"""Operations: one verb for many tasks, as its record says how far it has got.

The record is what survives a restart. ``batch`` is what was planned and may have been done already by
a process that died: whoever goes on does it again, under the same names, before anything else; so
the counts are exact. Times are the server's, ms since the epoch.
"""

from typing import Any, Final, Literal, get_args

import msgspec

from tasksched.errors import Invalid
from tasksched.model.filters import Filter

Kind = Literal["redrive", "purge", "cancel", "edit", "delete"]
OperationState = Literal["RUNNING", "DONE", "STOPPED", "FAILED"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
DEAD_KINDS: Final[frozenset[Kind]] = frozenset({"redrive", "purge"})
RATE_USUAL: Final = 1_000
RATE_MAX: Final = 10_000


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many tasks match; ``at_least`` where counting was cut short."""

    count: int
    at_least: bool = False


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``rate``: tasks a second. ``expected``: what matched when it was made.

    ``cursor``: the phase of the walk and the place in it; ``walked``: nothing follows the batch.
    ``owner`` works on it until ``until_ms``, unless it renews that.
    """

    id: str
    kind: Kind
    tenant: str
    filter: Filter
    changes: dict[str, Any] | None = None
    rate: int = RATE_USUAL
    state: OperationState = "RUNNING"
    expected: Count
    done: int = 0
    skipped: int = 0
    cursor: tuple[int, int, str] | None = None
    walked: bool = False
    batch: tuple[tuple[str, int], ...] = ()
    created_ms: int
    updated_ms: int
    finished_ms: int | None = None
    owner: str = ""
    until_ms: int = 0
    error: str | None = None

    @property
    def found(self) -> int:
        """What it came across so far: done, or left as it was because its state forbade it."""
        return self.done + self.skipped


def check_rate(value: object, pointer: str = "") -> int:
    """Tasks a second. Raises Invalid."""
    if type(value) is int and 1 <= value <= RATE_MAX:
        return value
    raise Invalid(f"a rate is a whole number of tasks a second from 1 to {RATE_MAX}", pointer)
