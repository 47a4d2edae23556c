"""Commands that stay: dev, api, scheduler, worker. Each blocks until SIGTERM or Ctrl-C.

They only lay their flags over the settings; what the roles are is ``tasksched.app`` and
``tasksched.dev``. Logs go to stderr, as JSON lines where nobody looks.
"""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tasksched.cli.group import said, shared
from tasksched.cli.session import duration_ms, settings

F = TypeVar("F", bound=Callable[..., Any])

PORT = click.IntRange(0, 65_535)


def redis(command: F) -> F:
    """The options of roles that need Redis itself."""
    for option in (
        click.option("--redis", "redis_url", metavar="URL", help="As --url, for Redis alone."),
        click.option("--unsafe-redis", is_flag=True, default=None,
                     help="Start on a server whose configuration may lose tasks."),
    ):  # fmt: skip
        command = option(command)
    return command


def _settings(**flags: Any) -> Any:
    """The settings with the flags of a role over them, and the log set up."""
    from tasksched import log

    redis_url = flags.pop("redis_url", None)
    effective = settings().with_flags(url=redis_url, **flags)
    log.set_up("warning" if said().quiet else effective.log_level)
    return effective


def _end(status: int) -> None:
    click.get_current_context().exit(status)


@click.command()
@click.argument("app", required=False)
@click.option("--port", type=PORT, help="Of the API (default: 8000).")
@click.option("--host", help="Of the API (default: 127.0.0.1).")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path),
              default=Path(".tasksched"), show_default=True, help="Where the tasks are kept.")  # fmt: skip
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True)
@shared
def dev(app: str | None, port: int | None, host: str | None, data_dir: Path, workers: int) -> None:
    """Run everything in one place, on a durable server of its own.

    APP is module:app or path/file.py:app; without it only HTTP targets run.
    """
    from tasksched.dev import run_dev

    effective = _settings(port=port, host=host)
    _end(run_dev(effective, app=app, workers=workers, data_dir=data_dir))


@click.command()
@click.option("--host", help="Address to listen on (default: 127.0.0.1).")
@click.option("--port", type=PORT, help="Port to listen on (default: 8000).")
@click.option("--scheduler", is_flag=True, help="Run a scheduler in the same process.")
@redis
@shared
def api(*, scheduler: bool, **flags: Any) -> None:
    """Serve the HTTP API."""
    from tasksched.app import run_api

    _end(run_api(_settings(**flags), with_scheduler=scheduler))


@click.command()
@redis
@shared
def scheduler(**flags: Any) -> None:
    """Hand over what is due, and take back what dead workers hold."""
    from tasksched.app import run_scheduler

    _end(run_scheduler(_settings(**flags)))


@click.command()
@click.argument("app", required=False)
@click.option("--queues", metavar="A,B", help="Only these queues (default: all).")
@click.option("--concurrency", type=int, metavar="N", help="Runs at a time (default: 100).")
@click.option("--grace", metavar="DURATION", help="To finish in on SIGTERM (default: 25s).")
@click.option("--processes", type=int, metavar="N", help="Worker processes (default: 1).")
@click.option(
    "--prune",
    is_flag=True,
    help="Remove recurring tasks that APP declared once and does not any more.",
)
@redis
@shared
def worker(
    app: str | None, queues: str | None, grace: str | None, *, prune: bool, **flags: Any
) -> None:
    """Run tasks with the handlers of APP, and HTTP targets.

    APP is module:app or path/file.py:app; without it only HTTP targets run.
    """
    from tasksched.app import run_worker

    named = None if queues is None else tuple(q.strip() for q in queues.split(",") if q.strip())
    grace_ms = duration_ms(grace, "/grace")
    _end(run_worker(app, _settings(queues=named, grace_ms=grace_ms, **flags), prune=prune))
