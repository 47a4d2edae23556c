#!/usr/bin/env bash
# All tests, in the order in which a failure says most: style and types, then the rest in parallel,
# then real processes one after the other (they share two cores badly).
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

# The Debian server is one of three that the protocol is tested on; where it can be had, have it.
if ! command -v redis-server >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server) >/dev/null 2>&1 ||
    echo "redis-server could not be installed: its tests will be skipped"
fi

$bin/ruff format --check --quiet .
$bin/ruff check --quiet .
$bin/mypy
# A test over its time ends its process with every thread's stack (pyproject.toml), and another takes its place.
# What failed gets one more try, alone: neighbours on shared cores can starve a test past its deadline. It stands
# in the output, and is a fault to be found all the same.
tests() {
  $bin/python -m pytest -q --max-worker-restart=100 "$@" && return
  echo "== once more, alone: what failed above"
  $bin/python -m pytest -q "$@" -n 0 --last-failed --last-failed-no-failures none
}

tests -m "not stack" -n 2 "$@"
tests -m stack -n 1 "$@"
