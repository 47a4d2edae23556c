"""The product's own processes: started as a user starts them, watched by pid, ended by pid."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import HOME, cpu_s
from bench.scenarios.common import wait_until
from bench.servers import Server

from tasksched.store.keys import NamespaceKeys, ShardKeys

NAMESPACE = "bench"
SHARDS = 16
READY_S = 20.0
END_S = 15.0
WORKER = ("worker", f"{HOME / 'bench' / 'handlers.py'}:app")
SCHEDULER = ("scheduler",)


@dataclass(slots=True)
class Role:
    """One process of ours."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    @property
    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stack:
    """Some roles on one server. ``runs`` is the file in which handlers write what they ran."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self.runs = directory / "runs"
        self.roles: list[Role] = []

    def start(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Role:
        log = self._directory / f"{arguments[0]}-{len(self.roles)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tasksched", *arguments],
                env={**os.environ, **self._environment(), **(environment or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )
        role = Role(arguments[0], process, log)
        self.roles.append(role)
        return role

    def _environment(self) -> dict[str, str]:
        return {
            "TASKSCHED_URL": self._server.url,
            "TASKSCHED_NAMESPACE": NAMESPACE,
            "TASKSCHED_SHARDS": str(SHARDS),
            "TASKSCHED_LOG_LEVEL": "warning",
            "PYTHONPATH": str(HOME),
            "BENCH_RUNS": str(self.runs),
        }

    def await_ready(self) -> None:
        """Until a scheduler drives and, where there is a worker, it is announced everywhere."""
        keys = [ShardKeys.of(NAMESPACE, number) for number in range(SHARDS)]
        worker = any(role.name == "worker" for role in self.roles)
        with self._server.client() as client:

            def ready() -> bool:
                for role in self.roles:
                    if (status := role.process.poll()) is not None:
                        said = role.log.read_text()[-2000:]
                        raise RuntimeError(f"{role.name} ended with status {status}:\n{said}")
                driven = client.zcard(NamespaceKeys(NAMESPACE).schedulers) > 0
                return driven and (not worker or all(client.exists(k.routes) for k in keys))

            wait_until("the processes are ready", ready, READY_S)

    def close(self) -> None:
        """Workers first, as a careful user would."""
        for role in sorted(self.roles, key=lambda role: role.name != "worker"):
            role.end()


@contextlib.contextmanager
def stack(server: Server) -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as directory:
        made = Stack(server, Path(directory))
        try:
            yield made
        finally:
            made.close()
