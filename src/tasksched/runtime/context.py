"""One run of a task inside a worker (``Run``), and what its handler sees of it (``Ctx``).

``Run`` is the worker's own record from the grant to the settled verdict. Invariant: it is changed in
the event loop only; the heartbeat thread and the threads of handlers read it and hand words back.
``why`` says what interrupted it: the handler may go on all the same, and what it makes of it decides
the outcome (``runtime.executor``).
"""

import asyncio
import math
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

import msgspec

from tasksched import clock, log
from tasksched.errors import Unavailable
from tasksched.model import codec
from tasksched.model.callback import LEASE_MS, MESSAGE_MAX, read_lease
from tasksched.model.control import Deferred
from tasksched.model.durations import Duration
from tasksched.model.outcome import bounded
from tasksched.runtime.threads import without_loop
from tasksched.store.protocol import Grant
from tasksched.store.reads import LINES_MAX

# What interrupts a run: a cancel was requested, its time is over, the worker hands it back, or the
# lease is lost and the worker is set to abort then.
Why = Literal["", "cancel", "timeout", "release", "lease"]

PULSE_EVERY_S = 0.2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode_json = msgspec.json.Encoder().encode
_log = log.get("handler")
_speaking = threading.Lock()  # threads of one handler may say lines at the same time


class Run:
    """A started attempt. Its lease began at ``since`` (monotonic seconds) at the earliest.

    Made for every task, and most need no more than these few: the rest stands in the class until it
    is needed.
    """

    task: asyncio.Task[None] | None = None
    why: Why = ""
    entered = False  # the handler was called
    in_thread = False
    ended = False  # its outcome is given
    lease_lost = False
    timeout_ms: int | None = None
    deadline: float | None = None
    progress = ""  # JSON, to go with the next beat
    said = 0  # lines, so far
    lines: list[tuple[int, str]] | None = None  # number and text of those that are not sent yet

    def __init__(self, grant: Grant, shard: int, lease_ms: int, since: float) -> None:
        self.grant = grant
        self.key = grant.id  # the worker's name for it; another one if a newer run has this id
        self.shard = shard
        self.lease_ms = lease_ms
        self.beaten_at = since
        self.beat_at = since + lease_ms / 3000  # when to renew the lease

    def interrupt(self, why: Why) -> None:
        """Tell the handler to stop: a coroutine is cancelled, a thread may look at its Ctx."""
        self.why = why
        # A task that has not entered its handler looks at `why` before it does; cancelled there it
        # would never run, nor give its slot back.
        if self.entered and not self.in_thread and not self.ended and self.task is not None:
            self.task.cancel(why)

    def add_line(self, text: str) -> None:
        """It says a line. From any thread."""
        with _speaking:
            self.said += 1
            if self.lines is None:
                self.lines = []
            self.lines.append((self.said, text))
            if len(self.lines) > LINES_MAX:
                del self.lines[0]

    def take_lines(self) -> list[tuple[int, str]]:
        """The lines that are not sent yet; they are the caller's now."""
        with _speaking:
            taken, self.lines = self.lines or [], None
        return taken


class Desk(Protocol):
    """Where the runs of a worker hand in what they have to say."""

    def pulse(self, run: Run) -> None:
        """It wants a heartbeat soon. From any thread."""

    def say(self, run: Run) -> None:
        """It has said a line. From any thread."""

    async def checkpoint(self, run: Run, value: bytes) -> None:
        """Keep this for the next attempt. Raises Conflict where the run is not current any more."""

    async def restore(self, run: Run) -> bytes | None:
        """What an earlier attempt kept."""

    def token(self, run: Run) -> str:
        """What a callback proves with that it speaks for this attempt."""


class NoDesk:
    """The desk of an executor that nobody listens to."""

    def pulse(self, run: Run) -> None:
        del run

    def say(self, run: Run) -> None:
        del run

    async def checkpoint(self, run: Run, value: bytes) -> None:
        del value
        raise Unavailable(f"there is no server to keep a checkpoint of {run.grant.id}")

    async def restore(self, run: Run) -> bytes | None:
        del run
        return None

    def token(self, run: Run) -> str:
        del run
        return ""


class Ctx:
    """What a handler may know about its run and say while it runs. Safe to use from threads."""

    __slots__ = ("_desk", "_log", "_run")

    def __init__(self, run: Run, desk: Desk) -> None:
        self._run = run
        self._desk = desk
        self._log: Any = None

    @property
    def task_id(self) -> str:
        return self._run.grant.id

    @property
    def attempt(self) -> int:
        """The number of this start, the first being 1. Starts that were handed back count too."""
        return self._run.grant.attempt

    @property
    def fence(self) -> int:
        """Grows with every start of the task: give it to systems that refuse an older one."""
        return int(self._run.grant.fence)

    @property
    def due_at(self) -> datetime:
        """When this attempt was due, in UTC."""
        return _EPOCH + timedelta(milliseconds=self._run.grant.due_ms)

    @property
    def nominal_at(self) -> datetime | None:
        """The nominal time that an occurrence of a recurring task stands for, in UTC."""
        nominal_ms = self._run.grant.nominal_ms
        return None if nominal_ms is None else _EPOCH + timedelta(milliseconds=nominal_ms)

    @property
    def deadline(self) -> float | None:
        """When the timeout ends the attempt, on ``time.monotonic()``; None where there is none."""
        return self._run.deadline

    @property
    def tenant(self) -> str:
        return self._run.grant.lane.split(":")[2]

    @property
    def queue(self) -> str:
        return self._run.grant.lane.split(":", 1)[0]

    @property
    def tags(self) -> tuple[str, ...]:
        return self._run.grant.options.tags

    @property
    def traceparent(self) -> str | None:
        """The trace that whoever created the task was in (W3C), for spans that link to it."""
        return self._run.grant.options.traceparent

    @property
    def cancelled(self) -> bool:
        """Whether this run should stop, whatever for. A coroutine is cancelled then by itself."""
        return self._run.why != "" or self._run.ended

    @property
    def lease_lost(self) -> bool:
        """Whether another run may have the task by now: what this one reports will not count."""
        return self._run.lease_lost

    @property
    def log(self) -> Any:
        """A logger that names the task and the attempt in every line."""
        if self._log is None:
            self._log = _log.bind(task_id=self.task_id, attempt=self.attempt)
        return self._log

    async def heartbeat(self, progress: float | None = None, message: str = "") -> None:
        """Renews the lease soon and records the progress. As ``heartbeat_sync``: it never waits."""
        self.heartbeat_sync(progress, message)

    def heartbeat_sync(self, progress: float | None = None, message: str = "") -> None:
        """The same for handlers in threads.

        Leases are renewed without it; it is for showing progress (a finite number) and a message.
        Redis hears at most five beats a second of one run: the last progress counts.
        """
        run = self._run
        if progress is not None or message:
            if progress is not None and not math.isfinite(progress):
                raise ValueError("progress is a finite number")
            seen = {"at": progress, "message": bounded(message, MESSAGE_MAX)}
            run.progress = _encode_json(seen).decode()
        self._desk.pulse(run)

    def line(self, text: str) -> None:
        """Adds a line to the log of the task, which keeps the last 200 of at most 1 KiB each.

        For people who look at the task; ``log`` writes to the log of the worker. Never waits.
        """
        self._run.add_line(bounded(text, MESSAGE_MAX))
        self._desk.say(self._run)

    async def checkpoint(self, value: Any) -> None:
        """Keeps a value (JSON, at most 64 KiB) that the next attempt gets from ``restore``.

        Returns when it is stored. Raises Invalid or TooLarge for the value, Conflict when another
        run has the task by now, Unavailable when Redis stays away.
        """
        await self._desk.checkpoint(self._run, codec.encode(value, most=codec.RESULT_MAX))

    async def restore(self, absent: Any = None) -> Any:
        """What an earlier attempt of this task kept by ``checkpoint``; else ``absent``."""
        found = await self._desk.restore(self._run)
        return absent if found is None else codec.decode(found)

    def checkpoint_sync(self, value: Any) -> None:
        """As ``checkpoint``, for handlers in threads."""
        self._waited("checkpoint", self.checkpoint(value))

    def restore_sync(self, absent: Any = None) -> Any:
        """As ``restore``, for handlers in threads."""
        return self._waited("restore", self.restore(absent))

    def _waited(self, name: str, asked: Coroutine[Any, Any, Any]) -> Any:
        task = self._run.task
        if task is None:  # a process of its own, where nothing else runs: the desk waits itself
            return without_loop(asked)
        loop = task.get_loop()
        if _runs_here(loop):
            asked.close()
            raise RuntimeError(f"{name}_sync here would wait for this very loop: await {name}")
        return asyncio.run_coroutine_threadsafe(asked, loop).result()

    @property
    def callback_token(self) -> str:
        """Give it, with the fence, to whoever will report the verdict of a run that is deferred."""
        return self._desk.token(self._run)

    def defer(self, lease: Duration = LEASE_MS / 1000) -> Deferred:
        """``return ctx.defer()``: the task goes on elsewhere, and its slot here is free.

        It stays RUNNING until somebody completes or fails it with its fence and callback token
        (``POST /tasks/{id}/complete``, ``app.complete``), renews its lease by a heartbeat, or does
        not within ``lease``: then the attempt has timed out.
        """
        return Deferred(read_lease(lease))


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def pulsed_at(run: Run) -> float:
    """When a run that asks for a beat gets it: now, but not sooner after the last than allowed."""
    return max(clock.mono(), run.beaten_at + PULSE_EVERY_S)
