"""submit: create a task from the command line, and perhaps wait for it."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tasksched.cli.arguments import payload_json, payload_of
from tasksched.cli.group import note, shared
from tasksched.cli.output import emit, moment
from tasksched.cli.session import ask, duration_ms, read_text
from tasksched.cli.tasks import await_outcome
from tasksched.errors import Invalid

METHODS = click.Choice(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], case_sensitive=False)
PRIORITIES = click.Choice(["critical", "high", "normal", "low"])

CONCURRENCY = ("concurrency_key", "concurrency_limit")

F = TypeVar("F", bound=Callable[..., Any])


def targeted(command: F) -> F:
    """The options that say what runs, and how often it is tried."""
    for option in (
        click.option("--header", "headers", multiple=True, metavar="NAME:VALUE",
                     help="With --http."),
        click.option("--method", type=METHODS, default="POST", show_default=True,
                     help="With --http."),
        click.option("--async", "is_async", is_flag=True,
                     help="With --http: an answer of 202 means that the verdict comes later."),
        click.option("--http", "request_url", metavar="URL",
                     help="Call this URL instead of a handler."),
        click.option("--payload", metavar="JSON|@FILE|-",
                     help="The payload itself, instead of ARGS."),
        click.option("--version", "handler_version", metavar="NAME",
                     help="Version of the handler."),
        click.option("--max-attempts", type=int, metavar="N",
                     help="At most so many starts (default: 5)."),
    ):  # fmt: skip
        command = option(command)
    return command


def concurrent(command: F) -> F:
    """The options that keep tasks from running together."""
    for option in (
        click.option("--concurrency-limit", type=int, metavar="N",
                     help="So many with that key run at a time (default: 1)."),
        click.option("--concurrency-key", metavar="TEXT",
                     help="Tasks with the same one do not all run at a time."),
    ):  # fmt: skip
        command = option(command)
    return command


def _heard(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """What the environment says of the trace is left out where it cannot be read; an option is not."""
    from tasksched.model.trace import heard_traceparent

    is_ours = context.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT
    return heard_traceparent(text) if is_ours else text


@click.command()
@click.argument("handler", required=False)
@click.argument("args", nargs=-1)
@click.option("--at", metavar="TIME", help="Due then: RFC 3339, as 2026-12-24T18:00:00Z.")
@click.option("--delay", metavar="DURATION", help="Due after that: 90s, 1h30m.")
@click.option("--key", help="Idempotency key: the same key makes no second task.")
@click.option("--queue", help="Queue (default: default).")
@click.option("--priority", type=PRIORITIES, help="Class (default: normal).")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--timeout", metavar="DURATION", help="Of one attempt.")
@click.option(
    "--traceparent",
    metavar="TEXT",
    envvar="TRACEPARENT",
    callback=_heard,
    help="The trace it belongs to (default: of the environment's TRACEPARENT).",
)
@click.option(
    "--expires", metavar="TIME|DURATION", help="No first start after it, or so long after due."
)
@targeted
@concurrent
@click.option("--wait", metavar="DURATION", help="Wait so long for the outcome, and exit with it.")
@shared
def submit(handler: str | None, args: tuple[str, ...], wait: str | None, **options: Any) -> None:
    """Create a task for HANDLER, or for a URL.

    ARGS are JSON values or plain strings; name=value makes a named argument:

    \b
    tasksched submit add 1 2
    tasksched submit hello name=world --delay 10s
    tasksched submit --http https://example.com/hook --payload '{"n": 1}'
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept
    require_target(handler, args, options)
    wait_ms = duration_ms(wait, "/wait")

    async def run(backend: Any, tenant: str) -> Any:
        spec = _spec(handler, args, tenant, options)
        created = await backend.submit(spec)
        record = created.task
        if wait_ms is not None:
            note(created.id)
            return await await_outcome(backend, tenant, created.id, wait_ms)
        note("created" if created.created else "it was there before")
        status = "PENDING" if record is None else record.status
        data = {
            "task_id": created.id, "status": status, "created": created.created,
            "run_at": moment(created.due_ms),
        }  # fmt: skip
        emit(data, created.id)
        return 0

    click.get_current_context().exit(ask(run))


def _spec(handler: str | None, args: Sequence[str], tenant: str, options: dict[str, Any]) -> Any:
    from tasksched.client.options import concurrency_in, expires_ms, parsed
    from tasksched.model.retry import Retry
    from tasksched.model.task import TaskSpec

    names = ("at", "key", "queue", "priority", "tags", "expires", "traceparent", *CONCURRENCY)
    chosen = {name: options[name] for name in names if options[name] not in {None, "", ()}}
    fields = parsed(chosen)  # type: ignore[arg-type]  # checked by name there
    fields["concurrency"] = concurrency_in(fields, None)
    expires = fields.pop("expires", None)
    fields |= {
        "delay_ms": duration_ms(options["delay"], "/delay"),
        "timeout_ms": duration_ms(options["timeout"], "/timeout"),
    }
    if fields["delay_ms"] is not None and "run_at_ms" in fields:
        raise Invalid("give --at or --delay, not both", "/delay")
    if options["max_attempts"] is not None:
        fields["retry"] = Retry(options["max_attempts"])
    payload = payload_from(args, options["payload"])
    spec = TaskSpec(target=target_of(handler, options), payload=payload, tenant=tenant, **fields)
    if expires is None:
        return spec
    import msgspec

    return msgspec.structs.replace(spec, expires_at_ms=expires_ms(expires, spec))


def payload_from(args: Sequence[str], text: str | None) -> bytes:
    """The payload of ARGS, or of ``--payload``. Raises Invalid."""
    if text is None:
        return payload_of(args)
    if args:
        raise Invalid("give ARGS or --payload, not both", "/payload")
    return payload_json(read_text(text))


def require_target(handler: str | None, args: Sequence[str], options: dict[str, Any]) -> None:
    """Raises UsageError unless it is a handler or a URL, and ARGS have somewhere to go."""
    if (handler is None) == (options["request_url"] is None):
        raise click.UsageError("Name a HANDLER, or a URL with --http.")
    if options["request_url"] is not None and args:
        raise click.UsageError("ARGS are for handlers; give --payload.")
    if options["request_url"] is None and options["is_async"]:
        raise click.UsageError("--async belongs to --http.")


def target_of(handler: str | None, options: dict[str, Any]) -> Any:
    """The target that the options of ``targeted`` name. Raises Invalid."""
    from tasksched.model.http_rules import check_headers, check_url
    from tasksched.model.names import check_handler_name, check_name
    from tasksched.model.task import HandlerTarget, HttpTarget

    if handler is not None:
        version = options["handler_version"]
        if version is not None:
            check_name(version, "/target/version")
        return HandlerTarget(check_handler_name(handler, "/target/name"), version)
    given = [header.partition(":") for header in options["headers"]]
    pairs = [(name.strip(), value.strip()) for name, _, value in given]
    return HttpTarget(
        check_url(options["request_url"], "/target/url"),
        options["method"],
        check_headers(pairs, "/target/headers"),
        options["is_async"],
    )
