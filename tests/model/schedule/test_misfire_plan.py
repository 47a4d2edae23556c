"""What is done about nominal times that are past."""

import json
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.model.schedule.oracle import examples

from tasksched.errors import Invalid
from tasksched.model.instants import parse_instant
from tasksched.model.recurring import plan_runs
from tasksched.model.schedule import Cron, Delay, Every, RRule
from tasksched.model.schedule.misfire import LIMIT_MAX, MisfirePolicy, Run, Skipped, plan

T = parse_instant
HOUR_MS = 3_600_000


def test_what_is_merely_due_is_run_and_nothing_else_is_said():
    rule = Cron("0 12 * * *")
    noon = T("2026-03-02T12:00:00Z")
    for late_ms in (0, 3_000, 4 * HOUR_MS):
        found = plan(rule, last_ms=noon - 86_400_000, now_ms=noon + late_ms, policy=MisfirePolicy())
        assert found.runs == (Run(noon),)
        assert found.runs[0].missed == 0
        assert found.skipped == ()
        assert not found.is_catch_up
        assert found.next_ms == noon + 86_400_000


def test_nothing_due():
    found = plan(Cron("0 12 * * *"), last_ms=5, now_ms=5, policy=MisfirePolicy())
    assert (found.runs, found.skipped, found.overdue, found.is_exact) == ((), (), 0, True)
    back = plan(Cron("0 12 * * *"), last_ms=10**9, now_ms=0, policy=MisfirePolicy())
    assert (back.runs, back.overdue, back.is_exact) == ((), 0, True)


def test_fixed_rate_002_each_policy_has_one_answer():
    rule = Every(15, start_at="2026-03-02T12:40:00Z")
    down_ms, up_ms = T("2026-03-02T12:40:47Z"), T("2026-03-02T12:41:52Z")
    missed = [T(f"2026-03-02T12:41:{second:02}Z") for second in (0, 15, 30, 45)]

    one = plan(rule, last_ms=down_ms, now_ms=up_ms, policy=MisfirePolicy())
    assert one.runs == (Run(missed[3], stands_for=4),)
    assert one.runs[0].missed == 4
    assert one.skipped == (Skipped("coalesced", missed[0], missed[2], 3),)
    assert one.next_ms == T("2026-03-02T12:42:00Z")

    every = plan(rule, last_ms=down_ms, now_ms=up_ms, policy=MisfirePolicy("all"))
    assert [run.nominal_ms for run in every.runs] == missed
    assert every.skipped == ()
    assert every.is_catch_up

    none = plan(rule, last_ms=down_ms, now_ms=up_ms, policy=MisfirePolicy("none", grace_ms=1000))
    assert none.runs == ()
    assert none.skipped == (Skipped("missed", missed[0], missed[3], 4),)


def test_none_runs_the_newest_if_it_is_within_the_grace():
    rule = Every(15, start_at="2026-03-02T12:40:00Z")
    up_ms = T("2026-03-02T12:41:52Z")
    found = plan(
        rule, last_ms=T("2026-03-02T12:40:47Z"), now_ms=up_ms, policy=MisfirePolicy("none", grace_ms=7000)
    )  # fmt: skip
    assert found.runs == (Run(T("2026-03-02T12:41:45Z")),)
    assert [(one.outcome, one.count) for one in found.skipped] == [("missed", 3)]


def test_fixed_rate_009_two_days_of_seconds():
    rule = Every(1, start_at="2026-03-02T00:00:00Z")
    down_ms, up_ms = T("2026-03-02T12:00:00.500Z"), T("2026-03-04T12:00:00.500Z")

    one = plan(rule, last_ms=down_ms, now_ms=up_ms, policy=MisfirePolicy())
    assert (one.overdue, one.is_exact, len(one.runs)) == (172_800, True, 1)

    found = plan(rule, last_ms=down_ms, now_ms=up_ms, policy=MisfirePolicy("all", limit=1000))
    assert len(found.runs) == 1000
    assert found.runs[-1].nominal_ms == T("2026-03-04T12:00:00Z")
    assert [(one.outcome, one.count) for one in found.skipped] == [("catch_up_dropped", 171_800)]


def test_fixed_rate_013_many_missed_minutes_wedge_nothing():
    found = plan(
        Cron("* * * * *"),
        last_ms=T("2026-03-02T08:29:30Z"),
        now_ms=T("2026-03-02T10:21:10Z"),
        policy=MisfirePolicy(),
    )
    assert found.runs == (Run(T("2026-03-02T10:21:00Z"), stands_for=112),)
    assert found.next_ms == T("2026-03-02T10:22:00Z")


@pytest.mark.parametrize(
    ("grace_s", "runs"), [(3600, 0), (14_399, 0), (14_400, 1), (21_600, 1), (None, 1)]
)
def test_misfire_004_006_011_the_grace_is_inclusive(grace_s, runs):
    grace_ms = None if grace_s is None else grace_s * 1000
    two = T("2026-03-03T02:00:00Z")
    for catch_up in ("one", "all") if grace_s is None else ("one", "all", "none"):
        found = plan(
            Cron("0 2 * * *"),
            last_ms=T("2026-03-03T01:59:00Z"),
            now_ms=T("2026-03-03T06:00:00Z"),
            policy=MisfirePolicy(catch_up, grace_ms=grace_ms),
        )
        assert len(found.runs) == runs
        assert found.skipped == (() if runs else (Skipped("missed", two, two, 1),))
        assert found.next_ms == T("2026-03-04T02:00:00Z")


def test_misfire_001_nothing_is_owed_for_times_before_creation():
    created_ms = T("2026-03-02T11:30:00Z")
    found = plan(Cron("1 11 * * *"), last_ms=created_ms, now_ms=created_ms, policy=MisfirePolicy())
    assert (found.runs, found.next_ms) == ((), T("2026-03-03T11:01:00Z"))


def test_a_grace_within_the_range_parts_it():
    found = plan(
        Cron("0 * * * *"),
        last_ms=T("2026-03-02T00:00:00Z"),
        now_ms=T("2026-03-02T10:30:00Z"),
        policy=MisfirePolicy("all", limit=2, grace_ms=4 * HOUR_MS),
    )
    assert [run.nominal_ms for run in found.runs] == [
        T("2026-03-02T09:00:00Z"),
        T("2026-03-02T10:00:00Z"),
    ]
    assert found.skipped == (
        Skipped("missed", T("2026-03-02T01:00:00Z"), T("2026-03-02T06:00:00Z"), 6),
        Skipped("catch_up_dropped", T("2026-03-02T07:00:00Z"), T("2026-03-02T08:00:00Z"), 2),
    )
    assert found.overdue == 10


def test_counting_ends_at_the_cap_where_it_costs():
    rule = RRule("FREQ=MINUTELY;INTERVAL=7", start_at="2026-01-01T00:00:00Z")
    found = plan(
        rule, last_ms=0, now_ms=T("2026-02-01T00:00:00Z"), policy=MisfirePolicy(), cap=1000
    )
    assert (found.overdue, found.is_exact) == (1000, False)
    assert [(one.count, one.is_exact) for one in found.skipped] == [(1000, False)]
    assert found.runs[0].nominal_ms == T("2026-01-31T23:59:00Z")
    # Cron and intervals are counted to the end.
    assert (
        plan(
            Cron("* * * * * *"), last_ms=0, now_ms=10**12, policy=MisfirePolicy(), cap=1000
        ).overdue
        == 10**9
    )


@examples(150)
@given(
    st.sampled_from(
        [
            Cron("*/7 1-3 * * *", tz="Europe/Paris"),
            Cron("30 2 * * *", tz="Europe/Paris"),
            Every("17m", start_at="2026-03-28T00:00:00Z"),
            RRule("FREQ=HOURLY;INTERVAL=5", tz="Europe/Paris", start_at="2026-03-28T00:00:00Z"),
        ]
    ),
    st.integers(0, 4 * 24 * 60),
    st.integers(0, 4 * 24 * 60),
    st.builds(
        MisfirePolicy,
        st.sampled_from(["one", "none", "all"]),
        st.integers(1, 30),
        st.integers(0, 3 * 24 * 60).map(lambda minutes: minutes * 60_000),
    ),
)
def test_nothing_is_lost_without_a_record(rule, last, length, policy):
    last_ms = T("2026-03-27T12:00:00Z") + last * 60_000
    now_ms = last_ms + length * 60_000

    found = plan(rule, last_ms=last_ms, now_ms=now_ms, policy=policy)

    overdue = rule.between(last_ms, now_ms, 10**6)
    told = [run.nominal_ms for run in found.runs]
    for skipped in found.skipped:
        times = [at for at in overdue if skipped.first_ms <= at <= skipped.last_ms]
        assert (times[0], times[-1], len(times)) == (
            skipped.first_ms,
            skipped.last_ms,
            skipped.count,
        )
        told += times
    assert sorted(told) == overdue
    assert len(overdue) == found.overdue
    assert all(now_ms - run.nominal_ms <= policy.grace_ms for run in found.runs)
    assert len(found.runs) <= (policy.limit if policy.catch_up == "all" else 1)
    assert all(a.last_ms < b.first_ms for a, b in pairwise(found.skipped))
    assert all(a.nominal_ms < b.nominal_ms for a, b in pairwise(found.runs))
    assert found.next_ms == rule.next(now_ms)


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        (("some",), "/catch_up"),
        (("all", 0), "/catch_up_limit"),
        (("all", LIMIT_MAX + 1), "/catch_up_limit"),
        (("none",), "/misfire_grace"),
    ],
)
def test_a_policy_is_checked(arguments, pointer):
    with pytest.raises(Invalid) as caught:
        MisfirePolicy(*arguments)
    assert caught.value.problems[0].pointer == pointer


def test_a_delay_has_nothing_to_miss():
    with pytest.raises(ValueError, match="fixed delay"):
        plan(Delay(60), last_ms=0, now_ms=10**12, policy=MisfirePolicy())
    assert json.dumps(MisfirePolicy().limit) == "100"


@given(
    st.sampled_from(("one", "none", "all")),
    st.none() | st.integers(0, 200_000),
    st.integers(0, 400_000),
)
def test_the_plan_of_one_due_time_is_the_general_plan(catch_up, grace_ms, late_ms):
    """``model.recurring`` takes a short way where nothing is missed; it must lead to the same place."""
    assume(catch_up != "none" or grace_ms is not None)
    rule = Cron("*/2 * * * *")
    next_ms = rule.next(1_774_000_000_000)
    now_ms, policy = next_ms + late_ms, MisfirePolicy(catch_up, grace_ms=grace_ms)

    found, _ = plan_runs("t:s", rule, policy, next_ms=next_ms, now_ms=now_ms, jitter_ms=0)

    assert found == plan(rule, last_ms=next_ms - 1, now_ms=now_ms, policy=policy)
