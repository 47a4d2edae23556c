"""Cross-checks with cronsim and croniter, away from the faults that both are known to have.

Near clock changes, and where the grammar differs, they are no witnesses: the simulation is.
"""

import re
from datetime import UTC, datetime

from croniter import croniter
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.model.schedule.oracle import examples, meanings
from tests.model.schedule.test_cron_simulation import cron

from tasksched.model.schedule import Cron
from tasksched.model.zones import ZONE_NAMES, zone

STARTS = st.integers(1_000_000_000, 4_000_000_000)
# B7: no upper Sunday; B8: n/step in the weekday field runs on to 7; words that it does not know; and
# it reads the one value of 1-1/2 as 1/2.
CRONSIM_FAULTS = re.compile(
    r"\?|[0-9]W|L-| \S*-(?:SUN|7)\S*$| \S*[0-9A-Z]/\S*$|\b0?(\w+)-0?\1/|[A-Z]-\w+/|-[A-Z]+/",
    re.IGNORECASE,
)
# A1: equal ranges; A2, A7, A8: day words; A3 is a switch.
CRONITER_FAULTS = re.compile(r"[LW#?]", re.IGNORECASE)


def ask_cronsim(text: str, start: datetime, n: int) -> list[int]:
    try:
        sim = CronSim(text, start)
        return [int(next(sim).timestamp()) * 1000 for _ in range(n)]
    except (CronSimError, StopIteration):
        reject()  # SUNL, or nothing within its fifty years


@examples(150)
@given(meanings(dense=False), STARTS)
def test_cronsim_agrees_in_utc(meaning, start_s):
    assume(not CRONSIM_FAULTS.search(meaning.text))
    rule = cron(meaning, "UTC", ("next", "first"))
    expected = ask_cronsim(meaning.text, datetime.fromtimestamp(start_s, UTC), 4)

    assert expected == rule.between(start_s * 1000, 2**60, 4)


@examples(60)
@given(meanings(), STARTS, st.sampled_from(sorted(ZONE_NAMES)))
def test_cronsim_agrees_in_zones_while_clocks_stand(meaning, start_s, tz):
    assume(not CRONSIM_FAULTS.search(meaning.text))
    rule = cron(meaning, tz, ("next", "first"))
    place = zone(tz)
    times = rule.between(start_s * 1000, (start_s + 6 * 86400) * 1000, 20)
    offsets = {
        datetime.fromtimestamp(at_s, place).utcoffset()
        for at_s in range(start_s - 86400, start_s + 8 * 86400, 3600)
    }
    assume(times and len(offsets) == 1)
    expected = ask_cronsim(meaning.text, datetime.fromtimestamp(start_s, place), len(times))

    assert expected == times


@examples(80)
@given(meanings(dense=False), STARTS)
def test_croniter_agrees_in_utc(meaning, start_s):
    assume(not CRONITER_FAULTS.search(meaning.text))
    assume(not re.search(r"\b0?(\d+)-0?\1\b|[A-Z]{3}-|-[A-Z]{3}", meaning.text.upper()))
    rule = cron(meaning, "UTC", ("next", "first"))
    times = rule.between(start_s * 1000, (start_s + 3 * 366 * 86400) * 1000, 4)
    iterator = croniter(meaning.text, datetime.fromtimestamp(start_s, UTC), implement_cron_bug=True)
    fields = meaning.text.split(" ")
    # A field of days that names them all is a star to croniter, however it is written.
    assume(all(iterator.expanded[n] != ["*"] or fields[n].startswith("*") for n in (2, 4)))

    assert [int(iterator.get_next(datetime).timestamp()) * 1000 for _ in times] == times


def test_sixth_field_is_first():
    assert Cron("30 0 9 * * 1").next(0) == 4 * 86_400_000 + 9 * 3_600_000 + 30_000
