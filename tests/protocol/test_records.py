"""Records: versioned values of the namespace, and the settings that are copied to every shard."""

import msgspec
import pytest
from tests.protocol.kit import Kit

from tasksched.errors import TaskschedError
from tasksched.store.records import Kept, Records, copy_conf, set_conf

pytestmark = pytest.mark.anyio


class Note(msgspec.Struct, frozen=True):
    text: str = ""


@pytest.fixture
def records(kit: Kit) -> Records[Note]:
    return Records(kit.store, "ts:operations", Note)


async def test_a_record_is_written_under_the_version_that_was_read(records: Records[Note]):
    assert await records.get("a") is None
    assert ("kept", 1) == _brief(await records.put("a", Note("one"), expected=0))
    assert Kept(1, Note("one")) == await records.get("a")
    assert ("kept", 2) == _brief(await records.put("a", Note("two"), expected=1))
    assert ("version", 2) == _brief(await records.put("a", Note("other"), expected=1))
    assert ("version", 2) == _brief(await records.put("a", Note("other"), expected=0))
    assert ("missing", 0) == _brief(await records.put("b", Note(), expected=3))
    assert {"a": Kept(2, Note("two"))} == await records.all()


async def test_the_same_write_again_is_answered_again(kit: Kit):
    store = kit.store
    for _ in range(2):
        changed = await store.put_record("ts:operations", "a", b"one two", expected=0)
        assert ("kept", 1) == _brief(changed)
    assert b"1 one two" == kit.plain.hget("ts:operations", "a")
    assert ("kept", 2) == _brief(await store.put_record("ts:operations", "a", b"three"))
    assert ("removed", 2) == _brief(await store.put_record("ts:operations", "a", b""))
    assert ("missing", 0) == _brief(await store.put_record("ts:operations", "a", b""))


async def test_removal_asks_for_the_version_too(records: Records[Note]):
    await records.put("a", Note())
    assert ("version", 1) == _brief(await records.remove("a", expected=2))
    assert ("removed", 1) == _brief(await records.remove("a", expected=1))
    assert {} == await records.all()


async def test_one_that_cannot_be_read_stops_no_other(kit: Kit, records: Records[Note]):
    await records.put("a", Note("one"))
    kit.plain.hset("ts:operations", "b", "1 {")
    assert ({"a": Kept(1, Note("one"))}, ["b"]) == await records.readable()
    with pytest.raises(TaskschedError, match="cannot be read"):
        await records.all()


async def test_a_setting_reaches_every_shard_and_the_newest_stays(kit: Kit):
    store = kit.store
    await set_conf(store, "hooks:acme", "failed")
    await set_conf(store, "hooks:acme", "failed missed")
    await set_conf(store, "hooks:other", "")
    expected = {b"hooks:acme": b"2 failed missed", b"hooks:other": b"1  "}
    assert expected == kit.plain.hgetall(store.keys[0].conf)
    assert 0 == await store.configure(0, [("hooks:acme", "1 failed")])
    assert expected == kit.plain.hgetall(store.keys[0].conf)


async def test_a_shard_that_was_not_told_is_brought_up_to_date(kit: Kit):
    assert 0 == await copy_conf(kit.store, 0)
    await set_conf(kit.store, "hooks:acme", "failed")
    kit.plain.delete(kit.store.keys[0].conf)
    assert 1 == await copy_conf(kit.store, 0)
    assert 0 == await copy_conf(kit.store, 0)
    assert {b"hooks:acme": b"1 failed"} == kit.plain.hgetall(kit.store.keys[0].conf)


def _brief(changed: object) -> tuple[str, int]:
    return changed.word, changed.version  # type: ignore[attr-defined]
