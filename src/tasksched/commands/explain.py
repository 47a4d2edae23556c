"""Explain: why a task has not run, in words a program can test and a person can read.

Each reason is a dict ready for JSON: ``reason`` (the word), ``detail`` (the sentence) and what belongs to
it. It is a look at the moment; nothing is locked and the next look may differ. What runs or has finished
waits for nothing, so its answer is empty.
"""

from typing import Any, Final

from tasksched.commands.queues import pauses_of
from tasksched.model.ids import shard_of
from tasksched.model.instants import format_instant
from tasksched.model.limits import QueueRules, TenantRules
from tasksched.model.states import WAITING
from tasksched.model.task import Task, permit_key_of
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.rules import RuleBook, queue_field, tenant_field, uses

SERVED_MAX = 20  # versions named in a sentence

# What made a worker hand a run back for a while.
_POSTPONED: Final = {
    "host_busy": "its host has as many requests as it may have at a time",
    "circuit_open": "its host failed too often in a row and is left alone",
    "no_process": "the worker could not get a process to run it in",
    "store_unavailable": "Redis refused what the run needed",
    "secrets_unavailable": "the secrets to sign with could not be read",
}
_PAUSES: Final = {
    "everything": "everything is paused",
    "queue": "queue {task.queue} is paused",
    "tenant": "tenant {task.tenant} is paused",
    "share": "the share of tenant {task.tenant} in queue {task.queue} is paused",
}


async def why_waiting(reads: Reads, task: Task) -> list[dict[str, Any]]:
    """The reasons, the weightiest first: ``paused``, ``not_due``, ``no_worker_for_handler``, ``limit``,
    ``queue_full``, ``no_scheduler``, ``waiting_for_dispatch``, ``waiting_for_worker``.
    """
    if task.status not in WAITING:
        return []
    found = await reads.waiting(task)
    paused = await _paused(reads.store, task)
    if task.status == "PENDING" and task.due_ms > found["now_ms"]:
        return [*paused, _not_due(task)]
    if found["parked"].startswith("no_worker") or not found["live"]:
        return [*paused, await _unserved(reads, task)]
    if paused:
        return paused
    if task.status == "QUEUED":
        waiting = max(found["in_stream"] - 1, 0)
        detail = f"a worker takes it next; up to {waiting} others wait or run in its stream"
        return [{"reason": "waiting_for_worker", "detail": detail, "ahead": waiting}]
    limits = await _limits(reads.store, task, found)
    return limits or [await _undispatched(reads, task, found)]


def _not_due(task: Task) -> dict[str, Any]:
    until = format_instant(task.due_ms)
    found = {"reason": "not_due", "detail": f"it is due at {until}", "until": until}
    if task.postponed is not None:
        found["postponed"] = task.postponed
        found["detail"] += f" (postponed: {_POSTPONED.get(task.postponed, task.postponed)})"
    elif task.attempts:
        found["detail"] += " (after a failed attempt)"
    return found


async def _paused(store: Store, task: Task) -> list[dict[str, Any]]:
    """Who holds it, as it is set: the dispatcher may not have noticed yet."""
    held_by = await pauses_of(RuleBook(store), task.tenant, task.queue)
    return [
        {"reason": "paused", "detail": _PAUSES[what].format(task=task), "what": what}
        for what in held_by
    ]


async def _limits(store: Store, task: Task, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The limits that hold it, as the dispatcher found when it looked last."""
    reasons = []
    if found["held"] and task.concurrency is not None:
        key, most = task.concurrency.key, task.concurrency.limit
        permit_key, _, _ = permit_key_of(task.tenant, task.concurrency).partition(":")
        (use,) = await uses(store, [f"k/{permit_key}"])
        reasons.append(_limit(f"concurrency_key {key}", most, use.used))
    for why in (found["lane_parked"], found["parked"]):
        word, _, on = why.partition(" ")
        if word in {"running", "rate"}:
            reasons += await _of_rules(store, word, on.removeprefix("r"))
    return reasons


async def _of_rules(store: Store, word: str, limit: str) -> list[dict[str, Any]]:
    """``limit``: ``t/acme`` or ``q/mail``. Nothing where it was lifted in between."""
    kind, _, name = limit.partition("/")
    field = tenant_field(name) if kind == "t" else queue_field(name)
    kept = await RuleBook(store).get(field)
    rules = (TenantRules if kind == "t" else QueueRules).of_words(kept.value)
    of = "tenant" if kind == "t" else "queue"
    if word == "running" and rules.max_running is not None:
        (use,) = await uses(store, [limit])
        return [_limit(f"{of} max_running", rules.max_running, use.used)]
    if word == "rate" and rules.dispatch_rate is not None:
        told = f"{of} dispatch_rate {rules.dispatch_rate:g}/s"
        detail = f"{told}: there is no token for it yet"
        return [{"reason": "limit", "detail": detail, "limit": told}]
    return []


def _limit(name: str, most: int, running: int) -> dict[str, Any]:
    return {
        "reason": "limit",
        "detail": f"{name} {most} ({running} running of {most})",
        "limit": f"{name} {most}",
        "running": running,
        "most": most,
    }


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
