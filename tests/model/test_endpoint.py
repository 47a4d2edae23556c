"""Endpoints and receivers as values: what may be asked for, which secrets sign, what is sealed."""

import pytest

from tasksched.errors import Invalid
from tasksched.model.endpoint import (
    SECRETS_MAX,
    check_description,
    new_endpoint_id,
    open_receivers,
    open_secret,
    rotated,
    seal_receivers,
    seal_secret,
    secret_place,
    words,
)
from tasksched.model.ids import ID_LENGTH, shard_of
from tasksched.model.message import RETRY
from tasksched.model.names import check_tags
from tasksched.model.notify import (
    EVENT_TYPES,
    Cause,
    Receiver,
    delivery_id,
    notification_id,
    words_of,
)
from tasksched.model.receivers import (
    check_queue,
    check_receivers,
    check_schedule_receivers,
    with_secrets,
)
from tasksched.model.seal import AesGcmCodec, Bodies
from tasksched.model.signature import new_secret
from tasksched.model.tenant import Secret, current

URL = "https://example.com/hook"
KEYS = Bodies(AesGcmCodec({"k": b"x" * 32}, "k"))


def test_an_id_of_an_endpoint_is_a_tag():
    found = {new_endpoint_id() for _ in range(100)}
    assert len(found) == 100
    assert check_tags(sorted(found)[:1]) == tuple(sorted(found)[:1])


def test_events_as_scripts_read_them():
    assert words(EVENT_TYPES) == "blocked cancelled failed missed succeeded"
    assert words(["task.failed", "task.failed"]) == words_of((Receiver(URL, ("task.failed",)),))
    assert words([]) == ""


def test_ids_are_functions_of_cause_message_and_receiver():
    cause = Cause("task.failed", "t", "1", 5)
    later = Cause("task.failed", "t", "1", 6)
    assert notification_id(cause, 7) == notification_id(later, 7)
    assert notification_id(cause, 7) != notification_id(Cause("task.failed", "t", "2", 5), 7)
    for made in (notification_id(cause, 7), delivery_id("msg_1", URL, 7)):
        assert (len(made), shard_of(made, 8)) == (ID_LENGTH, 7)
    assert delivery_id("msg_1", URL, 7) != delivery_id("msg_1", "ep_1", 7)
    assert Cause.parse(cause.text) == cause


def test_the_old_secret_signs_along_for_the_overlap():
    once = rotated((), "a", 100, 50)
    assert (once, current(once, 10**15)) == ((Secret("a"),), ["a"])
    twice = rotated(once, "b", 100, 50)
    assert [current(twice, at) for at in (100, 149, 150)] == [["b", "a"], ["b", "a"], ["b"]]
    # Each that is replaced has its own end, and no later replacement moves it.
    third = rotated(twice, "c", 120, 1_000)
    assert third == (Secret("c"), Secret("b", 1_120), Secret("a", 150))
    assert rotated(third, "d", 130, 0) == (Secret("d"),)


def test_so_many_secrets_sign_at_a_time():
    found: tuple[Secret, ...] = ()
    for n in range(SECRETS_MAX + 3):
        found = rotated(found, str(n), n, 1_000)
    assert [each.value for each in found] == ["7", "6", "5", "4", "3"]


def test_deliveries_are_tried_for_most_of_a_day():
    waits = [RETRY.delay_ms(attempt, lambda: 1.0) for attempt in range(1, RETRY.max_attempts)]
    least = [RETRY.delay_ms(attempt, lambda: 0.0) for attempt in range(1, RETRY.max_attempts)]
    assert waits[:3] == [5_000, 20_000, 80_000]
    assert 9 * 3_600_000 < sum(least) < sum(waits) < 21 * 3_600_000


def test_a_sealed_secret_opens_at_its_place_alone():
    secret, place = new_secret(), secret_place("acme", "ep_1")
    sealed = seal_secret(KEYS, secret, place)
    assert secret not in sealed
    assert seal_secret(KEYS, sealed, place) == sealed
    assert open_secret(KEYS, sealed, place) == secret
    for other in (secret_place("acme", "ep_2"), secret_place("other", "ep_1")):
        with pytest.raises(Invalid):
            open_secret(KEYS, sealed, other)
    with pytest.raises(Invalid):
        open_secret(Bodies(), sealed, place)
    with pytest.raises(Invalid):
        open_secret(KEYS, "sealed:?", place)
    assert open_secret(KEYS, secret, place) == seal_secret(Bodies(), secret, place) == secret


def test_secrets_of_receivers():
    told = (Receiver(URL, ("task.failed",), new_secret()), Receiver(URL + "/2", ("task.failed",)))
    sealed = seal_receivers(KEYS, "acme", told)
    assert sealed[1] == told[1]
    assert sealed[0].secret != told[0].secret
    assert open_receivers(KEYS, "acme", sealed) == told
    assert open_receivers(Bodies(), "acme", sealed) == sealed  # its key is not here
    bare = tuple(Receiver(each.url, each.events) for each in told)
    assert with_secrets(bare, told) == told
    assert with_secrets(told, ()) == told
    newer = (Receiver(URL, ("task.failed",), new_secret()),)
    assert with_secrets(newer, told) == newer


def test_receivers_in_one_form():
    asked = [{"url": URL, "events": ["task.cancelled", "task.failed", "task.failed"]}]
    found = check_receivers(asked)
    assert found == (Receiver(URL, ("task.failed", "task.cancelled")),)
    assert check_receivers(found) == check_schedule_receivers(found) == found
    missed = [{"url": URL, "events": ["schedule.missed"], "secret": None}]
    assert check_schedule_receivers(missed) == (Receiver(URL, ("schedule.missed",)),)
    with pytest.raises(Invalid):
        check_receivers(missed)


@pytest.mark.parametrize("item", [None, 1, "x", [], {"url": URL}, {"events": ["task.failed"]}])
def test_what_is_no_receiver(item):
    with pytest.raises(Invalid) as caught:
        check_receivers([item])
    assert caught.value.problems[0].pointer.startswith("/notify/0")


def test_the_reserved_queue():
    assert check_queue("notifications2") == "notifications2"
    with pytest.raises(Invalid, match="reserved"):
        check_queue("notifications")


@pytest.mark.parametrize("text", ["a\nb", "x" * 513, 1, None, "\x00"])
def test_what_is_no_description(text):
    with pytest.raises(Invalid):
        check_description(text)
