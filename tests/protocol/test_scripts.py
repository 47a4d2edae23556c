"""The scripts as code: headers that are executed, names that agree, rules every script keeps."""

import re
from pathlib import Path

import pytest
from tests.protocol.kit import BROKEN, DAY_MS, DONE, LEASE_MS, RECURRING, Kit, lost, retry_in

from tasksched.store import scripts
from tasksched.store.beats import SyncBeats
from tasksched.store.limits import Limits
from tasksched.store.protocol import Beat, Edit, Store
from tasksched.store.reads import Reads
from tasksched.store.schedules import Schedules
from tasksched.store.sealed import Sealed

NAMES = scripts.names()
LIMITS = ("allot", "apportion", "relinquish", "report", "ration", "credit")
FLAGS = {
    # refused when memory is short
    "intake": {"submit", "edit", "redrive", "put_schedule", "trigger", "reseal"},
    "reads": {"overdue", "page", "owed"},
}


def body_of(name: str) -> str:
    """The script without its comments."""
    lines = (scripts.home() / f"{name}.lua").read_text().splitlines()
    return "\n".join(line for line in lines[1:] if not line.lstrip().startswith("--"))


@pytest.mark.parametrize("name", NAMES)
def test_every_script_says_what_it_is(name: str):
    lines = (scripts.home() / f"{name}.lua").read_text().splitlines()
    expected = "#!lua flags=allow-oom"
    if name in FLAGS["intake"]:
        expected = "#!lua"
    if name in FLAGS["reads"]:
        expected = "#!lua flags=no-writes"
    assert expected == lines[0]
    assert lines[1].startswith(f"--- {name}: ")
    header = "\n".join(line for line in lines if line.startswith("--"))
    for word in ("KEYS", "REPLY", "COST"):
        assert f"-- {word}" in header, word
    assert "-- ARGV" in header or "-- ROWS" in header


@pytest.mark.parametrize("name", NAMES)
def test_every_script_has_a_method_of_its_name(name: str):
    elsewhere = {
        "page": Reads, "present": SyncBeats, "reseal": Sealed, **dict.fromkeys(LIMITS, Limits)
    }  # fmt: skip
    owner = elsewhere.get(name, Schedules if name in RECURRING else Store)
    assert callable(getattr(owner, name))


@pytest.mark.parametrize("name", NAMES)
def test_bodies_use_the_names_of_their_header(name: str):
    assert not re.search(r"\b(KEYS|ARGV)\b", body_of(name))


@pytest.mark.parametrize("path", sorted(scripts.home().rglob("*.lua")), ids=lambda path: path.stem)
def test_nothing_in_a_script_depends_on_chance_or_on_user_code(path: Path):
    text = path.read_text()
    for word in ("loadstring", "math.random", "cjson.decode", "cmsgpack", "'KEYS'", "'SCAN'"):
        assert word not in text, word
    assert text.endswith("\n")


@pytest.mark.parametrize("name", NAMES)
def test_the_clock_is_read_once_a_call(name: str):
    source = scripts.script(name).source
    assert source.count("redis.call('TIME')") <= 1


@pytest.mark.parametrize("name", NAMES)
def test_every_slot_of_the_header_is_known_to_the_compiler(name: str):
    """A misspelt type would drop the slot, and shift all that follow it."""
    lines = (scripts.home() / f"{name}.lua").read_text().splitlines()[1:]
    declared, block = [], None
    for line in lines:
        if not line.startswith("--") or re.match(r"-- (REPLY|ERR|COST|@include)|--$", line):
            block = None
        if found := re.match(r"-- (KEYS|ARGV|ROWS)\s+(\w+)\s", line):
            block = found[1]
            declared.append(found[2])
        elif block and (found := re.match(r"--       (\w+)\s+\w+", line)):
            declared.append(found[1])
    script = scripts.script(name)
    assert declared == [*script.keys, *script.args, *script.row]


# ── the compiler ─────────────────────────────────────────────────────────────────────────────────

HEADER = """#!lua
--- probe: a script for this test.
--
-- KEYS  clock  hash  of the shard
-- ARGV  count  int   how many
--       text   str   any
--       most   opt   may be empty
-- ROWS  id     str
--       ms     int
-- REPLY nothing
-- COST  O(1)
"""


def compile_text(folder: Path, text: str) -> scripts.Script:
    (folder / "probe.lua").write_text(text)
    return scripts.compile_script("probe", folder)


def test_a_header_becomes_names_and_checks(tmp_path: Path):
    script = compile_text(tmp_path, HEADER + "return count\n")
    assert (("clock",), ("count", "text", "most"), ("id", "ms")) == (
        script.keys, script.args, script.row,
    )  # fmt: skip
    assert script.source.startswith("#!lua\nlocal clock = KEYS[1]\n")
    assert 40 == len(script.sha)
    values = {"clock": "k", "text": "t", "most": "", "count": 5}
    assert ["k", 5, "t", "", "a", 1, "b", 2] == script.pack(values, [("a", 1), ("b", 2)])


@pytest.mark.parametrize("missing", ["clock", "count", "text", "most"])
def test_a_forgotten_name_is_told(tmp_path: Path, missing: str):
    script = compile_text(tmp_path, HEADER)
    values = {"clock": "k", "text": "t", "most": "", "count": 5}
    del values[missing]
    with pytest.raises(KeyError, match=missing):
        script.pack(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--- probe\n" + HEADER, "does not begin with #!lua"),
        ("#!lua\n-- ARGV  count  int  how many\n", "declares no KEYS"),
        (HEADER + "-- @include lib/a\n-- @include lib/a\n", "includes lib/a twice"),
    ],
)
def test_a_wrong_script_does_not_compile(tmp_path: Path, text: str, message: str):
    with pytest.raises(ValueError, match=message):
        compile_text(tmp_path, text)


def test_an_include_that_is_not_there_does_not_compile(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        compile_text(tmp_path, HEADER + "-- @include lib/nowhere\n")


def test_includes_come_after_the_names_and_before_the_body(tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "one.lua").write_text("local one = 1\n")
    source = compile_text(tmp_path, HEADER + "-- @include lib/one\nreturn one\n").source
    places = [source.index(part) for part in ("local clock", "local one = 1", "return one")]
    assert sorted(places) == places


# ── on a server ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
async def test_after_script_flush_every_verb_still_works(kit: Kit):
    """redis-faults-005, redis-faults-006: NOSCRIPT means that nothing ran; the source is sent."""
    store = kit.store

    async def flushed(call):
        kit.plain.script_flush()
        return await call

    await flushed(kit.announce())
    waiting = await flushed(kit.submit())
    await flushed(kit.dispatch())
    first = (await flushed(kit.take()))[0]
    assert waiting == first.id
    assert ["ok"] == await flushed(store.heartbeat(0, [Beat(first.id, first.fence, LEASE_MS)]))
    assert "PENDING" == await flushed(kit.settle(first, retry_in(0)))
    second = await kit.start(waiting)
    assert ["PENDING"] == await flushed(store.release(0, [(second.id, second.fence)]))
    third = await kit.start(waiting)
    await kit.wait(LEASE_MS)
    assert [waiting] == [run.id for run in (await flushed(store.overdue(0)))[1]]
    assert ["PENDING"] == await flushed(store.reap(0, [(waiting, third.fence, lost(DAY_MS))]))
    assert "edited" == (await flushed(store.run_now(0, waiting, "default", None))).word
    await kit.settle(await kit.start(waiting), BROKEN)
    assert "redriven" == (await flushed(store.redrive(0, waiting, "default", None))).word
    changed = await flushed(store.edit(0, waiting, "default", None, Edit(due="+5")))
    assert "edited" == changed.word
    assert "cancelled" == (await flushed(store.cancel(0, waiting, "default", None))).word
    assert ["stray"] == await flushed(store.reclaim(0, [waiting]))
    await flushed(store.sweep(0, "default:normal:charge", "-"))
    found = await flushed(Reads(store).page({0: ["done:default"]}, None, limit=5))
    assert [waiting] == [entry.id for entry in found]
    removed, _ = await flushed(
        store.prune(
            0, "default", done_ms=0, dead_ms=0, count_max=0, bytes_max=0,
            keyed_ms=0, unkeyed_ms=0, limit=9,
        )
    )  # fmt: skip
    assert 1 == removed
    await flushed(store.enlist(store.global_keys.schedulers, "s", 0))


@pytest.mark.anyio
async def test_a_sha_is_what_the_server_thinks_it_is(kit: Kit):
    for name in NAMES:
        script = scripts.script(name)
        assert script.sha == kit.plain.script_load(script.source), name


@pytest.mark.anyio
async def test_the_servers_own_clock_is_used_where_none_is_given(kit: Kit):
    """Production: ``now_ms`` 0. Times are whole milliseconds of TIME."""
    kit.store.now_ms = 0
    await kit.announce()
    before_ms = int(kit.plain.time()[0]) * 1000
    task_id = await kit.submit()
    (grant,) = await kit.take()
    assert before_ms <= grant.started_ms <= int(kit.plain.time()[0]) * 1000 + 1000
    assert str(int(grant.fence)) == grant.fence
    assert 0 <= int(grant.fence) - grant.started_ms * 256 < 256
    assert "SUCCESS" == await kit.settle(grant, DONE)
    assert task_id == grant.id
