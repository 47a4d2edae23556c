"""Options: what a caller may say about one task beside the handler's arguments.

They have the names of the HTTP API's, a bit shorter. Each is parsed here once into the fields of a
``TaskSpec``; texts are remembered, since ``options(delay="1h")`` may be said a hundred thousand
times in a loop. Nothing here is about where the task goes or what it carries.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypedDict

from msgspec import UNSET

from tasksched import clock
from tasksched.errors import Invalid
from tasksched.model.durations import Duration, parse_duration
from tasksched.model.instants import Instant, parse_instant
from tasksched.model.limits import check_concurrency_limit
from tasksched.model.names import (
    Priority,
    check_concurrency_key,
    check_key,
    check_name,
    check_priority,
    check_tags,
)
from tasksched.model.receivers import Notify, check_queue, check_receivers
from tasksched.model.retry import Retry
from tasksched.model.task import Concurrency, TaskSpec, edited_concurrency
from tasksched.model.trace import check_traceparent

REMEMBERED = 1024

_DATE = re.compile(r"[0-9]{4}-")


class Options(TypedDict, total=False):
    """The options of a task, by the names callers use."""

    at: Instant | None
    delay: Duration | None
    key: str | None
    queue: str | None
    priority: Priority | None
    tenant: str | None
    retry: Retry | None
    timeout: Duration | None
    expires: Instant | Duration | None
    tags: Sequence[str] | None
    notify: Notify | None
    concurrency_key: str | None
    concurrency_limit: int | None
    traceparent: str | None


def parsed(options: Options) -> dict[str, Any]:
    """The fields that these options set; ``expires`` stays as it is said, and so do the two of the
    concurrency key, which ``concurrency_in`` puts together.
    """
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            field, parse = _PARSERS[name]
            fields[field] = parse(value)
    if "run_at_ms" in fields and "delay_ms" in fields:
        raise Invalid("give at or delay, not both", "/delay")
    return fields


def concurrency_in(fields: dict[str, Any], before: Concurrency | None) -> Concurrency | None:
    """Takes both fields out; the concurrency key that a task has then. Raises Invalid."""
    key, limit = fields.pop("concurrency_key", UNSET), fields.pop("concurrency_limit", UNSET)
    return edited_concurrency(before, key, limit)


def concurrency_of(
    before: Concurrency | None, key: str | None, limit: int | None
) -> Concurrency | None:
    """``before`` with what is given. Raises Invalid."""
    return concurrency_in(parsed(Options(concurrency_key=key, concurrency_limit=limit)), before)


def wire(retry: Retry) -> Retry:
    """The policy as it travels: exception classes stay with the program that runs the handler."""
    return Retry.parse(retry.to_json()) if retry.never else retry


def expires_ms(expires: Instant | Duration, spec: TaskSpec) -> int:
    """The moment after which the task must not start for the first time.

    A duration counts from the time the task is due, by this host's clock where that is now.
    """
    if isinstance(expires, datetime) or (isinstance(expires, str) and _DATE.match(expires)):
        return parse_instant(expires, "/expires")
    due_ms = spec.run_at_ms
    if due_ms is None:
        due_ms = clock.wall_ms() + (spec.delay_ms or 0)
    return due_ms + parse_duration(expires, "/expires", least_ms=1)


@lru_cache(maxsize=REMEMBERED)
def _text_delay_ms(text: str) -> int:
    return parse_duration(text, "/delay")


def _delay_ms(value: Duration) -> int:
    return _text_delay_ms(value) if type(value) is str else parse_duration(value, "/delay")


def _timeout_ms(value: Duration) -> int:
    return parse_duration(value, "/timeout", least_ms=1)


def _at_ms(value: Instant) -> int:
    return parse_instant(value, "/at")


@lru_cache(maxsize=REMEMBERED)
def _queue(value: str) -> str:
    return check_queue(value, "")


@lru_cache(maxsize=REMEMBERED)
def _name(value: str) -> str:
    return check_name(value)


def _named(pointer: str, rule: Any) -> Any:
    def parse(value: str) -> Any:
        try:
            return rule(value)
        except TypeError:  # not even hashable
            return check_name(value, pointer)
        except Invalid as error:
            raise error.under(pointer) from None

    return parse


def _tags(value: Sequence[str]) -> tuple[str, ...]:
    return check_tags(value, "/tags")


def _key(value: str) -> str:
    return check_key(value, "/key")


def _concurrency_key(value: str) -> str:
    return check_concurrency_key(value, "/concurrency_key")


def _concurrency_limit(value: int) -> int:
    return check_concurrency_limit(value, "/concurrency_limit")


def _traceparent(value: str) -> str:
    return check_traceparent(value, "/traceparent")


def _priority(value: str) -> Priority:
    return check_priority(value, "/priority")


def _retry(value: object) -> Retry:
    if not isinstance(value, Retry):
        raise Invalid("retry is a Retry, such as Retry(max_attempts=3)", "/retry")
    return wire(value)


def _expires(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, datetime | timedelta | int | float | str):
        raise Invalid("expires is a time, or a duration after the due time", "/expires")
    return value


_PARSERS: dict[str, tuple[str, Any]] = {
    "at": ("run_at_ms", _at_ms),
    "delay": ("delay_ms", _delay_ms),
    "key": ("key", _key),
    "queue": ("queue", _named("/queue", _queue)),
    "priority": ("priority", _priority),
    "tenant": ("tenant", _named("/tenant", _name)),
    "retry": ("retry", _retry),
    "timeout": ("timeout_ms", _timeout_ms),
    "expires": ("expires", _expires),
    "tags": ("tags", _tags),
    "notify": ("notify", check_receivers),
    "concurrency_key": ("concurrency_key", _concurrency_key),
    "concurrency_limit": ("concurrency_limit", _concurrency_limit),
    "traceparent": ("traceparent", _traceparent),
}
