"""The commands about keys: what they print, once and never again, and how clients end without one."""

import itertools
import json
import os
from typing import Any

import pytest
from tests.cli.test_cli import Shell
from tests.servers import ServerProcess

from tasksched.model.apikey import new_text, read_key

_numbers = itertools.count()


class Keys(Shell):
    """``shell("list")`` is ``tasksched keys list``."""

    def __call__(self, *args: str) -> str:
        return self.ok("keys", *args)

    def data(self, *args: str) -> Any:
        return self.json("keys", *args)


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Keys:
    return Keys(
        TASKSCHED_URL=valkey_server.url,
        TASKSCHED_NAMESPACE=f"y{os.getpid()}-{next(_numbers)}",
        TASKSCHED_SHARDS="2",
    )


def test_a_key_is_shown_once_and_alone_on_stdout(shell: Keys):
    done = shell.run(
        "keys", "create", "billing", "--tenant", "acme", "--scope", "tasks:write,metrics"
    )
    assert done.exit_code == 0
    text = done.stdout.strip()
    key_id = read_key(text).id
    assert done.stderr == (
        f"the key {key_id} (billing) for tenant acme: tasks:write, metrics; it is shown this once\n"
    )
    assert read_key(text).hash not in done.output
    (listed,) = shell.data("list")["items"]
    assert listed == {
        "key_id": key_id, "name": "billing", "tenant": "acme", "scopes": ["tasks:write", "metrics"],
        "state": "active", "created_at": listed["created_at"], "expires_at": None, "revoked_at": None,
        "rotated_at": None, "last_used_at": None,
    }  # fmt: skip
    assert [line.split() for line in shell("list").splitlines()] == [
        ["ID", "NAME", "TENANT", "STATE", "SCOPES", "LAST", "USED"],
        [key_id, "billing", "acme", "active", "tasks:write,metrics", "-"],
    ]


def test_the_life_of_a_key(shell: Keys):
    made = shell.data("create", "--expires", "1h")
    assert (made["tenant"], made["name"]) == ("default", "key")
    assert made["scopes"] == ["tasks:read", "tasks:write", "recurring:read", "recurring:write"]
    assert made["expires_at"] is not None
    rotated = shell.data("rotate", made["key_id"], "--overlap", "5m")
    assert rotated["key_id"] == made["key_id"]
    assert rotated["key"] != made["key"]
    assert shell("revoke", rotated["key"], "--yes") == ""  # the whole key, pasted
    assert [each["state"] for each in shell.data("list")["items"]] == ["revoked"]
    assert shell.run("keys", "rotate", made["key_id"]).exit_code == 4


def test_admin_is_for_every_tenant_unless_one_is_named(shell: Keys):
    assert shell.data("create", "--scope", "admin")["tenant"] == "*"
    assert shell.data("create", "--scope", "admin", "--tenant", "*")["tenant"] == "*"
    assert shell.data("create", "--scope", "admin", "--tenant", "acme")["tenant"] == "acme"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["create", "--scope", "root"], 2),
        (["create", "--tenant", "*"], 2),
        (["create", "--expires", "0"], 2),
        (["create", "a\nb"], 2),
        (["revoke", "0123456789", "--yes"], 3),
        (["revoke", "0123456789"], 2),
        (["rotate", "0123456789"], 3),
        (["list", "--url", "http://127.0.0.1:1"], 2),
    ],
)
def test_what_cannot_be(shell: Keys, args: list[str], code: int):
    done = shell.run("keys", *args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert "Traceback" not in done.output


def test_the_audit_tells_who_changed_keys(shell: Keys):
    key_id = shell.data("create")["key_id"]
    shell("revoke", key_id, "--yes")
    told = shell.json("audit")["items"]
    assert [(e["key_id"], e["route"], e["object"], e["outcome"]) for e in told] == [
        ("cli", "keys revoke", key_id, "ok"),
        ("cli", "keys create", key_id, "ok"),
    ]
    page = shell.json("audit", "--limit", "1")
    assert page["items"] == told[:1]
    assert shell.json("audit", "--limit", "1", "--cursor", page["next_cursor"])["items"] == told[1:]
    assert shell.ok("audit").splitlines()[0].split() == [
        "TIME",
        "KEY",
        "TENANT",
        "ROUTE",
        "OBJECT",
        "OUTCOME",
    ]


def test_a_mistyped_key_ends_with_the_code_of_auth_before_anything_is_sent(shell: Keys):
    shell.environment |= {
        "TASKSCHED_URL": "http://127.0.0.1:1",
        "TASKSCHED_API_KEY": "ts_canary_canary",
    }
    done = shell.run("get", "x")
    assert done.exit_code == 5
    assert "canary" not in done.output


def test_the_settings_do_not_show_the_key(shell: Keys, tmp_path):
    text = new_text("0123456789")
    shell.environment["TASKSCHED_API_KEY"] = text
    told = json.loads(shell.ok("config", "show", "--json"))["items"]
    (item,) = [each for each in told if each["name"] == "api_key"]
    assert (item["value"], item["source"]) == ("***", "TASKSCHED_API_KEY")
    assert text not in shell.ok("config", "show")
    del shell.environment["TASKSCHED_API_KEY"]
    (tmp_path / "key").write_text(text)
    shell.environment["TASKSCHED_API_KEY_FILE"] = str(tmp_path / "key")
    assert text not in shell.ok("config", "show")
