"""Reaper: what the watch index says must be looked at. A rule, not a loop: drivers call it.

A running task whose lease ran out lost its attempt, or, left to a callback, its time (the policy of what follows is pure Python, the
check that the lease is still expired is the script's). A dispatched task that nobody took goes back
to the index. A slow worker and a dead one look the same from here: after an outage the scripts hold
every lease for one more (``held``), and whoever still runs is fenced off by the next attempt.
"""

import random

from tasksched import log
from tasksched.model.outcome import Failure, Outcome, error_info, judge, judge_lost
from tasksched.store.protocol import BATCH_MAX, Overdue, Store

_log = log.get("reaper")


async def reap_overdue(store: Store, shard: int) -> int:
    """Reap and reclaim one batch; ms after which to look again (0 = nothing left, or held)."""
    held, overdue = await store.overdue(shard)
    lost = [run for run in overdue if run.state == "RUNNING"]
    others = [run.id for run in overdue if run.state != "RUNNING"]
    if others:
        await store.reclaim(shard, others)
    if lost and not held:
        words = await store.reap(shard, [(run.id, run.fence, _judged(run)) for run in lost])
        for run, word in zip(lost, words, strict=True):
            _log.info("lease.lost", task_id=run.id, worker=run.worker, now=word)
    more = len(overdue) == BATCH_MAX and (others or not held)
    return 1 if more else 0


def _judged(run: Overdue) -> Outcome:
    if run.is_deferred:  # no worker was lost: nobody called back
        error = error_info(
            "CallbackTimeout", "the run was left to a callback, and none came in time"
        )
        failure = Failure(error=error, kind="TIMED_OUT")
        return judge(failure, run.options.retry, attempts=run.attempts, rng=random.random)
    return judge_lost(
        run.options.retry,
        attempts=run.attempts,
        lost=run.lost + 1,
        worker=run.worker,
        rng=random.random,
    )
