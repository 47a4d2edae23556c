"""Notifications: which events there are, who asked for them, and what a task about one carries.

A verdict makes at most one follower, a task on the route NOTIFY_ROUTE whose id is a function of its
cause (``lua/lib/notify.lua``). Running it fans out to one delivery for each receiver, again with ids
that are functions of the cause: so each receiver is told once, whatever is repeated.
"""

import hashlib
from typing import Literal, get_args

import msgspec

from tasksched.model.ids import shard_pair

EventType = Literal[
    "task.succeeded", "task.failed", "task.cancelled", "schedule.missed", "schedule.blocked"
]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
TEST_EVENT = "webhook.test"

# The reserved queue: its tasks raise no events of their own and are refused by no quota.
QUEUE = "notifications"
NOTIFY_ROUTE = "http@notify"  # no handler can have it: "http" is no handler's name
RECEIVERS_MAX = 10  # of one task or schedule


class Receiver(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is told about one task or schedule, as its ``notify`` names it.

    ``secret``: what the receiver verifies signatures with (``whsec_…``); None = the tenant's.
    """

    url: str
    events: tuple[EventType, ...]
    secret: str | None = None


class Cause(msgspec.Struct, frozen=True):
    """What a notification is about: the subject as it was when the event happened.

    ``subject``: a task id, or tenant:id of a schedule. ``mark``: life/created_ms of the task (of
    earlier releases the life alone); of a schedule the generation and what was missed or blocked it.
    """

    event: EventType
    subject: str
    mark: str
    at_ms: int

    @classmethod
    def parse(cls, text: str) -> "Cause":
        """From the words that ``lua/lib/notify.lua`` wrote."""
        event, subject, mark, at_ms = text.split(" ")
        return cls(msgspec.convert(event, type=EventType), subject, mark, int(at_ms))

    def is_of_task(self, created_ms: int) -> bool:
        """Whether the task of this id is still the one it happened to: a key may be used again."""
        created = self.mark.partition("/")[2]
        return created in {"", str(created_ms)}

    def is_of_life(self, life: int) -> bool:
        return self.mark.partition("/")[0] == str(life)

    @property
    def text(self) -> str:
        return f"{self.event} {self.subject} {self.mark} {self.at_ms}"


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a delivery task is: one message to one receiver.

    ``message``: the webhook-id, stable over retries and replays. ``endpoint``: of the tenant;
    None where the task's own ``notify`` named the receiver, whose secret then stands here.
    """

    message: str
    event: str
    endpoint: str | None = None
    secret: str | None = None


def words_of(receivers: tuple[Receiver, ...]) -> str:
    """The events that any of them wants, as scripts read them: ``failed missed``."""
    wanted = {event.partition(".")[2] for each in receivers for event in each.events}
    return " ".join(sorted(wanted))


def derived_id(prefix: str, text: str, shard: int) -> str:
    """An id that is a pure function of ``text``; ``lua/lib/notify.lua`` computes the same."""
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:20] + shard_pair(shard)


def notification_id(cause: Cause, shard: int) -> str:
    """Of the task that tells everybody of this event; once, whenever it was noticed."""
    return derived_id("n", f"{cause.event} {cause.subject} {cause.mark}", shard)


def delivery_id(message: str, receiver: str, shard: int) -> str:
    """Of the task that tells one receiver (an endpoint's id, or a URL)."""
    return derived_id("d", f"{message} {receiver}", shard)
