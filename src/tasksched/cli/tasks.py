"""Commands about tasks that exist: get, list, edit, cancel, retry, wait, explain."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tasksched.cli import output
from tasksched.cli.arguments import payload_json
from tasksched.cli.group import note, shared
from tasksched.cli.session import ask, duration_ms, read_text
from tasksched.errors import Invalid, TaskschedError

F = TypeVar("F", bound=Callable[..., Any])

# Two spellings: of the header, and what it means.
version_option = click.option(
    "--if-version", "--if-match", "version", type=int, metavar="N", help="Only this version."
)

STATES = ["PENDING", "QUEUED", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"]
PAGE = 100
FOREVER_MS = 10 * 365 * 86_400_000
WAIT_MS = 20_000


@click.command()
@click.argument("task_id")
@click.option("--attempts", is_flag=True, help="The execution log too.")
@shared
def get(task_id: str, *, attempts: bool) -> None:
    """Show a task."""

    async def run(backend: Any, tenant: str) -> None:
        task = await backend.get(tenant, task_id)
        text = output.details(_facts(task))
        log = await backend.attempts(tenant, task_id) if attempts else ()
        data = output.whole(task, log if attempts else None)
        output.emit(data, "\n".join([text, *(_attempt_line(each) for each in log)]))

    ask(run)


def _facts(task: Any) -> list[tuple[str, object]]:
    error = task.error
    return [
        ("task", task.id),
        (
            "status",
            output.state(task.status)
            + (" elsewhere" if task.is_deferred else "")
            + (" (cancel requested)" if task.cancel_requested else ""),
        ),
        ("target", output.target(task)),
        ("queue", f"{task.queue}, {task.priority}"),
        ("tenant", task.tenant),
        ("due", output.moment(task.due_ms)),
        ("created", output.moment(task.created_ms)),
        ("finished", output.moment(task.finished_ms)),
        ("attempts", f"{task.attempts} of {task.retry.max_attempts}"),
        ("progress", _progress(task.progress)),
        ("postponed", task.postponed),
        ("recurring", task.schedule.partition(":")[2] if task.schedule else None),
        ("nominal", output.moment(task.nominal_ms)),
        ("missed", task.missed or None),
        ("tags", ", ".join(task.tags)),
        ("concurrency", output.concurrency(task.concurrency)),
        ("timeout", output.length(task.timeout_ms)),
        ("expires", output.moment(task.expires_at_ms)),
        ("payload", output.body(task.payload)),
        ("result", output.body(task.result)),
        ("encrypted", "its key is not here" if task.encrypted else None),
        ("reason", task.reason),
        ("fingerprint", task.fingerprint),
        ("error", f"{error.type}: {error.message}" if error else None),
        ("version", task.version),
    ]


def _progress(progress: dict[str, Any] | None) -> str:
    parts = [progress.get("at"), progress.get("message")] if progress else []
    return "  ".join(str(part) for part in parts if part not in {None, ""})


def _attempt_line(attempt: Any) -> str:
    took = "" if attempt.ended_ms is None else output.length(attempt.ended_ms - attempt.started_ms)
    error = f"  {attempt.error.type}: {attempt.error.message}" if attempt.error else ""
    outcome = attempt.outcome or "running"
    start = output.moment(attempt.started_ms)
    return f"attempt {attempt.attempt}  {start}  {outcome}  {took}  {attempt.worker}{error}"


@click.command("list")
@click.option("--status", type=click.Choice(STATES, case_sensitive=False), help="In this state.")
@click.option("--queue", help="In this queue.")
@click.option("--handler", help="Of this handler; 'billing.*' means all that begin so.")
@click.option("--tag", help="With this tag.")
@click.option("--limit", type=click.IntRange(1), default=PAGE, show_default=True)
@shared
def list_(
    status: str | None, queue: str | None, handler: str | None, tag: str | None, limit: int
) -> None:
    """List tasks: running ones first, then waiting, then finished."""
    from tasksched.client.backend import PAGE_MAX, Query

    async def run(backend: Any, tenant: str) -> None:
        found: list[Any] = []
        cursor = None
        while len(found) < limit:
            query = Query(
                tenant=tenant, status=status, queue=queue, handler=handler, tag=tag,  # type: ignore[arg-type]  # one of STATES
                limit=min(limit, PAGE_MAX),
            )  # fmt: skip
            page = await backend.page(query, cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        if len(found) > limit or cursor is not None:
            note(f"there are more than {limit}; raise --limit")
        shown = found[:limit]
        data = {"items": [output.brief(task) for task in shown]}
        output.emit(data, rows(shown) if shown else "")

    ask(run)


def rows(tasks: list[Any]) -> str:
    """A table of tasks."""
    header = ("TASK", "STATUS", "TARGET", "QUEUE", "DUE", "ATTEMPTS")
    return output.table(
        header,
        [
            (
                t.id,
                output.state(t.status),
                output.target(t),
                t.queue,
                output.moment(t.due_ms),
                t.attempts,
            )
            for t in tasks
        ],
    )


@click.command()
@click.argument("task_ids", nargs=-1, required=True)
@version_option
@click.option("--dry-run", is_flag=True, help="Show what would be cancelled.")
@click.option("--yes", is_flag=True, help="Do not ask, for several tasks.")
@shared
def cancel(task_ids: tuple[str, ...], version: int | None, *, dry_run: bool, yes: bool) -> None:
    """Cancel tasks: at once where they wait, by request where they run."""
    if len(task_ids) > 1 and not (yes or dry_run):
        confirm(f"Cancel {len(task_ids)} tasks?")

    async def one(backend: Any, tenant: str, task_id: str) -> dict[str, Any]:
        if dry_run:
            return {"task_id": task_id, "status": (await backend.get(tenant, task_id)).status}
        change = await backend.cancel(tenant, task_id, version)
        if change.cancel_requested:
            note(f"{task_id} runs: it was asked to stop")
        return _told(task_id, change)

    _each(task_ids, one)


def _changed(command: F) -> F:
    """The options that say what to change."""
    for option in (
        click.option(
            "--concurrency-limit", type=int, metavar="N", help="With its concurrency key."
        ),
        click.option("--concurrency-key", metavar="TEXT|none", help="Another one, or none."),
        click.option("--tag", "tags", multiple=True, help="Instead of the tags it has."),
        click.option("--timeout", metavar="DURATION", help="Of one attempt."),
        click.option("--priority", help="critical, high, normal or low."),
        click.option("--queue", help="Another queue."),
        click.option("--payload", metavar="JSON|@FILE|-", help="Another payload."),
        click.option("--delay", metavar="DURATION", help="Due so long from now."),
        click.option("--at", metavar="TIME", help="Due then."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("task_ids", nargs=-1, required=True)
@_changed
@version_option
@shared
def retry(task_ids: tuple[str, ...], version: int | None, **options: Any) -> None:
    """Give failed or cancelled tasks a new life, changed on the way where asked."""
    changes = _changes(options) if any(options.values()) else None

    async def one(backend: Any, tenant: str, task_id: str) -> dict[str, Any]:
        return _told(task_id, await backend.redrive(tenant, task_id, version, changes))

    _each(task_ids, one)


@click.command()
@click.argument("task_ids", nargs=-1, required=True)
@version_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@shared
def delete(task_ids: tuple[str, ...], version: int | None, *, yes: bool, dry_run: bool) -> None:
    """Remove tasks: finished ones at once, those that wait are cancelled first."""
    if not (yes or dry_run):
        confirm(f"Delete {len(task_ids)} tasks for ever?")

    async def one(backend: Any, tenant: str, task_id: str) -> dict[str, Any]:
        if dry_run:
            return {"task_id": task_id, "status": (await backend.get(tenant, task_id)).status}
        await backend.bulk.delete(tenant, task_id, version)
        return {"task_id": task_id, "deleted": True}

    _each(task_ids, one)


def _each(task_ids: tuple[str, ...], one: Any) -> None:
    """Does it to every task; the first refusal decides the exit code, after all were tried."""

    async def run(backend: Any, tenant: str) -> TaskschedError | None:
        first: TaskschedError | None = None
        for task_id in task_ids:
            try:
                told = await one(backend, tenant, task_id)
            except TaskschedError as error:
                if len(task_ids) == 1 or error.retryable:
                    raise
                click.echo(f"error: {error.detail}", err=True)
                first = first or error
                continue
            output.emit(told, f"{task_id}  {output.state(told.get('status', 'deleted'))}")
        return first

    error = ask(run)
    if error is not None:
        click.get_current_context().exit(error.exit_code)


def _told(task_id: str, change: Any) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "status": change.status,
        "version": change.version,
        "cancel_requested": change.cancel_requested,
    }


def confirm(question: str) -> None:
    """Asks a person; where there is none, that is wrong usage."""
    if not sys.stdin.isatty():
        raise click.UsageError("Without a terminal nobody can be asked: give --yes.")
    click.confirm(question, abort=True, err=True)


@click.command()
@click.argument("task_id")
@_changed
@click.option("--expires", metavar="TIME", help="No first start after it; 'never' takes it away.")
@version_option
@shared
def edit(task_id: str, version: int | None, **options: Any) -> None:
    """Change a task that waits; what is not named stays."""
    changes = _changes(options)

    async def run(backend: Any, tenant: str) -> None:
        change = await backend.edit(tenant, task_id, changes, version)
        output.emit(_told(task_id, change), f"{task_id}  {output.state(change.status)}")

    ask(run)


def _changes(options: dict[str, Any]) -> Any:
    from tasksched.client.options import parsed
    from tasksched.commands.tasks import Changes
    from tasksched.model.instants import parse_instant

    given = {name: value for name, value in options.items() if value not in {None, "", ()}}
    if not given:
        raise click.UsageError("Say what to change.")
    names = ("at", "queue", "priority", "tags", "concurrency_key", "concurrency_limit")
    fields = parsed({name: given[name] for name in names if name in given})  # type: ignore[arg-type]  # checked by name there
    for name in ("delay", "timeout"):
        if name in given:
            fields[f"{name}_ms"] = duration_ms(given[name], f"/{name}")
    if "run_at_ms" in fields and "delay_ms" in fields:
        raise Invalid("give --at or --delay, not both", "/delay")
    if given.get("concurrency_key") == "none":
        fields["concurrency_key"] = None
    if "payload" in given:
        fields["payload"] = payload_json(read_text(given["payload"]))
    if "expires" in given:
        never = given["expires"] == "never"
        fields["expires_at_ms"] = None if never else parse_instant(given["expires"], "/expires")
    return Changes(**fields)


@click.command()
@click.argument("task_id")
@click.option("--timeout", metavar="DURATION", help="Give up then (the task goes on).")
@shared
def wait(task_id: str, timeout: str | None) -> None:
    """Wait for the outcome: prints the result and exits 0, or says the error and exits 1."""
    timeout_ms = duration_ms(timeout, "/timeout")

    async def run(backend: Any, tenant: str) -> int:
        return await await_outcome(backend, tenant, task_id, timeout_ms)

    click.get_current_context().exit(ask(run))


async def await_outcome(backend: Any, tenant: str, task_id: str, timeout_ms: int | None) -> int:
    """Waits, prints the result (or with --json the task) and returns the exit code."""
    from tasksched import clock

    until_ms = clock.mono_ms() + (FOREVER_MS if timeout_ms is None else timeout_ms)
    while True:
        left_ms = max(until_ms - clock.mono_ms(), 0)
        task = await backend.wait(tenant, task_id, min(left_ms, WAIT_MS))
        if task.status in {"SUCCESS", "FAILED", "CANCELLED"}:
            break
        if left_ms == 0:
            waited = output.length(timeout_ms)
            raise TimeoutError(f"task {task_id} is {task.status} after {waited}")
    output.emit(
        output.whole(task), output.body(task.result) or "null" if task.status == "SUCCESS" else ""
    )
    if task.status == "SUCCESS":
        return 0
    said_error = f": {task.error.type}: {task.error.message}" if task.error else ""
    reason = f" ({task.reason})" if task.reason else ""
    click.echo(f"error: task {task_id} is {task.status}{reason}{said_error}", err=True)
    return 1


@click.command()
@click.argument("task_id")
@shared
def explain(task_id: str) -> None:
    """Why a task has not run, and the redis-cli line that shows its record."""

    async def run(backend: Any, tenant: str) -> None:
        found = await backend.explain(tenant, task_id)
        task = found.task
        lines = [f"{task.id} is {output.state(task.status)}"]
        lines += [f"{each['reason']}: {each['detail']}" for each in found.reasons]
        if not found.reasons:
            lines.append("it runs" if task.status == "RUNNING" else "it waits for nothing")
        if found.redis_cli:
            lines.append(found.redis_cli)
        data = {
            "task_id": task.id, "status": task.status, "why_waiting": found.reasons,
            "redis_cli": found.redis_cli,
        }  # fmt: skip
        output.emit(data, "\n".join(lines))

    ask(run)
