"""Rules on a command line: the options that say when, and what a person reads of it.

The flags become the fields of the API's JSON, which are read by the same code; an error points to
the field. Nothing here needs a server.
"""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from tasksched.cli import output
from tasksched.cli.session import number

F = TypeVar("F", bound=Callable[..., Any])

COLOURS = {"ACTIVE": "green", "PAUSED": "yellow", "BLOCKED": "red", "ENDED": "bright_black"}
_FIELDS = {"every": "interval", "delay": "delay", "rrule": "rrule", "tz": "timezone",
           "start_at": "start_at", "end_at": "end_at", "on_gap": "on_gap", "on_fold": "on_fold"}  # fmt: skip


def timed(command: F) -> F:
    """The options that say when, but for the cron expression."""
    for option in (
        click.option("--on-fold", type=click.Choice(["first", "both"]),
                     help="A local time that comes twice (default: first)."),
        click.option("--on-gap", type=click.Choice(["next", "skip"]),
                     help="A local time that the clock jumps over (default: next)."),
        click.option("--end-at", metavar="TIME", help="No time after it."),
        click.option("--start-at", metavar="TIME", help="No time before it."),
        click.option("--tz", metavar="ZONE", help="Time zone, as Europe/Paris (default: UTC)."),
        click.option("--rrule", metavar="RULE", help="A rule of RFC 5545."),
        click.option("--delay", metavar="DURATION", help="So long after each run has ended."),
        click.option("--every", metavar="DURATION", help="A fixed rate: 15m, 1h30m."),
    ):  # fmt: skip
        command = option(command)
    return command


def rule_of(cron: str | None, options: dict[str, Any]) -> Any:
    """The rule that the options of ``timed`` are. Raises Invalid."""
    from tasksched.model.schedule import parse_rule

    fields = {_FIELDS[name]: options[name] for name in _FIELDS if options[name] is not None}
    for name in ("interval", "delay"):
        if name in fields:
            fields[name] = number(fields[name])
    return parse_rule({"cron": cron, **fields})


def status(text: str) -> str:
    return click.style(text, fg=COLOURS.get(text))


def fires(found: Sequence[Any]) -> str:
    """The next times: in UTC, on the wall, and what is odd about them."""
    rows = [(output.moment(fire.at_ms), fire.local, fire.note or "") for fire in found]
    return output.table(("AT", "LOCAL", "NOTE"), rows) if rows else ""


def view(schedule: Any) -> Any:
    """The recurring task as ``GET /recurring-tasks/{id}`` shows it."""
    from tasksched.commands.recurring import Standing
    from tasksched.http import render_recurring

    return render_recurring.recurring_view(schedule, Standing(schedule.next_ms, schedule.last_ms))


def facts(schedule: Any) -> list[tuple[str, object]]:
    """What a person wants to know of a recurring task."""
    from tasksched.model.schedule.describe import describe

    spec = schedule.spec
    template, misfire = spec.template, spec.misfire
    late = f", at most {output.length(misfire.grace_ms)} late" if misfire.grace_ms else ""
    return [
        ("recurring", spec.id),
        ("status", status(schedule.status)),
        ("reason", schedule.reason),
        ("when", describe(spec.rule)),
        ("rule", next(iter(spec.rule.fields().values()))),
        ("next", output.moment(schedule.next_ms)),
        ("last", output.moment(schedule.last_ms)),
        ("runs", f"{schedule.runs}" + (f" of {spec.max_runs}" if spec.max_runs else "")),
        ("target", output.target(template)),
        ("payload", output.body(template.payload)),
        ("queue", f"{template.queue}, {template.priority}"),
        ("tenant", template.tenant),
        ("tags", ", ".join(template.tags)),
        ("concurrency", output.concurrency(template.concurrency)),
        ("overlap", spec.overlap if spec.rule.kind != "delay" else ""),
        ("after", spec.after if spec.rule.kind == "delay" else ""),
        ("catch up", misfire.catch_up + late),
        ("jitter", output.length(spec.jitter_ms)),
        ("timeout", output.length(template.timeout_ms)),
        ("attempts", f"at most {template.retry.max_attempts} a run"),
        ("owner", spec.owner),
        ("version", schedule.version),
    ]


def ledger(entries: Sequence[Any]) -> str:
    """The ledger, newest first; a range of equal neighbours is one line."""
    rows = [
        (
            output.moment(each.first_ms),
            "" if each.count == 1 else output.moment(each.last_ms),
            each.outcome,
            f"{each.count}{'' if each.is_exact else '+'}",
            "by hand" if each.by_hand else output.length(each.lateness_ms),
            each.task_id or "",
        )
        for each in entries
    ]
    return output.table(("AT", "TO", "OUTCOME", "COUNT", "LATE", "TASK"), rows) if rows else ""
