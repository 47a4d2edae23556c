"""Commands about webhooks: endpoints, their secrets, and what was sent to them."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from typing import Any

import click

from tasksched.cli import output
from tasksched.cli.group import Commands, note, shared
from tasksched.cli.session import ask, number
from tasksched.cli.tasks import STATES, confirm, version_option

event_option = click.option(
    "--event", "events", multiple=True, metavar="NAME", help="As task.failed; may be repeated."
)
overlap_option = click.option(
    "--overlap", metavar="DURATION", help="So long the old secret signs along (default: 1d)."
)


@click.group(cls=Commands)
def webhooks() -> None:
    """Where the tenant's events are sent, signed as Standard Webhooks."""


@webhooks.command("list")
@shared
def list_() -> None:
    """List the webhook endpoints, the oldest first."""

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.http.webhooks import view_of

        found = await backend.webhooks.list(tenant)
        rows = [(e.id, _standing(e), ",".join(e.events), e.url) for e in found]
        text = output.table(("ID", "STATE", "EVENTS", "URL"), rows) if rows else ""
        output.emit({"items": [view_of(each) for each in found]}, text)

    ask(run)


@webhooks.command()
@click.argument("receiver", metavar="RECEIVER")
@event_option
@click.option("--description", default="", help="A line for people.")
@click.option("--secret", metavar="whsec_…|@FILE|-", help="Its secret (default: a new one).")
@click.option("--disabled", is_flag=True, help="Send nothing yet.")
@shared
def create(
    receiver: str, events: tuple[str, ...], description: str, secret: str | None, *, disabled: bool
) -> None:
    """Make a webhook endpoint for the URL RECEIVER, and show its secret: once.

    \b
    tasksched webhooks create https://example.com/hook --event task.failed
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.cli.session import read_text
        from tasksched.commands.endpoints import EndpointSpec
        from tasksched.model.endpoint import check_description
        from tasksched.model.http_rules import check_url
        from tasksched.model.receivers import check_events
        from tasksched.model.signature import check_secret

        own = None if secret is None else check_secret(read_text(secret).decode().strip())
        spec = EndpointSpec(
            url=check_url(receiver),
            events=check_events(events),
            description=check_description(description),
            enabled=not disabled,
            secret=own,
        )
        _show(await backend.webhooks.create(tenant, spec))

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@shared
def get(webhook_id: str) -> None:
    """Show a webhook endpoint."""

    async def run(backend: Any, tenant: str) -> None:
        _show(await backend.webhooks.get(tenant, webhook_id))

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--to", "receiver", metavar="URL", help="Send there.")
@event_option
@click.option("--description", help="A line for people.")
@version_option
@shared
def update(
    webhook_id: str,
    receiver: str | None,
    events: tuple[str, ...],
    description: str | None,
    version: int | None,
) -> None:
    """Change a webhook endpoint; what is not named stays."""
    if receiver is None and not events and description is None:
        raise click.UsageError("Say what to change: --to, --event, --description.")

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.commands.endpoints import EndpointChanges
        from tasksched.model.endpoint import check_description
        from tasksched.model.http_rules import check_url
        from tasksched.model.receivers import check_events

        given: dict[str, Any] = {}
        if receiver is not None:
            given["url"] = check_url(receiver)
        if events:
            given["events"] = check_events(events)
        if description is not None:
            given["description"] = check_description(description)
        changes = EndpointChanges(**given)
        _show(await backend.webhooks.update(tenant, webhook_id, changes, version=version))

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@version_option
@shared
def enable(webhook_id: str, version: int | None) -> None:
    """Send to a webhook endpoint again."""
    _turn(webhook_id, version, enabled=True)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@version_option
@shared
def disable(webhook_id: str, version: int | None) -> None:
    """Send nothing more to a webhook endpoint, until it is enabled."""
    _turn(webhook_id, version, enabled=False)


def _turn(webhook_id: str, version: int | None, *, enabled: bool) -> None:
    async def run(backend: Any, tenant: str) -> None:
        from tasksched.commands.endpoints import EndpointChanges

        changes = EndpointChanges(enabled=enabled)
        _show(await backend.webhooks.update(tenant, webhook_id, changes, version=version))

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@version_option
@shared
def delete(webhook_id: str, version: int | None, *, yes: bool) -> None:
    """Remove a webhook endpoint: what waits to be delivered to it fails."""
    if not yes:
        confirm(f"Remove webhook endpoint {webhook_id}?")

    async def run(backend: Any, tenant: str) -> None:
        await backend.webhooks.remove(tenant, webhook_id, version=version)
        output.emit({"webhook_id": webhook_id}, "")
        note("removed")

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID", required=False)
@click.option("--of-tenant", is_flag=True, help="The tenant's own secret, not an endpoint's.")
@overlap_option
@version_option
@shared
def rotate(
    webhook_id: str | None, overlap: str | None, version: int | None, *, of_tenant: bool
) -> None:
    """Give a webhook endpoint, or the tenant, a new secret, and show it: once."""
    if (webhook_id is None) != of_tenant:
        raise click.UsageError("Name a webhook endpoint, or say --of-tenant.")

    async def run(backend: Any, tenant: str) -> None:
        overlap_ms = _overlap_ms(overlap)
        if webhook_id is None:
            secret = await backend.webhooks.rotate_tenant_secret(tenant, overlap_ms=overlap_ms)
            output.emit({"tenant": tenant, "secret": secret}, secret)
            return
        _show(
            await backend.webhooks.rotate_secret(
                tenant, webhook_id, overlap_ms=overlap_ms, version=version
            )
        )

    ask(run)


def _overlap_ms(overlap: str | None) -> int:
    from tasksched.model.durations import parse_duration
    from tasksched.model.endpoint import OVERLAP_MAX_MS, OVERLAP_MS

    if overlap is None:
        return OVERLAP_MS
    return parse_duration(number(overlap), "/overlap", most_ms=OVERLAP_MAX_MS)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@shared
def test(webhook_id: str) -> None:
    """Send a webhook endpoint the event webhook.test."""

    async def run(backend: Any, tenant: str) -> None:
        _show_delivery(await backend.webhooks.test(tenant, webhook_id))

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--status", type=click.Choice(STATES, case_sensitive=False), help="In this state.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--cursor", help="Go on after an earlier page.")
@shared
def deliveries(webhook_id: str, status: str | None, limit: int, cursor: str | None) -> None:
    """List what was sent to a webhook endpoint, or shall be."""

    async def run(backend: Any, tenant: str) -> None:
        from tasksched.http.webhooks import delivery_view

        page = await backend.webhooks.deliveries(
            tenant,
            webhook_id,
            status=() if status is None else (status,),
            limit=limit,
            cursor=cursor,
        )
        rows = [
            (d.id, output.state(d.status), d.event, d.attempts, output.moment(d.last_attempt_ms),
             d.error.message if d.error else "")
            for d in page.items
        ]  # fmt: skip
        header = ("ID", "STATUS", "EVENT", "ATTEMPTS", "LAST ATTEMPT", "ERROR")
        if page.next_cursor is not None:
            note(f"more follows: --cursor {page.next_cursor}")
        items = [delivery_view(each) for each in page.items]
        data = {"items": items, "next_cursor": page.next_cursor}
        output.emit(data, output.table(header, rows) if rows else "")

    ask(run)


@webhooks.command()
@click.argument("webhook_id", metavar="ID")
@click.argument("delivery_id", metavar="DELIVERY")
@shared
def replay(webhook_id: str, delivery_id: str) -> None:
    """Send a message to its webhook endpoint again."""

    async def run(backend: Any, tenant: str) -> None:
        _show_delivery(await backend.webhooks.replay(tenant, webhook_id, delivery_id))

    ask(run)


def _standing(endpoint: Any) -> str:
    return "enabled" if endpoint.enabled else "disabled"


def _show(endpoint: Any) -> None:
    from tasksched.http.webhooks import view_of

    pairs = (
        ("id", endpoint.id),
        ("url", endpoint.url),
        ("events", ", ".join(endpoint.events)),
        ("state", _standing(endpoint)),
        ("because", endpoint.disabled_reason),
        ("description", endpoint.description),
        ("version", endpoint.version),
        ("secret", endpoint.secret),
    )
    output.emit(view_of(endpoint), output.details(pairs))
    if endpoint.secret is not None:
        note("the secret is not shown again")


def _show_delivery(delivery: Any) -> None:
    from tasksched.http.webhooks import delivery_view

    output.emit(delivery_view(delivery), f"{delivery.id}  {output.state(delivery.status)}")
