"""A data directory: its two locks, and the files beside the data.

Owns ``supervisor.lock``, ``server.lock``, ``server.conf``, ``server.json``, ``server.log`` and the
place of the socket. Lock files are never deleted: a second file of the same name would be a second
lock. ``server.json`` says where the server answers and is written after it does; it is a hint, the
lock alone proves that a server runs. A recorded pid proves nothing, it may be somebody else's now.

Starts and ends no process.
"""

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from tasksched.embedded import config
from tasksched.errors import Invalid

if sys.platform != "win32":
    import fcntl

POLL_S = 0.01
PS_TIMEOUT_S = 5.0
SOCKET_NAME = "server.sock"
SOCKET_PATH_MAX = 99  # bytes; the kernel's limit is 104 on macOS and 108 on Linux
PORT_FIRST, PORT_COUNT = 20_000, 12_000
LOG_MAX_BYTES = 1 << 20  # at a start; one older file is kept

_held: set[int] = set()  # descriptors of the locks this process has open


def _forget_locks() -> None:
    """In a forked child: its copy would keep the lock when the parent is gone."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_locks)


def open_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _held.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def lock_within(descriptor: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class Record:
    """``server.json``: where the server of this directory answers."""

    pid: int
    socket: str
    port: int
    started: str
    binary: str

    @property
    def url(self) -> str:
        """``unix:///…``, as redis-py takes it."""
        return "unix://" + quote(self.socket)


class DataDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.supervisor_lock = path / "supervisor.lock"
        self.server_lock = path / "server.lock"
        self.config = path / "server.conf"
        self.record_file = path / "server.json"
        self.log = path / "server.log"

    @classmethod
    def prepare(cls, data_dir: Path | str) -> "DataDir":
        """An existing directory that this user may write to; made 0700 if it is not there yet."""
        path = Path(data_dir).absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = path.resolve()
        except OSError as error:
            raise Invalid(f"cannot make the data directory {path}: {error}") from error
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise Invalid(f"the data directory {path} is not writable for this user")
        return cls(path)

    def is_served(self) -> bool:
        """Whether a server has this directory open, be it answering or not."""
        try:
            descriptor = os.open(self.server_lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def record(self) -> Record | None:
        """What ``server.json`` says; None if it is absent or damaged."""
        try:
            record = Record(**json.loads(self.record_file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        sound = isinstance(record.pid, int) and isinstance(record.port, int)
        return record if sound and isinstance(record.socket, str) else None

    def write_record(self, record: Record) -> None:
        """At once or not at all: a reader never sees half of it."""
        draft = self.record_file.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(record), indent=2) + "\n")
        draft.replace(self.record_file)

    def clear(self, record: Record) -> None:
        """Take away what only made sense while the server ran; never the locks."""
        self.record_file.unlink(missing_ok=True)
        private = Path(record.socket).parent
        if private != self.path:
            with contextlib.suppress(OSError):
                private.rmdir()

    def write_config(self, socket_path: Path) -> None:
        self.config.write_bytes(os.fsencode(config.render(self.path, socket_path)))

    def rotate_log(self) -> int:
        """Keep the log bounded; where the lines of the coming start will begin."""
        size = self.log.stat().st_size if self.log.exists() else 0
        if size <= LOG_MAX_BYTES:
            return size
        self.log.replace(self.log.with_suffix(".log.1"))
        return 0

    def socket_path(self) -> Path:
        """In the directory; where that is too long for a socket, in a private one under /tmp.

        Whose name follows from the directory's, so that a restarted server keeps its URL.
        """
        if _fits(self.path):
            return self.path / SOCKET_NAME
        name = f"tasksched-{os.getuid()}-{self._digest()[:16]}"
        for root in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - checked to be ours, below
            private = Path(root) / name
            if not _fits(private):
                continue
            private.mkdir(mode=0o700, exist_ok=True)
            found = private.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                private.chmod(0o700)
                return private / SOCKET_NAME
        raise Invalid(f"{self.path} is too long for a socket, and no private temporary one is free")

    def port_hint(self) -> int:
        """The port to try first, below the range the system hands out: the same at each start.

        So that somebody's redis-cli line goes on working. Where it is taken, any will do.
        """
        return PORT_FIRST + int(self._digest(), 16) % PORT_COUNT

    def _digest(self) -> str:
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()

    def orphans(self) -> list[int]:
        """Servers of this directory: they have its lock open, and their title names the config.

        Among them the forks of a server, which inherit both.
        """
        if not Path("/proc/self/fd").exists():
            return self._orphans_by_name()
        lock = self.server_lock.stat()
        found = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _is_server_with(lock, p)]
        return [pid for pid in found if pid != os.getpid()]

    def _orphans_by_name(self) -> list[int]:
        """Without /proc: by the title alone, which names the directory."""
        try:
            listing = subprocess.run(
                ["ps", "-axww", "-o", "pid=,command="],  # noqa: S607
                capture_output=True,
                text=True,
                check=True,
                timeout=PS_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return []
        lines = (line.strip().partition(" ") for line in listing.stdout.splitlines())
        return [int(pid) for pid, _, command in lines if self._is_title(command.strip())]

    def _is_title(self, command: str) -> bool:
        """Of a server, not of an editor with the same file."""
        program = command.removesuffix(f" {self.config}")
        return program != command and Path(program).name.startswith(("valkey-", "redis-"))


def _fits(directory: Path) -> bool:
    return len(os.fsencode(directory / SOCKET_NAME)) <= SOCKET_PATH_MAX


def _is_server_with(lock: os.stat_result, process: Path) -> bool:
    """The title leaves out those who only look whether the lock is held."""
    try:
        if b"/server.conf" not in (process / "cmdline").read_bytes():
            return False
        return any(os.path.samestat(lock, entry.stat()) for entry in (process / "fd").iterdir())
    except OSError:  # it ended meanwhile, or is another user's
        return False
