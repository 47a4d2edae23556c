"""Scripts: finds ``lua/``, expands includes, turns each header into Lua locals and checks.

The header of a script is executed, not decorative. ``KEYS`` and ``ARGV`` lines become locals,
``ROWS`` lines a function ``row(n)`` over the repeated tail of the arguments, and every number is
checked before the body runs: a bad argument is refused (``BADARG name``) before anything is
written. Callers give arguments by name, so a forgotten one fails here, in Python.

The folder beside ``pyproject.toml`` is preferred (an editable install copies nothing), else the
copy inside the wheel.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_HOMES = (_PACKAGE.parent.parent / "lua", _PACKAGE / "_lua")

_SLOT = re.compile(r"^-- (KEYS|ARGV|ROWS)?\s+(\w+)\s+(hash|zset|stream|int|str|bytes|opt)\b")
_INCLUDE = re.compile(r"^-- @include (\S+)$")
_FUNCTION = re.compile(r"^local function (\w+)\(")
_CONSTANT = re.compile(r"^local (\w+(?:, \w+)*)\b")
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")
_END = re.compile(r"^-- (REPLY|ERR|COST|@include)|^--$")

Arg = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    """One compiled script. ``row`` names the columns of the repeated tail, if there is one."""

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    row: tuple[str, ...]
    source: str
    sha: str
    reads_only: bool

    def pack(self, values: Mapping[str, Arg], rows: Sequence[Sequence[Arg]] = ()) -> list[Arg]:
        """Keys and arguments in the order of the header. KeyError names a forgotten one."""
        packed: list[Arg] = [values[name] for name in self.keys]
        packed += [values[name] for name in self.args]
        for row in rows:
            packed += row
        return packed


def home() -> Path:
    """The folder the scripts are read from."""
    for folder in _HOMES:
        if (folder / "submit.lua").is_file():
            return folder
    raise FileNotFoundError(f"no Lua scripts in {' or '.join(map(str, _HOMES))}")


@cache
def script(name: str) -> Script:
    """The script ``lua/<name>.lua``, compiled once per process."""
    return compile_script(name, home())


def names() -> list[str]:
    """Every verb there is a script for."""
    return sorted(path.stem for path in home().glob("*.lua"))


def compile_script(name: str, folder: Path) -> Script:
    text = (folder / f"{name}.lua").read_text()
    shebang, _, body = text.partition("\n")
    if not shebang.startswith("#!lua"):
        raise ValueError(f"{name}.lua does not begin with #!lua")
    slots, includes = _header(name, body)
    parts = [shebang, *_locals(slots)]
    shared = "\n".join((folder / f"{include}.lua").read_text() for include in includes)
    parts += [_needed(shared, body), body]
    source = "\n".join(parts)
    return Script(
        name=name,
        keys=tuple(slot for slot, _ in slots["KEYS"]),
        args=tuple(slot for slot, _ in slots["ARGV"]),
        row=tuple(slot for slot, _ in slots["ROWS"]),
        source=source,
        sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        reads_only="no-writes" in shebang,
    )


def _needed(shared: str, body: str) -> str:
    """The shared text without the functions and constants that this script does not use.

    Every call runs all definitions again, and Lua allows 200 of them; so only what is needed stays.
    """
    chunks = _chunks(shared)
    while True:
        words = _words(body)
        own = [(names, _words(text)) for names, text in chunks]
        for _, used in own:
            words.update(used)
        kept = [
            chunk
            for chunk, (names, used) in zip(chunks, own, strict=True)
            if not names or any(words[name] > used[name] for name in names)
        ]
        if len(kept) == len(chunks):
            return "".join(text for _, text in kept)
        chunks = kept


def _words(text: str) -> Counter[str]:
    """How often each word stands in the code; what a comment speaks of is not used by it."""
    return Counter(_WORD.findall(_COMMENT.sub("", text)))


def _chunks(shared: str) -> list[tuple[tuple[str, ...], str]]:
    """Top-level definitions with the names they define; no names for what must stay."""
    chunks: list[tuple[tuple[str, ...], str]] = []
    for line in shared.splitlines(keepends=True):
        if found := _FUNCTION.match(line):
            chunks.append(((found[1],), line))
        elif found := _CONSTANT.match(line):
            chunks.append((tuple(found[1].split(", ")), line))
        elif chunks and (line[0] in " \t}" or line.startswith("end")):
            names, text = chunks[-1]
            chunks[-1] = (names, text + line)
        else:
            chunks.append(((), line))
    return chunks


def _header(name: str, body: str) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
    slots: dict[str, list[tuple[str, str]]] = {"KEYS": [], "ARGV": [], "ROWS": []}
    includes: list[str] = []
    block: str | None = None
    for line in body.splitlines():
        if not line.startswith("--"):
            break
        if include := _INCLUDE.match(line):
            if include[1] in includes:
                raise ValueError(f"{name}.lua includes {include[1]} twice")
            includes.append(include[1])
        if _END.match(line):
            block = None
        elif (found := _SLOT.match(line)) and (block := found[1] or block):
            slots[block].append((found[2], found[3]))
    if not slots["KEYS"]:
        raise ValueError(f"{name}.lua declares no KEYS")
    return slots, includes


def _locals(slots: dict[str, list[tuple[str, str]]]) -> list[str]:
    lines = [f"local {key} = KEYS[{n}]" for n, (key, _) in enumerate(slots["KEYS"], 1)]
    for n, (arg, kind) in enumerate(slots["ARGV"], 1):
        lines.append(f"local {arg} = {_decoded(f'ARGV[{n}]', kind)}")
        lines += _check(arg, f"ARGV[{n}]", kind, f"'{arg}'")
    scalars, columns = len(slots["ARGV"]), slots["ROWS"]
    if not columns:
        return [*lines, f"if #ARGV ~= {scalars} then return redis.error_reply('BADARG count') end"]
    width = len(columns)
    lines += [
        f"local rows = (#ARGV - {scalars}) / {width}",
        "if rows % 1 ~= 0 or rows < 1 then return redis.error_reply('BADARG count') end",
        "local argv = ARGV",
        "local function row(n)",
        f"  local at = {scalars} + (n - 1) * {width}",
        "  return "
        + ", ".join(_decoded(f"argv[at + {n}]", kind) for n, (_, kind) in enumerate(columns, 1)),
        "end",
    ]
    numbers = [(n, c, kind) for n, (c, kind) in enumerate(columns, 1) if kind in {"int", "opt"}]
    if numbers:
        lines.append(f"for n = 1, rows do local at = {scalars} + (n - 1) * {width}")
        for n, column, kind in numbers:
            lines.append(f"  local {column} = {_decoded(f'argv[at + {n}]', kind)}")
            lines += _check(column, f"argv[at + {n}]", kind, f"'row ' .. n .. ': {column}'")
        lines.append("end")
    return lines


def _decoded(value: str, kind: str) -> str:
    if kind == "opt":  # most are empty: that needs no call
        return f"{value} ~= '' and tonumber({value}) or nil"
    return f"tonumber({value})" if kind == "int" else value


def _check(local: str, value: str, kind: str, what: str) -> list[str]:
    """Numbers are whole and finite (``x % 1`` of inf and nan is nan); ``opt`` may be empty."""
    refuse = f"return redis.error_reply('BADARG ' .. {what})"
    if kind == "int":
        return [f"if not {local} or {local} % 1 ~= 0 then {refuse} end"]
    if kind == "opt":
        return [
            f"if {value} ~= '' and (not {local} or {local} % 1 ~= 0) then {refuse} end",
        ]
    return []
