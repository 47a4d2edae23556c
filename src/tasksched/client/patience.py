"""Patience: how long a client goes on asking after "later", and how long it waits in between.

Full jitter: each pause is drawn from zero up to a ceiling that doubles, and comes on top of what the
refusal asked for, so that many who were refused together do not come back together, nor too early. Nobody
waits past the deadline: when the next try would come after it, the refusal is told at once.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from tasksched import clock
from tasksched.errors import Invalid, Overloaded, RateLimited, TaskschedError
from tasksched.model.durations import parse_duration

T = TypeVar("T")

PAUSE_S, PAUSE_MAX_S = 0.1, 2.0
_SECONDS = re.compile(r"[0-9]{1,9}")
_RESET = re.compile(r";\s*r=0\s*;\s*t=([0-9]{1,9})")


class Patience:
    """One deadline, for the tries of one request."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._ceiling_s = PAUSE_S
        self.renew()

    def renew(self) -> None:
        """Something was achieved: the deadline is counted from now."""
        self._until_ms = clock.mono_ms() + self._patience_ms

    async def pause(self, refusal: TaskschedError) -> None:
        """Returns when it is time for the next try. Raises the refusal where there is none."""
        wait_s = _asked_s(refusal) + random.uniform(0, self._ceiling_s)
        if clock.mono_ms() + wait_s * 1000 > self._until_ms:
            raise refusal
        self._ceiling_s = min(self._ceiling_s * 2, PAUSE_MAX_S)
        await asyncio.sleep(wait_s)


async def until_accepted(call: Callable[[], Awaitable[T]], patience_ms: int) -> T:
    """What ``call`` gives; asked again while it is refused before anything was done.

    Only those refusals are sure to have done nothing: RateLimited and Overloaded.
    """
    patience = Patience(patience_ms)
    while True:
        try:
            return await call()
        except (RateLimited, Overloaded) as refusal:
            await patience.pause(refusal)


def _asked_s(refusal: TaskschedError) -> float:
    return float(refusal.extra.get("retry_after_ms") or 0) / 1000


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """What an answer says about later: Retry-After, else the reset of an exhausted RateLimit."""
    given = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(given):
        return int(given) * 1000
    if given:
        return _until_date_ms(given)
    found = _RESET.search(headers.get("ratelimit", ""))
    return int(found[1]) * 1000 if found else None


def _until_date_ms(given: str) -> int | None:
    try:
        date = parsedate_to_datetime(given)
    except ValueError:
        return None
    moment_ms = int(date.replace(tzinfo=date.tzinfo or UTC).timestamp() * 1000)
    return max(moment_ms - clock.wall_ms(), 0)


def details_of(limit: str | None, retry_after: str | None) -> dict[str, Any]:
    """What a problem says of the limit that refused, as it stands in ``extra`` of an error."""
    found: dict[str, Any] = {} if limit is None else {"limit": limit}
    if retry_after is not None:
        try:
            found["retry_after_ms"] = parse_duration(retry_after, "/retry_after")
        except Invalid:
            return found  # a newer API writes it in another way
    return found
