"""The group all commands belong to, the options they share, and how they end.

``--url``, ``--namespace``, ``--tenant``, ``--json`` and ``-q`` may stand before the command or after
it. Whatever a command raises ends here: an error of ours with its line and its exit code (2 usage,
3 not found, 4 conflict, 5 not allowed, 6 unreachable, 1 the rest), Ctrl-C with 130.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tasksched.errors import Invalid, TaskschedError

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130


@dataclass(slots=True)
class Said:
    """What the shared options say."""

    url: str | None = None
    namespace: str | None = None
    tenant: str | None = None
    as_json: bool = False
    quiet: bool = False
    traceback: bool = False


def said() -> Said:
    """Of the command that runs."""
    return click.get_current_context().ensure_object(Said)


def note(text: str) -> None:
    """Chatter: to stderr, and not with ``-q``."""
    if not said().quiet:
        click.echo(text, err=True)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def keep(context: click.Context, _: click.Parameter, value: Any) -> Any:
        if value:
            setattr(context.ensure_object(Said), name, value)
        return value

    return keep


def shared(command: F) -> F:
    """The options every command takes."""
    for option in (
        click.option("--url", metavar="URL", callback=_keep("url"), expose_value=False,
                     help="Redis, embedded:DIR or an API (default: TASKSCHED_URL, else the "
                          "server of `tasksched dev`)."),
        click.option("--namespace", metavar="NAME", callback=_keep("namespace"),
                     expose_value=False, help="Namespace in Redis (default: ts)."),
        click.option("--tenant", metavar="NAME", callback=_keep("tenant"), expose_value=False,
                     help="Whose tasks (default: default)."),
        click.option("--json", is_flag=True, callback=_keep("as_json"), expose_value=False,
                     help="Print JSON."),
        click.option("-q", "--quiet", is_flag=True, callback=_keep("quiet"), expose_value=False,
                     help="Print data only, no remarks."),
        click.option("--traceback", is_flag=True, callback=_keep("traceback"),
                     expose_value=False, hidden=True),
    ):  # fmt: skip
        command = option(command)
    return command


class Commands(click.Group):
    """Turns what commands raise into a line and an exit code; lists commands in their own order."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if ctx.ensure_object(Said).traceback:
                raise
            ctx.exit(_tell(error))


def _tell(error: Exception) -> int:
    """Says what went wrong; the exit code that says it to programs."""
    if isinstance(error, TimeoutError):
        click.echo(f"error: {error}", err=True)
        return 1
    if not isinstance(error, TaskschedError):
        click.echo(f"error: {type(error).__name__}: {error}", err=True)
        return 1
    click.echo(f"error: {error.detail}", err=True)
    if isinstance(error, Invalid):
        for problem in error.problems:
            if problem.pointer:
                more = "" if problem.detail == error.detail else f": {problem.detail}"
                click.echo(f"  at {problem.pointer}{more}", err=True)
    return error.exit_code


def _no_color(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        context.color = False


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--no-color", envvar="NO_COLOR", is_flag=False, flag_value="1", default=None, metavar="",
    expose_value=False, callback=_no_color, is_eager=True, help="No colours (also NO_COLOR).",
)  # fmt: skip
@shared
def main() -> None:
    """Durable tasks on Redis: now, later, again.

    `tasksched dev` runs everything in one place. Everything else reads TASKSCHED_URL.
    """
