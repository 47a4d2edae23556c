"""One run of a task inside a worker (``Run``), and what its handler sees of it (``Ctx``).

``Run`` is the worker's own record from the grant to the settled verdict. Invariant: it is changed in
the event loop only; the heartbeat thread and the threads of handlers read it and hand words back.
``why`` says what interrupted it: the handler may go on all the same, and what it makes of it decides
the outcome (``runtime.executor``).
"""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from tasksched import clock, log
from tasksched.model.outcome import bounded
from tasksched.store.protocol import Grant

# What interrupts a run: a cancel was requested, its time is over, the worker hands it back, or the
# lease is lost and the worker is set to abort then.
Why = Literal["", "cancel", "timeout", "release", "lease"]

MESSAGE_MAX = 1024
PULSE_EVERY_S = 0.2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode_json = msgspec.json.Encoder().encode
_log = log.get("handler")


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
            self.task.cancel()


class Ctx:
    """What a handler may know about its run and say while it runs. Safe to use from threads."""

    __slots__ = ("_log", "_pulse", "_run")

    def __init__(self, run: Run, pulse: Callable[[Run], None]) -> None:
        self._run = run
        self._pulse = pulse
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
        self._pulse(run)


def pulsed_at(run: Run) -> float:
    """When a run that asks for a beat gets it: now, but not sooner after the last than allowed."""
    return max(clock.mono(), run.beaten_at + PULSE_EVERY_S)
