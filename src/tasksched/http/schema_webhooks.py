"""Schema of webhooks: endpoints and their deliveries as JSON, in and out. As ``schema`` for tasks."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tasksched.http.schema import DurationIn, ErrorView, Moment
from tasksched.model.endpoint import DESCRIPTION_MAX
from tasksched.model.notify import EventType
from tasksched.model.states import State

Events = Annotated[list[EventType], Meta(extra_json_schema={"minItems": 1})]
Description = Annotated[str, Meta(extra_json_schema={"maxLength": DESCRIPTION_MAX})]
SecretText = Annotated[
    str, Meta(description="`whsec_` and base64 of 24 to 64 bytes; without one, a new one is made")
]


class WebhookBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A webhook endpoint to make."""

    url: str
    events: Events
    description: Description | None = ""
    enabled: bool | None = True
    secret: SecretText | None = None


class WebhookChangesBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change of a webhook endpoint; what is not named stays."""

    url: str | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    description: Description | None | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class RotateBody(Struct, forbid_unknown_fields=True):
    """``overlap``: so long the secret before signs along; a day unless it is given."""

    overlap: DurationIn | None = None


class WebhookTimestamps(Struct):
    """When it was made, and when it changed last."""

    created_at: Moment
    updated_at: Moment


class WebhookView(Struct, kw_only=True):
    """A webhook endpoint. ``secret`` stands only in the answer that made it."""

    webhook_id: str
    version: int
    tenant: str
    url: str
    events: list[EventType]
    description: str
    enabled: bool
    disabled_reason: str | None
    secret: str | UnsetType = UNSET
    timestamps: WebhookTimestamps


class WebhookPage(Struct):
    """Every webhook endpoint of the tenant, the oldest first."""

    items: list[WebhookView]
    next_cursor: str | None


class TenantSecretView(Struct):
    """The new signing secret of the tenant, which no other answer shows."""

    tenant: str
    secret: str


class DeliveryTimestamps(Struct):
    """``run_at``: when the next attempt is, or the last one was due."""

    created_at: Moment
    run_at: Moment
    last_attempt_at: Moment | None
    finished_at: Moment | None


class DeliveryView(Struct, kw_only=True):
    """One message to one endpoint. ``delivery_id`` is that of its task; ``error``: of the last attempt."""

    delivery_id: str
    message_id: str
    event: str
    webhook_id: str
    status: State
    attempts: int
    reason: str | None
    error: ErrorView | None
    timestamps: DeliveryTimestamps


class DeliveryPage(Struct):
    """What runs and waits, then what has finished, newest first. A page may be short, even empty."""

    items: list[DeliveryView]
    next_cursor: str | None


WEBHOOK = WebhookBody.__struct_fields__
WEBHOOK_CHANGES = WebhookChangesBody.__struct_fields__
ROTATE = RotateBody.__struct_fields__


class RemovedWebhookView(Struct):
    """The webhook endpoint that is no more."""

    webhook_id: str
