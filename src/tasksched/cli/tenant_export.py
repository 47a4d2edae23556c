"""tenants export: all that a tenant has, a JSON line each, to stdout or into a file."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import click

from tasksched.cli.group import note, shared
from tasksched.cli.session import ask

END = '{"end":'


@click.command("export")
@click.argument("name")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write this file, once the export is whole, instead of stdout.",
)  # fmt: skip
@shared
def export_tenant(name: str, output: Path | None) -> None:
    """Write all that a tenant has, a JSON line each, in the shapes of the API.

    The last line is {"end": …}; without it the export is not whole, and the exit code is not 0.
    """
    from tasksched.model.names import check_name

    check_name(name, "/tenant")

    async def run(backend: Any, tenant: str) -> None:
        if output is None:
            await _written(_lines(backend, tenant, name), sys.stdout)
            return
        partial = output.with_name(f"{output.name}.part")
        with partial.open("w") as file:
            await _written(_lines(backend, tenant, name), file)
        partial.replace(output)
        note(f"{output} is written")

    ask(run)


async def _written(lines: AsyncGenerator[str, None], file: Any) -> None:
    from tasksched.errors import Unavailable

    last = ""
    async for text in lines:
        file.write(text)
        last = text
    file.flush()
    if not last.startswith(END):
        raise Unavailable("the export ended early: what was written is not whole")


async def _lines(backend: Any, tenant: str, name: str) -> AsyncGenerator[str, None]:
    """Over HTTP as the API sends them; at Redis itself they are made here."""
    from tasksched.client.direct import Direct

    if not isinstance(backend, Direct):
        async for line in backend.limits.export_tenant(tenant, name):
            yield line
        return
    from tasksched.commands.endpoints import Endpoints
    from tasksched.commands.recurring import Recurring
    from tasksched.commands.tenants import Tenants
    from tasksched.http.tenant_export import Source, export_of

    session = backend.session
    store, bodies = session.store, session.bodies
    source = Source(
        Tenants(store),
        Recurring(store, bodies),
        Endpoints(store, bodies),
        session.tasks,
        session.settings,
    )
    async for part in export_of(source, name):
        for line in part.decode().splitlines(keepends=True):
            yield line
