"""A recurring task as it is asked for (``ScheduleSpec``) and as it stands (``Schedule``).

The template is that of a task; the rule says which nominal times there are; the policies say what
happens when runs overlap or times were missed. Times are integer milliseconds since the epoch.
"""

import hashlib
from typing import Any, Literal, get_args

import msgspec

from tasksched.errors import Invalid
from tasksched.model.ids import shard_pair
from tasksched.model.schedule.fixed import Delay
from tasksched.model.schedule.jitter import jitter_delay_ms
from tasksched.model.schedule.misfire import MisfirePolicy, Plan, plan
from tasksched.model.schedule.misfire import Run as PlannedRun
from tasksched.model.schedule.preview import Fire, preview
from tasksched.model.schedule.rule import Rule
from tasksched.model.task import TaskSpec

ScheduleStatus = Literal["ACTIVE", "PAUSED", "BLOCKED", "ENDED"]
Overlap = Literal["skip", "queue", "allow", "cancel"]
After = Literal["terminal", "success"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
AFTERS: tuple[After, ...] = get_args(After)
LedgerOutcome = Literal["fired", "skipped_overlap", "missed", "coalesced", "catch_up_dropped"]

LEDGER_MS = 7 * 24 * 3_600_000


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for, checked. ``template`` has neither a time of its own nor a key."""

    id: str
    template: TaskSpec
    rule: Rule
    overlap: Overlap = "skip"
    after: After = "terminal"
    misfire: MisfirePolicy = MisfirePolicy()
    jitter_ms: int | None = None
    max_runs: int | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        if self.rule.kind == "delay" and self.overlap != "skip":
            raise Invalid("runs of a fixed delay cannot overlap", "/overlap")
        if self.rule.kind != "delay" and self.after != "terminal":
            raise Invalid("only a fixed delay (delay) has after", "/after")
        if self.max_runs is not None and self.max_runs < 1:
            raise Invalid("at least 1", "/max_runs")

    @property
    def ref(self) -> str:
        return f"{self.template.tenant}:{self.id}"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring task as its record says it stands."""

    spec: ScheduleSpec
    status: ScheduleStatus
    version: int
    generation_ms: int
    created_ms: int
    updated_ms: int
    next_ms: int | None = None
    last_ms: int | None = None
    runs: int = 0
    reason: str | None = None
    head: str | None = None

    @property
    def settled_ms(self) -> int:
        """Up to here every nominal time has its outcome, or was never owed."""
        return self.generation_ms if self.last_ms is None else self.last_ms


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one nominal time, or of a range of neighbours with the same."""

    outcome: LedgerOutcome
    first_ms: int
    last_ms: int
    count: int
    is_exact: bool = True
    lateness_ms: int | None = None
    task_id: str | None = None
    by_hand: bool = False


def shard_of_schedule(tenant: str, schedule_id: str, shards: int) -> int:
    """Where a schedule and all its occurrences live."""
    digest = hashlib.sha256(f"{tenant}\0schedule\0{schedule_id}".encode()).digest()
    return int.from_bytes(digest[-4:]) % shards


def occurrence_id(ref: str, generation_ms: int, what: str, shard: int) -> str:
    """The id of an occurrence; ``lua/lib/occurrence.lua`` computes the same."""
    text = f"{ref}/{generation_ms}/{what}".encode()
    return "r" + hashlib.sha1(text, usedforsecurity=False).hexdigest()[:20] + shard_pair(shard)


def policy_json(spec: ScheduleSpec) -> str:
    """What only planning needs, as JSON of what is not default."""
    default, given = MisfirePolicy(), spec.misfire
    fields: dict[str, Any] = {}
    if given.catch_up != default.catch_up:
        fields["catch_up"] = given.catch_up
    if given.limit != default.limit:
        fields["limit"] = given.limit
    if given.grace_ms is not None:
        fields["grace_ms"] = given.grace_ms
    return msgspec.json.encode(fields).decode() if fields else ""


def read_policy(text: bytes | None) -> MisfirePolicy:
    return MisfirePolicy(**msgspec.json.decode(text)) if text else MisfirePolicy()


def is_zoned(rule: Rule) -> bool:
    """Whether its nominal times depend on the rules by which a zone sets its clock."""
    return rule.kind in {"cron", "rrule"} and rule.tz != "UTC"


def resumed_ms(rule: Rule, now_ms: int) -> int | None:
    """The first nominal time that is owed after a change at ``now_ms``: always a later one.

    Only a start that is still to come is kept for a fixed delay; a past one must not fire at once.
    """
    if rule.kind == "delay" and rule.start_ms is not None and rule.start_ms > now_ms:
        return rule.first(now_ms)
    return rule.next(now_ms)


Run = tuple[int, int, int]
"""nominal_ms, due_ms, missed: an occurrence to create."""


def plan_runs(
    ref: str, rule: Rule, policy: MisfirePolicy, *, next_ms: int, now_ms: int, jitter_ms: int
) -> tuple[Plan, list[Run]]:
    """What to do about the nominal times from ``next_ms`` to now, and the occurrences it means."""

    def run(nominal_ms: int, missed: int = 0) -> Run:
        if not jitter_ms:
            return nominal_ms, nominal_ms, missed
        after_ms = rule.next(nominal_ms) if rule.kind != "delay" else None
        late_ms = jitter_delay_ms(ref, nominal_ms, jitter_ms=jitter_ms, next_ms=after_ms)
        return nominal_ms, nominal_ms + late_ms, missed

    if rule.kind == "delay":
        # The first of a chain, or the one after a block: later ones are made by the verdicts.
        return Plan((), (), 1, is_exact=True, next_ms=None), [run(next_ms)]
    found = _plan_of_one(rule, policy, next_ms, now_ms) or plan(
        rule, last_ms=next_ms - 1, now_ms=now_ms, policy=policy
    )
    return found, [run(one.nominal_ms, one.missed) for one in found.runs]


def _plan_of_one(rule: Rule, policy: MisfirePolicy, next_ms: int, now_ms: int) -> Plan | None:
    """The plan where one time is due and none is missed, as it is in health; else None."""
    after_ms = rule.next(next_ms)
    if after_ms is not None and after_ms <= now_ms:
        return None
    if policy.grace_ms is not None and now_ms - next_ms > policy.grace_ms:
        return None
    return Plan((PlannedRun(next_ms),), (), 1, is_exact=True, next_ms=after_ms)


def fires_of(schedule: Schedule, n: int) -> list[Fire]:
    """The next ``n`` nominal times of a schedule, by its record alone; none unless it is ACTIVE."""
    if schedule.next_ms is None or schedule.status != "ACTIVE":
        return []
    rule = schedule.spec.rule
    # A fixed delay adds itself to the time it is asked from; the others begin just after it.
    before_ms = rule.delay_ms if isinstance(rule, Delay) else 1
    return preview(rule, schedule.next_ms - before_ms, n)
