"""The JSON form of a rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.schedule.oracle import examples

from tasksched.errors import Invalid
from tasksched.model.instants import parse_instant
from tasksched.model.schedule import Cron, Delay, Every, RRule, parse_rule, require_first

PARIS = {"timezone": "Europe/Paris"}


def pointers(fields: dict) -> list[str]:
    with pytest.raises(Invalid) as caught:
        parse_rule(fields)
    assert all(problem.detail for problem in caught.value.problems)
    return [problem.pointer for problem in caught.value.problems]


def test_each_kind():
    assert parse_rule({"cron": "30 2 * * *", **PARIS}) == Cron("30 2 * * *", tz="Europe/Paris")
    assert parse_rule({"interval": "15m"}) == Every("15m") == Every(900)
    assert parse_rule({"delay": "PT15M"}) == Delay("15m")
    assert parse_rule({"rrule": "freq=daily"}) == RRule("FREQ=DAILY")
    assert parse_rule({"interval": 0.1}, least_ms=100).interval_ms == 100


def test_the_same_text_gives_the_same_object():
    fields = {"cron": "0 9 * * MON", "start_at": "2026-01-01T00:00:00Z", **PARIS}
    assert parse_rule(fields) is parse_rule(dict(fields))
    assert parse_rule({**fields, "cron": "0  9 * *  MON"}) == parse_rule(fields)
    assert parse_rule({**fields, "cron": "0 9 * * 1"}) != parse_rule(fields)
    # A datetime with a fold equals the one without, and is another instant.
    assert hash(parse_rule(fields)) == hash(parse_rule(dict(fields)))


def test_local_bounds_belong_to_the_zone():
    rule = parse_rule({"cron": "* * * * *", "start_at": "2026-07-01T00:00:00", **PARIS})
    assert rule.start_ms == parse_instant("2026-06-30T22:00:00Z")
    assert rule.first(0) == rule.start_ms


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [""]),
        ({"cron": None}, [""]),
        ({"cron": "* * * * *", "interval": 60}, ["/cron", "/interval"]),
        ({"cron": "60 * * * *"}, ["/cron"]),
        ({"cron": ["* * * * *"]}, ["/cron"]),
        ({"cron": {}}, ["/cron"]),
        ({"cron": True}, ["/cron"]),
        ({"rrule": "FREQ=SECONDLY"}, ["/rrule"]),
        ({"rrule": 5}, ["/rrule"]),
        ({"interval": "60"}, ["/interval"]),
        ({"interval": 0.5}, ["/interval"]),
        ({"delay": "11y"}, ["/delay"]),
        ({"cron": "@daily", "timezone": 5}, ["/timezone"]),
        ({"cron": "@daily", "timezone": ["UTC"]}, ["/timezone"]),
        ({"cron": "@daily", "timezone": ""}, ["/timezone"]),
        ({"cron": "@daily", "start_at": "yesterday"}, ["/start_at"]),
        ({"cron": "@daily", "start_at": 1772445600}, ["/start_at"]),
        ({"cron": "@daily", "end_at": []}, ["/end_at"]),
        ({"cron": "@daily", "start_at": "2027-01-01T00:00:00Z", "end_at": "2026-01-01T00:00:00Z"}, ["/end_at"]),
        ({"cron": "@daily", "on_gap": "shift"}, ["/on_gap"]),
        ({"cron": "@daily", "on_fold": True}, ["/on_fold"]),
        ({"interval": 60, "on_gap": "skip"}, ["/on_gap"]),
        ({"delay": 60, "on_fold": "both"}, ["/on_fold"]),
        ({"cron": "x", "timezone": "Mars", "on_gap": 1, "on_fold": 2}, ["/cron", "/timezone", "/on_gap", "/on_fold"]),
    ],
)  # fmt: skip
def test_refusals_point_at_every_wrong_field(fields, expected):
    assert expected == pointers(fields)


@examples(150)
@given(
    st.sampled_from(
        [
            {"cron": "30 2 * * *"}, {"cron": "@daily"}, {"cron": "H H * * mon"}, {"interval": "1h30m"},
            {"interval": 90}, {"delay": "15m"}, {"rrule": "FREQ=WEEKLY;BYDAY=MO"}, {"rrule": "RRULE:FREQ=DAILY;COUNT=3"},
        ]
    ),
    st.sampled_from([None, "UTC", "Europe/Paris", "America/St_Johns"]),
    st.sampled_from([None, "2026-03-29T02:30:00", "2026-03-29T02:30:00.125Z"]),
    st.sampled_from([None, "2199-03-29T02:30:00+02:00"]),
)  # fmt: skip
def test_the_json_form_of_a_rule_is_the_rule(kind, tz, start_at, end_at):
    rule = parse_rule({**kind, "timezone": tz, "start_at": start_at, "end_at": end_at})
    again = parse_rule(rule.fields())
    assert rule == again
    assert rule.canonical() == again.canonical()
    assert parse_rule(rule.bind("s", 12345).fields()).bind("s", 12345) == rule.bind("s", 12345)


def test_defaults_may_be_given_to_an_interval():
    assert parse_rule({"interval": 60, "on_gap": "next", "on_fold": "first"}) == Every(60)


def test_bounds_of_calendar_rules_are_inclusive():
    rule = Cron("0 * * * *", start_at="2026-01-01T10:00:00Z", end_at="2026-01-01T12:00:00Z")
    ten = parse_instant("2026-01-01T10:00:00Z")
    assert rule.between(0, 2**60, 9) == [ten, ten + 3_600_000, ten + 7_200_000]
    assert rule.newest(0, 2**60, 9) == rule.between(0, 2**60, 9)
    assert rule.count(0, 2**60) == 3
    assert rule.first(ten) == ten
    assert rule.first(ten + 1) == ten + 3_600_000
    assert rule.previous(ten) is None
    # Bounds within a second: 10:00:00 is before the one and after the other.
    late = Cron("0 * * * *", start_at="2026-01-01T10:00:00.001Z", end_at="2026-01-01T11:59:59.999Z")
    assert late.between(0, 2**60, 9) == [ten + 3_600_000]
    assert late.next(ten + 3_599_999) == ten + 3_600_000
    assert late.previous(ten + 3_600_001) == ten + 3_600_000
    assert late.previous(ten + 3_600_000) is None


def test_what_is_over_never_fires():
    now_ms = parse_instant("2026-01-01T00:00:00Z")
    for fields in (
        {"cron": "0 0 0 1 1 ? 2020"},
        {"cron": "0 0 1 1 *", "end_at": "2026-12-31T00:00:00Z"},
        {"rrule": "FREQ=DAILY;UNTIL=20200101", "start_at": "2019-01-01T00:00:00Z"},
        {"interval": "1h", "end_at": "2026-01-01T00:59:59Z"},
    ):
        rule = parse_rule(fields).bind("s", now_ms)
        with pytest.raises(Invalid) as caught:
            require_first(rule, now_ms)
        assert caught.value.problems[0].pointer == f"/{next(iter(fields))}"


def test_rules_are_values():
    first, second = Cron("0 0 * * *"), Cron("@daily")
    assert first == second  # what is written differs, what is meant does not
    assert (first.expression, second.expression) == ("0 0 * * *", "@daily")
    assert len({first, second, Cron("@daily", tz="Europe/Paris")}) == 2
    assert repr(second) == "Cron('@daily', tz='UTC')"
    assert repr(RRule("FREQ=DAILY")) == "RRule('FREQ=DAILY', tz='UTC')"
    assert (repr(Every(60)), repr(Delay(60))) == ("Every('1m')", "Delay('1m')")
    with pytest.raises(AttributeError):
        first.tz = "Europe/Paris"
