"""Changes: what a caller may say about a task that exists already, by the names of its options."""

from collections.abc import Sequence
from typing import Any, TypedDict

from tasksched.client.options import parsed
from tasksched.commands.tasks import Changes
from tasksched.errors import Invalid
from tasksched.model import codec
from tasksched.model.durations import Duration
from tasksched.model.instants import Instant
from tasksched.model.names import Priority
from tasksched.model.retry import Retry


class Changed(TypedDict, total=False):
    """What shall be different; None and what is not named stays. Of many tasks not ``payload``."""

    at: Instant | None
    delay: Duration | None
    payload: Any
    queue: str | None
    priority: Priority | None
    retry: Retry | None
    timeout: Duration | None
    tags: Sequence[str] | None
    concurrency_key: str | None
    concurrency_limit: int | None


def changes_of(given: Changed) -> Changes:
    """The command that these words are. Raises Invalid."""
    unknown = set(given) - Changed.__optional_keys__
    if unknown:
        known = ", ".join(sorted(Changed.__optional_keys__))
        raise Invalid(f"unknown; known are {known}", f"/{min(unknown)}")
    options: Any = {name: value for name, value in given.items() if name != "payload"}
    fields = parsed(options)
    if "payload" in given:
        fields["payload"] = codec.encode(given["payload"], "/payload")
    return Changes(**fields)
