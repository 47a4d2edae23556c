"""Refusals: how many tasks or requests this process has refused, by reason. Reasons are few and fixed."""

from collections import Counter
from typing import Final

from tasksched.errors import MemoryBudget, Overloaded, RateLimited

REASONS: Final = ("memory_budget", "overloaded", "max_pending", "create_rate")


class Refusals:
    """Counts since this process began."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def note(self, outcome: object) -> None:
        """Counts it, if it is a refusal of ours; the outcomes of a batch are noted one by one."""
        reason = _reason(outcome)
        if reason in self.by_reason:
            self.by_reason[reason] += 1


def _reason(outcome: object) -> str:
    if isinstance(outcome, MemoryBudget):
        return "memory_budget"
    if isinstance(outcome, Overloaded):
        return "overloaded"
    return outcome.limit if isinstance(outcome, RateLimited) else ""
