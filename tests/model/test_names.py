"""What may be called what."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.model.names import (
    HANDLER_NAME_MAX,
    KEY_MAX,
    NAME_MAX,
    PRIORITIES,
    TAGS_MAX,
    check_handler_name,
    check_header_key,
    check_key,
    check_name,
    check_priority,
    check_tags,
)

MANY = settings(deadline=None, max_examples=100)
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.lists(st.text()),
    st.dictionaries(st.text(), st.text()),
)


@pytest.mark.parametrize("name", ["a", "A", "0", "a.b-c_d", "x" * NAME_MAX, "9..", "a--"])
def test_a_name_of_the_alphabet_is_returned_as_it_is(name):
    assert check_name(name, "/queue") == name
    assert check_handler_name(name, "/target/name") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * (NAME_MAX + 1),
        ".a",
        "-a",
        "_a",
        "a b",
        " a",
        "a\n",
        "a/b",
        "a:b",
        "{a}",
        "a*",
        "a\x00",
        "ä",
        "а",  # Cyrillic
        "\u0661",  # an Arabic digit
        "a\ud800",
        None,
        5,
        True,
        b"a",
        ["a"],
    ],
)
def test_anything_else_is_refused_at_its_pointer(name):
    with pytest.raises(Invalid) as caught:
        check_name(name, "/queue")

    assert caught.value.problems[0].pointer == "/queue"
    assert caught.value.problems[0].detail


def test_a_handler_name_may_be_twice_as_long_and_no_longer():
    check_handler_name("h" * HANDLER_NAME_MAX)

    with pytest.raises(Invalid, match="128"):
        check_handler_name("h" * (HANDLER_NAME_MAX + 1))


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
@MANY
def test_every_name_the_contract_describes_is_accepted(name):
    assert check_name(name) == name


@given(ANYTHING)
@MANY
@example("\ud800" * 100)
def test_no_value_makes_a_check_raise_anything_but_invalid(value):
    checks = (check_name, check_handler_name, check_key, check_header_key, check_tags)
    for check in (*checks, check_priority):
        try:
            check(value, "/x")
        except Invalid as error:
            error.detail.encode("ascii")


@pytest.mark.parametrize(
    "key", ["k", "K" * KEY_MAX, "charge:inv_1", "a b", '"quoted"', "{1}*?", "00", "~"]
)
def test_an_idempotency_key_is_free_ascii_text_everywhere(key):
    assert check_key(key) == key
    assert check_header_key(key) == key


@pytest.mark.parametrize("key", ["schlüssel", "鍵", "\U0001f511" * KEY_MAX])
def test_a_key_with_other_letters_is_for_bodies_and_not_for_headers(key):
    assert check_key(key) == key

    with pytest.raises(Invalid, match="ASCII"):
        check_header_key(key, "/Idempotency-Key")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "k" * (KEY_MAX + 1),
        "a\x00",
        "a\n",
        "\t",
        "\x1f",
        "\x7f",
        "\x80",
        "\x9f",
        "\udc00",
        None,
        1,
    ],
)
def test_an_empty_long_controlling_or_unencodable_key_is_refused(key):
    with pytest.raises(Invalid):
        check_key(key)
    with pytest.raises(Invalid):
        check_header_key(key)


def test_tags_keep_their_order():
    assert check_tags(["b", "a", "c"], "/tags") == ("b", "a", "c")
    assert check_tags([], "/tags") == ()


def test_tags_are_at_most_thirty_two():
    tags = [f"t{n}" for n in range(TAGS_MAX)]
    assert check_tags(tags) == tuple(tags)

    with pytest.raises(Invalid, match="at most 32"):
        check_tags([*tags, "more"])


def test_every_bad_tag_is_named():
    with pytest.raises(Invalid) as caught:
        check_tags(["ok", "not ok", "ok", 7], "/tags")

    assert [p.pointer for p in caught.value.problems] == ["/tags/1", "/tags/2", "/tags/3"]


@pytest.mark.parametrize("tags", ["abc", None, {"a": 1}, {"a"}, 5])
def test_tags_are_a_list_and_nothing_that_resembles_one(tags):
    with pytest.raises(Invalid, match="list"):
        check_tags(tags)


def test_priorities_stand_in_the_order_of_their_class():
    assert PRIORITIES == ("critical", "high", "normal", "low")
    assert [check_priority(p) for p in PRIORITIES] == list(PRIORITIES)


@pytest.mark.parametrize("priority", ["High", "urgent", "", " low", 1, None, True, ["low"]])
def test_any_other_priority_is_refused_with_the_list(priority):
    with pytest.raises(Invalid, match="critical, high, normal, low"):
        check_priority(priority, "/priority")
