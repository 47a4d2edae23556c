"""Ids: sortable, opaque, and the address of their record."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksched.model.ids import ALPHABET, ID_LENGTH, SHARDS_MAX, keyed, mint, shard_of

SHAPE = re.compile(rf"[{ALPHABET}]{{{ID_LENGTH}}}")
NOW_MS = 1_764_000_000_000
# The horizon, 2200, and far beyond: 45 bits of milliseconds are the year 3084.
TIMES = st.integers(0, 2**45 - 1)
TEXTS = st.text(min_size=1, max_size=255)


@given(shard=st.integers(0, SHARDS_MAX - 1), now_ms=TIMES)
def test_an_id_leads_to_its_shard(shard: int, now_ms: int):
    made = mint(shard, now_ms)
    assert SHAPE.fullmatch(made)
    assert shard == shard_of(made, SHARDS_MAX)


@given(earlier=TIMES, later=TIMES, shard=st.integers(0, SHARDS_MAX - 1))
def test_ids_sort_by_the_millisecond_of_their_creation(earlier: int, later: int, shard: int):
    if earlier < later:
        assert mint(shard, earlier) < mint(0, later)


def test_a_hundred_thousand_ids_of_one_millisecond_differ():
    assert 100_000 == len({mint(0, NOW_MS) for _ in range(100_000)})


@given(tenant=TEXTS, key=TEXTS, shards=st.integers(1, SHARDS_MAX))
def test_a_key_has_one_id_for_ever(tenant: str, key: str, shards: int):
    made = keyed(tenant, key, shards)
    assert made == keyed(tenant, key, shards)
    assert SHAPE.fullmatch(made)
    assert made[0] == "k"
    assert shard_of(made, shards) is not None


def test_the_id_of_a_key_never_changes_from_one_release_to_the_next():
    """A stored key must be found by newer code: these values are pinned."""
    assert "khakmbbv0mr5trb5t9gz705" == keyed("default", "order-1", 16)
    assert "kdr7kfcxvjnqx65jv8bf40b" == keyed("acme", "order-1", 16)


@given(a=st.text("abcABC019._-", min_size=1, max_size=60), b=TEXTS)
def test_tenants_cannot_collide_by_moving_a_character_into_the_key(a: str, b: str):
    """idempotency-002: the parts are told apart by a character that no tenant has."""
    assert keyed("t", a + b, 1) != keyed("t" + a, b, 1)


def test_minted_and_keyed_ids_never_meet():
    """A minted id begins with its time: it would be the year 2500 before one begins with k."""
    assert mint(0, 7_258_118_400_000)[0] < "k"


def test_keys_spread_over_the_shards():
    counts = [0] * 16
    for n in range(16_000):
        counts[shard_of(keyed("t", f"key-{n}", 16), 16)] += 1
    assert 800 < min(counts) <= max(counts) < 1_200


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "0" * 22, "0" * 24, "0" * 22 + "\n", "0" * 23 + "\n", "A" * 23, "0" * 22 + "i",
        "0" * 22 + "l", "0" * 22 + "o", "0" * 22 + "u", "0" * 22 + "é", "0" * 22 + "٣",
        "../../../../etc/passwd0", "{ts:0}:task:00000000000", " " * 23, "0" * 11 + "\0" + "0" * 11,
    ],
)  # fmt: skip
def test_whatever_is_no_id_is_unknown(text: str):
    assert shard_of(text, 16) is None


def test_ids_are_case_sensitive():
    made = mint(5, NOW_MS)
    assert made.upper() == made or shard_of(made.upper(), 16) is None


@pytest.mark.parametrize(("shard", "shards", "expected"), [(15, 16, 15), (16, 16, None), (0, 1, 0)])
def test_a_shard_that_the_namespace_does_not_have_is_unknown(shard, shards, expected):
    assert expected == shard_of(mint(shard, NOW_MS), shards)


@given(st.text(max_size=40))
def test_no_text_breaks_the_look_up(text: str):
    found = shard_of(text, 16)
    assert found is None or 0 <= found < 16
