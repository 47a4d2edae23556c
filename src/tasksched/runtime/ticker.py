"""Ticker: fires what schedules owe. A rule, not a loop: the drivers of the shards call it.

Planning is pure Python (which nominal times, what to do about missed ones, jitter); creating and
advancing is one script, which does nothing unless the schedule stands as it was when the plan was
made. So any number of schedulers may fire the same schedule at once, and one of them does.

``retime`` is what the janitor calls: zones change the rules of their clocks, and what was computed
with another release of the zone data is computed anew.
"""

from tasksched import log
from tasksched.model.recurring import resumed_ms
from tasksched.model.zones import TZDATA_VERSION
from tasksched.store.schedules import FIRE_MAX, Broken, Retiming, Schedules, firing_of

_log = log.get("ticker")


async def fire_owed(schedules: Schedules, shard: int) -> tuple[int, bool]:
    """Fire one batch of the shard; how many fired, and whether more is owed now."""
    now_ms, owed, broken = await schedules.owed(shard)
    if broken:
        await _block(schedules, shard, broken)
    if not owed:
        return 0, bool(broken)
    words = await schedules.fire(shard, [firing_of(one, now_ms) for one in owed])
    fired = words.count("fired")
    if fired < len(words):
        _log.debug("fire.stale", shard=shard, rows=len(words) - fired)
    return fired, len(owed) + len(broken) == FIRE_MAX


async def _block(schedules: Schedules, shard: int, broken: list[Broken]) -> None:
    """What cannot be planned must not hold up the others of its shard."""
    for one in broken:
        _log.error("schedule.broken", shard=shard, recurring=one.ref, reason=one.reason)
    await schedules.retime(
        shard, [Retiming(one.ref, one.version, one.next_ms, None, one.reason) for one in broken]
    )


async def retime(schedules: Schedules, shard: int, now_ms: int) -> int:
    """Compute anew what depends on another release of the zone data; how many were moved.

    What is owed already is fired first; that computes the time after it anew.
    """
    moved, cursor = 0, 0
    while True:
        cursor, found = await schedules.outdated(shard, cursor)
        rows = [
            Retiming(one.ref, one.version, one.next_ms, resumed_ms(one.rule, now_ms))
            for one in found
        ]
        if rows:
            words = await schedules.retime(shard, rows)
            moved += words.count("retimed")
            _log.info("retimed", shard=shard, rows=len(rows), tzdata=TZDATA_VERSION)
        if cursor == 0:
            return moved
