"""Every error a user can meet, in one tree and one table.

::

    TaskschedError
    ├── Invalid              422  input that breaks a rule; names each field by JSON pointer
    │   ├── Malformed        400  not even JSON, or a header that cannot be read
    │   ├── TooLarge         413  payload or body over its limit
    │   └── KeyReused        422  idempotency key used before with another command
    ├── NotFound             404  no such task
    ├── Conflict             409  the state of the task forbids it; carries the state
    │   ├── Stale            409  the fence is not the one in force any more
    │   └── Draining         409  its queue or its tenant is drained: nothing is created
    ├── PreconditionFailed   412  If-Match names another version
    ├── Unauthorized         401
    ├── Forbidden            403
    ├── TooManyRequests      429  too much at a time; carries retry_after_ms
    │   └── RateLimited      429  a rate of its tenant is used up; names the limit
    │       └── QuotaReached 429  as many tasks of its tenant as may be unfinished are
    ├── Unavailable          503  Redis is away or refusing; carries retry_after_ms
    │   └── Overloaded       503  refused before anything was done: too much waits for Redis
    │       └── MemoryBudget 503  Redis is, or nearly is, out of memory
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


class Draining(Conflict):
    """Nothing is created there any more; what is there still runs. A key is still unused."""

    code, title = "DRAINING", "Nothing new is accepted here"


class PreconditionFailed(TaskschedError):
    code, status, exit_code, title = "PRECONDITION_FAILED", 412, 4, "Version does not match"


class Unauthorized(TaskschedError):
    code, status, exit_code, title = "UNAUTHORIZED", 401, 5, "Authentication required"


class Forbidden(TaskschedError):
    code, status, exit_code, title = "FORBIDDEN", 403, 5, "Not allowed"


class TooManyRequests(TaskschedError):
    code, status, title, retryable = "TOO_MANY_REQUESTS", 429, "Too many requests", True


class RateLimited(TooManyRequests):
    """A limit of the tenant refused a task, which was not created; its key is still unused."""

    code, title = "RATE_LIMITED", "Rate limit reached"

    @property
    def limit(self) -> str:
        """Which one: ``create_rate`` or ``max_pending``; ``""`` where it was not said."""
        return str(self.extra.get("limit", ""))

    @property
    def retry_after(self) -> float:
        """Seconds until the same call may succeed."""
        return _retry_after_s(self)


class QuotaReached(RateLimited):
    code, title = "QUOTA", "Quota reached"


class Unavailable(TaskschedError):
    """Redis is away, refusing or out of memory. What was accepted is safe; try again."""

    code, status, exit_code, title, retryable = (
        "UNAVAILABLE",
        503,
        6,
        "Temporarily unavailable",
        True,
    )


class Overloaded(Unavailable):
    """Refused at once, before anything was done, because too much waits for Redis already."""

    code, title = "OVERLOADED", "Too much is waiting"

    @property
    def retry_after(self) -> float:
        """Seconds until the same call may succeed."""
        return _retry_after_s(self)


class MemoryBudget(Overloaded):
    code, title = "MEMORY_BUDGET", "Nothing new is accepted: memory is short"


class Unsafe(TaskschedError):
    """The server's configuration would lose tasks; ``--unsafe-redis`` overrules."""

    code, status, title = "UNSAFE_REDIS", 503, "Unsafe Redis configuration"


def _retry_after_s(error: TaskschedError) -> float:
    return float(error.extra.get("retry_after_ms") or 0) / 1000


def _tree(root: type[TaskschedError]) -> dict[str, type[TaskschedError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[TaskschedError]] = _tree(TaskschedError)
