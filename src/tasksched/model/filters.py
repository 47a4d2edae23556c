"""Filters: which tasks of a tenant a list shows, or an operation is for.

One value for tasks and dead letters; what is None does not care. Bounds in time are inclusive.
Invariant: the names in a checked filter hold no colon, so that they may become parts of keys.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tasksched.errors import Invalid
from tasksched.model import names
from tasksched.model.instants import format_instant, parse_instant
from tasksched.model.notify import QUEUE as NOTIFICATIONS
from tasksched.model.states import STATES, State
from tasksched.model.task import HTTP_ROUTE, HandlerTarget, Task

DEAD_FIELDS: Final = (
    "queue", "handler", "reason", "fingerprint", "tag", "finished_from", "finished_to",
)  # fmt: skip
GROUP_FIELDS: Final = ("queue", "handler", "reason", "fingerprint")
TASK_FIELDS: Final = ("status", "queue", "priority", "handler", "tag", "due_from", "due_to")


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task must be like. ``handler`` may end with ``*``; no ``status`` means any."""

    status: tuple[State, ...] = ()
    queue: str | None = None
    priority: str | None = None
    handler: str | None = None
    tag: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    finished_from_ms: int | None = None
    finished_to_ms: int | None = None

    @property
    def named(self) -> frozenset[str]:
        """The fields that say something."""
        fields = self.__struct_fields__
        return frozenset(name for name in fields if getattr(self, name) not in {None, ()})

    def matches(self, task: Task) -> bool:
        """Whether the task is one of those; the reserved queue only where it is named."""
        if self.status and task.status not in self.status:
            return False
        if self.queue is None and task.queue == NOTIFICATIONS and task.status != "FAILED":
            return False
        wanted = (
            (self.queue, task.queue),
            (self.priority, task.priority),
            (self.reason, task.reason),
            (self.fingerprint, task.fingerprint),
        )
        if any(asked is not None and asked != found for asked, found in wanted):
            return False
        if self.tag is not None and self.tag not in task.tags:
            return False
        if not _within(task.due_ms, self.due_from_ms, self.due_to_ms):
            return False
        if not _within(task.finished_ms, self.finished_from_ms, self.finished_to_ms):
            return False
        return self.handler is None or (
            isinstance(task.target, HandlerTarget) and name_fits(task.target.name, self.handler)
        )

    def to_json(self) -> dict[str, Any]:
        """As ``filter_of`` reads it, without what says nothing."""
        body: dict[str, Any] = {}
        for name, (field, _) in RULES.items():
            if field in self.named:
                value = getattr(self, field)
                body[name] = format_instant(value) if field.endswith("_ms") else value
        return body

    def fits_route(self, route: str) -> bool:
        """Whether the handler of a route is one that is asked for."""
        name = route.partition("@")[0]
        return self.handler is None or (name != HTTP_ROUTE and name_fits(name, self.handler))

    def fits_lane(self, lane: str) -> bool:
        """Whether a lane (queue:priority:tenant:route) can hold what is asked for."""
        queue, priority, _, route = lane.split(":")
        if self.queue is None and queue == NOTIFICATIONS:
            return False
        if self.queue not in {None, queue} or self.priority not in {None, priority}:
            return False
        return self.fits_route(route)


EVERYTHING: Final = Filter()


def _within(ms: int | None, least: int | None, most: int | None) -> bool:
    if least is None and most is None:
        return True
    return ms is not None and (least is None or ms >= least) and (most is None or ms <= most)


def name_fits(name: str, pattern: str) -> bool:
    """Whether a handler's name is the pattern, or begins as one that ends with ``*``."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def check_handler_pattern(value: object, pointer: str = "") -> str:
    """A handler's name, or the beginning of one with ``*`` behind it. Raises Invalid."""
    if isinstance(value, str) and value.endswith("*"):
        if value != "*":
            names.check_handler_name(value[:-1], pointer)
        return value
    return names.check_handler_name(value, pointer)


def check_states(value: object, pointer: str = "") -> tuple[State, ...]:
    """One state, several with commas, or a list of them. Raises Invalid."""
    asked = value.split(",") if isinstance(value, str) else value
    if isinstance(asked, list | tuple) and asked:
        found = tuple(state for state in STATES if state in asked)
        if len(found) == len(asked):
            return found
    raise Invalid(f"a status is one of {', '.join(STATES)}, or several", pointer)


RULES: Final[dict[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "status": ("status", check_states),
    "queue": ("queue", names.check_name),
    "priority": ("priority", names.check_priority),
    "handler": ("handler", check_handler_pattern),
    "tag": ("tag", names.check_name),
    "reason": ("reason", names.check_name),
    "fingerprint": ("fingerprint", names.check_name),
    "due_from": ("due_from_ms", parse_instant),
    "due_to": ("due_to_ms", parse_instant),
    "finished_from": ("finished_from_ms", parse_instant),
    "finished_to": ("finished_to_ms", parse_instant),
}
"""The words of users, with the field of each and the rule that reads it."""


def filter_of(given: Mapping[str, Any], known: Sequence[str], prefix: str = "/") -> Filter:
    """The filter that these words are; None says nothing. Raises Invalid at ``prefix`` + word."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise Invalid(f"unknown; known are {', '.join(known)}", f"{prefix}{name}")
        if value is not None:
            field, rule = RULES[name]
            found[field] = rule(value, f"{prefix}{name}")
    return Filter(**found)
