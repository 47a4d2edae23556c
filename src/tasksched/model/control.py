"""What a handler may raise, or return, to decide itself what happens next."""

from dataclasses import dataclass

from tasksched.model.durations import Duration, parse_duration


class RetryLater(Exception):
    """Try again after ``after`` (as long as attempts remain), whatever the back-off says."""

    def __init__(self, after: Duration, reason: str = "") -> None:
        self.after_ms = parse_duration(after, "/after")
        self.reason = reason
        super().__init__(reason or "the handler asked for a later attempt")


class Discard(Exception):
    """Do not try again: the failure is final."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the handler discarded the task")


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a handler returns (``return ctx.defer()``) when the task goes on elsewhere: the verdict
    comes by a callback, and the run has ``lease_ms`` until it is heard of.
    """

    lease_ms: int
