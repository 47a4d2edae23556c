"""reencrypt: everything that is stored, under the current key."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from typing import Any

import click

from tasksched.cli import output
from tasksched.cli.group import note, shared
from tasksched.cli.session import ask
from tasksched.errors import Invalid


@click.command()
@click.option("--dry-run", is_flag=True, help="Count only.")
@shared
def reencrypt(*, dry_run: bool) -> None:
    """Encrypt all payloads and results with the first of TASKSCHED_ENCRYPTION_KEYS.

    Works on a live system and may be repeated. Exits 1 while something needs another key than the
    first, or could not be read.
    """

    async def run(backend: Any, _: str) -> Any:
        from tasksched.client.direct import Direct
        from tasksched.commands.reseal import reseal_all

        if not isinstance(backend, Direct):
            raise Invalid("reencrypt works on Redis itself: give its URL", "/url")
        session = backend.session
        return await reseal_all(session.store, session.bodies, dry_run=dry_run)

    found = ask(run)
    names = ("bodies", "up_to_date", "resealed", "was_plain", "unknown", "broken", "changed")
    facts = [("current key", found.current), *((n, str(getattr(found, n))) for n in names)]
    output.emit(found, output.details(facts))
    left = found.unknown + found.broken + found.changed
    if left:
        note(f"{left} could not be encrypted with the current key")
    if left or (dry_run and found.resealed):
        click.get_current_context().exit(1)
