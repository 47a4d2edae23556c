"""Commands about queues and tenants: list, show, set, pause, drain, resume, purge; and the pause of everything."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tasksched.cli import output
from tasksched.cli.group import Commands, note, shared
from tasksched.cli.session import ask, duration_ms
from tasksched.cli.tasks import STATES
from tasksched.errors import Invalid

F = TypeVar("F", bound=Callable[..., Any])

NONE = "none"
"""On a command line: no limit."""


def _dispatched(command: F) -> F:
    """The options that queues and tenants have in common."""
    for option in (
        click.option("--dispatch-rate", metavar="N|none", help="Starts a second, as 50 or 0.5."),
        click.option("--max-running", metavar="N|none", help="Tasks that run at a time, at most."),
    ):
        command = option(command)
    return command


# -- queues -------------------------------------------------------------------------------------


@click.group(cls=Commands, invoke_without_command=True)
@shared
@click.pass_context
def queues(context: click.Context) -> None:
    """The queues: what they hold, and what is set for them."""
    if context.invoked_subcommand is None:
        _list_queues()


@queues.command("list")
@shared
def list_queues() -> None:
    """List the queues that hold tasks of the tenant or have rules."""
    _list_queues()


def _list_queues() -> None:
    async def run(backend: Any, tenant: str) -> Any:
        return await backend.limits.queues(tenant)

    found = ask(run)
    rows = [
        [each.name, *(each.counts.get(state, 0) for state in STATES), _used(each), _rules(each)]
        for each in found
    ]
    header = ["QUEUE", *STATES, "IN USE", "RULES"]
    data = {"items": [_queue_data(each) for each in found]}
    output.emit(data, output.table(header, rows) if rows else "")


@queues.command("get")
@click.argument("queue")
@shared
def get_queue(queue: str) -> None:
    """Show a queue."""
    _show_queue(lambda backend, tenant: backend.limits.queue(tenant, queue))


@queues.command("set")
@click.argument("queue")
@_dispatched
@click.option(
    "--strict/--no-strict", default=None, help="Whether a higher class always goes first."
)
@shared
def set_queue(queue: str, **options: Any) -> None:
    """Set limits of a queue; what is not named stays, and none takes a limit away."""
    given = _given(options)

    async def run(backend: Any, tenant: str) -> Any:
        from tasksched.client.limits import changed

        limits = backend.limits
        return await changed(
            lambda: limits.queue(tenant, queue),
            lambda rules, version: limits.put_queue(tenant, queue, rules, version),
            given,
        )

    _show_queue(run)


@queues.command("pause")
@click.argument("queue")
@click.option("--share", is_flag=True, help="Only what the tenant has there.")
@shared
def pause_queue(queue: str, *, share: bool) -> None:
    """Nothing of it starts any more; what runs goes on."""
    _queue_verb(queue, "share/pause" if share else "pause")


@queues.command("drain")
@click.argument("queue")
@shared
def drain_queue(queue: str) -> None:
    """Nothing is created there any more; what is there still runs."""
    _queue_verb(queue, "drain")


@queues.command("resume")
@click.argument("queue")
@click.option("--share", is_flag=True, help="Only what the tenant has there.")
@shared
def resume_queue(queue: str, *, share: bool) -> None:
    """End a pause and a drain."""
    _queue_verb(queue, "share/resume" if share else "resume")


def _queue_verb(queue: str, verb: str) -> None:
    _show_queue(lambda backend, tenant: backend.limits.queue_verb(tenant, queue, verb))


def _show_queue(work: Callable[[Any, str], Any]) -> None:
    state = ask(work)
    facts = [("queue", state.name), ("rules", _rules(state)), ("in use", _used(state)),
             ("paused by", state.paused_by),
             *((output.state(name), number) for name, number in state.counts.items() if number),
             ("version", state.version)]  # fmt: skip
    output.emit(_queue_data(state), output.details(facts))


def _queue_data(state: Any) -> dict[str, Any]:
    from msgspec import structs

    told = structs.asdict(state)
    return {"name": told.pop("name"), **structs.asdict(told.pop("rules")), **told}


def _used(state: Any) -> str:
    most = state.rules.max_running
    return f"{state.in_use}" if most is None else f"{state.in_use} of {most}"


def _rules(state: Any) -> str:
    """As they are called everywhere: ``paused, max_running 10``."""
    from msgspec import structs

    default = type(state.rules)()
    return ", ".join(
        name if value is True else f"{name} {value:g}"
        for name, value in structs.asdict(state.rules).items()
        if value != getattr(default, name)
    )


# -- tenants ------------------------------------------------------------------------------------


@click.group(cls=Commands, invoke_without_command=True)
@shared
@click.pass_context
def tenants(context: click.Context) -> None:
    """The tenants: their limits, and their use of them."""
    if context.invoked_subcommand is None:
        _list_tenants()


@tenants.command("list")
@shared
def list_tenants() -> None:
    """List the tenants that have tasks or settings."""
    _list_tenants()


def _list_tenants() -> None:
    async def run(backend: Any, tenant: str) -> Any:
        return await backend.limits.tenants(tenant)

    found = ask(run)
    rows = [[each.name, each.unfinished, each.running, _rules(each)] for each in found]
    header = ["TENANT", "UNFINISHED", "RUNNING", "RULES"]
    data = {"items": [_tenant_data(each) for each in found]}
    output.emit(data, output.table(header, rows) if rows else "")


@tenants.command("get")
@click.argument("name")
@shared
def get_tenant(name: str) -> None:
    """Show a tenant."""
    _show_tenant(lambda backend, tenant: backend.limits.tenant(tenant, name))


@tenants.command("set")
@click.argument("name")
@_dispatched
@click.option("--weight", metavar="N|none", help="Its part of what tenants share (default: 1).")
@click.option("--max-pending", metavar="N|none", help="Tasks that are not finished, at most.")
@click.option("--create-rate", metavar="N|none", help="Creations a second.")
@shared
def set_tenant(name: str, **options: Any) -> None:
    """Set limits of a tenant; what is not named stays, and none takes a limit away."""
    given = _given(options)

    async def run(backend: Any, tenant: str) -> Any:
        from tasksched.client.limits import changed

        limits = backend.limits
        return await changed(
            lambda: limits.tenant(tenant, name),
            lambda rules, version: limits.put_tenant(tenant, name, rules, version),
            given,
        )

    _show_tenant(run)


@tenants.command("pause")
@click.argument("name")
@shared
def pause_tenant(name: str) -> None:
    """Nothing of it starts any more; what runs goes on."""
    _tenant_verb(name, "pause")


@tenants.command("drain")
@click.argument("name")
@shared
def drain_tenant(name: str) -> None:
    """Nothing is created for it any more; what it has still runs."""
    _tenant_verb(name, "drain")


@tenants.command("resume")
@click.argument("name")
@shared
def resume_tenant(name: str) -> None:
    """End a pause and a drain."""
    _tenant_verb(name, "resume")


@tenants.command("purge")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", metavar="DURATION", default="5m", show_default=True,
              help="Give up then; a purge goes on where the one before ended.")  # fmt: skip
@shared
def purge_tenant(name: str, timeout: str, *, yes: bool) -> None:
    """Remove all that a tenant has and revoke its keys, for ever.

    It is paused and drained meanwhile, and what runs is asked to stop.
    """
    from msgspec import structs

    from tasksched.model.names import check_name

    check_name(name, "/tenant")
    timeout_ms = duration_ms(timeout, "/timeout")
    if not yes:
        _retyped(name)

    async def run(backend: Any, tenant: str) -> Any:
        from tasksched.client.limits import purged

        limits = backend.limits
        return await purged(
            lambda: limits.purge_tenant(tenant, name), name, timeout_ms or 0, _told_once()
        )

    found = ask(run)
    facts = [("tenant", name), ("tasks", found.tasks), ("recurring tasks", found.recurring_tasks),
             ("webhooks", found.webhooks), ("api keys", found.api_keys)]  # fmt: skip
    output.emit({"tenant": name, **structs.asdict(found)}, output.details(facts))


def _retyped(name: str) -> None:
    """Asks a person to type the name again; where there is none, that is wrong usage."""
    if not sys.stdin.isatty():
        raise click.UsageError("Without a terminal nobody can be asked: give --yes.")
    question = f"All of tenant {name} is removed for ever. Type its name"
    if click.prompt(question, err=True) != name:
        raise click.UsageError(f"That is not {name}: nothing was done.")


def _told_once() -> Callable[[Any], None]:
    """Says how far it is, where that has changed."""
    last = ""

    def tell(found: Any) -> None:
        nonlocal last
        text = f"{found.tasks} tasks removed, {found.left} left, {found.running} of them running"
        if text != last:
            note(text)
        last = text

    return tell


def _tenant_verb(name: str, verb: str) -> None:
    _show_tenant(lambda backend, tenant: backend.limits.tenant_verb(tenant, name, verb))


def _show_tenant(work: Callable[[Any, str], Any]) -> None:
    state = ask(work)
    facts = [("tenant", state.name), ("rules", _rules(state)), ("unfinished", state.unfinished),
             ("running", state.running), ("version", state.version)]  # fmt: skip
    output.emit(_tenant_data(state), output.details(facts))


def _tenant_data(state: Any) -> dict[str, Any]:
    from msgspec import structs

    usage = {"unfinished": state.unfinished, "running": state.running}
    return {"tenant": state.name, "version": state.version, **structs.asdict(state.rules), "usage": usage}  # fmt: skip


# -- everything ---------------------------------------------------------------------------------


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Everything: needed, so that nobody slips.")
@shared
def pause(*, is_all: bool) -> None:
    """Nothing starts in the whole namespace; what runs goes on."""
    _set_everything(is_all, paused=True)


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Everything: needed, so that nobody slips.")
@shared
def resume(*, is_all: bool) -> None:
    """End the pause of everything; what is paused by itself stays so."""
    _set_everything(is_all, paused=False)


def _set_everything(is_all: bool, *, paused: bool) -> None:
    if not is_all:
        raise click.UsageError("Say --all; one queue: tasksched queues pause QUEUE.")

    async def run(backend: Any, tenant: str) -> None:
        await backend.limits.set_everything(tenant, paused=paused)

    ask(run)
    output.emit({"paused": paused}, "everything is paused" if paused else "everything goes on")


# -- options ------------------------------------------------------------------------------------


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """What the options set, as a program would say it. Raises Invalid."""
    given = {
        name: _number(name, value) if isinstance(value, str) else value
        for name, value in options.items()
        if value is not None
    }
    if not given:
        raise click.UsageError("Say what to set.")
    return given


def _number(name: str, text: str) -> float | int | None:
    if text.lower() == NONE:
        return None
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise Invalid(f"a number or {NONE!r} is needed", f"/{name}") from None
