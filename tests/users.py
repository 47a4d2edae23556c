"""Redis users for tests: one for each role, by the rules that ``tasksched acl`` prints.

With TASKSCHED_TEST_ACL=1 the protocol tests run as one user who plays every role, so that a command
which a script needs and no role is granted fails its tests: ``TASKSCHED_TEST_ACL=1 pytest tests/protocol``.
"""

import os
from urllib.parse import urlsplit

import redis

from tasksched.store.acl import ROLES, roles_of, rules_of

PASSWORD = "p@ss:word"
QUOTED = "p%40ss%3Aword"
EVERYTHING = "+".join(ROLES)


def is_asked_for() -> bool:
    return os.environ.get("TASKSCHED_TEST_ACL") == "1"


def of_roles(url: str) -> str:
    """``url``, or that of the user of every role where TASKSCHED_TEST_ACL asks for it."""
    return user_url(url, EVERYTHING) if is_asked_for() else url


def user_url(url: str, roles: str, namespace: str = "ts", *extra: str) -> str:
    """The URL of a user who plays these roles (``api``, ``worker+producer``), made on the server."""
    name = f"tasksched-{roles}"
    with redis.Redis.from_url(url) as client:
        is_7_0 = str(client.info("server")["redis_version"]).startswith("7.0.")
        rules = rules_of(roles_of(roles), namespace, for_7_0=is_7_0)
        client.execute_command(
            "ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *rules, *extra
        )
    parts = urlsplit(url)
    return f"{parts.scheme}://{name}:{QUOTED}@{parts.netloc}{parts.path}"


def denials(url: str) -> list[str]:
    """What any user was refused since the log was last cleared, and clears it."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found = [
            f"{entry['username']}: {entry['reason']} {entry['object']} ({entry['context']})"
            for entry in client.acl_log()
        ]
        client.acl_log_reset()
    return found
