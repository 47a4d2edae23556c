"""reencrypt, and keys that no command shows."""

import base64
import itertools
import os
from collections.abc import Callable

import pytest
from tests.cli.test_cli import Shell
from tests.servers import ServerProcess

_numbers = itertools.count()
OLD_KEY, NEW_KEY = (base64.b64encode(letter * 32).decode() for letter in (b"o", b"n"))
OLD, NEW = f"k1:{OLD_KEY}", f"k2:{NEW_KEY}"

Open = Callable[[str], Shell]


@pytest.fixture
def shells(valkey_server: ServerProcess) -> Open:
    """A shell on one namespace, with these keys."""
    namespace = f"e{os.getpid()}-{next(_numbers)}"

    def open_shell(keys: str) -> Shell:
        return Shell(
            TASKSCHED_URL=valkey_server.url,
            TASKSCHED_NAMESPACE=namespace,
            TASKSCHED_SHARDS="2",
            TASKSCHED_ENCRYPTION_KEYS=keys,
        )

    return open_shell


def test_reencrypt_brings_everything_under_the_first_key(shells: Open):
    old, both, new = shells(OLD), shells(f"{NEW},{OLD}"), shells(NEW)
    task_id = old.ok("submit", "add", "1", "--delay", "1h").strip()
    old.ok("recurring", "put", "s", "add", "2", "--every", "1h")

    counted = both.run("reencrypt", "--dry-run", "--json")
    assert counted.exit_code == 1
    assert '"resealed": 2' in counted.stdout
    found = both.json("reencrypt")
    assert found == {
        "current": "k2", "bodies": 2, "up_to_date": 0, "resealed": 2, "unknown": 0, "broken": 0,
        "changed": 0, "was_plain": 0,
    }  # fmt: skip
    assert both.json("reencrypt", "--dry-run")["up_to_date"] == 2

    assert new.json("get", task_id)["payload"] == [1]
    assert new.json("recurring", "get", "s")["payload"] == [2]
    unread = old.json("get", task_id)
    assert (unread["payload"], unread["encrypted"]) == (None, True)
    assert "its key is not here" in old.ok("get", task_id)


def test_what_needs_an_unknown_key_is_told(shells: Open):
    shells(OLD).ok("submit", "add", "1", "--delay", "1h")
    done = shells(NEW).run("reencrypt")
    assert (done.exit_code, "1 could not be encrypted" in done.stderr) == (1, True)


def test_without_keys_or_over_http_there_is_nothing_to_encrypt_with(shells: Open):
    done = shells("").run("reencrypt")
    assert (done.exit_code, "TASKSCHED_ENCRYPTION_KEYS" in done.stderr) == (2, True)
    done = shells(OLD).run("reencrypt", "--url", "http://localhost:1")
    assert done.exit_code == 2


def test_no_command_shows_a_key(shells: Open):
    shell = shells(OLD)
    items = {item["variable"]: item for item in shell.json("config", "show")["items"]}
    assert items["TASKSCHED_ENCRYPTION_KEYS"]["value"] == "***"
    assert OLD_KEY not in shell.ok("config", "show")
    spoilt = shells(f"{OLD}, {OLD_KEY}").run("submit", "add", "1")
    assert (spoilt.exit_code, OLD_KEY in spoilt.output) == (2, False)
