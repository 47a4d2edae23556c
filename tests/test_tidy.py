"""The style guide, executed. A rule that is not here is advice (CONTRIBUTING.md has them in words)."""

import ast
import re
from pathlib import Path

import pytest

from tasksched.model.states import EDGES
from tasksched.store import scripts
from tasksched.store.beats import SyncBeats
from tasksched.store.limits import Limits
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.schedules import Schedules
from tasksched.store.sealed import Sealed

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tasksched"
LUA = ROOT / "lua"

LAYERS = [
    {"errors", "clock", "ending"},
    {"settings", "log", "embedded"},
    {"model"},
    {"store"},
    {"commands", "runtime"},
    {"http", "client"},
    {
        "app",
        "cell",
        "loading",
        "dev",
        "pool",
        "children",
        "cli",
        "testing",
        "pytest_plugin",
        "__init__",
        "__main__",
    },
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}

# Who may import what from outside. Whoever wants to change a library finds it in one place.
OWNERS = {
    "redis": {"store"},
    "hiredis": {"store"},
    "starlette": {"http"},
    "uvicorn": {"app"},
    "aiohttp": {"runtime"},
    "httpx2": {"client"},
    "dateutil": set(),  # cross-checks in tests: the rules are our own
    "croniter": set(),
    "msgpack": {"model"},
    "cryptography": {"model"},
    "structlog": {"log"},
    "click": {"cli"},
    "prometheus_client": {"http"},
    "time": {"clock", "embedded", "dev", "children"},
}

FUNCTION_MAX, MODULE_MAX, PARAMETERS_MAX = 50, 400, 6
# Where a rule makes the code worse it is broken, here, with its reason.
EXCUSED = {
    "model/retry.py:__init__": "the policy's seven fields are the public constructor",
    "client/app.py:task": "the options of a handler are keyword arguments",
    "client/app.py:__init__": "where and as whom: keyword arguments",
    "runtime/worker.py:__init__": "the parts of a worker are put together in one place",
    "client/handler.py:options": "the options of a task are keyword arguments",
    "client/app.py:submit": "the options of a task are keyword arguments",
}

MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> set[str]:
    """Every part of tasksched imported, wherever it hides: late and TYPE_CHECKING ones count."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "tasksched":
                names |= {f"tasksched.{alias.name}" for alias in node.names}
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("tasksched.")}


def outside_imports(tree: ast.AST) -> set[str]:
    modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    return {module.split(".")[0] for module in modules}


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def body_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring: explaining oneself is free."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    doc = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - doc


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down_and_siblings_do_not_know_each_other(path):
    part = part_of(path)
    if part == "__init__":
        return  # the package's own front: it re-exports from everywhere below
    illegal = {
        other
        for other in imported_parts(ast.parse(path.read_text()))
        if other != part and RANK[other] >= RANK[part] and RANK[part] < RANK["app"]
    }
    assert illegal == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_outside_libraries_have_owners(path):
    part = part_of(path)
    foreign = {
        library
        for library in outside_imports(ast.parse(path.read_text()))
        if library in OWNERS and part not in OWNERS[library]
    }
    assert foreign == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_functions_fit_a_screen_and_modules_can_be_read(path):
    text = path.read_text()
    where = str(path.relative_to(SOURCE))
    assert len(text.splitlines()) <= MODULE_MAX or where in EXCUSED
    for function in functions(ast.parse(text)):
        name = f"{where}:{function.name}"
        if name in EXCUSED:
            continue
        assert body_length(function) <= FUNCTION_MAX, name
        arguments = function.args
        count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        is_method = arguments.args and arguments.args[0].arg in {"self", "cls"}
        assert count - bool(is_method) <= PARAMETERS_MAX, name


def test_every_excuse_is_still_needed():
    stale = []
    for name in EXCUSED:
        where, _, function_name = name.partition(":")
        path = SOURCE / where
        found = path.exists() and any(
            f.name == function_name for f in functions(ast.parse(path.read_text()))
        )
        if not found:
            stale.append(name)
    assert stale == []


def test_only_the_settings_read_the_environment():
    readers = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if "os.environ" in path.read_text() or "os.getenv" in path.read_text()
    }
    assert readers == {"settings.py"}


@pytest.mark.parametrize("path", sorted(LUA.rglob("*.lua")), ids=lambda p: str(p.relative_to(LUA)))
def test_lua_bodies_use_the_names_of_their_header(path):
    assert "KEYS[" not in path.read_text()
    assert "ARGV[" not in path.read_text()


@pytest.mark.parametrize("path", sorted((LUA / "lib").glob("*.lua")), ids=lambda p: p.stem)
def test_every_include_is_included(path):
    users = [p for p in LUA.glob("*.lua") if f"-- @include lib/{path.stem}\n" in p.read_text()]
    assert users


@pytest.mark.parametrize("name", scripts.names())
def test_every_script_has_a_method_and_a_test_of_its_name(name):
    homes = (Store, Schedules, Reads, Sealed, SyncBeats, Limits)
    assert any(hasattr(home, name) for home in homes)
    tests = list((ROOT / "tests").rglob("test_*.py"))
    assert any(re.search(rf"\b{name}\(", test.read_text()) for test in tests)


def test_lua_and_python_know_the_same_edges():
    text = (LUA / "lib" / "move.lua").read_text()
    table = text[text.index("local EDGES") : text.index("local NEW")]
    found = {
        state: set(re.findall(r"(\w+) = true", row))
        for state, row in re.findall(r"^  (\w+) = \{(.*)\},$", table, re.MULTILINE)
    }
    assert found == {state: set(targets) for state, targets in EDGES.items()}


def test_only_move_writes_the_state():
    writers = {
        path.name
        for path in LUA.rglob("*.lua")
        if re.search(r"HSET'[^\n]*'state'", path.read_text())
    }
    assert writers == {"move.lua"}


def test_no_test_sleeps_but_against_real_processes():
    sleepers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"\bsleep\(", path.read_text()) and path.name != "test_tidy.py"
    }
    allowed = ("tests/stack/", "tests/faults/", "tests/runtime/", "tests/servers.py",
               "tests/proxy.py", "tests/embedding.py", "tests/test_embedded.py", "tests/bench/", "tests/http/",
               "tests/client/", "tests/cli/")  # fmt: skip
    assert {name for name in sleepers if not name.startswith(allowed)} == set()


def test_nothing_is_left_to_be_fixed_later():
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    sources = [*MODULES, *LUA.rglob("*.lua"), *(ROOT / "bench").rglob("*.py")]
    assert [str(p) for p in sources if marks.search(p.read_text())] == []


def test_background_tasks_are_ended_in_one_way():
    """A task that is only cancelled and waited for is waited for in vain if it does not hear it."""
    cancelled = re.compile(
        r"\.cancel\(\)[^@]{0,200}(?:asyncio\.gather\(|^ *await self\._\w+$)", re.MULTILINE
    )
    found = [path.name for path in MODULES if cancelled.search(path.read_text())]
    assert found == ["ending.py"]
