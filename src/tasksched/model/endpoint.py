"""Webhook endpoints: what is kept of them, and what users see of them.

Secrets are kept sealed where there is a key (``model.seal``), bound to their tenant and their owner.
Invariant: what users see (``EndpointInfo``) holds a secret only in the answer that made it.
"""

import base64
import binascii
import secrets as random_source
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from tasksched.errors import Invalid
from tasksched.model.ids import ALPHABET
from tasksched.model.notify import EventType, Receiver
from tasksched.model.seal import Bodies
from tasksched.model.states import State
from tasksched.model.task import ErrorInfo
from tasksched.model.tenant import Secret

ENDPOINTS_MAX: Final = 50  # of one tenant
DESCRIPTION_MAX: Final = 512
OVERLAP_MS: Final = 24 * 3_600_000
OVERLAP_MAX_MS: Final = 30 * 24 * 3_600_000
SECRETS_MAX: Final = 5  # that sign at one time: a header stays small
PREFIX: Final = "ep_"
_ID_LENGTH: Final = 20
SEALED_TEXT: Final = "sealed:"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint as its record has it. ``secrets``: sealed, the newest first."""

    url: str
    events: tuple[EventType, ...]
    enabled: bool = True
    disabled_reason: str | None = None
    description: str = ""
    secrets: tuple[Secret, ...] = ()
    created_ms: int = 0
    updated_ms: int = 0


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint as users see it. ``secret``: only where it was made just now."""

    id: str
    version: int
    tenant: str
    url: str
    events: tuple[EventType, ...]
    enabled: bool
    disabled_reason: str | None
    description: str
    created_ms: int
    updated_ms: int
    secret: str | None = None


class DeliveryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one endpoint. ``id``: of the task that carries it. ``run_ms``: due then."""

    id: str
    message_id: str
    event: str
    endpoint_id: str
    status: State
    attempts: int
    reason: str | None
    error: ErrorInfo | None
    created_ms: int
    run_ms: int
    last_attempt_ms: int | None
    finished_ms: int | None


def new_endpoint_id() -> str:
    return PREFIX + "".join(random_source.choice(ALPHABET) for _ in range(_ID_LENGTH))


def words(events: Iterable[EventType]) -> str:
    """The events as scripts read them: ``failed missed``."""
    return " ".join(sorted({event.partition(".")[2] for event in events}))


def check_description(value: object, pointer: str = "/description") -> str:
    """A line for people: at most 512 characters that can be printed. Raises Invalid."""
    if (
        isinstance(value, str)
        and len(value) <= DESCRIPTION_MAX
        and (not value or value.isprintable())
    ):
        return value
    raise Invalid(f"a line of at most {DESCRIPTION_MAX} characters", pointer)


def rotated(old: tuple[Secret, ...], new: str, now_ms: int, overlap_ms: int) -> tuple[Secret, ...]:
    """The secrets after ``new`` came: the one before signs along for so long, no other one longer."""
    until_ms = now_ms + overlap_ms
    kept = [
        Secret(each.value, min(each.until_ms or until_ms, until_ms))
        for each in old
        if each.until_ms is None or each.until_ms > now_ms
    ]
    alive = [each for each in kept if each.until_ms is not None and each.until_ms > now_ms]
    return (Secret(new), *alive[: SECRETS_MAX - 1])


# -- secrets at rest ------------------------------------------------------------------------------


def secret_place(tenant: str, owner: str) -> str:
    """What a sealed secret is bound to. ``owner``: an endpoint, a receiver's URL, or ``tenant``."""
    return f"secret:{tenant}:{owner}"


def seal_secret(bodies: Bodies, secret: str, place: str) -> str:
    """The secret as a record holds it; one that is sealed stays as it is."""
    if bodies.codec is None or secret.startswith(SEALED_TEXT):
        return secret
    return SEALED_TEXT + base64.b64encode(bodies.seal(secret.encode(), place)).decode()


def open_secret(bodies: Bodies, stored: str, place: str) -> str:
    """Raises Invalid where its key is not here."""
    if not stored.startswith(SEALED_TEXT):
        return stored
    try:
        sealed = base64.b64decode(stored.removeprefix(SEALED_TEXT), validate=True)
    except binascii.Error:
        raise Invalid("the stored secret cannot be read") from None
    return bodies.open(sealed, place).decode()


def seal_receivers(
    bodies: Bodies, tenant: str, receivers: tuple[Receiver, ...]
) -> tuple[Receiver, ...]:
    """The receivers as a record of the tenant holds them."""
    return _each_secret(receivers, lambda r, s: seal_secret(bodies, s, secret_place(tenant, r.url)))


def open_receivers(
    bodies: Bodies, tenant: str, receivers: tuple[Receiver, ...]
) -> tuple[Receiver, ...]:
    """The receivers with their secrets in the clear, except where a key is not here."""

    def opened(receiver: Receiver, stored: str) -> str:
        try:
            return open_secret(bodies, stored, secret_place(tenant, receiver.url))
        except Invalid:
            return stored

    return _each_secret(receivers, opened)


def _each_secret(
    receivers: tuple[Receiver, ...], make: Callable[[Receiver, str], str]
) -> tuple[Receiver, ...]:
    return tuple(
        each
        if each.secret is None
        else msgspec.structs.replace(each, secret=make(each, each.secret))
        for each in receivers
    )
