"""Permissions: what the Redis user of a connection is denied, asked before it is needed.

``ACL DRYRUN`` tells without running anything. Where that is not allowed (managed servers), the commands
are queued in a transaction that is discarded: Redis checks them when they are queued. Where neither is,
nothing is known, and that is said. Invariant: nothing here changes data.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tasksched import log
from tasksched.errors import TaskschedError, Unsafe
from tasksched.store.acl import Role, every_command, missing_of
from tasksched.store.connect import Gateway, is_denial
from tasksched.store.keys import ShardKeys

WHERE: Final = "docs/security.md has the rules, and `tasksched acl` prints them"

_EVALS = frozenset({"EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO"})
_log = log.get("permissions")


class Permissions(NamedTuple):
    """``denied``: of the commands that tasksched sends. ``is_known``: the server could be asked."""

    user: str
    denied: frozenset[str]
    is_known: bool


async def permissions(gateway: Gateway, namespace: str) -> Permissions:
    """What our user may do in the namespace. Raises Unavailable."""
    try:
        user = _text(await gateway.command("ACL", "WHOAMI"))
        probes = await _probes(gateway, namespace)
        replies = await gateway.pipeline([("ACL", "DRYRUN", user, *p) for p in probes.values()])
    except TaskschedError as error:
        if error.retryable:
            raise
        return await _by_queueing(gateway, namespace)
    # A denial is no error here but a sentence, which differs by server; a permission is always OK.
    denied = [name for name, said in zip(probes, replies, strict=True) if _text(said) != "OK"]
    return Permissions(user, frozenset(denied), is_known=True)


async def require_roles(
    gateway: Gateway, namespace: str, roles: Sequence[Role], *, unsafe: bool
) -> None:
    """Finds out what is denied, which ``gateway`` then refuses to start.

    Raises Unsafe where the roles need some of it, unless ``unsafe``; Unavailable.
    """
    found = await permissions(gateway, namespace)
    gateway.denied, gateway.knows_denied = found.denied, found.is_known
    if missing := missing_of(roles, found.denied):
        text = (
            f"the Redis user {found.user or 'of this role'} may not do what {'+'.join(roles)} needs in "
            f"namespace {namespace}: {', '.join(missing)}; {WHERE}"
        )
        if not unsafe:
            raise Unsafe(text)
        _log.warning("permissions.missing", finding=text)


async def _probes(gateway: Gateway, namespace: str) -> dict[str, list[Any]]:
    """Each command that the server has → one call of it, well formed, on a key of the namespace."""
    names = sorted(every_command())
    # As bytes: the library would make something else of the reply, and fail at unknown commands.
    told = await gateway.command(b"COMMAND", "INFO", *names)
    key = ShardKeys.of(namespace, 0).clock
    return {
        name: _example(name, key, int(about[1]))
        for name, about in zip(names, told, strict=True)
        if about is not None
    }


def _example(name: str, key: str, arity: int) -> list[Any]:
    words: list[Any] = list(name.split("|"))
    if name in _EVALS:
        return [*words, "return 1", 1, key]
    return [*words, *[key] * (abs(arity) - len(words))]


async def _by_queueing(gateway: Gateway, namespace: str) -> Permissions:
    try:
        probes = await _probes(gateway, namespace)
    except TaskschedError as error:
        if error.retryable:
            raise
        return Permissions("", frozenset(), is_known=False)
    replies = await gateway.attempts([["MULTI"], *probes.values(), ["DISCARD"]])
    if isinstance(replies[0], Exception) or isinstance(replies[-1], Exception):
        return Permissions("", frozenset(), is_known=False)
    denied = _denied(probes, replies[1:-1])
    return Permissions("", denied, is_known=True)


def _denied(names: Iterable[str], replies: Sequence[Any]) -> frozenset[str]:
    pairs = zip(names, replies, strict=True)
    return frozenset(name for name, said in pairs if is_denial(said))


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)
