"""Start a server on a data directory, or attach to the one that runs there.

Owns the order of things: first the right to supervise, then the end of any orphan, then the one new
server. Invariant: whoever holds ``supervisor.lock`` is the only one who starts or ends a server of
that directory; whatever fails on the way leaves neither a lock nor a process behind.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tasksched.embedded.datadir import (
    POLL_S,
    DataDir,
    Record,
    close_lock,
    lock_within,
    open_lock,
)
from tasksched.embedded.process import (
    KILL_PATIENCE_S,
    TERM_PATIENCE_S,
    Child,
    ask,
    find_server_binary,
    open_port,
)
from tasksched.errors import Conflict, Unavailable

READY_TIMEOUT_S = 10.0
ATTACH_TIMEOUT_S = 2.0
SUPERVISOR_PATIENCE_S = 1.0  # a killed supervisor may need a moment to be gone
ORPHAN_PATIENCE_S = 1.5  # its server has had SIGTERM from the kernel, on Linux
EXIT_UNKNOWN = 255  # of an attached server: the kernel tells the status to the parent only


class RunningServer:
    """A server that answers. ``stop`` ends one that we started, and lets go of an attached one."""

    def __init__(
        self, directory: DataDir, record: Record, child: Child | None = None, supervisor: int = -1
    ) -> None:
        self.record = record
        self._directory = directory
        self._child = child
        self._supervisor = supervisor
        self._owner = os.getpid()
        self._stopping = threading.RLock()  # a signal handler may call stop inside stop
        self._is_over = child is None

    @property
    def url(self) -> str:
        return self.record.url

    @property
    def port(self) -> int:
        return self.record.port

    @property
    def pid(self) -> int:
        return self.record.pid

    def poll(self) -> int | None:
        """None while it runs, then its exit status (negative: the signal that ended it)."""
        if self._child:
            return self._child.process.poll()
        return None if self._directory.is_served() else EXIT_UNKNOWN

    def stop(self, timeout_s: float = TERM_PATIENCE_S) -> None:
        """SIGTERM, after the timeout SIGKILL; then the directory is free. Once more: nothing."""
        with self._stopping:
            # A forked child has a copy of us, and no say in the matter.
            if self._child is None or self._is_over or os.getpid() != self._owner:
                return
            self._child.end(timeout_s)
            self._is_over = True
            self._directory.clear(self.record)
            close_lock(self._supervisor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start(
    data_dir: Path | str,
    *,
    port: int = 0,
    ready_timeout_s: float = READY_TIMEOUT_S,
    binary: Path | None = None,
) -> RunningServer:
    """A server on this directory that answers; the data is what the last one left.

    Raises Conflict if another process runs one there or has the port, Invalid if the directory
    cannot be used, Unavailable if there is no binary or the server does not come up.
    """
    if sys.platform == "win32":
        raise Unavailable("the embedded server needs Linux or macOS; set TASKSCHED_URL instead")
    program = (binary or find_server_binary()).absolute()
    directory = DataDir.prepare(data_dir)
    try:
        with contextlib.ExitStack() as undo:
            supervisor = open_lock(directory.supervisor_lock)
            undo.callback(close_lock, supervisor)
            _supervise(directory, supervisor)
            child, socket_path = _launch(directory, program)
            undo.callback(child.end, TERM_PATIENCE_S)
            child.await_answer(socket_path, ready_timeout_s)
            bound = open_port(socket_path, [port] if port else [directory.port_hint(), 0, 0])
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            record = Record(child.process.pid, str(socket_path), bound, started, str(program))
            directory.write_record(record)
            undo.pop_all()
    except OSError as error:
        raise Unavailable(f"cannot run a server in {directory.path}: {error}") from error
    return RunningServer(directory, record, child, supervisor)


def attach(data_dir: Path | str, *, timeout_s: float = ATTACH_TIMEOUT_S) -> RunningServer | None:
    """The server somebody runs on this directory, if there is one and it answers in time."""
    directory = DataDir(Path(data_dir).resolve())
    deadline = time.monotonic() + timeout_s
    while directory.is_served():
        record = directory.record()
        if record and ask(record.socket, "PING", timeout_s) == b"+PONG":
            return RunningServer(directory, record)
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    return None


def _supervise(directory: DataDir, lock: int) -> None:
    """Become the supervisor, or say who is."""
    if lock_within(lock, SUPERVISOR_PATIENCE_S):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return
    owner = directory.supervisor_lock.read_text(errors="replace").strip() or "unknown"
    record = directory.record()
    if record is None:
        raise Conflict(f"process {owner} is starting or ending a server on {directory.path}")
    raise Conflict(
        f"{directory.path} is in use: process {owner} runs its server, pid {record.pid}. Attach "
        f"with TASKSCHED_URL={record.url}, end that process, or take another data directory",
        pid=record.pid,
        url=record.url,
    )


def _launch(directory: DataDir, program: Path) -> tuple[Child, Path]:
    """The new server process, and where it is going to answer."""
    lock = open_lock(directory.server_lock)
    try:
        _claim(directory, lock)
        directory.record_file.unlink(missing_ok=True)
        socket_path = directory.socket_path()
        socket_path.unlink(missing_ok=True)
        directory.write_config(socket_path)
        return Child(directory, program, lock), socket_path
    finally:
        close_lock(lock)  # the server's own copy is the lock now


def _claim(directory: DataDir, lock: int) -> None:
    """Take the server lock. A server that holds it has no supervisor any more: it is ended."""
    if lock_within(lock, ORPHAN_PATIENCE_S):
        return
    for number, wait_s in ((signal.SIGTERM, TERM_PATIENCE_S), (signal.SIGKILL, KILL_PATIENCE_S)):
        for pid in directory.orphans():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if lock_within(lock, wait_s):
            return
    raise Conflict(
        f"{directory.server_lock} is held by a process that cannot be ended from here: another "
        "user's, or one in another container. End it, or take another data directory"
    )
