"""A task as it is asked for (``TaskSpec``), as it stands (``Task``), and one attempt of it.

Plain frozen values. Times are integer milliseconds since the epoch, payloads and results are
encoded bytes (``model.codec``). A route says which workers can run it: ``http``, or a handler's
name with the version it was submitted for.
"""

import hashlib
from functools import lru_cache
from typing import Any

import msgspec

from tasksched.errors import Invalid
from tasksched.model.notify import NOTIFY_ROUTE, Cause, Delivery, Receiver, words_of
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


class HttpTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that a worker makes. ``headers``: pairs, in the order given.

    ``is_async``: an answer of 202 means that the verdict comes later, by a callback.
    """

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    is_async: bool = msgspec.field(name="async", default=False)

    @property
    def route(self) -> str:
        return HTTP_ROUTE


class NoticeTarget(msgspec.Struct, frozen=True):
    """Tells the receivers of an event: made by scripts, never asked for."""

    cause: Cause

    @property
    def route(self) -> str:
        return NOTIFY_ROUTE


Target = HandlerTarget | HttpTarget | NoticeTarget


class Concurrency(msgspec.Struct, frozen=True):
    """At most ``limit`` tasks of a tenant with this ``key`` run (or are about to) at a time."""

    key: str
    limit: int = 1


def permit_key_of(tenant: str, concurrency: Concurrency | None) -> str:
    """``hash:limit``, as scripts read it: no text of a user becomes part of a Redis key."""
    if concurrency is None:
        return ""
    digest = hashlib.sha256(f"{tenant}\0concurrency\0{concurrency.key}".encode()).hexdigest()
    return f"{digest[:24]}:{concurrency.limit}"


def edited_concurrency(
    old: Concurrency | None,
    key: str | None | msgspec.UnsetType,
    limit: int | msgspec.UnsetType,
) -> Concurrency | None:
    """``old`` with another key (None: no more), or another limit. Raises Invalid for a limit alone."""
    if key is msgspec.UNSET:
        key = old.key if old is not None else None
    if key is None:
        if limit is not msgspec.UNSET:
            raise Invalid("a limit belongs to a concurrency key", "/concurrency_limit")
        return None
    if limit is msgspec.UNSET:
        limit = old.limit if old is not None else 1
    return Concurrency(key, limit)


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
    notify: tuple[Receiver, ...] = ()
    delivery: Delivery | None = None
    concurrency: Concurrency | None = None
    traceparent: str | None = None
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
        return encode_options(
            Options(
                http=self.target if isinstance(self.target, HttpTarget) else None,
                retry=self.retry,
                timeout_ms=self.timeout_ms,
                tags=self.tags,
                notify=self.notify,
                delivery=self.delivery,
                concurrency=self.concurrency,
                traceparent=self.traceparent,
            )
        )

    @property
    def permit_key(self) -> str:
        """``hash:limit`` of its concurrency key; empty without one."""
        return permit_key_of(self.tenant, self.concurrency)

    @property
    def wants(self) -> str:
        """The events to tell about, as scripts read them; empty where nobody asked."""
        return words_of(self.notify) if self.notify else ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says beside its few fields, as ``options`` holds it."""

    http: HttpTarget | None = None
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = None
    tags: tuple[str, ...] = ()
    notify: tuple[Receiver, ...] = ()
    delivery: Delivery | None = None
    concurrency: Concurrency | None = None
    traceparent: str | None = None
    cause: Cause | None = None


DEFAULT_OPTIONS = Options()


@lru_cache(maxsize=4096)
def encode_options(options: Options) -> str:
    """JSON of what is not default; empty where all is."""
    if options == DEFAULT_OPTIONS:
        return ""
    found: dict[str, Any] = {}
    if options.http is not None:
        found["http"] = options.http
    if retry_json := options.retry.to_json():
        found["retry"] = retry_json
    for name in ("timeout_ms", "tags", "notify", "delivery", "concurrency", "traceparent"):
        if value := getattr(options, name):
            found[name] = value
    if options.cause is not None:
        found["cause"] = options.cause.text
    return msgspec.json.encode(found).decode() if found else ""


@lru_cache(maxsize=4096)
def decode_options(text: bytes) -> Options:
    raw = msgspec.json.decode(text)
    http, delivery, cause = raw.get("http"), raw.get("delivery"), raw.get("cause")
    concurrency = raw.get("concurrency")
    return Options(
        http=msgspec.convert(http, HttpTarget) if http else None,
        retry=Retry.parse(raw["retry"], "/retry") if "retry" in raw else DEFAULT_RETRY,
        timeout_ms=raw.get("timeout_ms"),
        tags=tuple(raw.get("tags", ())),
        notify=msgspec.convert(raw.get("notify", ()), tuple[Receiver, ...]),
        delivery=msgspec.convert(delivery, Delivery) if delivery else None,
        concurrency=msgspec.convert(concurrency, Concurrency) if concurrency else None,
        traceparent=raw.get("traceparent"),
        cause=Cause.parse(cause) if cause else None,
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
    notify: tuple[Receiver, ...] = ()
    delivery: Delivery | None = None
    concurrency: Concurrency | None = None
    traceparent: str | None = None
    reason: str | None = None
    fingerprint: str | None = None  # of the error of a FAILED task
    postponed: str | None = None  # why the last start was handed back: host_busy, no_process
    is_deferred: bool = False  # it runs elsewhere, and its verdict comes by a callback
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
    encrypted: bool = False  # a body is None here because its key is not here


class Created(msgspec.Struct, frozen=True):
    """What became of one submitted task. ``task`` only where it was there before."""

    id: str
    created: bool
    due_ms: int
    version: int = 1
    task: Task | None = None
    durability: str = "memory"
