"""API keys: how they are written, what is kept of them, and what they may.

A key is ``ts_<id>_<secret><check>``: an id to look it up by, 256 random bits, and a checksum by which a
mistyped key is told apart without asking anybody. Only the SHA-256 of the secret is kept: for random bits
of that length a fast hash is as good as a slow one. Invariant: comparing costs the same whether a key is
known or not, and no value here shows a secret when it is printed.
"""

import hashlib
import hmac
import re
import secrets as random_source
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from tasksched.errors import Invalid, Unauthorized
from tasksched.model.ids import ALPHABET
from tasksched.model.names import check_name

Scope = Literal[
    "tasks:read", "tasks:write", "recurring:read", "recurring:write", "operate", "admin", "metrics"
]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
USUAL: Final[tuple[Scope, ...]] = ("tasks:read", "tasks:write", "recurring:read", "recurring:write")
"""Of a key for which none are named."""

ANY_TENANT: Final = "*"
NAME_MAX: Final = 100
KEYS_MAX: Final = 10_000
OVERLAP_MS: Final = 24 * 3_600_000
OVERLAP_MAX_MS: Final = 30 * 24 * 3_600_000
LIFE_MIN_MS: Final = 1_000
LIFE_MAX_MS: Final = 10 * 365 * 24 * 3_600_000

_ID_LENGTH: Final = 10
_SHAPE: Final = re.compile(
    rf"ts_([{ALPHABET}]{{{_ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})([A-Za-z0-9_-]{{6}})"
)
_NOBODY: Final = hashlib.sha256(b"nobody's").hexdigest()


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as its record has it. ``old_hash``: of the secret before, valid until ``old_until_ms``."""

    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    hash: str
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None
    rotated_ms: int | None = None
    old_hash: str = ""
    old_until_ms: int = 0

    def __repr__(self) -> str:
        return f"ApiKey({self.name!r}, {self.tenant!r}, {self.scopes!r})"

    def may(self, scope: Scope) -> bool:
        """``admin`` may all that the others may; none of the others holds another."""
        return scope in self.scopes or "admin" in self.scopes

    def state_at(self, now_ms: int) -> Literal["active", "expired", "revoked"]:
        if self.revoked_ms is not None:
            return "revoked"
        is_over = self.expires_ms is not None and self.expires_ms <= now_ms
        return "expired" if is_over else "active"


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as users see it. ``text``: the key itself, only in the answer that made it."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    state: Literal["active", "expired", "revoked"]
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    rotated_ms: int | None
    last_used_ms: int | None
    text: str | None = None

    def __repr__(self) -> str:
        return f"KeyInfo({self.id!r}, {self.name!r}, {self.state!r})"


class KeyText(NamedTuple):
    """A key taken apart: its id, and the SHA-256 of its secret in hex."""

    id: str
    hash: str


def new_id() -> str:
    return "".join(random_source.choice(ALPHABET) for _ in range(_ID_LENGTH))


def new_text(key_id: str) -> str:
    """A new key of this id, with a secret that nobody has seen."""
    secret = urlsafe_b64encode(random_source.token_bytes(32)).rstrip(b"=").decode()
    return f"ts_{key_id}_{secret}{_check(key_id, secret)}"


def read_key(text: str) -> KeyText:
    """Raises Unauthorized for what is no key, or a mistyped one. The error does not repeat it."""
    found = _SHAPE.fullmatch(text)
    if found is None or not hmac.compare_digest(_check(found[1], found[2]), found[3]):
        raise Unauthorized("this is no API key: a part is missing or mistyped")
    return KeyText(found[1], hashlib.sha256(found[2].encode()).hexdigest())


def _check(key_id: str, secret: str) -> str:
    crc = zlib.crc32(f"{key_id}_{secret}".encode())
    return urlsafe_b64encode(crc.to_bytes(4)).rstrip(b"=").decode()


def is_proved(key: ApiKey | None, text: KeyText, now_ms: int) -> bool:
    """Whether the secret is the key's: the one in force, or the one before while it overlaps.

    Always two comparisons, also for a key that nobody knows (None).
    """
    known = _NOBODY if key is None else key.hash
    old = key.old_hash if key is not None and key.old_until_ms > now_ms else _NOBODY
    is_new = hmac.compare_digest(known, text.hash)
    is_old = hmac.compare_digest(old or _NOBODY, text.hash)
    return key is not None and (is_new or is_old)


def check_scopes(given: Iterable[str]) -> tuple[Scope, ...]:
    """In the order of SCOPES, each once. Raises Invalid."""
    named = set(given)
    if unknown := sorted(named - set(SCOPES)):
        raise Invalid(f"no scope is called {unknown[0]}; there are {', '.join(SCOPES)}", "/scopes")
    if not named:
        raise Invalid("a key needs a scope", "/scopes")
    return tuple(scope for scope in SCOPES if scope in named)


def check_tenant(tenant: str, scopes: tuple[Scope, ...]) -> str:
    """A tenant, or ``*`` for a key with admin. Raises Invalid."""
    if tenant != ANY_TENANT:
        return check_name(tenant, "/tenant")
    if "admin" not in scopes:
        raise Invalid("only a key with the scope admin may be for every tenant", "/tenant")
    return tenant


def check_label(name: str) -> str:
    """What people call a key: a line of printable text. Raises Invalid."""
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise Invalid(f"a name has 1 to {NAME_MAX} printable characters", "/name")
    return name
