"""Seal: payloads and results as they are stored, encrypted where there is a key.

A sealed body is bound to its place (``task:<tenant>:<id>:result``): moved into another record, tenant
or field it does not open. It begins with a byte that msgpack never begins with, so that what was stored
before encryption was switched on stays readable, and sealed bytes are never read as if they were plain.
Invariant: no error made here tells anything of a key or of a body.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tasksched.errors import Conflict, Invalid
from tasksched.model.names import check_name
from tasksched.model.recurring import Schedule, ScheduleSpec
from tasksched.model.task import Task, TaskSpec

SEALED: Final = b"\xc1"
"""With it begins what a codec makes; msgpack has no use for it."""

SETTING: Final = "TASKSCHED_ENCRYPTION_KEYS"
KEY_BYTES: Final = (16, 32)
OCCURRENCE: Final = "r"  # with it begins the id of every occurrence of a recurring task
_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = 3  # the mark, the version, the length of the key's id


class Codec(Protocol):
    """What seals and opens bodies. Called in event loops and threads; must not block for long."""

    @property
    def current(self) -> str:
        """The id of the key that seals."""
        ...

    def seal(self, raw: bytes, place: str) -> bytes:
        """``raw`` for this place and no other; begins with ``SEALED``."""
        ...

    def open(self, sealed: bytes, place: str) -> bytes:
        """What was sealed for this place. Raises Invalid."""
        ...

    def key_of(self, sealed: bytes) -> str | None:
        """The id of the key that opens it; None where this codec has no such key."""
        ...


class AesGcmCodec:
    """AES in Galois/counter mode with keys of 16 or 32 bytes; a new nonce for every body.

    The id of the key stands in the clear before the ciphertext: ``current`` seals, all open.
    """

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        """Raises Invalid for an id that is no name, a key of another length, a key that is not there."""
        for key_id, key in keys.items():
            check_name(key_id, "/keys")
            if len(key) not in KEY_BYTES:
                raise Invalid(f"key {key_id} has {len(key)} bytes; it takes 16 or 32", "/keys")
        if current not in keys:
            raise Invalid("the current key is not among the keys", "/current")
        self.current = current
        self._ciphers = {key_id.encode(): AESGCM(key) for key_id, key in keys.items()}
        self._head = _head(current.encode())
        self._cipher = self._ciphers[current.encode()]

    def __repr__(self) -> str:
        return f"<AesGcmCodec {self.current} of {len(self._ciphers)}>"

    def seal(self, raw: bytes, place: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return self._head + nonce + self._cipher.encrypt(nonce, raw, self._head + place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        key_id = _key_id(sealed)
        cipher = None if key_id is None else self._ciphers.get(key_id)
        if key_id is None or cipher is None:
            raise Invalid("it is encrypted, and its key is not here")
        head = _head(key_id)
        body = len(head) + _NONCE_BYTES
        try:
            return cipher.decrypt(sealed[len(head) : body], sealed[body:], head + place.encode())
        except (InvalidTag, ValueError):
            raise Invalid("it is not what was encrypted for this place") from None

    def key_of(self, sealed: bytes) -> str | None:
        key_id = _key_id(sealed)
        return key_id.decode() if key_id is not None and key_id in self._ciphers else None


def _head(key_id: bytes) -> bytes:
    return SEALED + bytes((_VERSION, len(key_id))) + key_id


def _key_id(sealed: bytes) -> bytes | None:
    """The id in the head of an envelope of ours."""
    if len(sealed) < _HEAD_BYTES or sealed[:1] != SEALED or sealed[1] != _VERSION:
        return None
    return sealed[_HEAD_BYTES : _HEAD_BYTES + sealed[2]]


def codec_of(text: str) -> AesGcmCodec | None:
    """The codec that a setting means: ``id:base64,id2:base64``, the current key first; "" = none.

    Raises Invalid, which names no key.
    """
    keys: dict[str, bytes] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key_id, colon, encoded = part.partition(":")
        if not colon:
            raise Invalid(f"{SETTING} is a list of id:base64")
        check_name(key_id, SETTING)
        if key_id in keys:
            raise Invalid(f"{SETTING} has {key_id} twice")
        try:
            keys[key_id] = base64.b64decode(
                encoded.strip().replace("-", "+").replace("_", "/"), validate=True
            )
        except binascii.Error:
            raise Invalid(f"{SETTING}: key {key_id} is not base64") from None
    return AesGcmCodec(keys, next(iter(keys))) if keys else None


def is_sealed(stored: bytes | None) -> bool:
    return stored is not None and len(stored) > 1 and stored[:1] == SEALED


def task_place(tenant: str, task_id: str, kind: str) -> str:
    """Of a body of a task. ``kind``: payload, result or checkpoint."""
    return f"task:{tenant}:{task_id}:{kind}"


def schedule_place(ref: str) -> str:
    """Of the payload of a recurring task (``tenant:id``), and of the copies its occurrences have."""
    return f"schedule:{ref}:payload"


class Bodies:
    """Bodies on their way into records and out of them. Without a codec they pass as they are.

    What is empty stays empty: no payload is not a secret.
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self.codec = codec

    def seal(self, raw: bytes, place: str) -> bytes:
        if self.codec is None or not raw:
            return raw
        try:
            sealed = self.codec.seal(raw, place)
        except Exception as error:  # noqa: BLE001 - a codec may be anybody's, and its words may tell
            raise Invalid(f"it cannot be encrypted: {type(error).__name__}") from None
        if not is_sealed(sealed):
            raise Invalid("what a codec seals begins with the byte C1")
        return sealed

    def open(self, stored: bytes, *places: str) -> bytes:
        """The body, sealed for any of these places, or plain. Raises Invalid."""
        if not is_sealed(stored):
            return stored
        if self.codec is None:
            raise Invalid("it is encrypted, and there is no key here")
        why = ""
        for place in places:
            try:
                return self.codec.open(stored, place)
            except Invalid as error:
                why = error.detail
            except Exception as error:  # noqa: BLE001 - as above
                why = f"it cannot be decrypted: {type(error).__name__}"
        raise Invalid(why)

    def has_key(self, stored: bytes) -> bool:
        """Whether sealed bytes can be opened here, if they stand where they belong."""
        return self.codec is not None and self.codec.key_of(stored) is not None

    # -- tasks ----------------------------------------------------------------------------------

    def seal_task(self, spec: TaskSpec, task_id: str) -> TaskSpec:
        if self.codec is None or not spec.payload:
            return spec
        return msgspec.structs.replace(
            spec, payload=self.seal(spec.payload, task_place(spec.tenant, task_id, "payload"))
        )

    def seal_result(self, raw: bytes, tenant: str, task_id: str) -> bytes:
        return self.seal(raw, task_place(tenant, task_id, "result"))

    def open_payload(self, stored: bytes, tenant: str, task_id: str, schedule: str | None) -> bytes:
        """The payload of a task; ``schedule`` is that of an occurrence. Raises Invalid."""
        return self.open(stored, *payload_places(tenant, task_id, schedule))

    def seal_checkpoint(self, raw: bytes, tenant: str, task_id: str) -> bytes:
        return self.seal(raw, task_place(tenant, task_id, "checkpoint"))

    def open_checkpoint(self, stored: bytes, tenant: str, task_id: str) -> bytes:
        """Raises Invalid."""
        return self.open(stored, task_place(tenant, task_id, "checkpoint"))

    def open_task(self, task: Task) -> Task:
        """The task with its bodies opened.

        A body whose key is not here is None and the task ``encrypted``. One that does not belong here
        stays as it is stored: no reader can decode it.
        """
        if not is_sealed(task.payload) and not is_sealed(task.result):
            return task
        bodies: dict[str, bytes | None] = {"payload": task.payload, "result": task.result}
        encrypted = False
        for kind, stored in bodies.items():
            if stored is None or not is_sealed(stored):
                continue
            if not self.has_key(stored):
                bodies[kind], encrypted = None, True
                continue
            try:
                bodies[kind] = self._opened(task, kind, stored)
            except Invalid:
                continue
        return msgspec.structs.replace(
            task, payload=bodies["payload"], result=bodies["result"], encrypted=encrypted
        )

    def _opened(self, task: Task, kind: str, stored: bytes) -> bytes:
        if kind == "payload":
            return self.open_payload(stored, task.tenant, task.id, task.schedule)
        return self.open(stored, task_place(task.tenant, task.id, kind))

    # -- recurring tasks ------------------------------------------------------------------------

    def seal_schedule(self, spec: ScheduleSpec) -> ScheduleSpec:
        """Raises Conflict for a definition that was read without the key of its payload."""
        if is_sealed(spec.template.payload):
            raise Conflict(
                "its payload is encrypted and cannot be read here: give the payload, too",
                recurring_task_id=spec.id,
            )
        return _with_payload(spec, self.seal(spec.template.payload, schedule_place(spec.ref)))

    def open_schedule(self, schedule: Schedule) -> Schedule:
        """The recurring task with its payload opened; what cannot be opened stays sealed."""
        stored = schedule.spec.template.payload
        if not is_sealed(stored):
            return schedule
        try:
            raw = self.open(stored, schedule_place(schedule.spec.ref))
        except Invalid:
            return schedule
        return msgspec.structs.replace(schedule, spec=_with_payload(schedule.spec, raw))


def payload_places(tenant: str, task_id: str, schedule: str | None) -> tuple[str, ...]:
    """Where a task's payload may have been sealed: an occurrence has a copy of its schedule's."""
    own = task_place(tenant, task_id, "payload")
    if schedule is None or not task_id.startswith(OCCURRENCE):
        return (own,)
    return (schedule_place(schedule), own) if schedule.startswith(f"{tenant}:") else (own,)


def _with_payload(spec: ScheduleSpec, payload: bytes) -> ScheduleSpec:
    template = msgspec.structs.replace(spec.template, payload=payload)
    return msgspec.structs.replace(spec, template=template)


PLAIN: Final = Bodies()
