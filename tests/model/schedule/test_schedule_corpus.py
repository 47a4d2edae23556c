"""The case corpus: failures that users of comparable systems reported, with the right outcome.

Runs every case of ``tests/cases/cases.jsonl`` that a pure rule can answer; the others need a clock or a
server and are run elsewhere.
"""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.schedule.oracle import encounters, examples
from tests.model.schedule.test_cron_simulation import cron

from tasksched.errors import Invalid
from tasksched.model.instants import parse_instant
from tasksched.model.schedule import Cron, Every, parse_rule
from tasksched.model.schedule.localtext import local_iso
from tasksched.model.schedule.tzif import offset_table
from tasksched.model.zones import TZDATA_VERSION

CORPUS = Path(__file__).parents[2] / "cases" / "cases.jsonl"
CASES = {case["id"]: case for case in map(json.loads, CORPUS.read_text().splitlines())}


def of_kind(*kinds: str, field: str = "") -> list:
    return [
        pytest.param(case, id=name)
        for name, case in CASES.items()
        if case["input"]["kind"] in kinds and (not field or field in case["input"])
    ]


def refusals(texts: list) -> dict[str, Invalid]:
    found = {}
    for text in texts:
        try:
            Cron(text)
        except Invalid as error:
            found[text] = error
    return found


def test_the_corpus_is_all_there():
    assert len(CASES) == 199
    assert len(of_kind("cron.next")) == 89
    assert TZDATA_VERSION >= "2026f"  # what the expected instants were computed with


@pytest.mark.parametrize("case", of_kind("cron.next"))
def test_next(case):
    given, expected = case["input"], case["expected"]["fire_times_utc"]
    rule = Cron(given["expression"], tz=given["timezone"])
    after_ms = parse_instant(given["after_utc"])
    times = [parse_instant(text) for text in expected]

    assert times == rule.between(after_ms, times[-1], given["count"])
    assert times == rule.newest(after_ms, times[-1], given["count"])
    assert len(times) == rule.count(after_ms, times[-1])


@pytest.mark.parametrize("case", of_kind("cron.prev"))
def test_previous(case):
    given, expected = case["input"], case["expected"]
    rule = Cron(given["expression"], tz=given["timezone"])

    found = rule.previous(parse_instant(given["before_utc"]))

    assert parse_instant(expected["fire_time_utc"]) == found
    if "the_one_before_utc" in expected:
        assert parse_instant(expected["the_one_before_utc"]) == rule.previous(found)


@examples(100)
@given(
    encounters(years=(2005, 2038)),
    st.integers(-7 * 3_600_000, 7 * 3_600_000),
)
def test_cron_properties_002_one_story_near_every_clock_change(encounter, shift_ms):
    meaning, tz, change_s = encounter
    rule = cron(meaning, tz, ("next", "first"))
    at_ms = change_s * 1000 + shift_ms
    for _ in range(3):
        begun = time.perf_counter()
        following_ms = rule.next(at_ms)
        before_ms = rule.previous(following_ms)
        assert time.perf_counter() - begun < 0.050
        assert following_ms > at_ms >= before_ms
        assert rule.next(before_ms) == following_ms
        assert rule.next(rule.previous(following_ms + 1) - 1) == following_ms
        at_ms = following_ms


def test_fixed_rate_010_a_day_is_24_hours():
    case = CASES["fixed-rate-010"]
    schedule = case["input"]["schedule"]
    rule = Every(schedule["every_s"], tz=schedule["timezone"], start_at=schedule["anchor_utc"])
    after_ms = parse_instant(case["input"]["after_utc"])

    times = rule.between(after_ms, after_ms + 10 * 86_400_000, case["input"]["count"])

    assert [parse_instant(text) for text in case["expected"]["fire_times_utc"]] == times
    table = offset_table(schedule["timezone"])
    hours = [int(local_iso(at_ms, table)[11:13]) for at_ms in times]
    assert case["expected"]["local_hours"] == hours


@pytest.mark.parametrize("name", ["cron-validate-003", "cron-validate-004"])
def test_what_is_always_refused(name):
    texts = CASES[name]["input"]["expressions"]
    begun = time.perf_counter()

    found = refusals(texts)

    assert time.perf_counter() - begun < 0.050 * len(texts)
    assert set(texts) == set(found)
    assert all(error.problems[0].pointer == "/cron" for error in found.values())
    named = [
        text for text in texts if len(text.split()) == 5 and text.isascii() and "=" not in text
    ]
    assert named == [text for text in named if "field" in found[text].extra]


def test_cron_validate_001_near_misses_are_accepted():
    case = CASES["cron-validate-001"]
    assert set(case["expected"]["reject"]) == set(refusals(case["input"]["expressions"]))


def test_cron_validate_006_a_reversed_range_is_refused_with_what_to_write():
    found = refusals(CASES["cron-validate-006"]["input"]["expressions"])

    assert len(found) == 5
    assert "write FRI-SAT,SUN-MON" in found["0 0 * * FRI-MON"].detail
    assert "write 22-23,0-2" in found["0 22-2 * * *"].detail
    assert "write NOV-DEC,JAN-FEB" in found["0 0 * NOV-FEB *"].detail
    # What the hint says is legal.
    assert not refusals(["0 0 * * FRI-SAT,SUN-MON", "0 22-23,0-2 * * *", "50-59,0-10 * * * *"])


def test_load_shape_002_a_hash_stays_in_its_range():
    case = CASES["load-shape-002"]
    texts = case["input"]["expressions"]
    assert set(texts[3:]) == set(refusals(texts))
    rules = [Cron(text) for text in texts[:3]]
    for n in range(case["input"]["ids"]):
        first, second, third = (rule.bind(f"schedule-{n}", 0).parsed for rule in rules)
        assert first.minute.values
        assert first.minute.values <= {1, 2, 3, 4, 5}
        assert second.minute.values
        assert second.minute.values <= {5, 6}
        assert third.day.values
        assert third.day.values <= set(range(1, 29))


@pytest.mark.parametrize("case", of_kind("validate", field="timezones"))
def test_zone_names(case):
    for name in case["input"]["timezones"]:
        text = "A" * 5000 if isinstance(name, dict) else name
        if text in case["expected"]["accept"] or name in ("EST", "EST5EDT"):
            assert parse_rule({"cron": "0 0 * * *", "timezone": text}).tz == text
        elif name is not None:  # null is a field that is not given
            with pytest.raises(Invalid) as caught:
                parse_rule({"cron": "0 0 * * *", "timezone": text})
            assert caught.value.problems[0].pointer == "/timezone"


def test_fixed_rate_006_legal_intervals():
    case = CASES["fixed-rate-006"]
    for value in case["input"]["values"]:
        if value in case["expected"]["accept"] and value is not True:
            assert parse_rule({"interval": value}).interval_ms == value * 1000
        else:
            with pytest.raises(Invalid) as caught:
                parse_rule({"interval": value})
            assert caught.value.problems[0].pointer == "/interval"
