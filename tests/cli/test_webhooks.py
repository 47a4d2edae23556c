"""The commands about webhooks: what they print, what they change, how they end."""

import itertools
import os
from typing import Any

import pytest
from tests.cli.test_cli import Shell
from tests.servers import ServerProcess

from tasksched.model.signature import check_secret, new_secret

_numbers = itertools.count()
URL = "https://example.com/hook"


class Webhooks(Shell):
    """``shell("list")`` is ``tasksched webhooks list``."""

    def __call__(self, *args: str) -> str:
        return self.ok("webhooks", *args)

    def data(self, *args: str) -> Any:
        return self.json("webhooks", *args)

    def code(self, *args: str) -> int:
        done = self.run("webhooks", *args)
        assert "Traceback" not in done.output
        assert done.stdout == ""
        return done.exit_code


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Webhooks:
    return Webhooks(
        TASKSCHED_URL=valkey_server.url,
        TASKSCHED_NAMESPACE=f"h{os.getpid()}-{next(_numbers)}",
        TASKSCHED_SHARDS="2",
    )


def test_the_life_of_an_endpoint(shell: Webhooks):
    assert shell("list") == ""
    made = shell.data("create", URL, "--event", "task.failed", "--description", "Sales")
    check_secret(made.pop("secret"))
    assert (made["url"], made["events"], made["enabled"]) == (URL, ["task.failed"], True)
    name = made["webhook_id"]
    assert shell.data("get", name) == made
    assert shell.data("list") == {"items": [made]}
    assert [line.split() for line in shell("list").splitlines()] == [
        ["ID", "STATE", "EVENTS", "URL"],
        [name, "enabled", "task.failed", URL],
    ]
    changed = shell.data("update", name, "--event", "schedule.missed", "--if-version", "1")
    assert (changed["events"], changed["url"], changed["version"]) == (["schedule.missed"], URL, 2)
    assert shell.data("disable", name)["enabled"] is False
    assert shell.data("enable", name, "--if-version", "3")["enabled"] is True
    assert shell.code("update", name, "--to", URL, "--if-version", "1") == 4
    assert shell("delete", name, "--yes") == ""
    assert shell.code("get", name) == 3


def test_secrets_are_shown_once(shell: Webhooks):
    own = new_secret()
    made = shell.data("create", URL, "--event", "task.failed", "--secret", own)
    assert made["secret"] == own
    name = made["webhook_id"]
    assert own not in shell("get", name)
    newer = shell.data("rotate", name, "--overlap", "1h")["secret"]
    assert check_secret(newer) != own
    assert check_secret(shell("rotate", "--of-tenant").strip())
    assert shell.data("rotate", "--of-tenant", "--overlap", "0")["tenant"] == "default"


def test_deliveries_are_listed_and_replayed(shell: Webhooks):
    name = shell.data("create", URL, "--event", "task.failed")["webhook_id"]
    assert shell("deliveries", name) == ""
    sent = shell.data("test", name)
    assert (sent["event"], sent["status"]) == ("webhook.test", "PENDING")
    (listed,) = shell.data("deliveries", name)["items"]
    assert listed == sent
    assert shell.data("deliveries", name, "--status", "FAILED")["items"] == []
    assert shell.code("replay", name, sent["delivery_id"]) == 4
    shell.ok("cancel", sent["delivery_id"])
    again = shell.data("replay", name, sent["delivery_id"])
    assert (again["delivery_id"], again["status"]) == (sent["delivery_id"], "PENDING")
    assert "webhook.test" in shell("deliveries", name)


@pytest.mark.parametrize(
    "args",
    [
        ("create", "ftp://a", "--event", "task.failed"),
        ("create", URL),
        ("create", URL, "--event", "task.lost"),
        ("create", URL, "--event", "task.failed", "--secret", "short"),
        ("update", "ep_1"),
        ("rotate",),
        ("rotate", "ep_1", "--of-tenant"),
        ("rotate", "ep_1", "--overlap", "31d"),
        ("delete", "ep_1"),
    ],
)
def test_wrong_usage(shell: Webhooks, args: tuple[str, ...]):
    assert shell.code(*args) == 2


def test_the_reserved_queue_is_nobodys(shell: Webhooks):
    for args in (
        ("submit", "add", "--queue", "notifications"),
        ("recurring", "put", "r", "add", "--cron", "@daily", "--queue", "notifications"),
    ):
        done = shell.run(*args)
        assert done.exit_code == 2
        assert "reserved" in done.output
