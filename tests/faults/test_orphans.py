"""Never two servers on one data directory, whoever is killed and whatever is frozen."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.embedding import WAIT_S, client, put, servers_of, stored, until

from tasksched import embedded
from tasksched.embedded import datadir, server
from tasksched.errors import Conflict

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
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


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


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
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
