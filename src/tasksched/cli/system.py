"""Commands about the whole: stats, workers, doctor, config, version."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from typing import Any

import click

from tasksched.cli import output
from tasksched.cli.group import note, said, shared
from tasksched.cli.session import ask, settings
from tasksched.cli.tasks import STATES
from tasksched.errors import Invalid

SECRETS = ("secret", "token", "password", "key")
NO_SECRETS = ("key_memory_ms", "redis_key")
MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "refuse": ("refuse", "red")}


@click.command()
@shared
def stats() -> None:
    """Counters over all tenants: tasks now, who works, how far behind."""

    async def run(backend: Any, _: str) -> dict[str, Any]:
        found: dict[str, Any] = await backend.stats()
        return found

    found = ask(run)
    states = [(output.state(name), found["by_status"].get(name, 0)) for name in STATES]
    facts = [*states, ("workers", found["workers"]), ("schedulers", found["schedulers"]),
             ("lag", found["lag"] or "none")]  # fmt: skip
    output.emit(found, output.details((name, str(value)) for name, value in facts))


@click.command()
@shared
def workers() -> None:
    """The workers that live."""

    async def run(backend: Any, _: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await backend.workers()
        return found

    found = ask(run)
    columns = ("worker", "host", "pid", "queues", "routes", "running", "slots")
    rows = [[_cell(each.get(column, "")) for column in columns] for each in found]
    header = [column.upper() for column in columns]
    output.emit({"items": found}, output.table(header, rows) if rows else "")
    if not found:
        note("no worker is alive")


def _cell(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@click.command()
@shared
def doctor() -> None:
    """Look whether the server can be trusted with tasks. Exits 1 if it cannot."""

    async def run(backend: Any, _: str) -> list[Any]:
        from tasksched.client.direct import Direct
        from tasksched.store.checks import check_server

        if not isinstance(backend, Direct):
            raise Invalid("doctor looks at the server itself: give the URL of Redis", "/url")
        return await check_server(backend.session.gateway)

    found = ask(run)
    rows = [(_mark(each.level), each.name, each.text) for each in found]
    data = {"items": [{"level": e.level, "name": e.name, "text": e.text} for e in found]}
    output.emit(data, output.table(("LEVEL", "CHECK", "FOUND"), rows))
    if any(each.level not in {"ok", "warn"} for each in found):
        click.get_current_context().exit(1)


def _mark(level: str) -> str:
    word, colour = MARKS.get(level, (level, "red"))
    return click.style(word, fg=colour)


@click.group()
def config() -> None:
    """The settings."""


@config.command()
@shared
def show() -> None:
    """The effective settings, and where each came from. Secrets are masked."""
    from dataclasses import fields

    from tasksched.settings import variable

    effective = settings()
    items = [
        {
            "name": field.name.removesuffix("_ms"),
            "variable": variable(field.name),
            "value": _shown(field.name, getattr(effective, field.name)),
            "source": effective.sources.get(field.name, "default"),
        }
        for field in fields(effective)
        if field.name != "sources"
    ]
    rows = [(item["variable"], _cell(item["value"]), item["source"]) for item in items]
    output.emit({"items": items}, output.table(("VARIABLE", "VALUE", "SOURCE"), rows))


def _shown(name: str, value: Any) -> Any:
    if name == "url":
        from tasksched.store.address import masked

        return masked(value)
    if name not in NO_SECRETS and any(word in name for word in SECRETS):
        return "***" if value else ""
    if name.endswith("_ms"):
        return output.length(value)
    return list(value) if isinstance(value, tuple) else value


@click.command()
@shared
def version() -> None:
    """The versions of tasksched and of what it stands on."""
    import platform
    from importlib.metadata import version as installed

    found = {name: installed(name) for name in ("tasksched", "redis", "hiredis", "tzdata")}
    found["python"] = platform.python_version()
    brief = ", ".join(f"{name} {each}" for name, each in found.items() if name != "tasksched")
    output.emit(found, f"tasksched {found['tasksched']}" + ("" if said().quiet else f" ({brief})"))
