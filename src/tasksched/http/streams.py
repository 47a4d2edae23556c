"""Streams: how many event streams one process has open, since each holds a connection and looks often.

No tenant can take them all: where keys are needed, each has a share and no more.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tasksched.errors import TooManyRequests

RETRY_AFTER_MS: Final = 5_000
SHARE: Final = 4
"""One tenant may have one in so many of the streams, at least one."""


class Streams:
    """How many event streams this process has open."""

    def __init__(self) -> None:
        self.open = 0
        self._of: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, most: int, tenant: str | None) -> Iterator[None]:
        """One more. ``tenant``: in whose share; None for who has all. Raises TooManyRequests."""
        if self.open >= most:
            raise _too_many(f"this process has {most} event streams open")
        share = max(most // SHARE, 1)
        if tenant is not None and self._of[tenant] >= share:
            raise _too_many(f"this tenant has {share} event streams open in this process")
        with self._counted(tenant):
            yield

    @contextlib.contextmanager
    def _counted(self, tenant: str | None) -> Iterator[None]:
        self.open += 1
        if tenant is not None:
            self._of[tenant] += 1
        try:
            yield
        finally:
            self.open -= 1
            if tenant is not None:
                self._of[tenant] -= 1
                self._of += Counter()  # without those that have none


def _too_many(why: str) -> TooManyRequests:
    return TooManyRequests(why, retry_after_ms=RETRY_AFTER_MS)
