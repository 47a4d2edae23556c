"""What rules cost. Printed (``pytest -s``), and asserted so loosely that only another order fails."""

import time
from contextlib import suppress

import pytest

from tasksched.errors import Invalid
from tasksched.model.instants import parse_instant
from tasksched.model.schedule import Cron, RRule, parse_rule, rules, tzif

NOW_MS = parse_instant("2026-03-01T00:00:00Z")

COMMON = ["* * * * *", "*/15 * * * *", "0 9 * * 1-5", "30 2 * * *", "0 0 1 * *", "0 0 LW * *"]
HARD = [
    "0 0 29 2 */7",
    "0 0 */29 2 1",
    "0 0 L-28 2 *",
    "30 2 29 3 */7",
    "* * * * * * 2200",
    "0 0 0 29 2 ? 2196",
    "1-59/2 1-23/2 1W,2W,3W,4W,5W,6W,7W,8W,9W,10W,11W,12W,13W,14W,15W,16W,L,L-1,LW * 1#1,2#2,3#3,4L,5L",
    "H/7 H(0-12)/3 H * *",
    "FREQ=MINUTELY;INTERVAL=9997;BYHOUR=3;BYMINUTE=7",
    "FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=MINUTELY;INTERVAL=1439;COUNT=1000",
    "FREQ=MONTHLY;BYMONTH=2;BYDAY=MO;BYSETPOS=5",
    "FREQ=YEARLY;BYWEEKNO=53;BYDAY=FR;BYMONTH=1;INTERVAL=7",
    "FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=1,2,3,4,5,6;BYSETPOS=1,-1,100,366",
    "FREQ=WEEKLY;BYDAY=MO;BYSETPOS=2",
]


@pytest.mark.parametrize("text", COMMON)
def test_next_is_cheap(text):
    rule = Cron(text, tz="Europe/Paris")
    at_ms, n = NOW_MS, 2_000
    begun = time.perf_counter()
    for _ in range(n):
        at_ms = rule.next(at_ms)
    each_us = (time.perf_counter() - begun) / n * 1e6
    print(f"{text}: next() {each_us:.1f} µs")
    assert each_us < 500


def test_a_million_schedules_of_one_rule_share_one_search():
    fields = {"cron": "30 2 * * *", "timezone": "Europe/Paris"}
    begun = time.perf_counter()
    for _ in range(10_000):
        parse_rule(fields).next(NOW_MS)
    each_us = (time.perf_counter() - begun) / 10_000 * 1e6
    print(f"parse_rule() and next(), remembered: {each_us:.1f} µs")
    assert each_us < 100


@pytest.mark.parametrize("text", HARD)
def test_any_rule_is_parsed_and_first_met_at_once(text):
    times_ms = []
    for _ in range(3):
        for kept in (rules._cron_slots, rules._parsed_cron, rules._parsed_rrule):
            kept.cache_clear()
        for kept in (rules._times, rules._rrule_slots, tzif.offset_table):
            kept.cache_clear()
        begun = time.perf_counter()
        kind = RRule if "=" in text else Cron
        with suppress(Invalid):  # the last one can never fire
            kind(text, tz="Europe/Berlin").bind("s", NOW_MS).first(NOW_MS)
        times_ms.append((time.perf_counter() - begun) * 1000)
    print(f"{text}: {min(times_ms):.2f} ms, with nothing remembered, not even the zone")
    assert min(times_ms) < 50
