"""Every error a user can meet, in one tree and one table.

::

    TaskschedError
    ├── Invalid              422  input that breaks a rule; names each field by JSON pointer
    │   ├── Malformed        400  not even JSON, or a header that cannot be read
    │   ├── TooLarge         413  payload or body over its limit
    │   └── KeyReused        422  idempotency key used before with another command
    ├── NotFound             404  no such task
    ├── Conflict             409  the state of the task forbids it; carries the state
    │   └── Stale            409  the fence is not the one in force any more
    ├── PreconditionFailed   412  If-Match names another version
    ├── Unauthorized         401
    ├── Forbidden            403
    ├── TooManyRequests      429  a quota or a rate; carries retry_after_ms
    ├── Unavailable          503  Redis is away, refusing, or out of memory; carries retry_after_ms
    └── Unsafe               503  the server's configuration would lose tasks

A Lua script answers ``-CODE detail``; ``BY_CODE`` turns the code into a class, the HTTP edge
turns the class into ``status`` and problem+json, the CLI into ``exit_code``. Texts are never compared.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one field. ``pointer`` is a JSON pointer (RFC 6901), ``""`` the whole."""

    pointer: str
    detail: str


class TaskschedError(Exception):
    """Base of all. ``retryable`` says whether the same call may succeed later unchanged."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "", **extra: Any) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.extra = extra


class Invalid(TaskschedError):
    """Input that breaks a rule. ``problems`` names each field that does."""

    code, status, exit_code, title = "INVALID", 422, 2, "Invalid input"

    def __init__(
        self,
        detail: str = "",
        pointer: str = "",
        *,
        problems: tuple[Problem, ...] = (),
        **extra: Any,
    ) -> None:
        self.problems = problems or (Problem(pointer, detail),)
        super().__init__(detail or self.problems[0].detail, **extra)

    def under(self, prefix: str) -> "Invalid":
        """The same error, seen from one level further out: ``/delay`` under ``/items/3``."""
        moved = tuple(Problem(prefix + p.pointer, p.detail) for p in self.problems)
        return type(self)(self.detail, problems=moved, **self.extra)


class Malformed(Invalid):
    code, status, title = "MALFORMED", 400, "Malformed request"


class TooLarge(Invalid):
    code, status, title = "TOO_LARGE", 413, "Too large"


class KeyReused(Invalid):
    code, title = "KEY_REUSED", "Idempotency key was used with a different command"


class NotFound(TaskschedError):
    code, status, exit_code, title = "NOT_FOUND", 404, 3, "Not found"


class Conflict(TaskschedError):
    """The state forbids it. ``extra["status"]`` holds the state where there is one."""

    code, status, exit_code, title = "CONFLICT", 409, 4, "Conflict with the current state"


class Stale(Conflict):
    """Another attempt owns the task now. Stop; do not retry."""

    code, title = "STALE", "The fence is not in force any more"


class PreconditionFailed(TaskschedError):
    code, status, exit_code, title = "PRECONDITION_FAILED", 412, 4, "Version does not match"


class Unauthorized(TaskschedError):
    code, status, exit_code, title = "UNAUTHORIZED", 401, 5, "Authentication required"


class Forbidden(TaskschedError):
    code, status, exit_code, title = "FORBIDDEN", 403, 5, "Not allowed"


class TooManyRequests(TaskschedError):
    code, status, title, retryable = "TOO_MANY_REQUESTS", 429, "Too many requests", True


class Unavailable(TaskschedError):
    """Redis is away, refusing or out of memory. What was accepted is safe; try again."""

    code, status, exit_code, title, retryable = (
        "UNAVAILABLE",
        503,
        6,
        "Temporarily unavailable",
        True,
    )


class Unsafe(TaskschedError):
    """The server's configuration would lose tasks; ``--unsafe-redis`` overrules."""

    code, status, title = "UNSAFE_REDIS", 503, "Unsafe Redis configuration"


def _tree(root: type[TaskschedError]) -> dict[str, type[TaskschedError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[TaskschedError]] = _tree(TaskschedError)
