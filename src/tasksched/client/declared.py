"""Declared: recurring tasks that stand in the code, beside their handlers.

::

    @app.task(cron=Cron("30 2 * * *", tz="Europe/Paris"))
    async def nightly() -> None: ...

A worker syncs them when it starts. Any number of workers may: a definition is created once, replaced
under the version it was read with, and left alone where it is the same. What somebody else keeps under
the id (another ``owner``, or nobody's) is not touched. A pause stays a pause.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tasksched.client.schedule_options import DeclaredOptions, When, rule_of, spec_of
from tasksched.commands.recurring import Recurring
from tasksched.errors import (
    Conflict,
    Invalid,
    NotFound,
    PreconditionFailed,
    TaskschedError,
    Unavailable,
)
from tasksched.model.recurring import ScheduleSpec
from tasksched.model.schedule import Cron, Rule
from tasksched.model.task import HandlerTarget, TaskSpec

OWNER = "code"
SYNC_TRIES = 20
PAGE = 200


class Declared(NamedTuple):
    """One recurring task of the code. ``template`` is the task without its tenant."""

    id: str
    rule: Rule
    policy: Mapping[str, Any]
    template: TaskSpec

    def spec(self, tenant: str, owner: str) -> ScheduleSpec:
        template = msgspec.structs.replace(self.template, tenant=tenant)
        spec = spec_of(template, self.id, self.rule, self.policy)
        return msgspec.structs.replace(spec, owner=owner)


class Declaring(Protocol):
    """What declares: an App."""

    @property
    def declared(self) -> Sequence[Declared]: ...

    @property
    def owner(self) -> str: ...


class Report(msgspec.Struct, kw_only=True):
    """What a sync did, by ids. ``foreign``: somebody else has the id. ``failed``: and why."""

    created: list[str] = []
    updated: list[str] = []
    unchanged: list[str] = []
    removed: list[str] = []
    foreign: list[str] = []
    failed: dict[str, str] = {}


def declare(
    template: TaskSpec, cron: Cron | str | None, every: When | None, options: DeclaredOptions | None
) -> Declared | None:
    """What a handler's decorator declares; None for nothing. Raises Invalid."""
    if cron is None and every is None:
        if options:
            raise Invalid("schedule_options go with cron or every", "/schedule_options")
        return None
    if cron is not None and every is not None:
        raise Invalid("give cron or every, not both", "/every")
    if every is not None:
        rule = rule_of(every)
    elif isinstance(cron, Cron):
        rule = cron
    else:
        rule = Cron(cron)  # type: ignore[arg-type]  # it refuses what is no text
    policy: dict[str, Any] = {**(options or {})}
    assert isinstance(template.target, HandlerTarget)
    # Not its version: another one of the same handler takes the place of this one.
    made = Declared(policy.pop("id", template.target.name), rule, policy, template)
    made.spec(template.tenant, OWNER)  # whatever is wrong with it is told where it stands
    return made


async def sync_declared(
    app: Declaring, recurring: Recurring, tenant: str, *, prune: bool = False
) -> Report:
    """Makes the recurring tasks of a tenant what the code declares. Raises Unavailable.

    ``prune`` removes those of the same owner that are not declared any more.
    """
    report = Report()
    for one in app.declared:
        try:
            word = await _sync_one(recurring, one.spec(tenant, app.owner))
        except TaskschedError as error:
            if error.retryable or isinstance(error, Unavailable):
                raise
            report.failed[one.id] = error.detail
        else:
            getattr(report, word).append(one.id)
    if prune:
        kept = {one.id for one in app.declared}
        report.removed += await _prune(recurring, tenant, app.owner, kept)
    return report


async def _sync_one(recurring: Recurring, spec: ScheduleSpec) -> str:
    """The list of the report that tells what became of it."""
    for _ in range(SYNC_TRIES):
        try:
            changed, there = await recurring.put(spec)
            if changed.word in {"created", "same"}:
                return "created" if changed.word == "created" else "unchanged"
            if there.spec.owner != spec.owner:
                return "foreign"
            changed, _ = await recurring.put(spec, version=there.version)
        except (PreconditionFailed, NotFound):
            continue  # another worker was faster, or somebody removed it
        return "updated" if changed.word == "replaced" else "unchanged"
    raise Conflict(f"recurring task {spec.id} changes faster than it can be replaced")


async def _prune(recurring: Recurring, tenant: str, owner: str, kept: set[str]) -> list[str]:
    """Removes what the owner declared once and does not any more."""
    found: dict[str, int] = {}
    place = None
    while True:
        page, place = await recurring.page(tenant, place, limit=PAGE)
        for one in page:
            if one.spec.owner == owner and one.spec.id not in kept:
                found[one.spec.id] = one.version
        if place is None:
            break
    removed: list[str] = []
    for schedule_id, version in found.items():
        try:
            await recurring.remove(tenant, schedule_id, version=version)
        except (PreconditionFailed, NotFound):
            continue
        removed.append(schedule_id)
    return removed
