"""Queues, tenants, pauses and concurrency keys on the command line."""

import pytest
from tests.cli.test_bulk import Shell
from tests.servers import ServerProcess


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
