"""Time at the edges. Inside, time is an integer of milliseconds that somebody passes in.

The one clock that decides anything is the Redis server's (architecture, idea 5). What stands here
is for sleeping and measuring on this host, and is never compared with a due time unadjusted.
"""

import time


def wall_ms() -> int:
    """This host's idea of the time, ms since the epoch. For ids and logs only."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """A clock that never jumps, ms since some start. For intervals."""
    return time.monotonic_ns() // 1_000_000


def mono() -> float:
    """As ``mono_ms``, in seconds with full resolution."""
    return time.monotonic()
