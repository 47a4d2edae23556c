"""Isolated: one run in a cell, and what its end means for the task.

Who is isolated: a handler that asked for a process, and a suspect, a task whose last attempt was
lost. Invariant: a process that ends in the middle of a run ends that attempt at once, as lost, and
no other; a process that could not be had costs the task no attempt.
"""

import asyncio
from collections.abc import Callable

import msgspec

from tasksched import clock, log
from tasksched.model.outcome import Outcome, error_info, judge_lost
from tasksched.runtime.cells import Cells, Died, NotStarted
from tasksched.runtime.context import Desk, Run
from tasksched.runtime.frames import Job

NOT_STARTED_REST_MS = 5_000

_log = log.get("isolated")


async def run_isolated(
    cells: Cells,
    run: Run,
    job: Job,
    *,
    arm: Callable[[], asyncio.TimerHandle | None],
    desk: Desk,
    rng: Callable[[], float],
) -> Outcome | None:
    """The outcome of the attempt, None if it was interrupted. ``arm`` starts the time it has."""
    since_ms = clock.mono_ms()
    timer: asyncio.TimerHandle | None = None

    def begun() -> None:
        nonlocal timer
        timer = arm()
        if run.timeout_ms is not None:
            # What the lease may last at most counts from the start of the attempt; the handler's time
            # does not: it may have waited for a process.
            run.timeout_ms += clock.mono_ms() - since_ms

    try:
        return await cells.run(run, job, begun=begun, desk=desk)
    except NotStarted as error:
        _log.error("cell.not_started", task_id=run.grant.id, error=str(error))
        if run.why:
            return None
        return Outcome(kind="RELEASED", retry_ms=NOT_STARTED_REST_MS, reason="no_process")
    except Died as error:
        _log.warning("cell.died", task_id=run.grant.id, error=str(error))
        return None if run.why else _lost(run, str(error), rng)
    except asyncio.CancelledError:
        if run.why:
            return None
        raise
    finally:
        if timer is not None:
            timer.cancel()


def _lost(run: Run, how: str, rng: Callable[[], float]) -> Outcome:
    grant = run.grant
    lost = grant.lost + 1
    outcome = judge_lost(
        grant.options.retry, attempts=grant.attempts, lost=lost, worker="", rng=rng
    )
    error = error_info("WorkerLost", f"{how} (lost {lost} in a row)")
    return msgspec.structs.replace(outcome, error=error)
