"""Schema of notifications: who is told of a task, and the tasks that tell. Parts of ``schema``."""

from msgspec import UNSET, Struct, UnsetType

from tasksched.model.notify import EventType


class ReceiverBody(Struct, forbid_unknown_fields=True):
    """Who is told, and of what; signed with ``secret``, or with the tenant's."""

    url: str
    events: list[EventType]
    secret: str | None = None


class ReceiverView(Struct):
    """Who is told. Secrets are not shown; one that is not named again stays."""

    url: str
    events: list[EventType]


class NotificationTargetView(Struct, tag="notification", tag_field="type"):
    """What tells the receivers of an event; made by tasksched itself."""

    event: EventType
    task_id: str | UnsetType = UNSET
    recurring_task_id: str | UnsetType = UNSET


class DeliveryOf(Struct):
    """The message that a delivery carries, and the webhook endpoint it goes to, if it is one."""

    message_id: str
    event: str
    endpoint_id: str | None
