"""The short form of each scenario: it runs, its last line is JSON, and its audit is clean.

Figures are not judged here: a machine that runs tests measures nothing. What is held is that every
question can still be answered by one command.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.measure import percentiles
from bench.run import SCENARIOS, clean

HOME = Path(__file__).resolve().parent.parent.parent
MACHINE = {"pinned", "at", "commit", "server", "aof", "python", "redis_py", "cpu", "cores", "load"}

STORE = {
    "create": {"share_of_plain", "bulk", "plain_bulk", "single", "plain_single"},
    "life": {"life_us", "floor_us", "direct_us", "stages", "floor", "direct"},
    "memory": {"bytes_per_task", "row", "server_defaults"},
    "midnight": {"rate", "redis_us", "client_us", "bytes_per_schedule"},
}
STACK = {
    "burst": {"budget", "fair", "fifo", "alone", "dispatch_us", "executed"},
    "drain": {"rate", "worker_us", "scheduler_us", "redis_us", "script_calls"},
    "fair": {"flood", "equal", "weights"},
    "idle": {"api", "worker", "inside_scripts", "info_commands", "verbs"},
    "lateness": {"at_100", "at_1000"},
}


def measure(scenario: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", scenario, "--short"],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["scenario"] == scenario
    assert result["length"] == "short"
    assert result.keys() >= MACHINE
    assert result["audit"]["tasks"] > 0
    assert clean(result)
    return result


def test_every_scenario_is_tried_here() -> None:
    assert SCENARIOS == sorted({**STORE, **STACK})


@pytest.mark.parametrize("scenario", sorted(STORE))
def test_of_the_store(scenario: str) -> None:
    assert measure(scenario).keys() >= STORE[scenario]


@pytest.mark.stack
@pytest.mark.parametrize("scenario", sorted(STACK))
def test_of_real_processes(scenario: str) -> None:
    assert measure(scenario).keys() >= STACK[scenario]


@pytest.mark.parametrize("found", ["lost", "doubled", "early"])
def test_an_audit_that_found_something_is_not_clean(found: str) -> None:
    assert not clean({"audit": {"tasks": 5, found: 1}})


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles([float(n) for n in range(1, 101)]) == {
        "p50": 51.0,
        "p99": 100.0,
        "max": 100.0,
    }
    assert percentiles([]) == {}
