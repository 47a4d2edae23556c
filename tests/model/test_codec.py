"""Payloads as bytes: JSON's domain goes in and comes back; nothing else goes in."""

import contextlib
import datetime as dt
import decimal
import math
import pickle
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksched.errors import Invalid, TooLarge
from tasksched.model.codec import (
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    PAYLOAD_MAX,
    canonical,
    decode,
    encode,
    fingerprint,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20
)


@given(JSON)
def test_what_goes_in_comes_back(value):
    back = decode(encode(value))
    assert value == back
    assert type(value) is type(back)


def test_tuples_become_lists():
    assert [1, [2, []]] == decode(encode((1, (2, ()))))


@pytest.mark.parametrize("number", [INT_MIN, INT_MAX, 0, -1, 2**53 + 1, 1e308, 5e-324, -0.0])
def test_numbers_keep_every_digit(number):
    back = decode(encode(number))
    assert (number, math.copysign(1, number)) == (back, math.copysign(1, back))


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        INT_MIN - 1, INT_MAX + 1, 10**30, math.nan, math.inf, -math.inf, "\ud800", b"bytes", {1, 2},
        bytearray(b"x"), dt.datetime(2026, 1, 1), uuid.uuid4(), decimal.Decimal(1), 1j,
        object(), Ellipsis, Text("x"), {1: "a"}, {None: 1}, {b"k": 1}, {"\udfff": 1}, range(3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [0, v], lambda v: {"a": {"b": v}}])
def test_what_is_not_json_is_refused_with_its_place(value, wrap):
    with pytest.raises(Invalid) as caught:
        encode(wrap(value), "/payload")
    expected = {0: "/payload", 1: "/payload/1", 2: "/payload/a/b"}
    place = expected[[type(wrap(0)) is int, type(wrap(0)) is list, True].index(True)]
    assert caught.value.problems[0].pointer == place


def nested(depth: int, wrap) -> object:
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}, lambda v: (v,)])
def test_depth_is_bounded(wrap):
    assert nested(DEPTH_MAX, lambda v: list(wrap(v)) if type(wrap(v)) is tuple else wrap(v)) == (
        decode(encode(nested(DEPTH_MAX, wrap)))
    )
    for depth in (DEPTH_MAX + 1, 5_000):
        with pytest.raises(Invalid, match="nested"):
            encode(nested(depth, wrap))


def test_a_value_that_holds_itself_is_refused_and_ends():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(Invalid, match="nested"):
        encode(loop)


def test_size_counts_encoded_bytes():
    assert PAYLOAD_MAX == len(encode("x" * (PAYLOAD_MAX - 5)))  # five of a header
    with pytest.raises(TooLarge, match="limit is 262144"):
        encode("x" * (PAYLOAD_MAX - 4))
    with pytest.raises(TooLarge):
        encode("é" * (PAYLOAD_MAX // 2))
    with pytest.raises(TooLarge, match="limit is 10"):
        encode("x" * 20, most=10)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x81\x01\x02", b"\x92\x01", b"\x01\x01", b"\xd9\xff", b"\x81\x90\x01",
     b"\xa1\xff", pickle.dumps({"a": 1}), b'{"a": 1}', b"\x91" * 10_000],
)  # fmt: skip
def test_bytes_that_are_not_ours_are_told_and_not_guessed(data: bytes):
    with pytest.raises(Invalid, match="cannot be read"):
        decode(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes):
    with contextlib.suppress(Invalid):
        decode(data)


# ── fingerprints ─────────────────────────────────────────────────────────────────────────────────


@given(JSON)
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(value):
    def reversed_keys(each):
        if isinstance(each, dict):
            return {name: reversed_keys(each[name]) for name in reversed(each)}
        return [reversed_keys(item) for item in each] if isinstance(each, list) else each

    assert fingerprint(value) == fingerprint(reversed_keys(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], (1, 2)),
        (2, 2.0),
        ({"n": 1e3}, {"n": 1000}),
        (0.0, -0.0),
        (1e18, 10**18),
    ],
)
def test_spellings_of_the_same_command_agree(one, other):
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"), (1, True), (0, False), (None, False), ("", None), ([], {}), ([1, 2], [2, 1]),
        ({"a": None}, {}), (1.5, 1), (2**53, 2**53 + 1), ("a", "A"), ("é", "e\u0301"),
        ([[1], 2], [1, [2]]), ({"a": {"b": 1}}, {"a.b": 1}),
    ],
)  # fmt: skip
def test_different_commands_differ(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_a_fingerprint_is_32_hex_digits():
    assert 32 == len(fingerprint({}))
    assert int(fingerprint({}), 16) >= 0


def test_a_fingerprint_never_changes_from_one_release_to_the_next():
    """It is stored with a keyed task, for as long as that is remembered."""
    command = {"payload": [1, 2.5, "x", None, True], "tenant": "acme", "n": 2.0}
    assert "2e271acd43fc5602d28bca2566f059d6" == fingerprint(command)


@given(JSON)
def test_canonical_is_canonical(value):
    assert canonical(value) == canonical(canonical(value))
