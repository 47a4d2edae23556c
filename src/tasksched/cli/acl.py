"""acl: the users of Redis, one for each role, as lines of its ACL file.

Passwords are read from stdin and leave as hashes; none is ever printed. Without one a user is ``off``.
"""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

import hashlib
import re
import sys

import click

from tasksched.cli import output
from tasksched.cli.group import note, shared
from tasksched.cli.session import settings
from tasksched.errors import Invalid

HASH = re.compile(r"#?([0-9a-f]{64})")


@click.command()
@click.option("--role", default="all", show_default=True, metavar="ROLE",
              help="api, scheduler, worker, producer, reader, admin; several for one user with "
                   "a plus (worker+producer); or all.")  # fmt: skip
@click.option("--password-stdin", is_flag=True,
              help="Read passwords, or their SHA-256 as 64 hex digits, from stdin: one a line, in "
                   "the order of the users.")  # fmt: skip
@click.option("--redis-7.0", "for_7_0", is_flag=True,
              help="Leave out what Redis 7.0 does not know.")  # fmt: skip
@shared
def acl(role: str, *, password_stdin: bool, for_7_0: bool) -> None:
    """Print the Redis users that the roles need, as an ACL file.

    A user without a password is off: it is there, and cannot log in.
    """
    from tasksched.store.acl import ROLES, user_line

    users = list(ROLES) if role == "all" else [role]
    hashes = _hashes(len(users)) if password_stdin else [None] * len(users)
    namespace = settings().namespace
    lines = [
        user_line(user, namespace, known, for_7_0=for_7_0)
        for user, known in zip(users, hashes, strict=True)
    ]
    output.emit({"items": lines}, "\n".join(lines))
    if not password_stdin:
        note("these users are off: give them passwords with --password-stdin")
    note("the user `default` stays as it is: see docs/security.md")


def _hashes(count: int) -> list[str]:
    lines = [line for line in sys.stdin.read().splitlines() if line]
    if len(lines) != count:
        raise Invalid(f"{count} passwords are wanted on stdin, one a line; got {len(lines)}")
    return [_hash(line) for line in lines]


def _hash(text: str) -> str:
    found = HASH.fullmatch(text)
    return found[1] if found else hashlib.sha256(text.encode()).hexdigest()
