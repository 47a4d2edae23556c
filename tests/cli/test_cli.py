"""The command line against a real server: data on stdout, chatter on stderr, exit codes."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.servers import ServerProcess

import tasksched.app
import tasksched.dev
from tasksched import errors
from tasksched.cli import main
from tasksched.cli.group import Commands
from tasksched.settings import Settings
from tasksched.store.address import masked

_numbers = itertools.count()


class Shell:
    """Runs commands in an environment of its own."""

    def __init__(self, **environment: str) -> None:
        self.environment: dict[str, str | None] = dict(environment)

    def run(self, *args: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, args, input=stdin, env=self.environment)

    def ok(self, *args: str, stdin: str | None = None) -> str:
        done = self.run(*args, stdin=stdin)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))


@pytest.fixture
def shell(valkey_server: ServerProcess) -> Shell:
    return Shell(
        TASKSCHED_URL=valkey_server.url,
        TASKSCHED_NAMESPACE=f"c{os.getpid()}-{next(_numbers)}",
        TASKSCHED_SHARDS="2",
    )


# -- tasks ----------------------------------------------------------------------------------------


def test_a_task_belongs_to_the_trace_of_the_option_or_of_the_environment(shell: Shell):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01"
    ours, named = trace.format("1" * 16), trace.format("2" * 16)
    shell.environment["TRACEPARENT"] = ours
    ids = [
        shell.ok("submit", "add", "-q").strip(),
        shell.ok("submit", "add", "--traceparent", named, "-q").strip(),
    ]
    shell.environment["TRACEPARENT"] = "nonsense"
    ids.append(shell.ok("submit", "add", "-q").strip())

    assert [shell.json("get", each)["traceparent"] for each in ids] == [ours, named, None]
    assert 2 == shell.run("submit", "add", "--traceparent", "nonsense").exit_code


def test_submit_prints_the_id_alone_on_stdout(shell: Shell):
    done = shell.run("submit", "add", "1", "2")
    assert (done.exit_code, done.stderr) == (0, "created\n")
    assert len(done.stdout.strip()) == 23
    assert shell.run("submit", "add", "-q").stderr == ""


@pytest.mark.parametrize(
    ("args", "payload"),
    [
        (["1", "x", "true", "[1,null]", '"7"', "1.5"], [1, "x", True, [1, None], "7", 1.5]),
        (["name=world", "n=2", "q=a=b"], {"name": "world", "n": 2, "q": "a=b"}),
        (['"a=b"'], ["a=b"]),
        (["https://x.y/?a=b"], ["https://x.y/?a=b"]),
        (["--payload", '{"a": 1}'], {"a": 1}),
        (["--payload", "null"], None),
        (["--", "-1"], [-1]),
        (["NaN"], ["NaN"]),
    ],
)
def test_arguments_are_json_or_plain_strings(shell: Shell, args: list[str], payload: object):
    task_id = shell.ok("submit", "add", *args).strip()
    assert shell.json("get", task_id)["payload"] == payload


def test_a_payload_comes_from_a_file_or_from_stdin(shell: Shell, tmp_path: Path):
    (tmp_path / "p.json").write_text('[{"a": 1}]')
    task_id = shell.ok("submit", "x", "--payload", f"@{tmp_path}/p.json").strip()
    assert shell.json("get", task_id)["payload"] == [{"a": 1}]

    task_id = shell.ok("submit", "x", "--payload", "-", stdin="5").strip()
    assert shell.json("get", task_id)["payload"] == 5


def test_submit_has_the_options_of_a_task(shell: Shell):
    made = shell.json(
        "submit", "a.b", "--at", "2199-01-01T00:00:00Z", "--queue", "q", "--priority", "low",
        "--tag", "x", "--tag", "y", "--timeout", "30", "--expires", "1h", "--max-attempts", "2",
        "--version", "v2", "--tenant", "acme",
    )  # fmt: skip
    assert (made["status"], made["created"]) == ("PENDING", True)
    task = shell.json("--tenant", "acme", "get", made["task_id"])
    assert task["target"] == {"type": "handler", "name": "a.b", "version": "v2"}
    assert (task["queue"], task["priority"], task["tags"]) == ("q", "low", ["x", "y"])
    assert (task["timeout"], task["expires_at"]) == ("30s", "2199-01-01T01:00:00.000Z")
    assert task["retry"]["max_attempts"] == 2
    assert shell.run("get", made["task_id"]).exit_code == 3


def test_submit_to_a_url(shell: Shell):
    task_id = shell.ok(
        "submit", "--http", "https://example.com/x", "--method", "put", "--header", "X-A: 1"
    ).strip()
    target = shell.json("get", task_id)["target"]
    assert (target["method"], target["headers"]) == ("PUT", {"X-A": "1"})


def test_a_key_makes_one_task_and_says_so(shell: Shell):
    first = shell.json("submit", "add", "1", "--key", "k")
    again = shell.run("submit", "add", "1", "--key", "k")
    assert again.stdout.strip() == first["task_id"]
    assert again.stderr == "it was there before\n"

    reused = shell.run("submit", "add", "2", "--key", "k")
    assert (reused.exit_code, reused.stdout) == (2, "")
    assert reused.stderr.startswith("error: Idempotency key was used")


@pytest.mark.parametrize(
    "args",
    [
        ["submit"],
        ["submit", "a", "--http", "https://x"],
        ["submit", "--http", "https://x", "", "1"],
        ["submit", "a", "1", "b=2"],
        ["submit", "a", "--delay", "soon"],
        ["submit", "a", "--delay", "1s", "--at", "2199-01-01T00:00:00Z"],
        ["submit", "a b"],
        ["submit", "a", "--payload", "{"],
        ["submit", "a", "--priority", "urgent"],
        ["submit", "a", "--nonsense"],
        ["edit", "x"],
        ["nonsense"],
    ],
)
def test_wrong_usage_exits_with_2(shell: Shell, args: list[str]):
    done = shell.run(*args)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "Traceback" not in done.output


def test_an_error_names_the_field(shell: Shell):
    done = shell.run("submit", "a", "--delay", "soon")
    assert done.stderr.splitlines()[0].startswith("error: ")
    assert done.stderr.splitlines()[1] == "  at /delay"


def test_get_shows_what_a_person_wants_to_know(shell: Shell):
    task_id = shell.ok("submit", "hello", "name=world", "--delay", "1h").strip()
    text = shell.ok("get", task_id)
    assert "status    PENDING" in text
    assert 'payload   {"name":"world"}' in text
    assert shell.json("get", task_id, "--attempts")["log"] == []


def test_list_filters_and_limits(shell: Shell):
    for n in range(3):
        shell.ok("submit", "billing.charge", str(n), "--tag", f"t{n}")
    shell.ok("submit", "hello")

    assert len(shell.json("list")["items"]) == 4
    assert len(shell.json("list", "--handler", "billing.*")["items"]) == 3
    assert len(shell.json("list", "--tag", "t1")["items"]) == 1
    assert shell.ok("list", "--status", "failed") == ""
    short = shell.run("list", "--limit", "2")
    assert len(short.stdout.splitlines()) == 3
    assert "there are more than 2" in short.stderr


def test_edit_cancel_retry(shell: Shell):
    task_id = shell.ok("submit", "a", "--delay", "1h").strip()

    shell.ok("edit", task_id, "--at", "2199-01-01T00:00:00Z", "--payload", "[7]", "--queue", "q",
             "--priority", "high", "--tag", "z", "--expires", "2199-06-01T00:00:00Z")  # fmt: skip
    task = shell.json("get", task_id)
    assert (task["payload"], task["queue"], task["tags"]) == ([7], "q", ["z"])
    assert task["timestamps"]["run_at"] == "2199-01-01T00:00:00.000Z"
    shell.ok("edit", task_id, "--expires", "never")
    assert shell.json("get", task_id)["expires_at"] is None

    assert shell.run("cancel", task_id, "--if-match", "99").exit_code == 4
    assert "PENDING" in shell.ok("cancel", task_id, "--dry-run")
    assert "CANCELLED" in shell.ok("cancel", task_id)
    assert shell.run("edit", task_id, "--delay", "1").exit_code == 4
    assert "PENDING" in shell.ok("retry", task_id)
    assert shell.run("retry", task_id).exit_code == 4


def test_several_tasks_need_a_yes_where_nobody_can_be_asked(shell: Shell):
    ids = [shell.ok("submit", "a").strip() for _ in range(2)]
    assert shell.run("cancel", *ids).exit_code == 2
    done = shell.run("cancel", "--yes", ids[0], "nope", ids[1])
    assert done.exit_code == 3
    assert done.stdout.count("CANCELLED") == 2
    assert "no task nope" in done.stderr


def test_wait_mirrors_the_outcome(shell: Shell):
    task_id = shell.ok("submit", "a", "--delay", "1h").strip()
    late = shell.run("wait", task_id, "--timeout", "50ms")
    assert (late.exit_code, late.stdout) == (1, "")
    assert "is PENDING after 50ms" in late.stderr

    shell.ok("cancel", task_id)
    cancelled = shell.run("wait", task_id)
    assert (cancelled.exit_code, cancelled.stdout) == (1, "")
    assert f"task {task_id} is CANCELLED" in cancelled.stderr
    assert json.loads(shell.run("wait", task_id, "--json").stdout)["status"] == "CANCELLED"


def test_explain_says_why_and_how_to_look(shell: Shell):
    task_id = shell.ok("submit", "a").strip()
    text = shell.ok("explain", task_id)
    assert "no_worker_for_handler" in text
    assert "redis-cli HGETALL '{" in text
    assert shell.json("explain", task_id)["why_waiting"][0]["reason"] == "no_worker_for_handler"


# -- the whole ------------------------------------------------------------------------------------


def test_counters(shell: Shell):
    shell.ok("submit", "a", "--queue", "q")
    assert shell.json("stats")["by_status"]["PENDING"] == 1
    assert "lag" in shell.ok("stats")
    assert shell.json("queues")["items"][0]["name"] == "q"
    assert shell.ok("queues").splitlines()[1].split()[:2] == ["q", "1"]
    assert shell.json("workers") == {"items": []}


def test_doctor_looks_at_the_server(shell: Shell):
    found = {item["name"]: item["level"] for item in shell.json("doctor")["items"]}
    assert found["eviction"] == "ok"
    assert found["persistence"] == "warn"  # this server has no append-only file
    assert "persistence" in shell.ok("doctor")


def test_config_show_tells_values_and_sources_and_no_secrets(shell: Shell):
    shell.environment |= {
        "TASKSCHED_URL": "redis://user:hunter2@host/0",
        "TASKSCHED_API_KEY": "hunter2",
        "TASKSCHED_LEASE": "1m",
    }
    text = shell.ok("config", "show", "--tenant", "acme")
    assert "hunter2" not in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["TASKSCHED_URL"] == ["redis://user:***@host/0", "TASKSCHED_URL"]
    assert rows["TASKSCHED_LEASE"] == ["1m", "TASKSCHED_LEASE"]
    assert rows["TASKSCHED_TENANT"] == ["acme", "flag"]
    assert rows["TASKSCHED_PORT"] == ["8000", "default"]
    items = {item["variable"]: item for item in shell.json("config", "show")["items"]}
    assert items["TASKSCHED_API_KEY"]["value"] == "***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:p@h", "redis://:***@h"),
        ("redis://u:p@w@h", "redis://u:***@h"),
        ("embedded:dir", "embedded:dir"),
        ("redis://h/0?password=p", "redis://h/0?password=***"),
        ("redis+sentinel://u:p@h:1,g/s?sentinel_password=a@b", "redis+sentinel://u:***@b"),
        (
            "rediss+sentinel://u:p@h/s?sentinel_password=q&db=1",
            "rediss+sentinel://u:***@h/s?sentinel_password=***&db=1",
        ),
    ],
)
def test_passwords_in_urls_are_masked(url: str, shown: str):
    assert masked(url) == shown


def test_version(shell: Shell):
    assert shell.ok("version").startswith("tasksched ")
    assert "python" in shell.json("version")


# -- ends -----------------------------------------------------------------------------------------


def test_without_a_server_the_hint_is_to_run_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = Shell().run("list")
    assert done.exit_code == 6
    assert "tasksched dev" in done.stderr
    assert not (tmp_path / ".tasksched").exists()


@pytest.mark.parametrize("url", ["redis://localhost:1", "unix:///nowhere"])
def test_an_unreachable_server_exits_with_6(url: str):
    done = Shell().run("list", "--url", url)
    assert (done.exit_code, done.stdout) == (6, "")
    assert done.stderr.startswith("error: Redis does not answer")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TaskschedError("x"), 1),
        (errors.Invalid("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.Conflict("x"), 4),
        (errors.PreconditionFailed("x"), 4),
        (errors.Unauthorized("x"), 5),
        (errors.Forbidden("x"), 5),
        (errors.Unavailable("x"), 6),
        (TimeoutError("x"), 1),
        (ZeroDivisionError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_end_has_its_exit_code(error: BaseException, code: int):
    group = Commands("g")

    @group.command()
    def fail() -> None:
        raise error

    done = CliRunner().invoke(group, ["fail"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr


def test_colours_only_where_they_are_wanted(shell: Shell):
    task_id = shell.ok("submit", "a").strip()
    runner = CliRunner()
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
        done = runner.invoke(
            main, ["get", task_id], env={**shell.environment, **environment}, color=True
        )
        assert ("\x1b[" in done.stdout) is coloured


def test_python_m_is_the_same_and_help_is_quick_to_load():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tasksched", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("Usage: tasksched ")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert loaded & {"redis", "asyncio", "msgspec", "structlog", "httpx2", "starlette"} == set()


@pytest.mark.parametrize("name", [*main.commands, "config show"])
def test_every_command_has_help(name: str):
    done = CliRunner().invoke(main, [*name.split(), "--help"])
    assert done.exit_code == 0
    assert done.stdout.startswith("Usage:")


def test_completion_is_there():
    done = CliRunner().invoke(
        main, prog_name="tasksched", env={"_TASKSCHED_COMPLETE": "bash_source"}
    )
    assert "_TASKSCHED_COMPLETE=bash_complete" in done.stdout


# -- roles ----------------------------------------------------------------------------------------


def test_roles_get_the_settings_with_their_flags(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        tasksched.app, "run_api", lambda s, with_scheduler: seen.append((s, with_scheduler)) or 0
    )
    monkeypatch.setattr(tasksched.app, "run_scheduler", lambda s: seen.append((s,)) or 3)
    monkeypatch.setattr(
        tasksched.app, "run_worker", lambda t, s, prune: seen.append((s, t, prune)) or 0
    )
    monkeypatch.setattr(
        tasksched.dev,
        "run_dev",
        lambda s, app, workers, data_dir: seen.append((s, app, workers, data_dir)) or 0,
    )
    monkeypatch.setattr("tasksched.log.set_up", lambda level: seen.append((level,)))
    shell = Shell(TASKSCHED_URL="redis://a", TASKSCHED_PORT="9")

    def run(*args: str) -> tuple[Settings, tuple[Any, ...], int]:
        seen.clear()
        done = shell.run(*args)
        settings, *rest = seen[-1]
        return settings, tuple(rest), done.exit_code

    settings, rest, code = run("api", "--host", "0.0.0.0", "--scheduler", "--redis", "redis://b")
    assert (settings.url, settings.host, settings.port, rest, code) == (
        "redis://b", "0.0.0.0", 9, (True,), 0,
    )  # fmt: skip
    settings, _, code = run("scheduler", "--unsafe-redis")
    assert (settings.unsafe_redis, settings.url, code) == (True, "redis://a", 3)
    settings, rest, _ = run(
        "worker",
        "m:app",
        "--queues",
        "a, b",
        "--concurrency",
        "7",
        "--grace",
        "5",
        "--processes",
        "2",
        "--prune",
    )
    assert (settings.queues, settings.concurrency, settings.grace_ms, settings.processes, rest) == (
        ("a", "b"), 7, 5_000, 2, ("m:app", True),
    )  # fmt: skip
    settings, rest, _ = run("dev", "x.py:app", "--port", "1", "--data-dir", "d", "--workers", "2")
    assert (settings.port, rest) == (1, ("x.py:app", 2, Path("d")))


def test_a_setting_out_of_bounds_is_wrong_usage():
    done = Shell(TASKSCHED_URL="redis://a").run("worker", "--concurrency", "0")
    assert done.exit_code == 2
    assert "concurrency must be from 1" in done.stderr


def test_commands_are_named_as_in_the_docs():
    documented = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name, command in main.commands.items():
        assert f"`tasksched {name}" in documented, name
        assert isinstance(command, click.Command)
