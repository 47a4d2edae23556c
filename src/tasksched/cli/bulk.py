"""Commands about many tasks: dead letters (list, groups, redrive, purge), and the operations that go on."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tasksched.cli import output
from tasksched.cli.group import Commands, note, shared
from tasksched.cli.session import ask, duration_ms, read_text, settings
from tasksched.cli.tasks import confirm, rows
from tasksched.errors import Invalid, TaskschedError

F = TypeVar("F", bound=Callable[..., Any])

PAGE = 100
LOOK_S, LOOK_MAX_S = 0.1, 2.0
COLOURS = {"RUNNING": "yellow", "DONE": "green", "STOPPED": "bright_black", "FAILED": "red"}


def _grouped(command: F) -> F:
    """The filters that groups have."""
    for option in (
        click.option("--fingerprint", metavar="HEX", help="Of this group of failures."),
        click.option("--reason", help="Final for this reason, as attempts_exhausted."),
        click.option("--handler", help="Of this handler; 'billing.*' means all that begin so."),
        click.option("--queue", help="Of this queue."),
    ):
        command = option(command)
    return command


def _filtered(command: F) -> F:
    """The filters that dead letters have."""
    for option in (
        click.option("--finished-to", metavar="TIME", help="Failed then or earlier."),
        click.option("--finished-from", metavar="TIME", help="Failed then or later."),
        click.option("--tag", help="With this tag."),
    ):
        command = option(command)
    return _grouped(command)


def _chosen(command: F) -> F:
    """The filters that tasks have."""
    for option in (
        click.option("--due-to", metavar="TIME", help="Due then or earlier."),
        click.option("--due-from", metavar="TIME", help="Due then or later."),
        click.option("--tag", help="With this tag."),
        click.option("--handler", help="Of this handler; 'billing.*' means all that begin so."),
        click.option("--priority", help="Of this class."),
        click.option("--queue", help="Of this queue."),
        click.option("--status", help="In this state, or in several with commas."),
    ):
        command = option(command)
    return command


def _operated(command: F) -> F:
    """The options of what is done to many."""
    for option in (
        click.option("--wait", "waits", is_flag=True, help="Until it has ended."),
        click.option("--rate", type=click.IntRange(1, 10_000), metavar="N",
                     help="Tasks a second (default: 1000)."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only say how many match."),
        click.option("--all", "is_all", is_flag=True, help="Everything: needed without a filter."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(cls=Commands)
def dead() -> None:
    """Dead letters: tasks that failed for good."""


@dead.command("list")
@_filtered
@click.option("--limit", type=click.IntRange(1), default=PAGE, show_default=True)
@shared
def list_(limit: int, **words: Any) -> None:
    """List dead letters, the newest first."""

    async def run(backend: Any, tenant: str) -> list[Any]:
        from tasksched.client.backend import PAGE_MAX

        found: list[Any] = []
        cursor = None
        while len(found) < limit:
            size = min(limit - len(found), PAGE_MAX)
            page = await backend.bulk.dead_page(tenant, _filter(words), cursor, size)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        if cursor is not None:
            note(f"there are more than {limit}; raise --limit")
        return found

    found = ask(run)
    data = {"items": [output.brief(task) for task in found]}
    output.emit(data, rows(found) if found else "")


@dead.command()
@_grouped
@click.option("--limit", type=click.IntRange(1, 100), default=50, show_default=True)
@shared
def groups(limit: int, **words: Any) -> None:
    """Failures of the same kind with their counts, the most frequent first."""

    async def run(backend: Any, tenant: str) -> Any:
        return await backend.bulk.dead_groups(tenant, _filter(words), None, limit)

    from tasksched.http.render_bulk import group_view

    page = ask(run)
    if page.next_cursor is not None:
        note(f"there are more than {limit} groups; raise --limit")
    lines = [
        [g.count, g.fingerprint, output.moment(g.last_seen_ms), ",".join(g.handlers),
         f"{g.type or '?'}: {g.message or ''}"]
        for g in page.items
    ]  # fmt: skip
    header = ("COUNT", "FINGERPRINT", "LAST SEEN", "HANDLERS", "ERROR")
    data = {"items": [group_view(group) for group in page.items]}
    output.emit(data, output.table(header, lines) if lines else "")


@dead.command()
@_filtered
@_operated
@shared
def redrive(**options: Any) -> None:
    """Give dead letters a new life.

    \b
    tasksched dead redrive --fingerprint 5f3a9c21d0e4b7aa --dry-run
    tasksched dead redrive --queue billing --rate 50 --wait --yes
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept
    _operate("redrive", "Redrive {} dead letters?", options)


@dead.command()
@_filtered
@_operated
@shared
def purge(**options: Any) -> None:
    """Remove dead letters for ever."""
    _operate("purge", "Remove {} dead letters for ever?", options)


def _operate(kind: Any, question: str, words: dict[str, Any], changes: Any = None) -> None:
    """Asks, and begins; ``words`` are the options of ``_operated`` and of a filter."""
    from tasksched.commands.operations import Request
    from tasksched.model.filters import DEAD_FIELDS, TASK_FIELDS, filter_of
    from tasksched.model.operation import DEAD_KINDS, RATE_USUAL

    options = {name: words.pop(name) for name in ("is_all", "dry_run", "yes", "waits", "rate")}
    asked = filter_of(words, DEAD_FIELDS if kind in DEAD_KINDS else TASK_FIELDS)
    if not asked.named and not options["is_all"]:
        raise Invalid("without a filter everything would match: say --all", "/all")
    rate = options["rate"] or RATE_USUAL

    def request(tenant: str) -> Any:
        return Request(kind=kind, tenant=tenant, filter=asked, rate=rate, changes=changes)

    async def count(backend: Any, tenant: str) -> Any:
        return await backend.bulk.count(request(tenant))

    async def start(backend: Any, tenant: str) -> Any:
        begun = await backend.bulk.start(request(tenant))
        return await _awaited(backend, tenant, begun) if options["waits"] else begun

    if options["dry_run"] or not options["yes"]:
        counted = ask(count)
        said = f"{'at least ' if counted.at_least else ''}{counted.count}"
        if options["dry_run"]:
            data = {"dry_run": True, "count": counted.count, "at_least": counted.at_least}
            output.emit(data, said)
            return
        confirm(question.format(said))
    show(ask(start))


def _filter(words: dict[str, Any]) -> Any:
    from tasksched.model.filters import DEAD_FIELDS, filter_of

    return filter_of(words, DEAD_FIELDS)


async def _awaited(backend: Any, tenant: str, operation: Any, timeout_ms: int | None = None) -> Any:
    import asyncio

    from tasksched import clock

    began_ms, pause_s = clock.mono_ms(), LOOK_S
    while operation.state == "RUNNING":
        if timeout_ms is not None and clock.mono_ms() - began_ms >= timeout_ms:
            raise TimeoutError(f"operation {operation.id} goes on: {operation.done} done")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_MAX_S)
        operation = await backend.bulk.operation(tenant, operation.id)
    return operation


def show(operation: Any) -> None:
    """The operation; one that FAILED is an error."""
    from tasksched.http.render_bulk import operation_view

    output.emit(operation_view(operation), output.details(_facts(operation)))
    if operation.state == "FAILED":
        raise TaskschedError(f"operation {operation.id} failed: {operation.error}")


def _facts(operation: Any) -> list[tuple[str, object]]:
    expected = operation.expected
    return [
        ("operation", operation.id),
        ("does", operation.kind),
        ("status", click.style(operation.state, fg=COLOURS[operation.state])),
        ("expected", f"{'at least ' if expected.at_least else ''}{expected.count}"),
        ("done", str(operation.done)),
        ("skipped", str(operation.skipped) if operation.skipped else ""),
        ("rate", f"{operation.rate} a second"),
        ("created", output.moment(operation.created_ms)),
        ("finished", output.moment(operation.finished_ms)),
        ("error", operation.error),
    ]


@click.group(cls=Commands)
def operations() -> None:
    """Many tasks at once: cancel, edit, delete; and how far what goes on has got."""


@operations.command("cancel")
@_chosen
@_operated
@shared
def cancel_many(**options: Any) -> None:
    """Cancel all tasks that match: those that run are asked to stop."""
    _operate("cancel", "Cancel {} tasks?", options)


@operations.command("edit")
@click.argument("changes", metavar="JSON|@FILE|-")
@_chosen
@_operated
@shared
def edit_many(changes: str, **options: Any) -> None:
    """Change all waiting tasks that match, as PATCH /tasks/{id} would.

    \b
    tasksched operations edit '{"delay": "2h"}' --queue reports --dry-run
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept
    from tasksched.http import parse

    found = parse.changes(parse.decode_json(read_text(changes)), settings().payload_bytes_max)
    _operate("edit", "Change {} tasks?", options, found)


@operations.command("delete")
@_chosen
@_operated
@shared
def delete_many(**options: Any) -> None:
    """Remove all tasks that match and do not run; those that wait are cancelled first."""
    _operate("delete", "Remove {} tasks for ever?", options)


@operations.command("list")
@click.option("--limit", type=click.IntRange(1, 200), default=PAGE, show_default=True)
@shared
def list_operations(limit: int) -> None:
    """List operations, the newest first."""
    from tasksched.http.render_bulk import operation_view

    async def run(backend: Any, tenant: str) -> Any:
        return await backend.bulk.operations(tenant, None, limit)

    found = ask(run).items
    lines = [
        [each.id, each.kind, click.style(each.state, fg=COLOURS[each.state]), each.done,
         each.expected.count, output.moment(each.created_ms)]
        for each in found
    ]  # fmt: skip
    header = ("OPERATION", "DOES", "STATUS", "DONE", "OF", "CREATED")
    data = {"items": [operation_view(each) for each in found]}
    output.emit(data, output.table(header, lines) if lines else "")


@operations.command("get")
@click.argument("operation_id", metavar="ID")
@click.option("--wait", "waits", is_flag=True, help="Until it has ended.")
@click.option("--timeout", metavar="DURATION", help="Give up waiting then (it goes on).")
@shared
def get_operation(operation_id: str, timeout: str | None, *, waits: bool) -> None:
    """Show how far an operation has got."""
    timeout_ms = duration_ms(timeout, "/timeout")

    async def run(backend: Any, tenant: str) -> Any:
        found = await backend.bulk.operation(tenant, operation_id)
        return await _awaited(backend, tenant, found, timeout_ms) if waits else found

    show(ask(run))


@operations.command("stop")
@click.argument("operation_id", metavar="ID")
@shared
def stop_operation(operation_id: str) -> None:
    """Stop an operation; what it has done stays done."""

    async def run(backend: Any, tenant: str) -> Any:
        return await backend.bulk.stop(tenant, operation_id)

    show(ask(run))
