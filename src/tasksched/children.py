"""children: processes of our own that are started, watched, started again and ended. Used by ``dev``
(API, scheduler, workers) and ``pool`` (several processes of one worker).

A child that dies is started again, later each time it dies at its start. On Linux children get SIGTERM
when their supervisor dies, however it dies.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tasksched import log
from tasksched.embedded import die_with_parent

LOOK_S = 0.05
RESTART_S = (0.1, 5.0)  # first and longest pause before a child that died starts again
QUICK_S = 5.0  # a child that lived shorter than this died at its start
GRACE_EXTRA_S = 5.0

_log = log.get("children")


@dataclass(slots=True)
class Child:
    """One child and its history."""

    name: str
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = RESTART_S[0]
    again_s: float = field(default=0.0)

    def start(self, environment: dict[str, str]) -> None:
        argv = [sys.executable, "-m", "tasksched", *self.arguments]
        # A group of its own: Ctrl-C in a terminal reaches the supervisor alone, which drains.
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            die_with_parent(argv), env=environment, start_new_session=True
        )
        self.started_s = time.monotonic()

    def look(self, environment: dict[str, str]) -> None:
        """Starts it again when it has died, later each time it dies at its start."""
        now_s = time.monotonic()
        if self.process is None:
            if now_s >= self.again_s:
                self.start(environment)
            return
        status = self.process.poll()
        if status is None:
            return
        _log.warning("child.died", child=self.name, status=status)
        lived_s = now_s - self.started_s
        self.pause_s = RESTART_S[0] if lived_s > QUICK_S else min(self.pause_s * 2, RESTART_S[1])
        self.process, self.again_s = None, now_s + self.pause_s

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, until_s: float) -> None:
        """Until it ended; killed when the time is over."""
        if self.process is None:
            return
        try:
            self.process.wait(max(until_s - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stop:
    """Whether a signal told us to end. A second one is passed on: the children then end at once.

    A plain flag, for a handler runs in the middle of anything: an Event's lock may be held by the
    very code that it interrupts, which then waits for ever.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self.is_set = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.signalled)

    def signalled(self, *_: object) -> None:
        if self.is_set:
            for child in self._children:
                child.end()
        self.is_set = True

    def wait(self, seconds: float) -> bool:
        if not self.is_set:
            time.sleep(seconds)
        return self.is_set


def end_all(children: Sequence[Child], grace_ms: int) -> None:
    """Ends them together; what outlives the grace time is killed."""
    until_s = time.monotonic() + grace_ms / 1000 + GRACE_EXTRA_S
    for child in children:
        child.end()
    for child in children:
        child.wait(until_s)
