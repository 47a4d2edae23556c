"""Records: what a schedule's hash and ledger hold, read back into values. No I/O.

The other direction is ``store.schedules``; ``docs/redis.md`` shows both as they are stored.
"""

from typing import Any

import msgspec

from tasksched.model.recurring import (
    LedgerEntry,
    Schedule,
    ScheduleSpec,
    occurrence_id,
    read_policy,
)
from tasksched.model.schedule.parse import parse_rule
from tasksched.model.schedule.rule import Rule
from tasksched.model.task import DEFAULT_OPTIONS, TaskSpec, decode_options
from tasksched.store.protocol import target_of

FIELDS = (
    "status", "version", "generation", "created_ms", "updated_ms", "rule", "policy", "overlap",
    "after", "owner", "jitter_ms", "max_runs", "lane", "options", "lease_ms", "next_ms", "last_ms",
    "runs", "reason", "head", "payload", "body",
)  # fmt: skip


def bound_rule(ref: str, text: bytes | str, generation_ms: int) -> Rule:
    """The stored rule of a schedule, bound to it."""
    return parse_rule(msgspec.json.decode(text)).bind(ref, generation_ms)


def read_int(raw: bytes | None) -> int | None:
    return None if raw is None else int(raw)


def read_schedule(ref: str, raw: dict[str, Any]) -> Schedule:
    queue, priority, tenant, route = raw["lane"].decode().split(":")
    options = decode_options(raw["options"]) if raw["options"] else DEFAULT_OPTIONS
    generation_ms = int(raw["generation"])
    template = TaskSpec(
        target=target_of(route, options),
        payload=raw["payload"] or b"",
        tenant=tenant,
        queue=queue,
        priority=priority,
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        lease_ms=read_int(raw["lease_ms"]),
        tags=options.tags,
        notify=options.notify,
        concurrency=options.concurrency,
    )
    overlap: Any = (raw["overlap"] or b"skip").decode()
    after: Any = (raw["after"] or b"terminal").decode()
    spec = ScheduleSpec(
        id=ref.partition(":")[2],
        template=template,
        rule=bound_rule(ref, raw["rule"], generation_ms),
        overlap=overlap,
        after=after,
        misfire=read_policy(raw["policy"]),
        jitter_ms=read_int(raw["jitter_ms"]),
        max_runs=read_int(raw["max_runs"]),
        owner=raw["owner"].decode() if raw["owner"] else None,
    )
    return Schedule(
        spec=spec,
        status=raw["status"].decode(),
        version=int(raw["version"]),
        generation_ms=generation_ms,
        created_ms=int(raw["created_ms"]),
        updated_ms=int(raw["updated_ms"]),
        next_ms=read_int(raw["next_ms"]),
        last_ms=read_int(raw["last_ms"]),
        runs=int(raw["runs"] or 0),
        reason=raw["reason"].decode() if raw["reason"] else None,
        head=raw["head"].decode() if raw["head"] else None,
    )


def read_entry(text: str, schedule: Schedule, shard: int) -> LedgerEntry:
    """A line of the ledger. Its note is ``+``; or, of a run, ``by_hand`` or its lateness, and ``:what``."""
    outcome: Any
    outcome, first, last, count, *note = text.split(" ")
    remark, _, what = (note[0] if note else "").partition(":")
    fired = outcome == "fired"
    by_hand = remark == "by_hand"
    task_id = None
    if fired and count == "1":
        ref, generation_ms = schedule.spec.ref, schedule.generation_ms
        task_id = occurrence_id(ref, generation_ms, what or first, shard)
    return LedgerEntry(
        outcome=outcome,
        first_ms=int(first),
        last_ms=int(last),
        count=int(count),
        is_exact=remark != "+",
        lateness_ms=int(remark) if fired and not by_hand else None,
        task_id=task_id,
        by_hand=by_hand,
    )
