"""Streams: how many event streams one process has open, since each holds a connection and looks often."""

import contextlib
from collections.abc import Iterator
from typing import Final

from tasksched.errors import TooManyRequests

RETRY_AFTER_MS: Final = 5_000


class Streams:
    """How many event streams this process has open."""

    def __init__(self) -> None:
        self.open = 0

    @contextlib.contextmanager
    def one(self, most: int) -> Iterator[None]:
        """One more. Raises TooManyRequests where there are ``most``."""
        if self.open >= most:
            raise TooManyRequests(
                f"this process has {most} event streams open", retry_after_ms=RETRY_AFTER_MS
            )
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
