"""What the embedded server is told, each line with its reason.

Owns the durability and memory settings: ``docker/redis.conf`` says the same for a server of one's
own, and a test holds the two together. What is not listed stays at the server's default, the
stream node sizes and the rewrite triggers among it. Every name exists since Redis 7.0.
"""

from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    """One line of the server's configuration, and why it stands there."""

    name: str
    value: str
    reason: str


# What durability and memory rest on.
SETTINGS = (
    Setting("appendonly", "yes", "an accepted task is in the append-only file before its answer"),
    Setting("appendfsync", "everysec", "a power cut costs at most about two seconds"),
    Setting("no-appendfsync-on-rewrite", "no", "a rewrite must not widen those to thirty"),
    Setting("aof-load-truncated", "yes", "the torn last write of a killed server is cut off"),
    Setting("save", '""', "the AOF is the truth; a dump beside it costs a fork and is never read"),
    Setting("maxmemory-policy", "noeviction", "full memory refuses new tasks, drops no old ones"),
    Setting("hash-max-listpack-value", "2048", "a task with its payload stays one packed block"),
    Setting("hash-max-listpack-entries", "128", "more fields than any record of ours has"),
    Setting("zset-max-listpack-entries", "128", "a bucket of due tasks stays one packed block"),
    Setting("zset-max-listpack-value", "64", "longer than any id in such a bucket"),
)

# How the embedded one is reached and watched.
PLACEMENT = (
    Setting("bind", "127.0.0.1", "this machine only"),
    Setting("protected-mode", "yes", "the second bolt, should somebody change bind"),
    Setting("port", "0", "opened once the server answers, so that a taken port is an error reply"),
    Setting("unixsocketperm", "700", "the owner only"),
    Setting("daemonize", "no", "it stays a child of its supervisor"),
    Setting("logfile", '""', "to its output, which goes to server.log together with the linker's"),
    Setting("loglevel", "notice", "starts, stops and trouble"),
    Setting("proc-title-template", '"{title} {config-file}"', "a process list names the directory"),
)


def render(directory: Path, socket_path: Path) -> str:
    """The text of ``server.conf``."""
    own = (
        Setting("dir", _quoted(directory), "the data directory"),
        Setting("unixsocket", _quoted(socket_path), "how everything of ours connects"),
    )
    lines = [f"# {s.reason}\n{s.name} {s.value}\n" for s in (*SETTINGS, *PLACEMENT, *own)]
    return "# Written anew at each start.\n" + "".join(lines)


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
