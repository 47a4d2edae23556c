"""put_record: small versioned records, written only under the version that was read."""

import pytest
from tests.protocol.kit import Kit

pytestmark = pytest.mark.anyio


async def put(kit: Kit, value: bytes, expected: int | None = None, field: str = "f"):
    home = kit.store.global_keys.tenants
    found = await kit.store.put_record(home, field, value, expected=expected)
    return found.word, found.version


def stored(kit: Kit, field: str = "f") -> bytes | None:
    return kit.plain.hget(kit.store.global_keys.tenants, field)


async def test_versions_grow_by_one(kit: Kit):
    assert ("kept", 1) == await put(kit, b"a", 0)
    assert ("kept", 2) == await put(kit, b"b", 1)
    assert ("kept", 3) == await put(kit, b"c")
    assert b"3 c" == stored(kit)


async def test_another_version_is_refused_and_nothing_written(kit: Kit):
    assert ("missing", 0) == await put(kit, b"a", 7)
    await put(kit, b"a", 0)
    assert ("version", 1) == await put(kit, b"b", 0)
    assert ("version", 1) == await put(kit, b"b", 7)
    assert ("version", 1) == await put(kit, b"", 7)
    assert b"1 a" == stored(kit)


async def test_a_write_whose_reply_was_lost_is_answered_again(kit: Kit):
    for _ in range(2):
        assert ("kept", 1) == await put(kit, b"a", 0)
    await put(kit, b"b", 1)
    for _ in range(2):
        assert ("kept", 2) == await put(kit, b"b", 1)
    assert ("version", 2) == await put(kit, b"a", 0)


async def test_an_empty_value_removes(kit: Kit):
    assert ("missing", 0) == await put(kit, b"")
    await put(kit, b"a")
    await put(kit, b"x", field="other")
    assert ("removed", 1) == await put(kit, b"", 1)
    assert (None, b"1 x") == (stored(kit), stored(kit, "other"))
    assert ("kept", 1) == await put(kit, b"a", 0)


async def test_any_bytes_are_kept(kit: Kit):
    value = bytes(range(256)) + b"\r\n 5 "
    await put(kit, value)
    assert b"1 " + value == stored(kit)
    assert ("kept", 1) == await put(kit, value)
