"""Live: following tasks while they run, and the part of ``App`` that reports for runs elsewhere.

Following survives an outage of a while: it goes on after what was told before.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from tasksched import clock
from tasksched.client.link import Link
from tasksched.client.live_backend import LiveBackend
from tasksched.commands.callbacks import CallbackRef, Heard
from tasksched.commands.live import EventQuery
from tasksched.errors import Invalid, Unavailable
from tasksched.model import codec
from tasksched.model.callback import (
    FailureReport,
    details_text,
    progress_text,
    read_fence,
    read_lease,
)
from tasksched.model.durations import Duration, parse_duration
from tasksched.model.live import Followed, Gap, Happened, LineSaid, Progressed, Quiet, StateSeen
from tasksched.model.states import State

PATIENCE_MS = 30_000
PAUSE_S = 1.0
_ANY_SIZE = 1 << 31  # whoever takes a result knows the limit


async def follow(
    backend: LiveBackend, tenant: str, task_id: str, after: str | None = None
) -> AsyncGenerator[Followed, None]:
    """As the backend follows, through outages of PATIENCE_MS at most; each thing is told once."""
    told: dict[type, Progressed | StateSeen] = {}
    heard_ms = clock.mono_ms()
    while True:
        try:
            async with aclosing(backend.follow(tenant, task_id, after)) as found:
                async for each in found:
                    heard_ms = clock.mono_ms()
                    if isinstance(each, Quiet) or told.get(type(each)) == each:
                        continue
                    if isinstance(each, LineSaid):
                        after = each.id
                    else:
                        told[type(each)] = each
                    yield each
            return
        except Unavailable:
            if clock.mono_ms() - heard_ms > PATIENCE_MS:
                raise
        await asyncio.sleep(PAUSE_S)


async def listen(backend: LiveBackend, query: EventQuery) -> AsyncGenerator[Happened | Gap, None]:
    """The tenant's events without end, through outages of PATIENCE_MS at most."""
    place = query.after
    heard_ms = clock.mono_ms()
    while True:
        asked = EventQuery(
            tenant=query.tenant, task_id=query.task_id, queue=query.queue,
            statuses=query.statuses, after=place,
        )  # fmt: skip
        try:
            async with aclosing(backend.events(asked)) as found:
                async for each in found:
                    heard_ms = clock.mono_ms()
                    place = each.id or place
                    if not isinstance(each, Quiet):
                        yield each
        except Unavailable:
            if clock.mono_ms() - heard_ms > PATIENCE_MS:
                raise
        await asyncio.sleep(PAUSE_S)


class Reporting:
    """The part of ``App`` that reports for a run that goes on elsewhere (``return ctx.defer()``, or an
    HTTP target with ``"async": true``). ``fence`` and ``token`` are those of its attempt.

    A report that is repeated is answered as the first time. Each raises NotFound where the token is
    not that of this attempt, Stale where the attempt is over, Conflict where another report was first.
    """

    _link: Link

    async def heartbeat(
        self,
        task_id: str,
        *,
        fence: int | str,
        token: str,
        lease: Duration | None = None,
        progress: float | None = None,
        message: str = "",
    ) -> Heard:
        """The run lives: it must be heard of again within ``lease`` (default: that of the server).

        ``progress`` is any finite number. The answer says whether the run should stop.
        """
        lease_ms = None if lease is None else read_lease(lease)
        said = progress_text(progress, message)
        backend = (await self._link.backend()).callbacks
        ref = _ref(task_id, fence, token)
        return await backend.heartbeat(ref, lease_ms=lease_ms, progress=said)

    async def complete(
        self, task_id: str, *, fence: int | str, token: str, result: Any = None
    ) -> State:
        """The run succeeded, with this result (JSON). The state the task has now.

        Raises Invalid or TooLarge for the result: the run stays open.
        """
        encoded = codec.encode(result, "/result", most=_ANY_SIZE)
        backend = (await self._link.backend()).callbacks
        return await backend.complete(_ref(task_id, fence, token), encoded)

    async def fail(
        self,
        task_id: str,
        *,
        fence: int | str,
        token: str,
        error: BaseException | str | Mapping[str, Any],
        retryable: bool = True,
        retry_after: Duration | None = None,
    ) -> State:
        """The run failed; what follows is decided by the task's policy. The state the task has now.

        ``error``: an exception, a message, or {type, message, details}. Not ``retryable``: it is
        final. ``retry_after``: the next attempt is not before that.
        """
        after_ms = None if retry_after is None else parse_duration(retry_after, "/retry_after")
        kind, message, details = _error_parts(error)
        report = FailureReport(
            type=kind,
            message=message,
            details=details,
            retryable=retryable,
            retry_after_ms=after_ms,
        )
        backend = (await self._link.backend()).callbacks
        return await backend.fail(_ref(task_id, fence, token), report)

    # -- the same without an event loop -----------------------------------------------------------

    def heartbeat_sync(
        self,
        task_id: str,
        *,
        fence: int | str,
        token: str,
        lease: Duration | None = None,
        progress: float | None = None,
        message: str = "",
    ) -> Heard:
        return self._link.run(
            self.heartbeat(
                task_id, fence=fence, token=token, lease=lease, progress=progress, message=message
            )
        )

    def complete_sync(
        self, task_id: str, *, fence: int | str, token: str, result: Any = None
    ) -> State:
        return self._link.run(self.complete(task_id, fence=fence, token=token, result=result))

    def fail_sync(
        self,
        task_id: str,
        *,
        fence: int | str,
        token: str,
        error: BaseException | str | Mapping[str, Any],
        retryable: bool = True,
        retry_after: Duration | None = None,
    ) -> State:
        return self._link.run(
            self.fail(
                task_id, fence=fence, token=token, error=error, retryable=retryable,
                retry_after=retry_after,
            )
        )  # fmt: skip


def _ref(task_id: str, fence: int | str, token: str) -> CallbackRef:
    return CallbackRef(task_id, read_fence(fence), token)


def _error_parts(error: BaseException | str | Mapping[str, Any]) -> tuple[str, str, str]:
    """Type, message and details."""
    if isinstance(error, BaseException):
        return type(error).__name__, str(error), ""
    if isinstance(error, str):
        return "Error", error, ""
    unknown = set(error) - {"type", "message", "details"}
    if unknown or not isinstance(error.get("message"), str):
        raise Invalid("an error has a message, and may have a type and details", "/error")
    details = error.get("details")
    codec.encode(details, "/error/details")
    return str(error.get("type", "Error")), error["message"], details_text(details)
