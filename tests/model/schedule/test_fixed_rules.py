"""Elapsed time: fixed rates and fixed delays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.schedule.oracle import examples

from tasksched.errors import Invalid
from tasksched.model.instants import parse_instant
from tasksched.model.schedule import Delay, Every, RRule
from tasksched.model.schedule.rule import CEILING_MS, UnboundError

T0 = parse_instant("2026-03-02T10:00:00Z")


def test_without_a_start_the_first_run_is_one_interval_after_creation():
    rule = Every("60s").bind("s", T0)
    assert rule.first(T0) == T0 + 60_000
    assert rule.next(0) == T0 + 60_000
    assert rule.previous(T0 + 60_000) is None


def test_a_start_is_the_anchor_and_the_first_run():
    rule = Every(60, start_at="2026-03-02T10:00:00Z").bind("s", 5)
    assert rule.first(T0) == T0  # even if it is the instant of creation
    assert rule.first(T0 - 5) == T0
    assert rule.first(T0 + 1) == T0 + 60_000  # nothing is owed for what is past
    assert rule.next(T0) == T0 + 60_000


def test_fixed_rate_001_another_interval_keeps_the_anchor():
    rule = Every("5m").bind("s", T0)
    assert rule.next(parse_instant("2026-03-02T10:07:30Z")) == parse_instant("2026-03-02T10:10:00Z")


def test_both_bounds_are_inclusive():
    rule = Every(1, start_at="2026-03-02T10:00:00Z", end_at="2026-03-02T10:00:02Z")
    assert rule.between(0, 2**60, 9) == [T0, T0 + 1000, T0 + 2000]
    assert rule.next(T0 + 2000) is None
    assert rule.previous(2**60) == T0 + 2000
    assert rule.count(0, 2**60) == 3
    assert rule.count(T0, T0 + 1000) == 1


def test_the_calendar_ends_it_all():
    rule = Every("1d").bind("s", T0)
    assert rule.next(CEILING_MS) is None
    assert Delay("1d").next(CEILING_MS) is None


@examples(200)
@given(
    st.integers(1000, 10**8),
    st.integers(-(10**13), 10**13),
    st.integers(-(10**9), 10**9),
    st.integers(0, 10**9),
)
def test_the_grid_is_exact(interval_ms, anchor_ms, from_ms, length_ms):
    rule = Every(interval_ms / 1000).bind("s", anchor_ms)
    from_ms += anchor_ms
    until_ms = from_ms + min(length_ms, 50 * interval_ms)

    times = rule.between(from_ms, until_ms, 99)

    assert times == [
        at_ms
        for step in range(
            (from_ms - anchor_ms) // interval_ms, (until_ms - anchor_ms) // interval_ms + 1
        )
        if step >= 1 and from_ms < (at_ms := anchor_ms + step * interval_ms) <= until_ms
    ]
    assert rule.newest(from_ms, until_ms, 99) == times
    assert rule.count(from_ms, until_ms) == len(times)
    assert rule.count(from_ms, until_ms, 3) == min(len(times), 3)


def test_a_rule_without_a_start_is_not_asked_before_it_is_bound():
    for rule in (Every("1m"), RRule("FREQ=DAILY")):
        assert not rule.is_bound
        with pytest.raises(UnboundError):
            rule.next(T0)
        assert rule.bind("s", T0).is_bound


def test_a_delay_counts_from_the_verdict_and_has_no_grid():
    rule = Delay("30s", end_at="2026-03-02T10:01:00Z").bind("s", T0)
    assert rule.first(T0) == T0 + 30_000
    assert rule.next(T0 + 12_345) == T0 + 42_345
    assert rule.next(T0 + 30_001) is None
    assert rule.previous(T0 + 10**9) is None
    assert rule.count(0, 2**60) == 0
    assert rule.between(0, 2**60, 9) == rule.newest(0, 2**60, 9) == []


def test_a_delay_with_a_start_begins_there_or_at_once():
    rule = Delay("30s", start_at="2026-03-02T10:00:00Z")
    assert rule.first(T0 - 1) == T0
    assert rule.first(T0 + 1) == T0 + 1
    ended = Delay("30s", start_at="2026-03-02T10:00:00Z", end_at="2026-03-02T10:00:00Z")
    assert ended.first(T0 + 1) is None


@pytest.mark.parametrize("value", [0, 0.999, "0s", -1, True, "60", None, "11000d", float("nan")])
def test_lengths_have_bounds(value):
    for kind in (Every, Delay):
        with pytest.raises(Invalid):
            kind(value)
    assert Every(0.1, least_ms=100).interval_ms == 100
