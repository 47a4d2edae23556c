"""Replies: what scripts answer and take, as values. Made by position, for it is the hot path."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasksched.model.task import (
    DEFAULT_OPTIONS,
    HTTP_ROUTE,
    HandlerTarget,
    NoticeTarget,
    Options,
    Target,
    decode_options,
)
from tasksched.store.scripts import Arg


class Grant(NamedTuple):
    """One started run, as ``take`` grants it."""

    id: str
    fence: str
    attempt: int
    lane: str
    due_ms: int
    created_ms: int
    started_ms: int
    payload: bytes | None
    options: Options
    lease_ms: int | None
    uncounted: int
    lost: int
    nominal_ms: int | None = None
    schedule: str | None = None  # tenant:id, of an occurrence

    @property
    def attempts(self) -> int:
        """Attempts that count in this life, this one included."""
        return self.attempt - self.uncounted

    @property
    def route(self) -> str:
        return self.lane.rsplit(":", 1)[1]

    @property
    def tenant(self) -> str:
        return self.lane.split(":", 3)[2]


class Ask(NamedTuple):
    """What a shard asks the home of a limit: ``want`` more, or nothing, having given some back."""

    limit: str
    capacity: float  # permits there are, or tokens a second; 0 = as it was
    permits: int  # the shard has
    epoch: int
    want: int
    head_ms: int


class Dispatched(NamedTuple):
    now_ms: int
    moved: int
    again_ms: int  # call again then; -1 = when woken
    expiry_ms: int  # the next task expires then; -1 = none
    watch_ms: int  # the watch index wants a look then; -1 = never
    owed_ms: int  # a schedule owes something then; -1 = none
    asks: tuple[Ask, ...] = ()


class Overdue(NamedTuple):
    id: str
    state: str
    fence: str
    options: Options
    attempts: int
    lost: int
    worker: str
    is_deferred: bool = False


class Changed(NamedTuple):
    """The answer of a verb on one task: what happened, and the state and version it has now."""

    word: str
    state: str = ""
    version: int = 0


class Release(NamedTuple):
    """A run that is handed back. ``wait_ms`` and ``why``: it is postponed by so much."""

    id: str
    fence: str
    wait_ms: int | None = None
    why: str = ""


class Swept(NamedTuple):
    next: str
    removed: int
    watched: int
    consumers: int


class Beat(NamedTuple):
    """One live run in a heartbeat."""

    id: str
    fence: str
    lease_ms: int
    timeout_ms: int | None = None
    progress: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit changes; None leaves a field alone. Strings are as ``lua/lib/amend.lua`` reads them."""

    lane: str | None = None
    due: str | None = None
    payload: bytes | None = None
    options: str | None = None
    expires_at_ms: int | None = None
    expires_never: bool = False
    lease_ms: int | None = None
    wants: str | None = None
    concurrency: str | None = None

    def values(self) -> dict[str, Arg]:
        """As the scripts read it: ``=value``, ``=`` for none, empty for unchanged."""
        expires: Arg = "=" if self.expires_never else ""
        if self.expires_at_ms is not None:
            expires = f"={self.expires_at_ms}"
        return {
            "lane": self.lane or "",
            "payload": b"" if self.payload is None else b"=" + self.payload,
            "options": "" if self.options is None else f"={self.options}",
            "expires": expires,
            "lease": "" if self.lease_ms is None else f"={self.lease_ms}",
            "wants": "" if self.wants is None else f"={self.wants}",
            "concurrency": "" if self.concurrency is None else f"={self.concurrency}",
        }


def dispatched_of(reply: list[Any]) -> Dispatched:
    asks = [
        Ask(name.decode(), float(capacity), permits, epoch, want, head_ms)
        for name, capacity, permits, epoch, want, head_ms in reply[6:]
    ]
    now_ms, moved, again_ms, expiry_ms, watch_ms, owed_ms = reply[:6]
    return Dispatched(now_ms, moved, again_ms, expiry_ms, watch_ms, owed_ms, tuple(asks))


def opt(value: int | None) -> Arg:
    return "" if value is None else value


def target_of(route: str, options: Options) -> Target:
    """The target of a record: the request of an HTTP one, else the handler of its route."""
    if route == HTTP_ROUTE and options.http is not None:
        return options.http
    if options.cause is not None:
        return NoticeTarget(options.cause)
    name, _, version = route.partition("@")
    return HandlerTarget(name, version or None)


def beat_rows(beats: Sequence[Beat]) -> list[tuple[Arg, ...]]:
    """Rows of ``lua/heartbeat.lua``; the heartbeat thread sends them on a connection of its own."""
    return [(b.id, b.fence, b.lease_ms, opt(b.timeout_ms), b.progress) for b in beats]


def pairs_of(raw: Any) -> Iterable[tuple[bytes, bytes]]:
    """Fields and values of a hash or an entry; the library gives a dict or a flat list, by version."""
    if isinstance(raw, Mapping):
        return raw.items()
    return zip(raw[::2], raw[1::2], strict=True)


def words_of(reply: list[bytes]) -> list[str]:
    return [word.decode() for word in reply]


def changed_of(reply: list[Any]) -> Changed:
    if len(reply) == 1:
        return Changed(reply[0].decode())
    return Changed(reply[0].decode(), reply[1].decode(), reply[2])


def _options(raw: bytes | None) -> Options:
    return decode_options(raw) if raw else DEFAULT_OPTIONS


def grant_of(row: list[Any], now_ms: int) -> Grant:
    """One row of ``take``. By position and without detours: it is made for every task that runs."""
    (
        _,
        _,
        lane,
        due_ms,
        created_ms,
        attempt,
        fence,
        raw,
        payload,
        lease,
        uncounted,
        lost,
        _,
        id_,
        nominal,
        schedule,
    ) = row
    options = decode_options(raw) if raw else DEFAULT_OPTIONS
    return Grant(
        id_.decode(), fence.decode(), attempt, lane.decode(), int(due_ms), int(created_ms), now_ms,
        payload, options, int(lease) if lease else None, int(uncounted or 0), int(lost or 0),
        int(nominal) if nominal else None, schedule.decode() if schedule else None,
    )  # fmt: skip


def overdue_of(row: list[Any]) -> Overdue:
    if row[1] is None:
        return Overdue(row[0].decode(), "", "", DEFAULT_OPTIONS, 0, 0, "")
    return Overdue(
        id=row[0].decode(),
        state=row[1].decode(),
        fence=(row[2] or b"").decode(),
        options=_options(row[4]),
        attempts=int(row[5] or 0) - int(row[6] or 0),
        lost=int(row[7] or 0),
        worker=(row[8] or b"").decode(),
        is_deferred=row[9] is not None,
    )
