"""One schema, written down three times: store/keys.py, lua/lib/keys.lua and docs/redis.md."""

import re
from pathlib import Path

import pytest
import redis.crc
from tests.protocol.kit import NAMESPACE
from tests.servers import ServerProcess

from tasksched.store.keys import NamespaceKeys, ShardKeys
from tasksched.store.scripts import home

DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"
KEYS = ShardKeys.of(NAMESPACE, 0)


def names_of(keys: ShardKeys | NamespaceKeys) -> dict[str, str]:
    """Attribute → the key, with ``<x>`` for what a method adds."""
    found = {}
    for name, member in vars(type(keys)).items():
        if isinstance(member, property):
            found[name] = getattr(keys, name)
        elif callable(member) and not name.startswith("_"):
            found[name] = getattr(keys, name)("<x>")
    return found


SHARD_KEYS = names_of(KEYS)
ALL_KEYS = {**SHARD_KEYS, **{f"ts {k}": v for k, v in names_of(NamespaceKeys("ts")).items()}}


def kinds(text: str) -> set[str]:
    """The first word of each key of a shard that is made in this Lua text."""
    found = set(re.findall(r"(?:shard|index) \.\. ':(\w+):?'", text))
    for choice in re.findall(r"and ':(\w+):' or ':(\w+):'", text):
        found |= set(choice)
    return found


def test_the_scripts_make_no_key_that_the_schema_does_not_know():
    known = {key.removeprefix(KEYS.shard + ":").split(":")[0] for key in SHARD_KEYS.values()}
    for path in sorted(home().rglob("*.lua")):
        assert kinds(path.read_text()) <= known, path.name


def test_every_key_of_the_schema_is_made_by_a_script():
    """The clock is given to each of them; the shard is cut out of its name."""
    made = {"clock"}
    for path in home().rglob("*.lua"):
        made |= kinds(path.read_text())
    known = {key.removeprefix(KEYS.shard + ":").split(":")[0] for key in SHARD_KEYS.values()}
    assert known == made


def test_the_names_of_the_include_are_those_of_the_schema():
    """``local WATCH = shard .. ':watch'`` is ``ShardKeys.watch``, and so on."""
    text = (home() / "lib" / "keys.lua").read_text()
    pairs = []
    for line in re.findall(r"^local ([A-Z, ]+) = (shard .*)$", text, re.MULTILINE):
        names, values = line[0].split(", "), re.findall(r"':(\w+:?)'", line[1])
        pairs += list(zip(names, values, strict=True))
    assert pairs
    for name, value in pairs:
        expected = SHARD_KEYS[name.lower()].removeprefix(KEYS.shard + ":").removesuffix("<x>")
        assert expected == value, name


def test_the_scripts_find_the_shard_from_its_clock():
    assert KEYS.clock[: -len(":clock")] == KEYS.shard


@pytest.mark.parametrize("namespace", ["ts", "tenant-1", "a.b_c"])
def test_all_keys_of_a_shard_are_in_one_slot(namespace: str):
    """redis-faults-009: every script touches one slot, whatever names are in its keys."""
    for number in (0, 7, 15):
        keys = ShardKeys.of(namespace, number)
        slots = {redis.crc.key_slot(key.encode()) for key in names_of(keys).values()}
        assert 1 == len(slots)


def test_shards_spread_over_the_slots():
    slots = {redis.crc.key_slot(ShardKeys.of("ts", n).clock.encode()) for n in range(16)}
    assert 16 == len(slots)


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("{a}{b}:x", 15495), ("{tenant-1}:due", 12386), ("{tenant-2}:due", 1),
        ("{ténant}:due", 13962), ("x{y", 2740), ("{a:b}:due", 2785), ("{acme}:due", 11304),
        ("{acme}:stream", 11304), ("s:{acme}:due", 11304), ("{}:due", 12932),
    ],
)  # fmt: skip
def test_the_slot_function_that_the_tests_trust_is_right(name: str, slot: int):
    """redis-faults-003, redis-faults-009."""
    assert slot == redis.crc.key_slot(name.encode())


def test_the_document_shows_every_key():
    text = DOCUMENT.read_text()
    headings = " ".join(re.findall(r"^### (.*)$", text, re.MULTILINE))
    shown = set(re.findall(r"`([^`]+)`", headings))
    generic = {re.sub(r"<\w+>", "<x>", key) for key in shown}
    assert set(ALL_KEYS.values()) == generic


def test_every_key_of_the_document_comes_with_a_line_for_redis_cli():
    sections = re.split(r"^### ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        assert "$ redis-cli " in section, section.splitlines()[0]


def test_the_lines_of_the_document_are_commands_a_server_knows(valkey_server: ServerProcess):
    """Run on an empty database, where each must answer with nothing rather than an error."""
    valkey_server.flush()
    lines = re.findall(r"^\$ redis-cli (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(lines) > 30
    with redis.Redis.from_url(valkey_server.url) as plain:
        plain.response_callbacks.clear()  # raw replies: the library's own stumble over empty ones
        plain.xgroup_create("{ts:0}:ready:mail:normal:charge", "workers", mkstream=True)
        for line in lines:
            words = [word.strip("'") for word in line.split()]
            if words[0] != "SSUBSCRIBE":
                plain.execute_command(*words)
