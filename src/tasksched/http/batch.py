"""Batches: many tasks in one request, each with its own answer in the order of the request.

A JSON array, or one JSON value a line. What is wrong with one item is that item's answer and no other's;
only a body that cannot be read at all is refused as a whole. With ``Idempotency-Key: K`` item i has the
key ``K#i`` unless it brings its own, so that a repeated batch makes nothing twice. Parsing yields to
other requests now and then: ten thousand items take a tenth of a second.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tasksched.errors import Invalid, Overloaded, TaskschedError, TooLarge
from tasksched.http import parse, render
from tasksched.http.exchange import JSON, Reply
from tasksched.http.problems import field_errors, later_of, plain
from tasksched.http.schema import BatchItem, BatchView, Durability
from tasksched.http.services import Call
from tasksched.http.tasks import durability_of, require_type, tenant_of, trace_of
from tasksched.model.instants import format_instant
from tasksched.model.task import Created, TaskSpec

ITEMS_MAX: Final = 10_000
PATH: Final = "/tasks/batch"
YIELD_EVERY: Final = 200
LINES: Final = frozenset({"application/x-ndjson", "application/jsonl"})
TYPES: Final = LINES | {"application/json"}


async def create_many(call: Call) -> Reply:
    """Create up to 10,000 tasks; the answers are in order, one each."""
    lines = require_type(call, TYPES) in LINES
    raw = await call.body()
    call.query()
    asked = durability_of(call)
    key = parse.key_of(call.header(b"idempotency-key"))
    most = call.services.settings.payload_bytes_max
    source = parse.Source(tenant_of(call), key, most, trace_of(call))
    specs = await _specs(_from_lines(raw) if lines else _from_array(raw), source)
    good = [spec for spec in specs if isinstance(spec, TaskSpec)]
    made = await call.services.tasks.submit_many(good) if good else []
    refused = [answer for answer in made if isinstance(answer, Overloaded)]
    if refused and len(refused) == len(made):
        raise refused[0]  # nothing at all came in: one answer for all of it
    answers = iter(made)
    outcomes = [next(answers) if isinstance(spec, TaskSpec) else spec for spec in specs]
    for outcome in outcomes:
        call.services.refusals.note(outcome)
    level = await _reached(call, outcomes, asked)
    view = BatchView([_item(outcome, level) for outcome in outcomes])
    return Reply(200, render.encode(view), [JSON])


def _from_array(raw: bytes) -> Sequence[Any]:
    items = parse.decode_json(raw)
    if not isinstance(items, list):
        raise Invalid("an array of tasks is needed")
    _check_count(len(items))
    return items


def _from_lines(raw: bytes) -> Sequence[Any]:
    lines = parse.lines_of(raw)
    _check_count(len(lines))
    return [_decoded(line) for line in lines]


def _decoded(line: bytes) -> Any:
    try:
        return parse.decode_json(line)
    except Invalid as error:
        return error


def _check_count(count: int) -> None:
    if count > ITEMS_MAX:
        raise TooLarge(f"{count} items; a batch has at most {ITEMS_MAX}")


async def _specs(items: Sequence[Any], source: parse.Source) -> list[TaskSpec | TaskschedError]:
    found: list[TaskSpec | TaskschedError] = []
    for n, item in enumerate(items):
        if n % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        found.append(_spec(item, n, source))
    return found


def _spec(item: Any, n: int, source: parse.Source) -> TaskSpec | TaskschedError:
    if isinstance(item, Invalid):
        return item
    brings_key = isinstance(item, dict) and item.get("idempotency_key") is not None
    key = None if brings_key or source.key is None else f"{source.key}#{n}"
    try:
        return parse.task_spec(item, source._replace(key=key))
    except Invalid as error:
        return error


async def _reached(
    call: Call, outcomes: Sequence[Created | TaskSpec | TaskschedError], asked: Durability
) -> Durability:
    """What all of the batch has reached: one wait for each shard that was written to."""
    if asked == "memory":
        return asked
    by_shard = {made.id[-2:]: made.id for made in outcomes if isinstance(made, Created)}
    levels = await asyncio.gather(
        *(call.services.tasks.reach(task_id, asked) for task_id in by_shard.values())
    )
    return asked if all(level == asked for level in levels) else "memory"


def _item(outcome: Created | TaskschedError, level: Durability) -> BatchItem:
    if isinstance(outcome, Created):
        return BatchItem(
            status=201 if outcome.created else 200,
            task_id=outcome.id,
            created=outcome.created,
            durability=level,
            version=outcome.version,
            run_at=format_instant(outcome.due_ms),
        )
    errors = field_errors(outcome) if isinstance(outcome, Invalid) else None
    return BatchItem(
        status=outcome.status,
        code=outcome.code,
        detail=plain(outcome.detail),
        errors=errors,
        **later_of(outcome),
    )
