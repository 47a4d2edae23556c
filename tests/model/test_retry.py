"""How often a task starts, and how long it waits in between."""

import contextlib
import copy
import json
import math
import pickle
import random
from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.model.durations import TEN_YEARS_MS
from tasksched.model.retry import ATTEMPTS_MAX, DEFAULT, FACTOR_MAX, JITTERS, Retry

MANY = settings(deadline=None, max_examples=100)
ALMOST_ONE = math.nextafter(1.0, 0.0)

policies = st.builds(
    lambda attempts, lost, delays, factor, jitter: Retry(
        attempts,
        initial=timedelta(milliseconds=min(delays)),
        factor=factor,
        max=timedelta(milliseconds=max(delays)),
        jitter=jitter,
        max_lost=lost,
    ),
    st.integers(1, ATTEMPTS_MAX),
    st.integers(1, ATTEMPTS_MAX),
    st.tuples(st.integers(0, TEN_YEARS_MS), st.integers(0, TEN_YEARS_MS)),
    st.floats(1, FACTOR_MAX),
    st.sampled_from(JITTERS),
)


def test_the_default_is_five_starts_from_one_second_doubling_to_an_hour_fully_jittered():
    retry = Retry()

    assert (
        retry.max_attempts,
        retry.initial_ms,
        retry.factor,
        retry.max_ms,
    ) == (5, 1_000, 2.0, 3_600_000)
    assert (retry.jitter, retry.max_lost, retry.never) == ("full", 3, ())
    assert retry == DEFAULT


def test_retry_backoff_002_the_delay_is_capped_before_it_overflows():
    retry = Retry(initial=1, factor=2, max=3600, jitter="none")
    growing = {n: 2 ** (n - 1) for n in range(1, 13)}
    capped = dict.fromkeys([13, 14, 25, 31, 32, 40, 64, 1024, 1025, 100_000, 10**400], 3600)

    for attempt, delay_s in (growing | capped).items():
        assert retry.delay_ms(attempt, random.random) == delay_s * 1000


def test_retry_backoff_009_full_jitter_stays_in_its_bounds_around_its_mean():
    retry = Retry(initial="10s", max="10s", jitter="full")
    rng = random.Random(9).random

    delays = [retry.delay_ms(1, rng) for _ in range(10_000)]

    assert min(delays) >= 0
    assert max(delays) <= 10_000
    assert 4_800 <= sum(delays) / len(delays) <= 5_200


def test_equal_jitter_keeps_the_first_half():
    retry = Retry(initial="10s", max="10s", jitter="equal")
    rng = random.Random(9).random

    delays = [retry.delay_ms(1, rng) for _ in range(10_000)]

    assert min(delays) >= 5_000
    assert max(delays) <= 10_000
    assert 7_400 <= sum(delays) / len(delays) <= 7_600


@pytest.mark.parametrize(
    ("jitter", "least_ms", "most_ms"),
    [("full", 0, 2001), ("equal", 1000, 2001), ("none", 2001, 2001)],
)
def test_the_ends_of_the_random_range_are_the_ends_of_the_delay(jitter, least_ms, most_ms):
    retry = Retry(initial="2001ms", jitter=jitter)

    assert retry.delay_ms(1, lambda: 0.0) == least_ms
    assert retry.delay_ms(1, lambda: ALMOST_ONE) == most_ms


@given(policies, st.integers(1, 10**6), st.floats(0, ALMOST_ONE))
@MANY
def test_any_delay_is_a_whole_number_from_zero_to_the_largest(retry, attempt, chance):
    delay_ms = retry.delay_ms(attempt, lambda: chance)

    assert int is type(delay_ms)
    assert 0 <= delay_ms <= retry.max_ms


@given(policies, st.integers(1, 2000))
@MANY
def test_a_delay_without_jitter_never_shrinks(retry, attempt):
    still = Retry(
        initial=timedelta(milliseconds=retry.initial_ms),
        factor=retry.factor,
        max=timedelta(milliseconds=retry.max_ms),
        jitter="none",
    )

    assert still.delay_ms(1, random.random) == retry.initial_ms
    assert still.delay_ms(attempt, random.random) <= still.delay_ms(attempt + 1, random.random)


@pytest.mark.parametrize(
    ("retry", "delays_ms"),
    [
        (Retry(initial=0, max=0, jitter="none"), [0, 0, 0]),
        (Retry(initial=0, max="1h", jitter="none"), [0, 0, 0]),
        (Retry(initial="5s", factor=1, jitter="none"), [5_000, 5_000, 5_000]),
        (Retry(initial="1s", factor=1.5, jitter="none"), [1_000, 1_500, 2_250]),
        (Retry(initial="1s", factor=10, max="15s", jitter="none"), [1_000, 10_000, 15_000]),
    ],
)
def test_delays_grow_by_the_factor_up_to_the_largest(retry, delays_ms):
    assert [retry.delay_ms(n, random.random) for n in (1, 2, 3)] == delays_ms


def test_durations_may_be_written_in_every_way():
    expected = Retry(initial="1m", max="5m")

    assert Retry(initial=60, max=300.0) == expected
    assert Retry(initial=timedelta(minutes=1), max="PT5M") == expected


def test_two_policies_are_equal_when_all_of_their_fields_are():
    assert Retry(factor=2) == Retry(factor=2.0)
    assert hash(Retry(initial="60s")) == hash(Retry(initial="1m"))
    assert Retry() != Retry(never=(ValueError,))
    assert Retry() != Retry(max_lost=4)


def test_the_repr_is_the_call_that_makes_it():
    retry = Retry(3, initial="90s", factor=3, never=(ValueError, KeyError))

    assert eval(repr(retry)) == retry
    assert "initial='1m30s'" in repr(retry)
    assert "Retry(max_attempts=5, initial='1s', factor=2.0, max='1h'" in repr(Retry())
    assert "never=()" in repr(Retry())


def test_a_policy_is_frozen_and_can_be_copied():
    retry = Retry(3, never=(ValueError,))

    with pytest.raises(FrozenInstanceError):
        retry.max_attempts = 4
    assert copy.deepcopy(retry) == pickle.loads(pickle.dumps(retry)) == retry


def test_the_json_form_has_only_what_differs_from_the_default():
    assert Retry().to_json() == {}
    assert Retry(never=(ValueError,)).to_json() == {}
    assert Retry(1).to_json() == {"max_attempts": 1}
    assert Retry(factor=3, max=300).to_json() == {"backoff": {"factor": 3, "max": "5m"}}
    assert Retry(max_lost=1, jitter="none").to_json() == {
        "max_lost": 1,
        "backoff": {"jitter": "none"},
    }


def test_the_whole_json_form_is_read():
    body = {
        "max_attempts": 7,
        "max_lost": 2,
        "backoff": {"initial": "2s", "factor": 1.5, "max": 60, "jitter": "equal"},
    }

    assert Retry.parse(body) == Retry(
        7, initial=2, factor=1.5, max="1m", jitter="equal", max_lost=2
    )
    assert Retry.parse({}) == Retry.parse({"backoff": {}}) == DEFAULT
    assert Retry.parse({"max_attempts": 5.0, "backoff": {"factor": 2}}) == DEFAULT


@given(policies)
@MANY
def test_the_json_form_reads_back_to_an_equal_policy(retry):
    assert Retry.parse(json.loads(json.dumps(retry.to_json()))) == retry


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (None, ""),
        ([], ""),
        ("x", ""),
        ({"attempts": 3}, "/attempts"),
        ({"a/b~c": 3}, "/a~1b~0c"),
        ({"\ud800": 3}, "/?"),
        ({"never": []}, "/never"),
        ({"initial": "1s"}, "/initial"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"max_attempts": -1}, "/max_attempts"),
        ({"max_attempts": 1001}, "/max_attempts"),
        ({"max_attempts": 1.5}, "/max_attempts"),
        ({"max_attempts": float("inf")}, "/max_attempts"),
        ({"max_attempts": float("nan")}, "/max_attempts"),
        ({"max_attempts": 10**400}, "/max_attempts"),
        ({"max_attempts": True}, "/max_attempts"),
        ({"max_attempts": "5"}, "/max_attempts"),
        ({"max_attempts": None}, "/max_attempts"),
        ({"max_lost": 0}, "/max_lost"),
        ({"max_lost": []}, "/max_lost"),
        ({"backoff": None}, "/backoff"),
        ({"backoff": 5}, "/backoff"),
        ({"backoff": {"min": 1}}, "/backoff/min"),
        ({"backoff": {"initial": "60"}}, "/backoff/initial"),
        ({"backoff": {"initial": -1}}, "/backoff/initial"),
        ({"backoff": {"initial": None}}, "/backoff/initial"),
        ({"backoff": {"initial": "4000d", "max": "4000d"}}, "/backoff/initial"),
        ({"backoff": {"factor": 0.5}}, "/backoff/factor"),
        ({"backoff": {"factor": 101}}, "/backoff/factor"),
        ({"backoff": {"factor": 10**400}}, "/backoff/factor"),
        ({"backoff": {"factor": float("nan")}}, "/backoff/factor"),
        ({"backoff": {"factor": "2"}}, "/backoff/factor"),
        ({"backoff": {"factor": False}}, "/backoff/factor"),
        ({"backoff": {"max": 1e308}}, "/backoff/max"),
        ({"backoff": {"initial": "2h"}}, "/backoff/max"),
        ({"backoff": {"max": "999ms"}}, "/backoff/max"),
        ({"backoff": {"jitter": "Full"}}, "/backoff/jitter"),
        ({"backoff": {"jitter": True}}, "/backoff/jitter"),
        ({"backoff": {"jitter": ["full"]}}, "/backoff/jitter"),
    ],
)
def test_what_breaks_a_rule_is_named_by_its_pointer(body, pointer):
    with pytest.raises(Invalid) as caught:
        Retry.parse(body, "/retry")

    assert [p.pointer for p in caught.value.problems] == ["/retry" + pointer]


def test_unknown_members_are_all_named_up_to_twenty():
    with pytest.raises(Invalid) as caught:
        Retry.parse({f"x{n}": n for n in range(1000)})

    assert len(caught.value.problems) == 20


@pytest.mark.parametrize("never", [ValueError, [ValueError], ("ValueError",), (int,), None, (1,)])
def test_never_is_a_tuple_of_exception_classes(never):
    with pytest.raises(Invalid, match="exception classes"):
        Retry(never=never)


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([])))
@MANY
def test_no_value_of_a_member_raises_anything_but_invalid(value):
    for name in ("max_attempts", "max_lost", "backoff"):
        with contextlib.suppress(Invalid):
            Retry.parse({name: value})
    for name in ("initial", "factor", "max", "jitter"):
        with contextlib.suppress(Invalid):
            Retry.parse({"backoff": {name: value}})
