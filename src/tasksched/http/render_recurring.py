"""Render recurring: recurring tasks, their ledger and their next times, as the bytes of an answer.

As ``render``: what was answered may be sent again, and stored bytes that cannot be read hide nothing
else. A rule is shown as it is understood, so ``"90m"`` comes back as ``"1h30m"``.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from tasksched.commands.recurring import Backfilled, Standing
from tasksched.http.render import (
    body_of,
    encode,
    length,
    moment,
    receivers,
    retry_view,
    target_body,
)
from tasksched.http.schema_recurring import (
    BackfillView,
    FireView,
    LedgerItem,
    LedgerPage,
    NextView,
    PreviewView,
    RecurringPage,
    RecurringTimestamps,
    RecurringView,
)
from tasksched.model.instants import format_instant
from tasksched.model.recurring import LedgerEntry, Schedule
from tasksched.model.schedule.describe import describe
from tasksched.model.schedule.preview import Fire
from tasksched.model.schedule.rule import Rule
from tasksched.model.seal import is_sealed
from tasksched.model.zones import TZDATA_VERSION


def recurring_view(schedule: Schedule, standing: Standing) -> RecurringView:
    """The recurring task with its payload, where there is one."""
    spec, template = schedule.spec, schedule.spec.template
    payload, payload_broken = body_of(template.payload, broken=False)
    encrypted = is_sealed(template.payload)
    return RecurringView(
        **_rule_members(spec.rule),
        target=target_body(template.target),
        payload=payload,
        queue=template.queue,
        priority=template.priority,
        retry=retry_view(template.retry),
        timeout=length(template.timeout_ms),
        lease=length(template.lease_ms),
        tags=list(template.tags),
        notify=receivers(template.notify),
        concurrency_key=template.concurrency.key if template.concurrency else None,
        concurrency_limit=template.concurrency.limit if template.concurrency else None,
        max_runs=spec.max_runs,
        overlap=spec.overlap,
        catch_up=spec.misfire.catch_up,
        catch_up_limit=spec.misfire.limit,
        misfire_grace=length(spec.misfire.grace_ms),
        jitter=length(spec.jitter_ms),
        after=spec.after if spec.rule.kind == "delay" else UNSET,
        owner=spec.owner,
        recurring_task_id=spec.id,
        status=schedule.status,
        version=schedule.version,
        tenant=template.tenant,
        description=describe(spec.rule),
        next_run_at=moment(standing.next_ms),
        last_run_at=moment(standing.last_ms),
        runs=schedule.runs,
        reason=schedule.reason,
        corrupt=True if payload_broken and not encrypted else UNSET,
        encrypted=True if encrypted else UNSET,
        timestamps=RecurringTimestamps(
            created_at=format_instant(schedule.created_ms),
            updated_at=format_instant(schedule.updated_ms),
        ),
        tzdata_version=TZDATA_VERSION,
    )


def definition_view(schedule: Schedule) -> RecurringView:
    """The view without its payload, for its definition alone."""
    template = msgspec.structs.replace(schedule.spec.template, payload=b"")
    spec = msgspec.structs.replace(schedule.spec, template=template)
    return recurring_view(msgspec.structs.replace(schedule, spec=spec), Standing(None, None))


def _rule_members(rule: Rule) -> dict[str, Any]:
    return {"start_at": None, "end_at": None, **rule.fields()}


def page(
    schedules: Sequence[Schedule], standings: Sequence[Standing], next_cursor: str | None
) -> bytes:
    """Lists show no payload."""
    views = [recurring_view(*pair) for pair in zip(schedules, standings, strict=True)]
    for view in views:
        view.payload = UNSET
    return encode(RecurringPage(views, next_cursor))


def ledger(entries: Sequence[LedgerEntry]) -> bytes:
    return encode(LedgerPage([_ledger_item(entry) for entry in entries], None))


def _ledger_item(entry: LedgerEntry) -> LedgerItem:
    return LedgerItem(
        outcome=entry.outcome,
        nominal_at=format_instant(entry.first_ms),
        first_at=format_instant(entry.first_ms),
        last_at=format_instant(entry.last_ms),
        count=entry.count,
        exact=entry.is_exact,
        lateness=length(entry.lateness_ms),
        task_id=entry.task_id,
        by_hand=entry.by_hand,
    )


def next_fires(fires: Sequence[Fire]) -> bytes:
    return encode(NextView(_fires(fires)))


def preview(rule: Rule, fires: Sequence[Fire]) -> bytes:
    return encode(PreviewView(describe(rule), rule.tz, TZDATA_VERSION, _fires(fires)))


def _fires(fires: Sequence[Fire]) -> list[FireView]:
    return [FireView(format_instant(fire.at_ms), fire.local, fire.note) for fire in fires]


def backfilled(found: Backfilled, *, dry_run: bool) -> BackfillView:
    return BackfillView(
        dry_run=dry_run, count=found.count, exact=found.is_exact, task_ids=found.task_ids
    )
