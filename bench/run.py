"""One question, one command, one line of JSON: ``python -m bench.run SCENARIO [--short]``.

The last line of the output is the result. The exit code is 1 when the audit found a lost, doubled
or early task: a figure without a clean audit is worth nothing. See ``bench/README.md``.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from bench.scenarios.common import Job
from bench.servers import AOF, NAMES, Missing

HERE = Path(__file__).resolve().parent
SCENARIOS = sorted(path.stem for path in (HERE / "scenarios").glob("*.py") if path.stem != "common")
PEERS = ("bullmq", "taskiq")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__.split("\n", 1)[0])
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument(
        "--short", action="store_true", help="seconds; for a look, not for a figure"
    )
    parser.add_argument("--server", choices=NAMES, default="valkey")
    parser.add_argument("--aof", choices=AOF, help="else as the question wants it")
    parser.add_argument("--peer", choices=PEERS, help="drain: another product in the same run")
    parser.add_argument("--pin", action="store_true", help="create, life: a core each")
    parser.add_argument("--tasks", type=int, help="burst, fair: how many, else as the length says")
    parser.add_argument("--keep", action="store_true", help="append to bench/results/")
    given = parser.parse_args(arguments)
    job = Job(
        scenario=given.scenario,
        length="short" if given.short else "long",
        server=given.server,
        aof=given.aof,
        peer=given.peer,
        pin=given.pin,
        tasks=given.tasks,
    )
    try:
        result = importlib.import_module(f"bench.scenarios.{job.scenario}").run(job)
    except Missing as missing:
        print(f"{job.server}: {missing}", file=sys.stderr)
        return 2
    line = json.dumps(result)
    if given.keep:
        with (HERE / "results" / f"{job.scenario}.jsonl").open("a") as kept:
            kept.write(line + "\n")
    _show(result)
    print(line, flush=True)
    return 0 if clean(result) else 1


def clean(result: dict[str, Any]) -> bool:
    """Whether the audit found every task once."""
    audit = result["audit"]
    return not any(audit.get(found) for found in ("lost", "doubled", "early"))


def _show(value: Any, indent: int = 0, name: str = "") -> None:
    """For people: the same result, a figure a line; innermost groups on one."""
    pad = "  " * indent
    if not isinstance(value, dict):
        print(f"{pad}{name:<18} {value}")
    elif any(isinstance(each, dict) for each in value.values()):
        print(f"{pad}{name}" if name else "", end="\n" if name else "")
        for key, each in value.items():
            _show(each, indent + bool(name), key)
    else:
        print(f"{pad}{name:<18} " + "  ".join(f"{key} {each}" for key, each in value.items()))


if __name__ == "__main__":
    sys.exit(main())
