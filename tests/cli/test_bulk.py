"""Dead letters, operations, delete and edit-and-retry on the command line."""

import asyncio
import itertools
import json
import os
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.servers import ServerProcess

from tasksched.cli import main
from tasksched.commands.session import Session, open_session
from tasksched.model.outcome import Outcome, error_info
from tasksched.settings import Settings

_numbers = itertools.count()
_calls = itertools.count(1)
SHARDS = 2


class Shell:
    """Runs commands in a namespace of its own, and plays the worker."""

    def __init__(self, url: str) -> None:
        self.namespace = f"d{os.getpid()}-{next(_numbers)}"
        self.url = url

    def run(self, *args: str) -> Result:
        environment = {
            "TASKSCHED_URL": self.url,
            "TASKSCHED_NAMESPACE": self.namespace,
            "TASKSCHED_SHARDS": str(SHARDS),
        }
        return CliRunner().invoke(main, args, env=environment)

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))

    def fail(self, *messages: str, **options: str) -> list[str]:
        """Tasks that failed, one for each message."""
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        made = []
        for message in messages:
            made.append(self.ok("submit", "charge", message, "-q", *flags).strip())
            asyncio.run(self._fail(message))
        return made

    async def _fail(self, message: str) -> None:
        session: Session = await open_session(
            Settings(url=self.url, namespace=self.namespace, shards=SHARDS)
        )
        outcome = Outcome(
            kind="FAILED", reason="not_retryable", error=error_info("ValueError", message)
        )
        for shard in range(SHARDS):
            store = session.store
            await store.announce(shard, "w1", 600_000, ("queue:*", "route:charge"))
            await store.dispatch(shard)
            call = next(_calls)
            _, _, grants = await store.take(shard, "w1", call=call, slots=99, lease_ms=30_000)
            for grant in grants:
                await store.settle(shard, [(grant.id, grant.fence, outcome)])
        await session.close()

    def status(self, task_id: str) -> str:
        return self.json("get", task_id)["status"]


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Shell:
    return Shell(valkey_server.url)


def test_dead_list_and_groups(shell: Shell):
    first, second = shell.fail("row 1 is bad", "row 2 is bad", queue="a")
    (other,) = shell.fail("something else")

    listed = shell.json("dead", "list", "--queue", "a")
    groups = shell.json("dead", "groups")["items"]

    assert [second, first] == [task["task_id"] for task in listed["items"]]
    assert [2, 1] == [group["count"] for group in groups]
    assert "row <n> is bad" == groups[0]["message"]
    fingerprint = groups[1]["fingerprint"]
    found = shell.json("dead", "list", "--fingerprint", fingerprint)["items"]
    assert [other] == [task["task_id"] for task in found]
    assert "row <n> is bad" in shell.ok("dead", "groups")
    assert other in shell.ok("dead", "list", "--limit", "1")
    assert fingerprint in shell.ok("get", other)


def test_a_dry_run_says_how_many_and_changes_nothing(shell: Shell):
    (task_id,) = shell.fail("x")
    assert "1\n" == shell.ok("dead", "redrive", "--all", "--dry-run")
    counted = shell.json("dead", "purge", "--queue", "default", "--dry-run")
    assert {"dry_run": True, "count": 1, "at_least": False} == counted
    assert "FAILED" == shell.status(task_id)


def test_redrive_and_purge(shell: Shell):
    first, second = shell.fail("x", "y", queue="a")[0], shell.fail("z", queue="b")[0]
    redriven = shell.json("dead", "redrive", "--queue", "a", "--yes", "--rate", "500", "--wait")
    purged = shell.json("dead", "purge", "--all", "--yes")
    assert ("DONE", 2, 500) == (redriven["status"], redriven["done"], redriven["rate"])
    assert ("purge", 1) == (purged["kind"], purged["done"])
    assert "PENDING" == shell.status(first) or "QUEUED" == shell.status(first)
    assert 3 == shell.run("get", second).exit_code


def test_everything_must_be_said_and_nobody_is_asked_without_a_terminal(shell: Shell):
    assert 2 == shell.run("dead", "purge", "--yes").exit_code
    (task_id,) = shell.fail("x")
    assert 2 == shell.run("dead", "purge", "--all").exit_code
    assert "FAILED" == shell.status(task_id)


def test_operations_are_listed_shown_and_not_stopped_after_their_end(shell: Shell):
    shell.fail("x")
    made = shell.json("dead", "redrive", "--all", "--yes")["operation_id"]
    assert [made] == [each["operation_id"] for each in shell.json("operations", "list")["items"]]
    assert "DONE" == shell.json("operations", "get", made, "--wait")["status"]
    assert made in shell.ok("operations", "list")
    assert 4 == shell.run("operations", "stop", made).exit_code
    assert 3 == shell.run("operations", "get", "op_none").exit_code


def test_retry_changes_a_task_on_the_way(shell: Shell):
    (task_id,) = shell.fail("x")
    shell.ok("retry", task_id, "--payload", "[1]", "--queue", "q", "--at", "2199-01-01T00:00:00Z")
    task = shell.json("get", task_id)
    assert ("PENDING", [1], "q") == (task["status"], task["payload"], task["queue"])
    assert "2199-01-01T00:00:00.000Z" == task["timestamps"]["run_at"]


def test_delete(shell: Shell):
    (dead,) = shell.fail("x")
    waiting = shell.ok("submit", "charge", "--delay", "1h", "-q").strip()
    assert 2 == shell.run("delete", dead).exit_code
    assert "PENDING" in shell.ok("delete", waiting, "--dry-run")
    shell.ok("delete", dead, waiting, "--yes")
    assert [3, 3] == [shell.run("get", each).exit_code for each in (dead, waiting)]
    assert 3 == shell.run("delete", dead, "--yes").exit_code


def test_tasks_are_edited_cancelled_and_deleted_by_filter(shell: Shell):
    made = [
        shell.ok("submit", "charge", "--delay", "1h", "--queue", "a", "-q").strip() for _ in "ab"
    ]
    other = shell.ok("submit", "charge", "--delay", "1h", "-q").strip()
    chosen = ("--queue", "a", "--status", "PENDING,QUEUED")
    edit = ("operations", "edit", '{"priority": "low"}', *chosen)
    assert "2\n" == shell.ok(*edit, "--dry-run")
    assert 2 == shell.json(*edit, "--yes")["done"]
    assert ["low", "normal"] == [shell.json("get", each)["priority"] for each in (made[0], other)]
    assert 2 == shell.json("operations", "cancel", "--priority", "low", "--yes")["done"]
    assert "CANCELLED" == shell.status(made[1])
    assert 3 == shell.json("operations", "delete", "--all", "--yes")["done"]
    assert 3 == shell.run("get", other).exit_code


@pytest.mark.parametrize("changes", ["{}", "[", '{"payload": 1}', '{"colour": 1}'])
def test_bad_changes_for_many_are_wrong_usage(shell: Shell, changes: str):
    assert 2 == shell.run("operations", "edit", changes, "--all", "--yes").exit_code
