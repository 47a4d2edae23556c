"""ACL: what each role may do at Redis, as rules for its user. Generated; nothing is listed twice.

The commands of a role are those inside the scripts that it runs (read from their sources) and the
plain ones that its modules send; ``tests/protocol/test_acl.py`` reads the sources of both and fails
where a table here lags behind. Redis checks a script command by command while it runs, so a user that
lacks one would leave half a script behind: what a user lacks is asked before anything is run
(``store.permissions``). Invariant: no role gets a command that empties, reconfigures or stops a server,
or a key or channel outside of its namespace.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, Literal, get_args

from tasksched.errors import Invalid
from tasksched.model.names import check_name
from tasksched.store.scripts import script

Role = Literal["api", "scheduler", "worker", "producer", "reader", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_READS: Final = ("page",)
_LIMITS: Final = ("allot", "apportion", "credit", "ration", "relinquish", "report")
_CLIENT: Final = (
    *_READS, *_LIMITS,
    "cancel", "configure", "deliver", "edit", "fire", "forget", "heartbeat", "owed", "pause_schedule",
    "purge", "put_record", "put_schedule", "redrive", "remove_schedule", "resume_schedule", "run_now",
    "settle", "submit", "trigger",
)  # fmt: skip

# Which scripts a role runs. ``settle`` and ``heartbeat`` of a client: callbacks, by their token.
SCRIPTS: Final[Mapping[Role, tuple[str, ...]]] = {
    "api": _CLIENT,
    "producer": _CLIENT,
    "reader": _READS,
    "scheduler": (
        *_READS, *_LIMITS,
        "cancel", "configure", "dispatch", "edit", "enlist", "expire", "fire", "overdue", "owed",
        "prune", "purge", "put_record", "reap", "reclaim", "redrive", "retime", "sweep",
    ),
    "worker": (
        *_READS, "announce", "checkpoint", "configure", "defer", "deliver", "enlist", "fire",
        "heartbeat", "lines", "owed", "pause_schedule", "present", "put_record", "put_schedule",
        "release", "remove_schedule", "resume_schedule", "settle", "take", "trigger",
    ),
    "admin": (*_CLIENT, "reseal"),
}  # fmt: skip

# The plain commands of each module that sends any.
PLAIN: Final[Mapping[str, tuple[str, ...]]] = {
    "commands.access": ("HLEN", "HSET"),
    "commands.admission": ("INFO",),
    "commands.audit": ("XADD", "XREVRANGE"),
    "commands.dead_letters": ("HSCAN", "ZCOUNT", "ZRANGE"),
    "commands.keys": ("HDEL", "HGETALL", "HLEN"),
    "commands.parked": ("HGET", "ZCARD", "ZCOUNT", "ZRANGE"),
    "commands.recurring": ("LRANGE",),
    "commands.system": ("HGET", "INFO", "ROLE", "SRANDMEMBER", "XINFO|GROUPS", "XRANGE", "ZRANGE"),
    "runtime.janitor": ("INFO", "SMEMBERS"),
    "store.beats": ("DEL", "EVAL", "EVALSHA", "ZREM"),
    "store.checks": ("COMMAND|INFO", "CONFIG|GET", "INFO", "TIME"),
    "store.connect": ("EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "INFO"),
    "store.durability": ("CONFIG|GET", "HSET", "WAIT", "WAITAOF"),
    "store.feed": ("XLEN", "XRANGE", "XREVRANGE"),
    "store.namespace": ("HGET", "HMGET", "HSET", "HSETNX"),
    "store.permissions": ("ACL|DRYRUN", "ACL|WHOAMI", "COMMAND|INFO"),
    "store.reads": (
        "EXISTS", "GET", "HGET", "HGETALL", "HMGET", "LRANGE", "SISMEMBER", "SMEMBERS", "TIME", "XLEN",
        "XRANGE", "ZRANGE", "ZRANK", "ZSCORE",
    ),
    "store.records": ("HGET", "HGETALL", "HMGET"),
    "store.rules": ("HMGET", "HSCAN"),
    "store.schedules": ("GET", "HMGET", "LRANGE", "ZSCAN"),
    "store.sealed": ("GET", "HMGET", "SCAN"),
    "store.wake": ("PING", "SSUBSCRIBE"),
    "store.webhooks": ("HGET",),
}  # fmt: skip

_OPENING: Final = ("store.checks", "store.connect", "store.namespace", "store.permissions")
_QUERIES: Final = (
    "commands.dead_letters", "commands.parked", "commands.recurring", "commands.system",
    "store.feed", "store.reads", "store.records", "store.rules", "store.schedules", "store.wake",
    "store.webhooks",
)  # fmt: skip
_COMMANDS: Final = (
    *_OPENING, *_QUERIES, "commands.access", "commands.admission", "commands.audit", "commands.keys",
    "store.durability",
)  # fmt: skip

# Which of those modules a role runs.
MODULES: Final[Mapping[Role, tuple[str, ...]]] = {
    "api": _COMMANDS,
    "producer": _COMMANDS,
    "reader": (*_OPENING, *_QUERIES),
    "scheduler": (
        *_OPENING, "runtime.janitor", "store.durability", "store.reads",
        "store.records", "store.rules", "store.schedules", "store.wake",
    ),
    "worker": (
        *_OPENING, "commands.recurring", "store.beats", "store.durability", "store.reads",
        "store.records", "store.schedules", "store.wake", "store.webhooks",
    ),
    "admin": (*_COMMANDS, "store.sealed"),
}  # fmt: skip

# What a connection of the client library says by itself. AUTH and HELLO need no permission.
BASICS: Final = ("CLIENT|SETINFO", "PING", "SELECT")
NOT_IN_7_0: Final = frozenset({"CLIENT|SETINFO", "WAITAOF"})
# Sent where they are allowed, done without where not. CONFIG GET would show the server's passwords.
OPTIONAL: Final = NOT_IN_7_0 | {"CONFIG|GET"}
NEVER_GRANTED: Final = frozenset({"CONFIG|GET"})
# Writes that a namespace without a record needs; a reader finds one, or is refused.
_WRITES_OF_OPENING: Final = frozenset({"EVAL", "EVALSHA", "HSET", "HSETNX"})

_CALL = re.compile(r"redis\.p?call\(\s*(?:'([A-Z]+)'(?:,\s*'([A-Z]+)')?)?")
_CONTAINERS = frozenset({"ACL", "CLIENT", "COMMAND", "CONFIG", "XGROUP", "XINFO"})


@cache
def script_commands(name: str) -> frozenset[str]:
    """The commands that the script ``name`` may run: ``HSET``, ``XGROUP|CREATE``."""
    return calls_in(script(name).source)


def calls_in(source: str) -> frozenset[str]:
    """The commands that Lua code calls. Raises ValueError for one that cannot be read from it."""
    found = set()
    for call in _CALL.finditer(source):
        if call[1] is None or (call[1] in _CONTAINERS and call[2] is None):
            raise ValueError(f"a command that is not a literal: {source[call.start() :][:60]!r}")
        found.add(f"{call[1]}|{call[2]}" if call[1] in _CONTAINERS else call[1])
    return frozenset(found)


@cache
def commands_of(role: Role) -> frozenset[str]:
    """Every command that the role's user is granted."""
    found = set(BASICS)
    for name in SCRIPTS[role]:
        found |= script_commands(name)
    for module in MODULES[role]:
        found |= set(PLAIN[module])
    found -= NEVER_GRANTED
    return frozenset(found - _WRITES_OF_OPENING if role == "reader" else found)


@cache
def every_command() -> frozenset[str]:
    """All commands that any role sends, with those that are done without."""
    return OPTIONAL.union(*(commands_of(role) for role in ROLES))


def missing_of(roles: Iterable[Role], denied: frozenset[str]) -> list[str]:
    """What the roles need and the user is denied."""
    needed = frozenset[str]().union(*(commands_of(role) for role in roles))
    return sorted((needed - OPTIONAL) & denied)


def roles_of(text: str) -> tuple[Role, ...]:
    """The roles of one user: ``api``, or several with a plus, ``worker+producer``."""
    named = text.split("+")
    found = tuple(role for role in ROLES if role in named)
    if len(found) != len(named):
        raise Invalid(f"a role is one of {', '.join(ROLES)}; got {text!r}", "/role")
    return found


def rules_of(roles: Sequence[Role], namespace: str, *, for_7_0: bool = False) -> list[str]:
    """The rules of a user who plays these roles, to follow its name and password.

    ``for_7_0``: without what Redis 7.0 does not know, where an unknown command is an error.
    """
    check_name(namespace, "/namespace")
    commands = frozenset[str]().union(*(commands_of(role) for role in roles))
    if for_7_0:
        commands -= NOT_IN_7_0
    keys = "%R~" if set(roles) == {"reader"} else "~"
    return [
        "resetkeys", f"{keys}{{{namespace}:*", f"{keys}{namespace}:*",
        "resetchannels", f"&{{{namespace}:*",
        "-@all", *(f"+{command.lower()}" for command in sorted(commands)),
    ]  # fmt: skip


def user_line(
    text: str, namespace: str, password_hash: str | None = None, *, for_7_0: bool = False
) -> str:
    """The line of an ACL file for the roles in ``text``. Without a hash the user cannot log in."""
    name = f"tasksched-{text.replace('+', '-')}"
    login = f"on #{password_hash}" if password_hash else "off"
    rules = " ".join(rules_of(roles_of(text), namespace, for_7_0=for_7_0))
    return f"user {name} {login} {rules}"
