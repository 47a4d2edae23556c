"""The package's front: what is public is listed, sorted, importable, and known to type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tasksched

STUB = Path(tasksched.__file__).with_name("__init__.pyi")


def test_the_list_is_sorted_and_its_names_exist():
    assert tasksched.__all__ == sorted(tasksched.__all__)
    for name in tasksched.__all__:
        assert getattr(tasksched, name).__name__ == name
        assert name in dir(tasksched)


def test_the_stub_says_the_same():
    found = {}
    for node in ast.parse(STUB.read_text()).body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "re-exports repeat the name"
            found[alias.name] = node.module
    assert found == {name: f"tasksched.{home}" for name, home in tasksched._HOMES.items()}


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'Celery'"):
        tasksched.Celery  # noqa: B018


def test_an_import_loads_nothing_that_is_not_asked_for():
    program = "import sys, tasksched; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {"redis", "httpx2", "starlette", "aiohttp", "structlog", "tasksched.client"}
    assert heavy & set(done.stdout.split()) == set()
