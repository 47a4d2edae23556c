"""tail: what happens to tasks, as it happens, until Ctrl-C or, of one task, its end."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from typing import Any

import click

from tasksched.cli import output
from tasksched.cli.group import note, said, shared
from tasksched.cli.session import ask
from tasksched.cli.tasks import STATES


@click.command()
@click.argument("task_id", required=False)
@click.option("--queue", help="Of this queue.")
@click.option("--status", type=click.Choice(STATES, case_sensitive=False), help="Into this state.")
@click.option("--after", metavar="ID", help="Go on after this line, or this event.")
@shared
def tail(task_id: str | None, queue: str | None, status: str | None, after: str | None) -> None:
    """Follow TASK_ID (lines, progress, states), or every task of the tenant.

    With --json each event is one line of JSON.
    """
    if task_id is not None and (queue or status):
        raise click.UsageError("--queue and --status are for all tasks, not for one.")

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.client.live import follow, listen
        from tasksched.commands.live import EventQuery

        if task_id is not None:
            async for each in follow(backend.live, tenant, task_id, after):
                _say(each)
            return
        states: Any = (status,) if status else ()
        query = EventQuery(tenant=tenant, queue=queue, statuses=states, after=after)
        note("waiting for events; Ctrl-C ends it")
        async for event in listen(backend.live, query):
            _say(event)

    ask(run)


def _say(event: Any) -> None:
    import msgspec

    if said().as_json:
        data = {"event": event.kind, **msgspec.to_builtins(event)}
        if "at_ms" in data:
            data["at"] = output.moment(data.pop("at_ms"))
        data.pop("kind", None)
        click.echo(msgspec.json.encode(data).decode())
        return
    click.echo(_text(event))


def _text(event: Any) -> str:
    match event.kind:
        case "line":
            return f"{output.moment(event.at_ms)}  {event.attempt}  {event.text}"
        case "progress":
            at = "" if event.at is None else f"{event.at:g}"
            return "  ".join(part for part in ("progress", at, event.message) if part)
        case "state":
            asked = "  (cancel requested)" if event.cancel_requested else ""
            return f"{output.state(event.status)}  attempt {event.attempt}{asked}"
        case "gap":
            return "… events are missing here"
        case _:
            when = output.moment(event.at_ms)
            return f"{when}  {event.kind}  {event.task_id}  {event.queue}"
