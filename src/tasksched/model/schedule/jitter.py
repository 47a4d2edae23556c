"""Jitter: a small delay that spreads what is due at once, the same every time it is computed.

Owns one hash. Invariants: the delay of an occurrence is a pure function of its schedule and nominal
time, so two schedulers, or one before and after a restart, agree on when it is due; it is below the
jitter asked for, and the occurrence is due before the next nominal time, so order is kept.
Deliberately not here: the jitter of retries, which is random.
"""

from hashlib import blake2b
from typing import Final

_HASH_BITS: Final = 64


def jitter_delay_ms(
    schedule_id: str, nominal_ms: int, *, jitter_ms: int, next_ms: int | None
) -> int:
    """The delay, in [0, ``jitter_ms``), of the occurrence for ``nominal_ms``.

    ``next_ms`` is the nominal time after it, None if there is none; the delay ends before it.
    """
    assert next_ms is None or next_ms > nominal_ms, (nominal_ms, next_ms)
    room_ms = jitter_ms if next_ms is None else min(jitter_ms, next_ms - nominal_ms)
    key = f"{nominal_ms}\0{schedule_id}".encode()
    number = int.from_bytes(blake2b(key, digest_size=_HASH_BITS // 8).digest(), "big")
    # A multiplication spreads over the room as evenly as a remainder would, without favouring its begin.
    return (number * max(room_ms, 0)) >> _HASH_BITS
