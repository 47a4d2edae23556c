"""Queues, tenants, pauses and concurrency keys on the command line."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from tests.cli.test_bulk import SHARDS, Shell
from tests.servers import ServerProcess

from tasksched.cli import limits, main, tenant_export
from tasksched.commands.session import open_session
from tasksched.model.outcome import Outcome, error_info
from tasksched.settings import Settings


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Shell:
    return Shell(valkey_server.url)


def test_a_queue_is_set_bit_by_bit_and_shown(shell: Shell):
    shell.ok("queues", "set", "mail", "--max-running", "3", "--strict")
    shown = shell.json("queues", "set", "mail", "--dispatch-rate", "0.5")
    assert (3, 0.5, True) == tuple(shown[n] for n in ("max_running", "dispatch_rate", "strict"))
    bare = shell.json("queues", "set", "mail", "--max-running", "none", "--no-strict")
    assert (None, 0.5, False) == tuple(bare[n] for n in ("max_running", "dispatch_rate", "strict"))
    assert bare == shell.json("queues", "get", "mail")
    assert [bare] == shell.json("queues")["items"] == shell.json("queues", "list")["items"]
    text = shell.ok("queues")
    assert "RULES" in text
    assert "dispatch_rate 0.5" in text


def test_pauses_and_drains(shell: Shell):
    assert "queue" == shell.json("queues", "pause", "mail")["paused_by"]
    assert shell.json("queues", "drain", "mail")["draining"]
    assert shell.json("queues", "resume", "mail")["paused_by"] is None
    assert "share" == shell.json("queues", "pause", "mail", "--share")["paused_by"]
    assert shell.json("queues", "resume", "mail", "--share")["paused_by"] is None
    assert {"paused": True} == shell.json("pause", "--all")
    assert "everything" == shell.json("queues", "get", "mail")["paused_by"]
    assert "everything goes on" in shell.ok("resume", "--all")
    assert 2 == shell.run("pause").exit_code


def test_a_drained_queue_refuses_with_exit_code_4(shell: Shell):
    shell.ok("queues", "drain", "default")
    refused = shell.run("submit", "charge", "1")
    assert 4 == refused.exit_code
    assert "queue default is drained" in refused.stderr


def test_a_tenant_is_set_and_shown(shell: Shell):
    shown = shell.json("tenants", "set", "acme", "--weight", "2.5", "--max-running", "2",
                       "--dispatch-rate", "50", "--max-pending", "0", "--create-rate", "7")  # fmt: skip
    assert (2.5, 2, 50, 0, 7) == tuple(
        shown[n] for n in ("weight", "max_running", "dispatch_rate", "max_pending", "create_rate")
    )
    assert shown == shell.json("tenants", "get", "acme")
    assert [shown] == shell.json("tenants")["items"] == shell.json("tenants", "list")["items"]
    assert shell.json("tenants", "pause", "acme")["paused"]
    assert shell.json("tenants", "drain", "acme")["draining"]
    resumed = shell.json("tenants", "resume", "acme")
    assert (False, False, 2.5) == (resumed["paused"], resumed["draining"], resumed["weight"])


def typed(shell: Shell, text: str) -> Result:
    """The purge of acme, confirmed at a terminal with ``text``."""
    words = ("tenants", "purge", "acme", "--url", shell.url, "--namespace", shell.namespace)
    return CliRunner().invoke(main, words, input=text, env={"TASKSCHED_SHARDS": str(SHARDS)})


async def play(shell: Shell, runs: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """What is due starts: what runs then. What ran ends."""
    settings = Settings(url=shell.url, namespace=shell.namespace, shards=SHARDS)
    session = await open_session(settings)
    store, started = session.store, []
    for shard, fence, task_id in runs:
        outcome = Outcome(kind="FAILED", reason="cancelled", error=error_info("Stop", "asked to"))
        await store.settle(shard, [(task_id, fence, outcome)])
    for shard in range(SHARDS):
        await store.announce(shard, "w1", 600_000, ("queue:*", "route:charge"))
        await store.dispatch(shard)
        _, _, grants = await store.take(shard, "w1", call=1, slots=99, lease_ms=30_000)
        started += [(shard, grant.fence, grant.id) for grant in grants]
    await session.close()
    return started


def test_a_tenant_is_purged(shell: Shell):
    for _ in range(2):
        shell.ok("submit", "charge", "1", "--delay", "1h", "--tenant", "acme")
    shell.ok("recurring", "put", "r", "charge", "--every", "1h", "--tenant", "acme")
    shell.ok("tenants", "set", "acme", "--weight", "2")
    purged = shell.run("tenants", "purge", "acme", "--yes", "--json")
    assert (0, True) == (purged.exit_code, "2 tasks removed, 0 left" in purged.stderr)
    assert {
        "tenant": "acme", "tasks": 2, "recurring_tasks": 1, "webhooks": 0, "api_keys": 0,
        "left": 0, "running": 0, "done": True,
    } == json.loads(purged.stdout)  # fmt: skip
    assert [] == shell.json("tenants")["items"]
    again = shell.run("tenants", "purge", "acme", "--yes", "-q")
    assert ("", True) == (again.stderr, "recurring tasks" in again.stdout)


def test_a_tenant_is_exported(shell: Shell, tmp_path: Path):
    task_id = shell.ok("submit", "charge", "1", "--delay", "1h", "--tenant", "acme", "-q").strip()
    shell.ok("recurring", "put", "r", "charge", "--every", "1h", "--tenant", "acme")
    lines = [json.loads(line) for line in shell.ok("tenants", "export", "acme").splitlines()]
    assert ["tenant", "recurring_task", "task", "end"] == [next(iter(line)) for line in lines]
    assert (task_id, [1]) == (lines[2]["task"]["task_id"], lines[2]["task"]["payload"])
    file = tmp_path / "acme.ndjson"
    assert "" == shell.ok("tenants", "export", "acme", "-o", str(file))
    assert lines == [json.loads(line) for line in file.read_text().splitlines()]
    assert [file] == list(tmp_path.iterdir())


def test_an_export_that_breaks_off_is_no_export(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def half(*_: object):
        yield '{"tenant":{}}\n'

    monkeypatch.setattr(tenant_export, "_lines", half)
    file = tmp_path / "acme.ndjson"
    done = shell.run("tenants", "export", "acme", "-o", str(file))
    assert (2 < done.exit_code, False) == (True, file.exists()), done.stderr


def test_a_purge_is_asked_for_twice(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    task_id = shell.ok("submit", "charge", "--delay", "1h", "--tenant", "acme", "-q").strip()
    nobody_there = shell.run("tenants", "purge", "acme")
    assert (2, True) == (nobody_there.exit_code, "--yes" in nobody_there.stderr)
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(limits, "sys", SimpleNamespace(stdin=terminal))
    assert [2, 1] == [typed(shell, text).exit_code for text in ("acme2\n", "")]
    assert "PENDING" == shell.json("get", task_id, "--tenant", "acme")["status"]
    assert 0 == typed(shell, "acme\n").exit_code
    assert 3 == shell.run("get", task_id, "--tenant", "acme").exit_code


def test_a_purge_that_takes_too_long_ends_with_exit_code_1(shell: Shell):
    shell.ok("submit", "charge", "1")
    runs = asyncio.run(play(shell, []))
    purge = ("tenants", "purge", "default", "--yes", "--timeout")
    late = shell.run(*purge, "0s")
    assert (1, "") == (late.exit_code, late.stdout)
    assert "0 tasks removed, 1 left, 1 of them running" in late.stderr
    assert "error: tenant default is not purged after 0s" in late.stderr
    assert shell.json("tenants", "get", "default")["draining"]
    asyncio.run(play(shell, runs))
    assert shell.json(*purge, "10s")["done"]
    assert 2 == shell.run(*purge, "soon").exit_code
    assert 2 == shell.run("tenants", "purge", "a:b", "--yes").exit_code


@pytest.mark.parametrize(
    "words", [("--max-running", "many"), ("--max-running", "0"), ("--dispatch-rate", "-1"), ()]
)
def test_bad_limits_are_wrong_usage(shell: Shell, words: tuple[str, ...]):
    assert 2 == shell.run("queues", "set", "mail", *words).exit_code
    assert 2 == shell.run("tenants", "set", "acme", *words).exit_code


def test_a_key_is_given_changed_and_taken_away(shell: Shell):
    task_id = shell.ok("submit", "charge", "1", "--delay", "1h", "--concurrency-key", "invoice 7",
                       "--concurrency-limit", "2", "-q").strip()  # fmt: skip
    shown = shell.json("get", task_id)
    assert ("invoice 7", 2) == (shown["concurrency_key"], shown["concurrency_limit"])
    assert "invoice 7, at most 2" in shell.ok("get", task_id)
    shell.ok("edit", task_id, "--concurrency-limit", "5")
    assert 5 == shell.json("get", task_id)["concurrency_limit"]
    shell.ok("edit", task_id, "--concurrency-key", "none")
    assert shell.json("get", task_id)["concurrency_key"] is None
    assert 2 == shell.run("submit", "charge", "--concurrency-limit", "2").exit_code


def test_a_recurring_task_has_a_key(shell: Shell):
    shell.ok("recurring", "put", "r", "charge", "--every", "1h", "--concurrency-key", "k")
    assert "k, at most 1" in shell.ok("recurring", "get", "r")


def test_explain_says_that_it_is_paused_and_where_its_record_is(shell: Shell):
    shell.ok("queues", "pause", "default")
    task_id = shell.ok("submit", "charge", "1", "-q").strip()
    text = shell.ok("explain", task_id)
    assert "paused: queue default is paused" in text
    assert f"redis-cli HGETALL '{{{shell.namespace}:" in text
