"""Ticker: fires what schedules owe. A rule, not a loop: the drivers of the shards call it.

Planning is pure Python (which nominal times, what to do about missed ones, jitter); creating and
advancing is one script, which does nothing unless the schedule stands as it was when the plan was
made. So any number of schedulers may fire the same schedule at once, and one of them does.
"""

from tasksched import log
from tasksched.store.schedules import FIRE_MAX, Schedules, firing_of

_log = log.get("ticker")


async def fire_owed(schedules: Schedules, shard: int) -> tuple[int, bool]:
    """Fire one batch of the shard; how many fired, and whether more is owed now."""
    now_ms, owed = await schedules.owed(shard)
    if not owed:
        return 0, False
    words = await schedules.fire(shard, [firing_of(one, now_ms) for one in owed])
    fired = words.count("fired")
    if fired < len(words):
        _log.debug("fire.stale", shard=shard, rows=len(words) - fired)
    return fired, len(owed) == FIRE_MAX
