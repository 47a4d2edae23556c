"""A task as it is asked for (``TaskSpec``), as it stands (``Task``), and one attempt of it.

Plain frozen values. Times are integer milliseconds since the epoch, payloads and results are
encoded bytes (``model.codec``). A route says which workers can run it: ``http``, or a handler's
name with the version it was submitted for.
"""

from functools import lru_cache
from typing import Any

import msgspec

from tasksched.model.retry import Retry
from tasksched.model.states import OutcomeName, State

DEFAULT_RETRY = Retry()
HTTP_ROUTE = "http"
HTTP_TIMEOUT_MS = 30_000


class HandlerTarget(msgspec.Struct, frozen=True):
    """A Python function known to workers under ``name`` (and, where given, ``version``)."""

    name: str
    version: str | None = None

    @property
    def route(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


class HttpTarget(msgspec.Struct, frozen=True):
    """A request that a worker makes. ``headers``: pairs, in the order given."""

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def route(self) -> str:
        return HTTP_ROUTE


Target = HandlerTarget | HttpTarget


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer asks for, checked. Neither ``run_at_ms`` nor ``delay_ms`` means now."""

    target: Target
    payload: bytes = b""
    tenant: str = "default"
    queue: str = "default"
    priority: str = "normal"
    run_at_ms: int | None = None
    delay_ms: int | None = None
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = None
    lease_ms: int | None = None
    expires_at_ms: int | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None

    @property
    def lane(self) -> str:
        """queue:priority:tenant:route, the name of the due lane."""
        return f"{self.queue}:{self.priority}:{self.tenant}:{self.target.route}"

    @property
    def due(self) -> str:
        """As scripts read it: ms since the epoch, or ``+ms`` after the server's now."""
        return str(self.run_at_ms) if self.run_at_ms is not None else f"+{self.delay_ms or 0}"

    @property
    def options(self) -> str:
        """JSON of what is not default; empty where all is."""
        return encode_options(self.target, self.retry, self.timeout_ms, self.tags)


@lru_cache(maxsize=4096)
def encode_options(
    target: Target, retry: Retry, timeout_ms: int | None, tags: tuple[str, ...]
) -> str:
    found: dict[str, Any] = {}
    if isinstance(target, HttpTarget):
        found["http"] = msgspec.to_builtins(target)
    if retry_json := retry.to_json():
        found["retry"] = retry_json
    if timeout_ms is not None:
        found["timeout_ms"] = timeout_ms
    if tags:
        found["tags"] = tags
    return msgspec.json.encode(found).decode() if found else ""


class Options(msgspec.Struct, frozen=True):
    """The other direction: ``options`` of a record, read."""

    http: HttpTarget | None = None
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = None
    tags: tuple[str, ...] = ()


DEFAULT_OPTIONS = Options()


@lru_cache(maxsize=4096)
def decode_options(text: bytes) -> Options:
    raw = msgspec.json.decode(text)
    http = raw.get("http")
    return Options(
        http=msgspec.convert(http, HttpTarget) if http else None,
        retry=Retry.parse(raw["retry"], "/retry") if "retry" in raw else DEFAULT_RETRY,
        timeout_ms=raw.get("timeout_ms"),
        tags=tuple(raw.get("tags", ())),
    )


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it is stored and shown: bounded text, never a live exception."""

    type: str
    message: str
    traceback: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution by one worker. ``ended_ms`` and ``outcome`` are None while it runs."""

    attempt: int
    fence: int
    worker: str
    started_ms: int
    ended_ms: int | None = None
    outcome: OutcomeName | None = None
    error: ErrorInfo | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its record says it stands."""

    id: str
    status: State
    version: int
    tenant: str
    queue: str
    priority: str
    target: Target
    created_ms: int
    due_ms: int
    attempts: int = 0
    life: int = 1
    payload: bytes | None = None
    result: bytes | None = None
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = None
    lease_ms: int | None = None
    expires_at_ms: int | None = None
    tags: tuple[str, ...] = ()
    reason: str | None = None
    error: ErrorInfo | None = None
    cancel_requested: bool = False
    progress: dict[str, Any] | None = None
    queued_ms: int | None = None
    finished_ms: int | None = None
    last_attempt: Attempt | None = None
    schedule: str | None = None  # tenant:id of the recurring task that it is an occurrence of
    nominal_ms: int | None = None
    missed: int = 0
    corrupt: bool = False


class Created(msgspec.Struct, frozen=True):
    """What became of one submitted task. ``task`` only where it was there before."""

    id: str
    created: bool
    due_ms: int
    version: int = 1
    task: Task | None = None
    durability: str = "memory"
