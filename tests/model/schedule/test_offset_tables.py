"""The offset tables against ``zoneinfo``, which reads the same data in its own way."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tasksched.errors import Invalid
from tasksched.model.schedule.civil import DAY_S
from tasksched.model.schedule.tzif import (
    EARLIEST_S,
    LATEST_S,
    OffsetTable,
    offset_table,
    read_table,
)
from tasksched.model.zones import ZONE_NAMES, zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_1800_S, YEAR_2390_S = -5_364_662_400, 13_253_932_800


def told_by_zoneinfo(name: str, at_s: int) -> int:
    local = (EPOCH + timedelta(seconds=at_s)).astimezone(zone(name))
    return int(local.utcoffset().total_seconds())


@pytest.mark.parametrize("part", range(8))
def test_every_zone_agrees_around_each_change_and_in_between(part):
    dice = random.Random(part)
    for name in sorted(ZONE_NAMES)[part::8]:
        table = offset_table(name)
        # All changes of the data, and of the rule after it those of some years.
        changes = list(table.starts[1:-1])
        instants = [*changes[:200], *dice.sample(changes, min(60, len(changes)))]
        instants = [at_s + shift for at_s in instants for shift in (-1, 0, 1)]
        instants += [dice.randrange(YEAR_1800_S, YEAR_2390_S) for _ in range(60)]
        wrong = [at for at in instants if told_by_zoneinfo(name, at) != table.offset(at)]
        assert wrong == [], name


@pytest.mark.parametrize(
    "name",
    [
        *("Africa/Casablanca", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia"),
        *("America/St_Johns", "Asia/Gaza", "Europe/Dublin", "America/Nuuk"),
    ],
)
def test_no_change_is_missed_day_by_day(name):
    table = offset_table(name)
    for at_s in range(0, 4_102_444_800, 2 * DAY_S):
        assert told_by_zoneinfo(name, at_s) == table.offset(at_s)


def test_the_outer_segments_reach_without_end():
    table = offset_table("Europe/Paris")
    assert table.offset(EARLIEST_S - 10**9) == table.offsets[0]
    assert table.offset(LATEST_S + 10**9) == table.offsets[-1]


def test_numbered_days_of_a_rule_are_read():
    """J60 is 1 March in every year, 59 counts 29 February; no zone of today has either."""
    with_julian = rule_only(b"AAA3BBB,J60/0,J300/0")
    with_ordinal = rule_only(b"AAA3BBB2,59/0,299/0")

    starts = [EPOCH + timedelta(seconds=at_s - 3 * 3600) for at_s in with_julian.starts[1:-1]]
    assert {(at.month, at.day) for at in starts if at.month < 6 and 1 < at.year < 2400} == {(3, 1)}
    starts = [EPOCH + timedelta(seconds=at_s - 3 * 3600) for at_s in with_ordinal.starts[1:-1]]
    days = {(at.month, at.day) for at in starts if at.month < 6 and 1 < at.year < 2400}
    assert days == {(3, 1), (2, 29)}


def rule_only(footer: bytes) -> OffsetTable:
    header = b"TZif2" + bytes(15)
    counts = b"".join(n.to_bytes(4, "big") for n in (0, 0, 0, 0, 1, 4))
    block = header + counts + (-10800).to_bytes(4, "big", signed=True) + b"\0\0" + b"AAA\0"
    return read_table(block + block + b"\n" + footer + b"\n")


@pytest.mark.parametrize("data", [b"TZif1" + bytes(39), b"ZONE2" + bytes(39)])
def test_other_files_are_refused(data):
    with pytest.raises(Invalid):
        read_table(data)


@pytest.mark.parametrize("footer", [b"AAA3BBB,M13/x,J1", b"3", b"AAA3BBB,X1,J3"])
def test_an_unreadable_rule_is_refused(footer):
    with pytest.raises(Invalid):
        rule_only(footer)


def test_only_names_of_the_data_are_read():
    with pytest.raises(Invalid):
        offset_table("../zones")
