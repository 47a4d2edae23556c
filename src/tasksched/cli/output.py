"""Output: tasks as a person reads them, or as the API writes them (``--json``).

JSON has the very shape of the HTTP API, from the same code. Text is for eyes and may change.
"""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Iterable, Sequence
from typing import Any

import click

from tasksched.cli.group import said

COLOURS = {
    "PENDING": "cyan", "QUEUED": "cyan", "RUNNING": "yellow",
    "SUCCESS": "green", "FAILED": "red", "CANCELLED": "bright_black",
}  # fmt: skip
VALUE_MAX = 2_000


def emit(data: Any, text: str) -> None:
    """One answer: as JSON where that was asked for, else the text (nothing if it is empty)."""
    if said().as_json:
        click.echo(json(data))
    elif text:
        click.echo(text)


def json(data: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def whole(task: Any, log: Sequence[Any] | None = None) -> Any:
    """The task as ``GET /tasks/{id}`` shows it, with its attempts as ``log`` where they are given."""
    import msgspec

    from tasksched.http import render

    if log is None:
        return render.whole_view(task)
    view = msgspec.json.decode(render.encode(render.whole_view(task)))
    return {**view, "log": msgspec.json.decode(render.attempts(list(log)))["items"]}


def brief(task: Any) -> Any:
    """The task as a list shows it, without payload and result."""
    from tasksched.http import render

    return render.task_view(task)


def state(status: str) -> str:
    return click.style(status, fg=COLOURS.get(status))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they must be; colours do not count."""
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(click.unstyle(line[n])) for line in lines) for n in range(len(header))]
    return "\n".join(
        "  ".join(
            cell + " " * (width - len(click.unstyle(cell)))
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def details(pairs: Iterable[tuple[str, object]]) -> str:
    """``name  value`` lines, without those that say nothing."""
    kept = [(name, str(value)) for name, value in pairs if value not in {None, ""}]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in kept)


def moment(ms: int | None) -> str:
    from tasksched.model.instants import format_instant

    return "" if ms is None else format_instant(ms)


def length(ms: int | None) -> str:
    from tasksched.model.durations import format_duration

    return "" if ms is None else format_duration(ms)


def target(task: Any) -> str:
    """The handler with its version, or the request, or the event that is told."""
    found = task.target
    if hasattr(found, "cause"):
        return f"notification {found.cause.event}"
    return f"{found.method} {found.url}" if hasattr(found, "url") else found.route


def concurrency(found: Any) -> str:
    """A concurrency key with its limit."""
    return "" if found is None else f"{found.key}, at most {found.limit}"


def body(data: bytes | None) -> str:
    """A payload or a result as one line of JSON, cut where it is long."""
    import msgspec

    from tasksched.errors import Invalid
    from tasksched.model import codec

    if not data:
        return ""
    try:
        text = msgspec.json.encode(codec.decode(data)).decode()
    except (Invalid, TypeError, ValueError):
        return f"({len(data)} bytes that cannot be read)"
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}… ({len(text)} characters)"
