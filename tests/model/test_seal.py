"""Sealed bodies open where they belong, with a key that is known, unchanged: else not at all."""

import base64
import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasksched.errors import Conflict, Invalid
from tasksched.model import codec
from tasksched.model.recurring import Schedule, ScheduleSpec
from tasksched.model.schedule import Every
from tasksched.model.seal import (
    PLAIN,
    SEALED,
    AesGcmCodec,
    Bodies,
    codec_of,
    is_sealed,
    payload_places,
    schedule_place,
    task_place,
)
from tasksched.model.task import HandlerTarget, Task, TaskSpec

OLD, NEW = b"o" * 16, b"n" * 32
PLACE = task_place("acme", "0123", "payload")
ONE = AesGcmCodec({"k1": OLD}, "k1")
BOTH = AesGcmCodec({"k2": NEW, "k1": OLD}, "k2")


def refused(made: AesGcmCodec, sealed: bytes, place: str = PLACE) -> bool:
    try:
        made.open(sealed, place)
    except Invalid:
        return True
    return False


@given(st.binary(max_size=3000), st.text(max_size=40), st.sampled_from([OLD, NEW]))
@settings(max_examples=100)
def test_what_was_sealed_opens(raw: bytes, place: str, key: bytes):
    made = AesGcmCodec({"k": key}, "k")
    sealed = made.seal(raw, place)
    assert (True, "k") == (is_sealed(sealed), made.key_of(sealed))
    assert raw == made.open(sealed, place)


def test_the_same_body_never_looks_the_same():
    assert 100 == len({ONE.seal(b"body", PLACE) for _ in range(100)})


def test_any_flipped_bit_and_any_missing_byte_is_noticed():
    sealed = BOTH.seal(b"\x81\xa1a\x01", PLACE)
    for at, bit in itertools.product(range(len(sealed)), range(8)):
        spoilt = bytearray(sealed)
        spoilt[at] ^= 1 << bit
        assert refused(BOTH, bytes(spoilt)), (at, bit)
    for length in range(len(sealed)):
        assert refused(BOTH, sealed[:length]), length
    assert refused(BOTH, sealed + b"\x00")


@pytest.mark.parametrize(
    "elsewhere",
    [
        task_place("acme", "0124", "payload"),
        task_place("other", "0123", "payload"),
        task_place("acme", "0123", "result"),
        task_place("acme", "0123", "checkpoint"),
        schedule_place("acme:0123"),
        "",
    ],
)
def test_a_moved_body_does_not_open(elsewhere: str):
    assert refused(ONE, ONE.seal(b"body", PLACE), elsewhere)


def test_places_differ_for_different_records():
    names = ["a", "b", "a.b", "task", "schedule", "payload"]
    made = [task_place(t, i, k) for t in names for i in names for k in ("payload", "result")]
    made += [schedule_place(f"{t}:{i}") for t in names for i in names]
    assert len(made) == len(set(made))


def test_an_older_key_still_opens_and_the_current_one_seals():
    sealed = ONE.seal(b"body", PLACE)
    assert ("k1", b"body") == (BOTH.key_of(sealed), BOTH.open(sealed, PLACE))
    again = BOTH.seal(b"body", PLACE)
    assert ("k2", None) == (BOTH.key_of(again), ONE.key_of(again))
    assert refused(ONE, again)


def test_another_key_of_the_same_id_does_not_open():
    other = AesGcmCodec({"k1": NEW}, "k1")
    assert refused(other, ONE.seal(b"body", PLACE))


def test_msgpack_never_begins_like_a_sealed_body_and_cannot_read_one():
    for value in (None, True, 0, -1, 1.5, "", "x" * 300, [], [1] * 70_000, {}, {"a": 1}):
        assert not is_sealed(codec.encode(value))
    for stored in (SEALED, ONE.seal(codec.encode({"a": 1}), PLACE)):
        with pytest.raises(Invalid):
            codec.decode(stored)


@pytest.mark.parametrize("stored", [b"\x80", b"", pickle.dumps({"a": 1}), b"\x00", b"plain"])
def test_what_is_not_sealed_passes_as_it_is(stored: bytes):
    assert stored == Bodies(ONE).open(stored, PLACE) == PLAIN.open(stored, PLACE)


def test_without_a_codec_nothing_is_sealed_and_nothing_sealed_is_opened():
    assert b"body" == PLAIN.seal(b"body", PLACE)
    with pytest.raises(Invalid, match="no key here"):
        PLAIN.open(ONE.seal(b"body", PLACE), PLACE)


def test_no_payload_stays_none():
    assert b"" == Bodies(ONE).seal(b"", PLACE)


def test_errors_and_representations_tell_nothing():
    sealed = ONE.seal(b"canary", PLACE)
    with pytest.raises(Invalid) as moved:
        BOTH.open(sealed, "elsewhere")
    with pytest.raises(Invalid) as unknown:
        AesGcmCodec({"k2": NEW}, "k2").open(sealed, PLACE)
    for text in (str(moved.value), str(unknown.value), repr(BOTH), repr(Bodies(BOTH))):
        assert not any(secret in text for secret in ("canary", "oooo", "nnnn"))


class Hostile:
    """A codec that breaks its promises."""

    current = "h"

    def __init__(self, sealed: bytes = b"") -> None:
        self.sealed = sealed

    def seal(self, raw: bytes, place: str) -> bytes:
        if not self.sealed:
            raise KeyError("canary")
        return self.sealed

    def open(self, sealed: bytes, place: str) -> bytes:
        raise KeyError("canary")

    def key_of(self, sealed: bytes) -> str | None:
        return self.current


def test_a_codec_that_fails_makes_an_error_that_tells_nothing():
    for work in (
        lambda: Bodies(Hostile()).seal(b"x", PLACE),
        lambda: Bodies(Hostile()).open(SEALED + b"h", PLACE),
    ):
        with pytest.raises(Invalid, match="KeyError") as caught:
            work()
        assert "canary" not in str(caught.value)


def test_a_codec_whose_work_could_be_taken_for_plain_is_refused():
    with pytest.raises(Invalid, match="C1"):
        Bodies(Hostile(b"\x81")).seal(b"x", PLACE)


# -- the setting ------------------------------------------------------------------------------------


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_the_first_key_of_the_setting_is_current():
    made = codec_of(f" k2:{b64(NEW)}, k1:{b64(OLD)} ,")
    assert made is not None
    assert ("k2", b"body") == (made.current, made.open(ONE.seal(b"body", PLACE), PLACE))


def test_the_setting_takes_the_url_alphabet_too():
    key = b"\xff\xfe" * 8
    made = codec_of(f"k:{base64.urlsafe_b64encode(key).decode()}")
    assert made is not None
    assert b"x" == made.open(AesGcmCodec({"k": key}, "k").seal(b"x", PLACE), PLACE)


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_setting_means_no_encryption(text: str):
    assert codec_of(text) is None


SECRET = "c2VjcmV0"  # nobody may read it in an error


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"k:{SECRET}",  # 6 bytes
        f"k:{SECRET}%",
        f":{b64(OLD)}",
        f"a b:{b64(OLD)}",
        f"k:{b64(OLD)},k:{b64(NEW)}",
        f"k:{b64(b'x' * 24)}",
        f"{'k' * 65}:{b64(OLD)}",
    ],
)
def test_a_setting_that_means_nothing_is_refused_without_repeating_it(text: str):
    with pytest.raises(Invalid) as caught:
        codec_of(text)
    told = f"{caught.value} {caught.value.problems}"
    assert not any(secret in told for secret in (SECRET, b64(OLD), b64(NEW)))


def test_the_current_key_must_be_there():
    with pytest.raises(Invalid, match="current"):
        AesGcmCodec({"k1": OLD}, "k2")


# -- records ----------------------------------------------------------------------------------------


def task(task_id: str = "0123", **fields: object) -> Task:
    known: dict[str, object] = {
        "status": "SUCCESS", "version": 1, "tenant": "acme", "queue": "q", "priority": "normal",
        "target": HandlerTarget("f"), "created_ms": 1, "due_ms": 1,
    }  # fmt: skip
    return Task(id=task_id, **{**known, **fields})


def test_a_task_is_opened_where_the_key_is():
    bodies = Bodies(ONE)
    sent = bodies.seal_task(
        TaskSpec(target=HandlerTarget("f"), payload=b"\x01", tenant="acme"), "0123"
    )
    stored = task(payload=sent.payload, result=bodies.seal_result(b"\x02", "acme", "0123"))
    assert task(payload=b"\x01", result=b"\x02") == bodies.open_task(stored)
    assert task(encrypted=True) == PLAIN.open_task(stored)
    assert task(encrypted=True) == Bodies(AesGcmCodec({"k2": NEW}, "k2")).open_task(stored)


def test_a_body_of_another_task_stays_unreadable():
    bodies = Bodies(ONE)
    foreign = bodies.seal_result(b"\x02", "acme", "9999")
    found = bodies.open_task(task(payload=b"\x01", result=foreign))
    assert task(payload=b"\x01", result=foreign) == found


def test_only_an_occurrence_may_have_the_payload_of_its_schedule():
    bodies = Bodies(ONE)
    sealed = bodies.seal(b"\x01", schedule_place("acme:s"))
    assert b"\x01" == bodies.open_payload(sealed, "acme", "r123", "acme:s")
    for tenant, task_id, ref in (
        ("acme", "0123", "acme:s"),
        ("acme", "r123", None),
        ("acme", "r123", "acme:other"),
        ("other", "r123", "acme:s"),
    ):
        with pytest.raises(Invalid):
            bodies.open_payload(sealed, tenant, task_id, ref)
    own = bodies.seal(b"\x02", payload_places("acme", "r123", "acme:s")[-1])
    assert b"\x02" == bodies.open_payload(own, "acme", "r123", "acme:s")


def test_a_definition_read_without_the_key_is_not_put_back():
    template = TaskSpec(target=HandlerTarget("f"), payload=b"\x01", tenant="acme")
    spec = ScheduleSpec(id="s", template=template, rule=Every("1m").bind("acme:s", 0))
    sealed = Bodies(ONE).seal_schedule(spec)
    stored = Schedule(
        spec=sealed, status="ACTIVE", version=1, generation_ms=0, created_ms=0, updated_ms=0
    )
    assert spec == Bodies(ONE).open_schedule(stored).spec
    unread = PLAIN.open_schedule(stored)
    assert stored == unread
    with pytest.raises(Conflict, match="encrypted"):
        PLAIN.seal_schedule(unread.spec)
