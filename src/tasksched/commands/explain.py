"""Explain: why a task has not run, in words a program can test and a person can read.

Each reason is a dict ready for JSON: ``reason`` (the word), ``detail`` (the sentence) and what belongs to
it. It is a look at the moment; nothing is locked and the next look may differ. What runs or has finished
waits for nothing, so its answer is empty.
"""

from typing import Any

from tasksched.model.ids import shard_of
from tasksched.model.instants import format_instant
from tasksched.model.states import WAITING
from tasksched.model.task import Task
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads

SERVED_MAX = 20  # versions named in a sentence


async def why_waiting(reads: Reads, task: Task) -> list[dict[str, Any]]:
    """The reasons, the weightiest first: ``not_due``, ``no_worker_for_handler``, ``queue_full``,
    ``no_scheduler``, ``waiting_for_dispatch``, ``waiting_for_worker``.
    """
    if task.status not in WAITING:
        return []
    found = await reads.waiting(task)
    if task.status == "PENDING" and task.due_ms > found["now_ms"]:
        until = format_instant(task.due_ms)
        retry = " (after a failed attempt)" if task.attempts else ""
        return [{"reason": "not_due", "detail": f"it is due at {until}{retry}", "until": until}]
    if found["parked"] == "no_worker" or not found["live"]:
        return [await _unserved(reads, task)]
    if task.status == "QUEUED":
        waiting = max(found["in_stream"] - 1, 0)
        detail = f"a worker takes it next; up to {waiting} others wait or run in its stream"
        return [{"reason": "waiting_for_worker", "detail": detail, "ahead": waiting}]
    return [await _undispatched(reads, task, found)]


async def _unserved(reads: Reads, task: Task) -> dict[str, Any]:
    """No live worker knows its handler in its version; perhaps one knows another version."""
    route, served = task.target.route, await reads.served(task)
    detail = f"no live worker serves {route}"
    if served:
        detail += f"; served now: {', '.join(served[:SERVED_MAX])}"
    return {"reason": "no_worker_for_handler", "detail": detail, "route": route, "served": served}


async def _undispatched(reads: Reads, task: Task, found: dict[str, Any]) -> dict[str, Any]:
    """Why a task that is due, and has a worker, is not handed over."""
    ahead = found["ahead"] or 0
    if found["full"]:
        detail = f"the workers of queue {task.queue} are busy; {ahead} due tasks are ahead"
        return {"reason": "queue_full", "detail": detail, "ahead": ahead}
    if not await reads.members("schedulers"):
        return {"reason": "no_scheduler", "detail": "no scheduler is alive"}
    detail = f"a scheduler hands it over next; {ahead} due tasks are ahead"
    return {"reason": "waiting_for_dispatch", "detail": detail, "ahead": ahead}


def redis_cli(store: Store, task: Task) -> str:
    """The line that shows the record of a task, to paste into a shell."""
    shard = shard_of(task.id, store.shards)
    assert shard is not None, task.id
    return f"redis-cli HGETALL '{store.keys[shard].task(task.id)}'"
