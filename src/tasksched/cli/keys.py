"""Commands about API keys and the audit. Keys are made at Redis itself: nothing else can make the first."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from tasksched.cli import output
from tasksched.cli.group import Commands, note, said, shared
from tasksched.cli.session import ask, duration_ms
from tasksched.cli.tasks import confirm
from tasksched.errors import Invalid

T = TypeVar("T")


@click.group(cls=Commands)
def keys() -> None:
    """API keys: who may ask the HTTP API for what. As soon as one exists, it serves nobody without."""


def _at_redis(work: Callable[[Any], Awaitable[T]]) -> T:
    """``work(keys)`` on the keys of the namespace."""

    async def run(backend: Any, _: str) -> T:
        from tasksched.client.direct import Direct
        from tasksched.commands.keys import Keys

        if not isinstance(backend, Direct):
            raise Invalid("keys are made at Redis itself: give its URL", "/url")
        return await work(Keys(backend.session.store))

    return ask(run)


@keys.command()
@click.argument("name", metavar="NAME", default="key")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE",
              help="tasks:read, tasks:write, recurring:read, recurring:write, operate, admin, metrics; "
                   "may be repeated, or with commas (default: the first four).")  # fmt: skip
@click.option("--expires", metavar="DURATION", help="It is valid for so long (default: for ever).")
@shared
def create(name: str, scopes: tuple[str, ...], expires: str | None) -> None:
    """Make a key, and show it: once. NAME is for people.

    It is bound to --tenant. One with the scope admin is for every tenant where none is named.

    \b
    tasksched keys create billing --tenant acme --scope tasks:write
    tasksched keys create root --scope admin
    """  # noqa: D301 - a backslash b is click's mark for lines to be kept
    from tasksched.cli.session import settings
    from tasksched.commands.keys import KeySpec
    from tasksched.model.apikey import ANY_TENANT, USUAL, check_scopes, check_tenant

    named = [part for each in scopes for part in each.split(",") if part]
    checked = check_scopes(named) if named else USUAL
    spelled = said().tenant
    if spelled == ANY_TENANT:
        said().tenant = None  # it is no tenant that requests could be made for
    if spelled is None:
        spelled = ANY_TENANT if "admin" in checked else settings().tenant
    tenant = check_tenant(spelled, checked)
    life_ms = duration_ms(expires, "/expires")
    spec = KeySpec(name=name, tenant=tenant, scopes=checked, life_ms=life_ms)
    _show(_at_redis(lambda found: found.create(spec)))


@keys.command("list")
@shared
def list_() -> None:
    """List the keys, the oldest first; of a key itself nothing is shown."""
    found = _at_redis(lambda keys: keys.list())
    rows = [
        (e.id, e.name, e.tenant, e.state, ",".join(e.scopes), output.moment(e.last_used_ms) or "-")
        for e in found
    ]
    header = ("ID", "NAME", "TENANT", "STATE", "SCOPES", "LAST USED")
    output.emit({"items": [_view(e) for e in found]}, output.table(header, rows) if rows else "")


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared
def revoke(key_id: str, *, yes: bool) -> None:
    """Make a key invalid for good, within seconds."""
    if not yes:
        confirm(f"Revoke the key {_id_of(key_id)}?")
    found = _at_redis(lambda keys: keys.revoke(_id_of(key_id)))
    output.emit(_view(found), "")
    note(f"the key {found.id} ({found.name}) is revoked")


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap", metavar="DURATION", help="The old one is valid so long yet (default: 1d)."
)
@shared
def rotate(key_id: str, overlap: str | None) -> None:
    """Give a key a new secret, and show it: once."""
    from tasksched.model.apikey import OVERLAP_MS

    given_ms = duration_ms(overlap, "/overlap")
    overlap_ms = OVERLAP_MS if given_ms is None else given_ms
    _show(_at_redis(lambda keys: keys.rotate(_id_of(key_id), overlap_ms=overlap_ms)))


def _id_of(text: str) -> str:
    """The id of a key, also where the whole key was given; its secret is not repeated."""
    return text.split("_")[1] if text.startswith("ts_") else text


def _show(found: Any) -> None:
    """The key goes to stdout alone, so that it can be piped into a secret store."""
    output.emit({**_view(found), "key": found.text}, found.text)
    note(
        f"the key {found.id} ({found.name}) for tenant {found.tenant}: {', '.join(found.scopes)}; "
        "it is shown this once"
    )


def _view(found: Any) -> dict[str, Any]:
    def moment(ms: int | None) -> str | None:
        return output.moment(ms) or None

    return {
        "key_id": found.id,
        "name": found.name,
        "tenant": found.tenant,
        "scopes": list(found.scopes),
        "state": found.state,
        "created_at": moment(found.created_ms),
        "expires_at": moment(found.expires_ms),
        "revoked_at": moment(found.revoked_ms),
        "rotated_at": moment(found.rotated_ms),
        "last_used_at": moment(found.last_used_ms),
    }


@click.command()
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--cursor", metavar="CURSOR", help="Go on after a page.")
@shared
def audit(limit: int, cursor: str | None) -> None:
    """List what was done with the rights of an operator, the latest first."""

    async def run(backend: Any, _: str) -> Any:
        return await backend.audit(limit, cursor)

    found = ask(run)
    rows = [
        (e["at"], e["key_id"] or "-", e["tenant"], e["route"], e["object"], e["outcome"])
        for e in found["items"]
    ]
    header = ("TIME", "KEY", "TENANT", "ROUTE", "OBJECT", "OUTCOME")
    output.emit(found, output.table(header, rows) if rows else "")
    if found["next_cursor"]:
        note(f"more: --cursor {found['next_cursor']}")
