"""Measures: what a stretch of work cost the server and the client, and where it was run.

CPU time is the honest unit on a shared machine: a neighbour stretches the clock on the wall, and
the time a script took by that clock, but hardly the time a process spent computing.
"""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from bench.servers import Server

HOME = Path(__file__).resolve().parent.parent
_TICKS = os.sysconf("SC_CLK_TCK")
_SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")


@dataclass(frozen=True, slots=True)
class Cost:
    """What was spent; one less another is what a stretch of work cost."""

    wall_s: float = 0.0
    client_s: float = 0.0  # CPU of this process
    redis_s: float = 0.0  # CPU of the server, all its threads
    script_s: float = 0.0  # time inside scripts by the server's clock on the wall
    calls: int = 0  # script calls

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.wall_s - other.wall_s,
            self.client_s - other.client_s,
            self.redis_s - other.redis_s,
            self.script_s - other.script_s,
            self.calls - other.calls,
        )

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.wall_s + other.wall_s,
            self.client_s + other.client_s,
            self.redis_s + other.redis_s,
            self.script_s + other.script_s,
            self.calls + other.calls,
        )


class Meter:
    """Reads the server's books on a connection of its own."""

    def __init__(self, server: Server) -> None:
        self.client = server.client()

    def read(self) -> Cost:
        info = self.client.info("commandstats", "cpu")
        scripts = [info[name] for name in _SCRIPTS if name in info]
        return Cost(
            wall_s=time.perf_counter(),
            client_s=time.process_time(),
            redis_s=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            script_s=sum(each["usec"] for each in scripts) / 1e6,
            calls=sum(each["calls"] for each in scripts),
        )

    def commands(self) -> dict[str, dict[str, Any]]:
        """``INFO commandstats``: every command, those inside scripts counted too."""
        return {
            name.removeprefix("cmdstat_"): each
            for name, each in self.client.info("commandstats").items()
        }

    def close(self) -> None:
        self.client.close()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def us(seconds: float, count: int) -> float:
    """Microseconds for each of ``count``, to a tenth."""
    return round(seconds * 1e6 / max(count, 1), 1)


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def percentiles(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """p50, p99 and the largest; empty for nothing."""
    if not values:
        return {}
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], digits)

    return {"p50": at(0.50), "p99": at(0.99), "max": round(ordered[-1], digits)}


def facts(server: Server) -> dict[str, Any]:
    """Where and on what a figure was taken; without these it cannot be read."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "server": f"{server.name} {server.version}",
        "aof": server.aof,
        "python": platform.python_version(),
        "redis_py": redis.__version__,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": [round(each, 2) for each in os.getloadavg()],
    }


def _commit() -> str:
    head = _git("rev-parse", "--short=10", "HEAD")
    changed = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    return f"{head or 'unknown'}{'-dirty' if changed else ''}"


def _git(*command: str) -> str:
    try:
        done = subprocess.run(
            ["git", *command], cwd=HOME, capture_output=True, text=True, timeout=5, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "?")
