"""The embedded server: one durable Valkey per data directory, run as a child process.

Invariant: never do two servers have one directory open. ``server.lock`` is inherited by the server,
so the kernel frees it at the moment that process ends, however it ends; ``supervisor.lock`` stays
with the process that started it, and tells an orphan from a server that is in use. On Linux the
server also gets SIGTERM when its supervisor dies; where that does not exist, the next ``start``
ends the orphan before it starts its own.

Deliberately not here: restarting a server that died (the caller polls), passwords (the socket is
for the owner only, the port for this machine only), replication, backups. Everything blocks, for a
bounded time; async code calls it through a thread.
"""

from tasksched.embedded.config import SETTINGS, Setting
from tasksched.embedded.process import die_with_parent, find_server_binary
from tasksched.embedded.server import RunningServer, attach, start

__all__ = [
    "SETTINGS",
    "RunningServer",
    "Setting",
    "attach",
    "die_with_parent",
    "find_server_binary",
    "start",
]
