"""Task ids: opaque to users, and to us the address of the record.

``<time 9><random 12><shard 2>`` in Crockford's base 32, lower case: sortable by creation, 60 random
bits, and the shard in the last two characters, so that any id leads to its shard without a look-up
and the number of shards never has to be guessed. The id of a keyed task is a pure function of
(tenant, key): ``k<hash 20><shard 2>``. Ids are case-sensitive; whatever does not match is unknown.
"""

import hashlib
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


def mint(shard: int, now_ms: int) -> str:
    """A new id. ``now_ms`` only makes it sortable; nothing reads the time back."""
    n, p = random.getrandbits(60), _PAIRS  # unrolled: a burst makes 100,000 of them
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
