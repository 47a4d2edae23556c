"""Place: where a reader of events is, as a word that only this namespace can read.

It tells how far all shards are, so of every tenant's doings: read in the clear, or equal for equal places,
it would show one tenant when others are active.
"""

import binascii
import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class PlaceSeal:
    """Seals with a key that is made of the namespace's secret, and a new nonce for every word."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(secret, b"place of events", hashlib.sha256))

    def seal(self, raw: bytes) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, raw, None)
        return urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, word: str) -> bytes | None:
        """What was sealed; None for any other word."""
        try:
            sealed = urlsafe_b64decode(word.encode("ascii") + b"==")
            if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
                return None
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, UnicodeEncodeError, binascii.Error):
            return None
