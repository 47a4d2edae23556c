"""API keys: how they are written, told apart from typing errors, and compared."""

import itertools
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksched.errors import Invalid, Unauthorized
from tasksched.model import apikey
from tasksched.model.apikey import (
    SCOPES,
    ApiKey,
    KeyText,
    check_label,
    check_scopes,
    check_tenant,
    is_proved,
    new_id,
    new_text,
    read_key,
)


def key(text: str, **more: object) -> ApiKey:
    known = {"name": "a", "tenant": "acme", "scopes": ("tasks:read",), "created_ms": 1_000}
    return ApiKey(**(known | {"hash": read_key(text).hash} | more))


def test_a_key_is_its_id_a_secret_and_a_check():
    key_id = new_id()
    text = new_text(key_id)
    assert re.fullmatch(rf"ts_{key_id}_[A-Za-z0-9_-]{{49}}", text)
    assert read_key(text).id == key_id
    assert new_text(key_id) != text


def test_every_single_typo_is_told_without_asking_anybody():
    text = new_text("0123456789")
    for place, other in itertools.product(range(len(text)), "0aZ_-"):
        typed = text[:place] + other + text[place + 1 :]
        if typed != text:
            with pytest.raises(Unauthorized) as caught:
                read_key(typed)
            assert typed not in str(caught.value)
    for typed in (text[:-1], text + "x", text.upper(), f" {text}", f"{text}\n", "", "ts__"):
        with pytest.raises(Unauthorized):
            read_key(typed)


@given(st.text(max_size=80))
def test_what_is_no_key_is_refused_and_not_repeated(text: str):
    with pytest.raises(Unauthorized, match="this is no API key: a part is missing or mistyped"):
        read_key(text)


def test_only_the_secret_proves_a_key():
    text, other = new_text("0123456789"), new_text("0123456789")
    assert is_proved(key(text), read_key(text), 5_000)
    assert not is_proved(key(text), read_key(other), 5_000)
    assert not is_proved(None, read_key(text), 5_000)


def test_the_secret_before_is_good_until_its_time():
    old, text = new_text("0123456789"), new_text("0123456789")
    rotated = key(text, old_hash=read_key(old).hash, old_until_ms=9_000)
    assert is_proved(rotated, read_key(old), 8_999)
    assert not is_proved(rotated, read_key(old), 9_000)
    assert is_proved(rotated, read_key(text), 9_000)


def test_a_key_of_nobody_costs_as_many_comparisons(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        apikey.hmac, "compare_digest", lambda a, b: asked.append((len(a), len(b))) or a == b
    )
    text = KeyText("0123456789", "0" * 64)
    stored = ApiKey(name="a", tenant="b", scopes=(), hash="1" * 64, created_ms=0)
    for known in (stored, None, msgspec.structs.replace(stored, old_hash="2" * 64, old_until_ms=9)):
        assert not is_proved(known, text, 5)
    assert asked == [(64, 64)] * 6


def test_the_state_of_a_key():
    text = new_text("0123456789")
    assert key(text).state_at(9) == "active"
    assert key(text, expires_ms=10).state_at(9) == "active"
    assert key(text, expires_ms=10).state_at(10) == "expired"
    assert key(text, expires_ms=10, revoked_ms=3).state_at(20) == "revoked"


def test_admin_may_all_and_no_other_scope_holds_another():
    for scope, asked in itertools.product(SCOPES, SCOPES):
        found = key(new_text("0123456789"), scopes=(scope,)).may(asked)
        assert found == (scope in {asked, "admin"})


def test_no_repr_shows_what_is_kept():
    text = new_text("0123456789")
    stored = key(text)
    assert stored.hash not in repr(stored)
    assert text not in f"{stored}{stored!r}"


def test_what_a_key_may_be_made_of():
    assert check_scopes(["metrics", "tasks:read", "metrics"]) == ("tasks:read", "metrics")
    assert check_tenant("*", ("admin",)) == "*"
    assert check_tenant("acme", ("metrics",)) == "acme"
    assert check_label("the key of Åsa") == "the key of Åsa"
    for wrong in (["root"], []):
        with pytest.raises(Invalid):
            check_scopes(wrong)
    for tenant in ("*", "a b", ""):
        with pytest.raises(Invalid):
            check_tenant(tenant, ("operate",))
    for name in ("", "a\nb", "x" * 101):
        with pytest.raises(Invalid):
            check_label(name)
