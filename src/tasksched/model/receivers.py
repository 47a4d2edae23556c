"""Receivers: what a ``notify`` may be, and the queue that no user's task may be in."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tasksched.errors import Invalid, Problem
from tasksched.model.http_rules import check_url
from tasksched.model.names import check_name
from tasksched.model.notify import EVENT_TYPES, QUEUE, RECEIVERS_MAX, EventType, Receiver
from tasksched.model.signature import check_secret

Notify = Sequence[Receiver | Mapping[str, Any]]
"""A ``notify`` as Python callers write it: ``[{"url": …, "events": ["task.failed"]}]``."""

_MEMBERS: Final = ("url", "events", "secret")
TASK_EVENTS: Final = tuple(event for event in EVENT_TYPES if event.startswith("task."))


def check_queue(value: object, pointer: str = "/queue") -> str:
    """The name of a queue that tasks may ask for. Raises Invalid."""
    name = check_name(value, pointer)
    if name == QUEUE:
        raise Invalid(f"the queue {QUEUE} is reserved for notifications", pointer)
    return name


def check_receivers(value: object, pointer: str = "/notify") -> tuple[Receiver, ...]:
    """The ``notify`` of a task: ``[{"url", "events", "secret"?}]``, each URL once. Raises Invalid."""
    return _receivers(value, pointer, TASK_EVENTS)


def check_schedule_receivers(value: object, pointer: str = "/notify") -> tuple[Receiver, ...]:
    """As ``check_receivers`` for a recurring task, which has events of its own beside its runs'."""
    return _receivers(value, pointer, EVENT_TYPES)


def _receivers(value: object, pointer: str, known: tuple[EventType, ...]) -> tuple[Receiver, ...]:
    if not isinstance(value, list | tuple):
        raise Invalid("a list of receivers is needed", pointer)
    if len(value) > RECEIVERS_MAX:
        raise Invalid(f"at most {RECEIVERS_MAX} receivers", pointer)
    found: list[Receiver] = []
    problems: list[Problem] = []
    for n, item in enumerate(value):
        place = f"{pointer}/{n}"
        try:
            receiver = _receiver(item, place, known)
        except Invalid as error:
            problems += error.problems
            continue
        if any(receiver.url == other.url for other in found):
            problems.append(Problem(f"{place}/url", "this URL is there twice"))
        found.append(receiver)
    if problems:
        raise Invalid(problems=tuple(problems))
    return tuple(found)


def _receiver(item: object, pointer: str, known: tuple[EventType, ...]) -> Receiver:
    if isinstance(item, Receiver):
        item = msgspec.to_builtins(item)
    if not isinstance(item, Mapping):
        raise Invalid("an object with url and events is needed", pointer)
    problems = [
        Problem(f"{pointer}/{str(name)[:64]}", f"unknown; known are {', '.join(_MEMBERS)}")
        for name in item
        if name not in _MEMBERS
    ]
    url, events, secret = "", known, None
    try:
        url = check_url(item.get("url"), f"{pointer}/url")
    except Invalid as error:
        problems += error.problems
    try:
        events = check_events(item.get("events"), f"{pointer}/events", known)
    except Invalid as error:
        problems += error.problems
    if item.get("secret") is not None:
        try:
            secret = check_secret(item["secret"], f"{pointer}/secret")
        except Invalid as error:
            problems += error.problems
    if problems:
        raise Invalid(problems=tuple(problems))
    return Receiver(url, events, secret)


def check_events(
    value: object, pointer: str = "/events", known: tuple[EventType, ...] = EVENT_TYPES
) -> tuple[EventType, ...]:
    """Some of the known events, at least one, in their order. Raises Invalid."""
    if not isinstance(value, list | tuple) or not value:
        raise Invalid(f"a list of events is needed, of {', '.join(known)}", pointer)
    for n, event in enumerate(value):
        if event not in known:
            raise Invalid(f"an event is one of {', '.join(known)}", f"{pointer}/{n}")
    return tuple(event for event in known if event in value)


def with_secrets(
    receivers: tuple[Receiver, ...], before: tuple[Receiver, ...]
) -> tuple[Receiver, ...]:
    """The receivers, where none is said with the secret that the same URL had before.

    Answers do not show secrets, so what was answered may be sent again.
    """
    had = {each.url: each.secret for each in before if each.secret is not None}
    return tuple(
        msgspec.structs.replace(each, secret=had[each.url])
        if each.secret is None and each.url in had
        else each
        for each in receivers
    )
