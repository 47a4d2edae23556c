"""Commands about recurring tasks: put, list, get, pause, resume, trigger, backfill, runs, delete, next."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from typing import Any

import click

from tasksched.cli import output, rules
from tasksched.cli.group import Commands, note, shared
from tasksched.cli.session import ask, duration_ms, number
from tasksched.cli.submit import (
    CONCURRENCY,
    PRIORITIES,
    concurrent,
    payload_from,
    require_target,
    target_of,
    targeted,
)
from tasksched.cli.tasks import confirm, version_option

STATUSES = ["ACTIVE", "PAUSED", "BLOCKED", "ENDED"]
PAGE = 100
NEXT = 10


@click.group(cls=Commands)
def recurring() -> None:
    """Tasks that come again: cron, fixed rate, fixed delay, RFC 5545."""


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@click.argument("handler", required=False)
@click.argument("args", nargs=-1)
@click.option("--cron", metavar="EXPR", help="As '30 2 * * *', or @daily.")
@rules.timed
@click.option("--overlap", type=click.Choice(["skip", "queue", "allow", "cancel"]),
              help="While the run before has not ended (default: skip).")  # fmt: skip
@click.option("--catch-up", type=click.Choice(["one", "none", "all"]),
              help="What was missed (default: one run for all).")  # fmt: skip
@click.option("--catch-up-limit", type=int, metavar="N", help="With all: the newest N (100).")
@click.option("--misfire-grace", metavar="DURATION", help="What is later is missed.")
@click.option("--jitter", metavar="DURATION", help="Spread the starts over so long.")
@click.option("--max-runs", type=int, metavar="N", help="End after so many runs.")
@click.option("--after", type=click.Choice(["terminal", "success"]),
              help="With --delay: after any end of a run (default), or success alone.")  # fmt: skip
@click.option("--queue", help="Queue (default: default).")
@click.option("--priority", type=PRIORITIES, help="Class (default: normal).")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--timeout", metavar="DURATION", help="Of one attempt.")
@targeted
@concurrent
@version_option
@shared
def put(
    recurring_id: str,
    handler: str | None,
    args: tuple[str, ...],
    version: int | None,
    **options: Any,
) -> None:
    """Create the recurring task ID for HANDLER, or replace it.

    \b
    tasksched recurring put nightly report --cron '30 2 * * *' --tz Europe/Paris
    tasksched recurring put ping --every 1m --http https://example.com/ping
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept
    require_target(handler, args, options)

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.client.recurring import keep

        template = _template(handler, args, tenant, options)
        spec = _spec(template, recurring_id, options)
        if version is None:
            schedule, created = await keep(backend.recurring, spec)
            note("created" if created else f"version {schedule.version}")
        else:
            schedule = await backend.recurring.replace(spec, version)
        _show(schedule)

    ask(run)


def _template(
    handler: str | None, args: tuple[str, ...], tenant: str, options: dict[str, Any]
) -> Any:
    from tasksched.client.options import concurrency_in, parsed
    from tasksched.model.retry import Retry
    from tasksched.model.task import TaskSpec

    names = ("queue", "priority", "tags", *CONCURRENCY)
    chosen = {name: options[name] for name in names if options[name] not in {None, "", ()}}
    fields = parsed(chosen)  # type: ignore[arg-type]  # checked by name there
    fields["concurrency"] = concurrency_in(fields, None)
    if options["max_attempts"] is not None:
        fields["retry"] = Retry(options["max_attempts"])
    return TaskSpec(
        target=target_of(handler, options),
        payload=payload_from(args, options["payload"]),
        tenant=tenant,
        timeout_ms=duration_ms(options["timeout"], "/timeout"),
        **fields,
    )


def _spec(template: Any, recurring_id: str, options: dict[str, Any]) -> Any:
    from tasksched.client.schedule_options import Policy, spec_of

    policy = {name: options[name] for name in Policy.__annotations__ if options[name] is not None}
    for name in ("misfire_grace", "jitter"):
        if name in policy:
            policy[name] = number(policy[name])
    return spec_of(template, recurring_id, rules.rule_of(options["cron"], options), policy)


def _show(schedule: Any) -> None:
    next_ms = schedule.next_ms
    when = f"  next {output.moment(next_ms)}" if next_ms is not None else ""
    output.emit(rules.view(schedule), f"{schedule.spec.id}  {rules.status(schedule.status)}{when}")


@recurring.command("list")
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), help="In this state.")
@click.option("--limit", type=click.IntRange(1), default=PAGE, show_default=True)
@shared
def list_(status: str | None, limit: int) -> None:
    """List recurring tasks, those that run next first."""
    from tasksched.client.backend import PAGE_MAX

    async def run(backend: Any, tenant: str) -> None:
        found: list[Any] = []
        cursor = None
        while len(found) < limit:
            most = min(limit, PAGE_MAX)
            page = await backend.recurring.page(tenant, status, cursor, most)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        if len(found) > limit or cursor is not None:
            note(f"there are more than {limit}; raise --limit")
        shown = found[:limit]
        data = {"items": [rules.view(each) for each in shown]}
        output.emit(data, _rows(shown) if shown else "")

    ask(run)


def _rows(schedules: list[Any]) -> str:
    from tasksched.model.schedule.describe import describe

    rows = [
        (
            each.spec.id,
            rules.status(each.status),
            output.moment(each.next_ms),
            output.target(each.spec.template),
            describe(each.spec.rule),
        )
        for each in schedules
    ]
    return output.table(("RECURRING", "STATUS", "NEXT", "TARGET", "WHEN"), rows)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@shared
def get(recurring_id: str) -> None:
    """Show a recurring task."""

    async def run(backend: Any, tenant: str) -> None:
        schedule = await backend.recurring.get(tenant, recurring_id)
        output.emit(rules.view(schedule), output.details(rules.facts(schedule)))

    ask(run)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@version_option
@shared
def pause(recurring_id: str, version: int | None) -> None:
    """Fire no more until it is resumed."""

    async def run(backend: Any, tenant: str) -> None:
        _show(await backend.recurring.pause(tenant, recurring_id, version))

    ask(run)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@version_option
@shared
def resume(recurring_id: str, version: int | None) -> None:
    """Fire again, also what was BLOCKED; nothing is owed for the time between."""

    async def run(backend: Any, tenant: str) -> None:
        _show(await backend.recurring.resume(tenant, recurring_id, version))

    ask(run)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@shared
def trigger(recurring_id: str) -> None:
    """Run it once more, now; prints the id of the task. It moves nothing."""

    async def run(backend: Any, tenant: str) -> None:
        task_id = await backend.recurring.trigger(tenant, recurring_id)
        output.emit({"task_id": task_id, "recurring_task_id": recurring_id}, task_id)

    ask(run)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@click.option("--from", "start", required=True, metavar="TIME", help="The first nominal time.")
@click.option("--to", "end", required=True, metavar="TIME", help="The last; both are included.")
@click.option("--rate", type=float, default=10.0, show_default=True, help="So many a second.")
@click.option("--dry-run", is_flag=True, help="Count only.")
@shared
def backfill(recurring_id: str, start: str, end: str, rate: float, *, dry_run: bool) -> None:
    """Make runs for the nominal times of a range that is past; prints their ids.

    What has one on record gets no second one.
    """

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.client.recurring_backend import Fill
        from tasksched.http import render_recurring
        from tasksched.model.instants import parse_instant

        span_ms = parse_instant(start, "/from"), parse_instant(end, "/to")
        found = await backend.recurring.backfill(tenant, recurring_id, Fill(span_ms, dry_run, rate))
        count = f"{found.count}" if found.is_exact else f"over {found.count - 1}"
        count += " nominal time" if count == "1" else " nominal times"
        note(count if dry_run else f"{count}, {len(found.task_ids)} runs made")
        data = render_recurring.backfilled(found, dry_run=dry_run)
        output.emit(data, "\n".join(found.task_ids))

    ask(run)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@shared
def runs(recurring_id: str) -> None:
    """What became of each nominal time, newest first."""

    async def run(backend: Any, tenant: str) -> None:
        import msgspec

        from tasksched.http import render_recurring

        entries = await backend.recurring.ledger(tenant, recurring_id)
        output.emit(msgspec.Raw(render_recurring.ledger(entries)), rules.ledger(entries))

    ask(run)


@recurring.command()
@click.argument("recurring_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@version_option
@shared
def delete(recurring_id: str, version: int | None, *, yes: bool, dry_run: bool) -> None:
    """Remove it: what waits is cancelled, what runs may finish."""
    if not (yes or dry_run):
        confirm(f"Delete the recurring task {recurring_id}?")

    async def run(backend: Any, tenant: str) -> None:
        if dry_run:
            _show(await backend.recurring.get(tenant, recurring_id))
            return
        await backend.recurring.remove(tenant, recurring_id, version)
        output.emit({"recurring_task_id": recurring_id}, f"{recurring_id}  deleted")

    ask(run)


@recurring.command("next")
@click.argument("cron", required=False)
@rules.timed
@click.option("--id", "recurring_id", metavar="ID", help="Of this recurring task instead.")
@click.option("--after", metavar="TIME", help="Later than this (default: now).")
@click.option("-n", "count", type=click.IntRange(1, 1_000), default=NEXT, show_default=True)
@shared
def next_(
    cron: str | None, recurring_id: str | None, after: str | None, count: int, **options: Any
) -> None:
    """Show the next times of a rule, with what daylight saving does to them.

    CRON is an expression; or give --every, --delay or --rrule. That needs no server.

    \b
    tasksched recurring next '30 2 * * *' --tz Europe/Paris --after 2026-03-28T00:00:00Z
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept
    if recurring_id is not None:
        if cron is not None or any(value is not None for value in options.values()):
            raise click.UsageError("--id names a rule already.")
        _next_of(recurring_id, after, count)
        return
    import msgspec

    from tasksched import clock
    from tasksched.http import render_recurring
    from tasksched.model.schedule.preview import preview

    rule = rules.rule_of(cron, options)
    after_ms = clock.wall_ms() if after is None else _after_ms(after, rule)
    rule = rule.bind("", after_ms)
    found = preview(rule, after_ms, count)
    output.emit(msgspec.Raw(render_recurring.preview(rule, found)), rules.fires(found))


def _next_of(recurring_id: str, after: str | None, count: int) -> None:
    async def run(backend: Any, tenant: str) -> None:
        import msgspec

        from tasksched.http import render_recurring
        from tasksched.model.recurring import fires_of
        from tasksched.model.schedule.preview import preview

        schedule = await backend.recurring.get(tenant, recurring_id)
        if after is None:
            found = fires_of(schedule, count)
        else:
            found = preview(schedule.spec.rule, _after_ms(after, schedule.spec.rule), count)
        output.emit(msgspec.Raw(render_recurring.next_fires(found)), rules.fires(found))
        if not found:
            note(f"{recurring_id} is {schedule.status}")

    ask(run)


def _after_ms(text: str, rule: Any) -> int:
    """An instant; a local time is one of the rule's zone."""
    from tasksched.model.instants import parse_bound

    return parse_bound(text, "/after", timezone=rule.tz)
