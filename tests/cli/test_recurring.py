"""The commands about recurring tasks: what they print, what they change, how they end."""

import itertools
import os
from typing import Any

import pytest
from tests.cli.test_cli import Shell
from tests.servers import ServerProcess

from tasksched.model.zones import TZDATA_VERSION

_numbers = itertools.count()
PARIS = ("30 2 * * *", "--tz", "Europe/Paris", "--after", "2026-03-28T00:00:00Z")


class Recurring(Shell):
    """``shell("put", …)`` is ``tasksched recurring put …``."""

    def __call__(self, *args: str) -> str:
        return self.ok("recurring", *args)

    def data(self, *args: str) -> Any:
        return self.json("recurring", *args)

    def code(self, *args: str) -> int:
        done = self.run("recurring", *args)
        assert "Traceback" not in done.output
        assert done.stdout == ""
        return done.exit_code


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Recurring:
    return Recurring(
        TASKSCHED_URL=valkey_server.url,
        TASKSCHED_NAMESPACE=f"r{os.getpid()}-{next(_numbers)}",
        TASKSCHED_SHARDS="2",
    )


@pytest.fixture
def offline() -> Recurring:
    return Recurring(TASKSCHED_URL="redis://localhost:1")


# -- next -----------------------------------------------------------------------------------------


def test_next_needs_no_server_and_tells_of_the_gap(offline: Recurring):
    lines = offline("next", *PARIS, "-n", "3").splitlines()
    assert lines[0].split() == ["AT", "LOCAL", "NOTE"]
    assert [line.split()[1] for line in lines[1:]] == [
        "2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00",
    ]  # fmt: skip
    assert "02:30 does not exist on 29 March 2026: runs at 03:00" in lines[2]


def test_next_tells_of_the_fold(offline: Recurring):
    fold = (*PARIS[:3], "--after", "2026-10-25T00:00:00", "-n", "2")
    (first, _) = offline.data("next", *fold)["next"]
    assert (first["at"], first["local"]) == (
        "2026-10-25T00:30:00.000Z", "2026-10-25T02:30:00+02:00",
    )  # fmt: skip
    assert "twice" in first["note"]
    both = offline.data("next", *fold, "--on-fold", "both")["next"]
    assert [fire["local"][-6:] for fire in both] == ["+02:00", "+01:00"]


def test_next_of_every_kind_of_rule(offline: Recurring):
    found = offline.data("next", "--every", "15m", "--start-at", "2199-01-01T00:00:00Z", "-n", "2")
    assert found["description"] == "Every 15 minutes, from 2199-01-01T00:00:00.000Z"
    assert found["tzdata_version"] == TZDATA_VERSION
    assert [fire["at"][11:16] for fire in found["next"]] == ["00:00", "00:15"]

    after = ("--after", "2026-01-01T00:00:00Z", "-n", "1")
    assert offline("next", "--every", "90", *after).splitlines()[1][:19] == "2026-01-01T00:01:30"
    assert offline("next", "--delay", "1h", *after).splitlines()[1][:19] == "2026-01-01T01:00:00"
    assert offline("next", "--rrule", "FREQ=MONTHLY;BYDAY=-1FR", *after).splitlines()[1][:10] == (
        "2026-01-30"
    )
    assert len(offline("next", "@hourly").splitlines()) == 11
    over = ("--end-at", "2026-01-01T00:30:00Z", "--after", "2026-01-01T00:00:00Z")
    assert offline("next", "@hourly", *over) == ""


@pytest.mark.parametrize(
    ("args", "pointer"),
    [
        ([], ""),
        (["61 * * * *"], "/cron"),
        (["@hourly", "--every", "1h"], "/cron"),
        (["@hourly", "--tz", "Mars/Olympus"], "/timezone"),
        (["@hourly", "--after", "soon"], "/after"),
        (["--every", "1ms"], "/interval"),
        (["--every", "1h", "--on-gap", "skip"], "/on_gap"),
        (["--rrule", "FREQ=SECONDLY"], "/rrule"),
        (["@hourly", "-n", "0"], ""),
        (["@hourly", "--id", "s"], ""),
    ],
)
def test_a_wrong_rule_exits_with_2_and_names_the_field(
    offline: Recurring, args: list[str], pointer: str
):
    done = offline.run("recurring", "next", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"at {pointer}" in done.stderr if pointer else done.stderr


def test_next_of_one_that_is_stored(shell: Recurring):
    shell("put", "s", "report", "--cron", "30 2 * * *", "--tz", "Europe/Paris")
    assert len(shell.data("next", "--id", "s", "-n", "3")["next"]) == 3
    after = ("--after", "2026-03-28T12:00:00Z")
    assert "does not exist" in shell("next", "--id", "s", *after, "-n", "1")
    shell("pause", "s")
    paused = shell.run("recurring", "next", "--id", "s")
    assert (paused.exit_code, paused.stdout, paused.stderr) == (0, "", "s is PAUSED\n")
    assert shell.code("next", "--id", "nope") == 3


# -- put ------------------------------------------------------------------------------------------


def test_put_creates_keeps_and_replaces(shell: Recurring):
    first = shell.run("recurring", "put", "nightly", "report", "7", "--cron", "30 2 * * *")
    assert first.stderr == "created\n"
    assert first.stdout.startswith("nightly  ACTIVE  next 2")
    same = shell.run("recurring", "put", "nightly", "report", "7", "--cron", "30 2 * * *")
    assert same.stderr == "version 1\n"
    other = shell.run("recurring", "put", "nightly", "report", "8", "--cron", "30 2 * * *")
    assert other.stderr == "version 2\n"
    assert shell.data("get", "nightly")["payload"] == [8]

    put = ("put", "nightly", "report", "--every", "1h")
    assert shell.code(*put, "--if-version", "1") == 4
    assert shell.data(*put, "--if-version", "2")["version"] == 3
    assert shell.code("put", "new", "report", "--every", "1h", "--if-version", "1") == 3


def test_put_has_the_options_of_a_recurring_task(shell: Recurring):
    found = shell.data(
        "put", "s", "a.b", "name=x", "--rrule", "FREQ=DAILY", "--tz", "Asia/Tokyo", "--start-at",
        "2199-01-01T00:00:00", "--end-at", "2199-02-01T00:00:00Z", "--on-gap", "skip", "--overlap",
        "queue", "--catch-up", "all", "--catch-up-limit", "5", "--misfire-grace", "1h", "--jitter",
        "30", "--max-runs", "9", "--queue", "q", "--priority", "low", "--tag", "x", "--tag", "y",
        "--timeout", "90", "--max-attempts", "2", "--version", "v2",
    )  # fmt: skip
    expected = {
        "recurring_task_id": "s", "rrule": "FREQ=DAILY", "timezone": "Asia/Tokyo",
        "start_at": "2198-12-31T15:00:00.000Z", "end_at": "2199-02-01T00:00:00.000Z",
        "on_gap": "skip", "overlap": "queue", "catch_up": "all", "catch_up_limit": 5,
        "misfire_grace": "1h", "jitter": "30s", "max_runs": 9, "queue": "q", "priority": "low",
        "tags": ["x", "y"], "timeout": "1m30s", "payload": {"name": "x"},
        "target": {"type": "handler", "name": "a.b", "version": "v2"},
        "next_run_at": "2198-12-31T15:00:00.000Z", "status": "ACTIVE",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["retry"]["max_attempts"] == 2
    text = shell("get", "s")
    assert "when       Every day at 00:00, Asia/Tokyo" in text
    assert "runs       0 of 9" in text

    shell("put", "after", "step", "--delay", "5", "--after", "success")
    assert shell.data("get", "after")["after"] == "success"
    shell("put", "ping", "--every", "1m", "--http", "https://example.com/ping", "--payload", "{}")
    assert shell.data("get", "ping")["target"]["url"] == "https://example.com/ping"


@pytest.mark.parametrize(
    "args",
    [
        ["s", "report"],
        ["s"],
        ["s", "report", "--cron", "@daily", "--http", "https://x"],
        ["s", "--every", "1h", "--http", "https://x", "", "1"],
        ["a b", "report", "--cron", "@daily"],
        ["s", "report", "--cron", "@daily", "--every", "1h"],
        ["s", "report", "--cron", "@daily", "--catch-up", "none"],
        ["s", "report", "--delay", "1h", "--overlap", "allow"],
        ["s", "report", "--cron", "@daily", "--end-at", "2020-01-01T00:00:00Z"],
        ["s", "report", "--cron", "@daily", "1", "b=2"],
    ],
)
def test_wrong_usage_of_put_exits_with_2(shell: Recurring, args: list[str]):
    assert shell.code("put", *args) == 2


# -- the rest -------------------------------------------------------------------------------------


def test_list_pages_filters_and_limits(shell: Recurring):
    assert shell("list") == ""
    for n in range(3):
        shell("put", f"s{n}", "report", "--every", f"{n + 1}h")
    shell("pause", "s0")

    assert [item["recurring_task_id"] for item in shell.data("list")["items"]][:2] == ["s1", "s2"]
    (paused,) = shell.data("list", "--status", "paused")["items"]
    assert paused["recurring_task_id"] == "s0"
    short = shell.run("recurring", "list", "--limit", "2")
    assert len(short.stdout.splitlines()) == 3
    assert "Every 2 hours" in short.stdout
    assert "there are more than 2" in short.stderr


def test_pause_resume_trigger_runs(shell: Recurring):
    shell("put", "s", "report", "--every", "1h")
    assert shell("pause", "s") == "s  PAUSED\n"
    assert shell.code("resume", "s", "--if-version", "1") == 4
    assert shell("resume", "s", "--if-version", "2").startswith("s  ACTIVE  next 2")
    task_id = shell("trigger", "s").strip()
    task = shell.json("get", task_id)
    assert (task["recurring_task_id"], task["target"]["name"]) == ("s", "report")
    assert "recurring  s" in shell.ok("get", task_id)

    (item,) = shell.data("runs", "s")["items"]
    assert (item["task_id"], item["outcome"], item["by_hand"]) == (task_id, "fired", True)
    assert shell("runs", "s").splitlines()[1].split()[1:] == ["fired", "1", "by", "hand", task_id]
    for verb in ("get", "pause", "resume", "trigger", "runs"):
        assert shell.code(verb, "nope") == 3


def test_backfill_counts_first(shell: Recurring):
    shell("put", "s", "report", "--every", "1h", "--start-at", "2026-01-01T00:00:00Z")
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T03:00:00Z")
    counted = shell.run("recurring", "backfill", "s", *span, "--dry-run")
    assert (counted.stdout, counted.stderr) == ("", "4 nominal times\n")
    assert len(shell("backfill", "s", *span, "--rate", "100").split()) == 4
    again = shell.run("recurring", "backfill", "s", *span)
    assert (again.stdout, again.stderr) == ("", "4 nominal times, 0 runs made\n")
    data = {"dry_run": True, "count": 4, "exact": True, "task_ids": []}
    assert shell.data("backfill", "s", *span, "--dry-run") == data
    assert shell.code("backfill", "s", span[0], span[1]) == 2
    assert shell.code("backfill", "s", "--from", span[3], "--to", span[1]) == 2
    many = ("--from", "2020-01-01T00:00:00Z", "--to", "2026-01-01T03:00:00Z")
    shell("put", "often", "report", "--every", "1m", "--start-at", "2020-01-01T00:00:00Z")
    counted = shell.run("recurring", "backfill", "often", *many, "--dry-run")
    assert counted.stderr == "over 10000 nominal times\n"
    assert shell.code("backfill", "often", *many) == 2


def test_delete_asks_unless_told(shell: Recurring):
    shell("put", "s", "report", "--every", "1h")
    assert shell.code("delete", "s") == 2  # nobody can be asked
    assert shell("delete", "s", "--dry-run").startswith("s  ACTIVE")
    assert shell.code("delete", "s", "--yes", "--if-version", "9") == 4
    assert shell("delete", "s", "--yes") == "s  deleted\n"
    assert shell.code("delete", "s", "--yes") == 3


def test_tenants_are_apart(shell: Recurring):
    shell("put", "s", "report", "--every", "1h", "--tenant", "acme")
    assert shell.code("get", "s") == 3
    assert shell.data("get", "s", "--tenant", "acme")["tenant"] == "acme"


def test_an_unreachable_server_exits_with_6(offline: Recurring):
    assert offline.code("list") == 6


@pytest.mark.parametrize(
    "name",
    ["put", "list", "get", "pause", "resume", "trigger", "backfill", "runs", "delete", "next"],
)
def test_every_command_has_help(offline: Recurring, name: str):
    assert offline(name, "--help").startswith("Usage: ")
