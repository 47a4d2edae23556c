"""Peers in the same run: installed by name into a directory of their own, driven, audited.

Only for ``bench drain --peer``; nothing else needs them, and CI never does. They run with the
settings that were fastest for them here, without results, against the same server as we do.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.handlers import read_runs
from bench.measure import Meter, cpu_s, us
from bench.scenarios.common import wait_until
from bench.servers import Server

INSTALL_S, RUN_S = 180.0, 60.0
HERE = Path(__file__).resolve().parent / "peer"


def drain(name: str, server: Server, count: int) -> dict[str, Any]:
    """What a row of ``drain`` says, for a peer."""
    home = Path(os.environ.get("BENCH_PEERS", Path(tempfile.gettempdir()) / "ts-bench-peers"))
    home.mkdir(exist_ok=True)
    meter = Meter(server)
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as directory:
        runs = Path(directory) / "runs"
        measured: dict[str, Any] = _PEERS[name](home, server, count, runs, meter)
        numbers = [number for number, _ in read_runs(runs)]
    audit = {"lost": count - len(set(numbers)), "doubled": len(numbers) - len(set(numbers))}
    meter.close()
    return {"name": name, **measured, "audit": audit}


def _bullmq(home: Path, server: Server, count: int, runs: Path, meter: Meter) -> dict[str, Any]:
    if not (home / "node_modules" / "bullmq").exists():
        _run(["npm", "install", "--silent", "--no-fund", "bullmq", "ioredis"], home, INSTALL_S)
    script = str(HERE / "bullmq_drain.js")
    before = meter.read()
    said = _run(
        ["node", script, str(server.socket), str(count), str(runs)],
        home,
        RUN_S,
        {"NODE_PATH": str(home / "node_modules")},
    )
    cost = meter.read() - before
    row = json.loads(said.splitlines()[-1])
    version = json.loads((home / "node_modules/bullmq/package.json").read_text())["version"]
    return {
        "version": version,
        "rate": round(count / row["seconds"]),
        "worker_us": us(row["cpu_s"], count),
        "redis_us_with_adds": us(cost.redis_s, count),
    }


def _taskiq(home: Path, server: Server, count: int, runs: Path, meter: Meter) -> dict[str, Any]:
    python = home / "taskiq" / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(home / "taskiq")], home, INSTALL_S)
        _run(
            [str(python), "-m", "pip", "install", "-q", "taskiq", "taskiq-redis", "uvloop"],
            home,
            INSTALL_S,
        )
    environment = {"PEER_SOCKET": str(server.socket), "BENCH_RUNS": str(runs)}
    _run([str(python), str(HERE / "taskiq_drain.py"), str(count)], home, RUN_S, environment)
    before = meter.read()
    flags = "--workers 1 --no-parse --max-async-tasks 100 --max-prefetch 100"
    worker = subprocess.Popen(
        [str(python), "-m", "taskiq", "worker", *flags.split(), "taskiq_drain:broker"],
        cwd=HERE,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until("taskiq ran every task", lambda: _size(runs) >= 12 * count, RUN_S, 0.05)
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        spent_s = sum(cpu_s(int(pid)) for pid in (worker.pid, *children))
    finally:
        worker.terminate()
        worker.wait(20)
    cost = meter.read() - before
    times = [at_ns for _, at_ns in read_runs(runs)]
    version = _run([str(python), "-c", _VERSION], home, RUN_S).strip()
    return {
        "version": version,
        "rate": round(count / ((max(times) - min(times)) / 1e9)),
        "worker_us": us(spent_s, count),
        "redis_us": us(cost.redis_s, count),
    }


_VERSION = "import importlib.metadata as m; print(m.version('taskiq'))"
_PEERS: dict[str, Callable[..., dict[str, Any]]] = {"bullmq": _bullmq, "taskiq": _taskiq}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _run(
    command: list[str], home: Path, seconds: float, environment: dict[str, str] | None = None
) -> str:
    """What it says; a failure says what it said to stderr."""
    begun = time.monotonic()
    done = subprocess.run(
        command,
        cwd=home,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        took = time.monotonic() - begun
        raise RuntimeError(f"{command[0]} failed after {took:.0f} s: {done.stderr[-1500:]}")
    return done.stdout
