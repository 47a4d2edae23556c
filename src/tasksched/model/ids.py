"""Task ids: opaque to users, and to us the address of the record.

``<time 9><random 12><shard 2>`` in Crockford's base 32, lower case: sortable by creation, random bits
that grow within a millisecond, and the shard in the last two characters, so that any id leads to its
shard without a look-up and the number of shards never has to be guessed. The id of a keyed task is a pure function of
(tenant, key): ``k<hash 20><shard 2>``. Ids are case-sensitive; whatever does not match is unknown.
"""

import hashlib
import os
import random
import re
from functools import lru_cache

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_LENGTH = 23
SHARDS_MAX = 1024

_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]
_VALUE = {pair: n for n, pair in enumerate(_PAIRS)}
_SHAPE = re.compile(rf"[{ALPHABET}]{{{ID_LENGTH}}}")


def _base32(number: int, pairs: int) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(10 * (pairs - 1), -1, -10)])


class _Sequence:
    """The random part: within one millisecond it only grows, so that a batch keeps its order."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._at_ms = 0
        self._number = 0

    def next(self, now_ms: int) -> int:
        if now_ms == self._at_ms:
            self._number += random.getrandbits(_STEP_BITS) + 1
        else:
            self._at_ms, self._number = now_ms, random.getrandbits(_RANDOM_BITS - 1)
        return self._number


_RANDOM_BITS, _STEP_BITS = 60, 36
_sequence = _Sequence()
# A forked child must not go on where its parent is.
os.register_at_fork(after_in_child=_sequence.restart)


def mint(shard: int, now_ms: int) -> str:
    """A new id, later than the one before it. Nothing reads the time back."""
    n, p = _sequence.next(now_ms), _PAIRS  # unrolled: a burst makes 100,000 of them
    return (
        f"{_stamp(now_ms)}{p[n >> 50]}{p[n >> 40 & 1023]}{p[n >> 30 & 1023]}{p[n >> 20 & 1023]}"
        f"{p[n >> 10 & 1023]}{p[n & 1023]}{p[shard]}"
    )


@lru_cache(maxsize=64)
def _stamp(now_ms: int) -> str:
    return _base32(now_ms, 5)[1:]


def keyed(tenant: str, key: str, shards: int) -> str:
    """The id that this idempotency key has in this tenant, for ever."""
    digest = hashlib.sha256(f"{tenant}\0task\0{key}".encode()).digest()
    number = int.from_bytes(digest[:13])
    return "k" + _base32(number, 10) + _PAIRS[int.from_bytes(digest[-4:]) % shards]


def shard_pair(shard: int) -> str:
    """The two characters that end every id of a shard."""
    return _PAIRS[shard]


def shard_of(task_id: str, shards: int) -> int | None:
    """The shard of an id; None for what is no id of this namespace."""
    if not _SHAPE.fullmatch(task_id):
        return None
    shard = _VALUE[task_id[-2:]]
    return shard if shard < shards else None
