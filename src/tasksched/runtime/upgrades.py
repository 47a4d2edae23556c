"""Upgrades: the payload of an older version, made into one that the handler takes today.

Values are as they travel (a list of positional or a dict of named arguments, or one value); a task
without a payload has an empty list. The steps are the handler's own functions, one per version.
"""

from typing import Any

from tasksched.errors import Invalid
from tasksched.model import codec
from tasksched.runtime.registry import Handler


class UpgradeFailed(Invalid):
    """A step raised. Its error is the cause."""


def upgraded(handler: Handler, version: str | None, payload: bytes | None) -> Any:
    """The value after all steps from ``version`` on. Raises UpgradeFailed, naming the version."""
    value = codec.decode(payload) if payload else []
    for at, step in handler.steps_from(version):
        try:
            value = step(value)
        except Exception as error:
            named = "no version" if at is None else f"version {at}"
            kind = type(error).__name__
            raise UpgradeFailed(f"the upgrade from {named} failed with {kind}") from error
    return value
