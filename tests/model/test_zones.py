"""Which zones exist, and what a local time means in one."""

import random
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.model.zones import (
    TZDATA_VERSION,
    ZONE_NAMES,
    Gap,
    Once,
    Twice,
    check_timezone,
    resolve_local,
    zone,
)

MANY = settings(deadline=None, max_examples=100)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(text):
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


def offset_s(place, at_s):
    moment = (EPOCH + timedelta(seconds=at_s)).astimezone(place)
    return moment.utcoffset() // timedelta(seconds=1)


def changes_s(place, first_s, last_s):
    """The seconds at which the offset changes, if two changes are 21 days apart (Ramadan is longer)."""
    step_s = 21 * 86_400
    for start_s in range(first_s, last_s, step_s):
        before, low, high = offset_s(place, start_s), start_s, start_s + step_s
        if before == offset_s(place, high):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if before == offset_s(place, middle):
                low = middle
            else:
                high = middle
        yield high


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("America/Argentina/Buenos_Aires", id="time-zone-names-001 three parts"),
        pytest.param("America/Buenos_Aires", id="time-zone-names-001 old name"),
        pytest.param("EST5EDT", id="time-zone-names-001 EST5EDT"),
        pytest.param("EST", id="time-zone-names-001 EST"),
        pytest.param("Europe/Kyiv", id="time-zone-names-003 new name"),
        pytest.param("Europe/Kiev", id="time-zone-names-003 old name"),
        pytest.param("US/Pacific", id="time-zone-names-003 US"),
        pytest.param("Asia/Calcutta", id="time-zone-names-003 Calcutta"),
        pytest.param("UTC", id="time-zone-names-003 UTC"),
        pytest.param("Etc/GMT+5", id="time-zone-names-003 five hours WEST of Greenwich"),
    ],
)
def test_every_name_of_the_data_is_accepted(name):
    assert check_timezone(name, "/timezone") == name
    assert str(zone(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("europe/berlin", id="time-zone-names-001 case"),
        pytest.param("posix/Europe/Berlin", id="time-zone-names-001 posix"),
        pytest.param("right/UTC", id="time-zone-names-001 right"),
        pytest.param("Factory", id="time-zone-names-001 Factory"),
        pytest.param("posixrules", id="time-zone-names-001 posixrules"),
        pytest.param("CST", id="time-zone-names-001 CST"),
        pytest.param("W. Europe Standard Time", id="time-zone-names-001 Windows"),
        pytest.param("Europe/Berlin\x00", id="time-zone-names-001 NUL"),
        pytest.param("A" * 5000, id="time-zone-names-001 long"),
        pytest.param(None, id="time-zone-names-001 null"),
        pytest.param(5, id="time-zone-names-001 number"),
        pytest.param("", id="time-zone-names-003 empty"),
        pytest.param("Mars/Olympus", id="time-zone-names-003 Mars"),
        pytest.param("UTC+3", id="time-zone-names-003 UTC+3"),
        pytest.param("+05:30", id="time-zone-names-003 offset"),
        pytest.param("TZ=UTC", id="time-zone-names-003 TZ="),
        pytest.param("../../etc/passwd", id="time-zone-names-003 path"),
        pytest.param("/etc/localtime", id="time-zone-names-003 absolute path"),
        pytest.param("Europe/Berlin ", id="time-zone-names-003 trailing space"),
        pytest.param(" ", id="time-zone-names-003 space"),
        pytest.param("localtime", id="time-zone-names-003 localtime"),
        "Europe",
        "Europe/",
        "Europe//Berlin",
        "Europe/../UTC",
        "./UTC",
        "zone.tab",
        "tzdata.zi",
        "__init__.py",
        "EST5EDT,M3.2.0,M11.1.0",
        "\ud800",
        True,
        b"UTC",
        ["UTC"],
    ],
)
def test_any_other_name_is_refused(name):
    with pytest.raises(Invalid) as caught:
        check_timezone(name, "/timezone")

    assert caught.value.problems[0].pointer == "/timezone"


def test_a_misspelt_name_gets_a_hint():
    with pytest.raises(Invalid, match='did you mean "Europe/Berlin"'):
        check_timezone("europe/berlin ")


def test_a_refused_name_has_no_zone():
    with pytest.raises(Invalid):
        zone("posixrules")


def test_every_name_has_a_zone_that_knows_the_years_one_and_9999():
    for name in ZONE_NAMES:
        for naive in (datetime.min, datetime.max):
            assert zone(name).utcoffset(naive) is not None


def test_the_release_is_known_by_its_iana_name():
    assert len(TZDATA_VERSION) == 5
    assert TZDATA_VERSION[:4].isdigit()
    assert TZDATA_VERSION[4].islower()


def test_a_zone_comes_from_the_package_whatever_the_search_path_and_its_caches(tmp_path):
    fake = tmp_path / "Europe" / "Berlin"
    fake.parent.mkdir()
    fake.write_bytes(files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes())
    before = zoneinfo.TZPATH
    try:
        zoneinfo.reset_tzpath([str(tmp_path)])
        zoneinfo.ZoneInfo.clear_cache()
        zone.cache_clear()
        summer = datetime(2026, 7, 1)

        assert zoneinfo.ZoneInfo("Europe/Berlin").utcoffset(summer) == timedelta(hours=9)
        assert zone("Europe/Berlin").utcoffset(summer) == timedelta(hours=2)
    finally:
        zoneinfo.reset_tzpath(before)
        zoneinfo.ZoneInfo.clear_cache()


def test_a_zone_is_loaded_once():
    assert zone("Europe/Berlin") is zone("Europe/Berlin")


@pytest.mark.parametrize(
    ("naive", "name", "expected"),
    [
        ("2026-07-01T12:00", "UTC", Once(ms("2026-07-01T12:00+00:00"))),
        ("2026-07-01T12:00", "Asia/Kathmandu", Once(ms("2026-07-01T06:15+00:00"))),
        # New York, an hour at 02:00
        (
            "2026-03-08T01:59:59.999",
            "America/New_York",
            Once(ms("2026-03-08T06:59:59.999+00:00")),
        ),
        ("2026-03-08T02:00", "America/New_York", Gap(ms("2026-03-08T07:00+00:00"), 3_600_000)),
        ("2026-03-08T02:59:59.999", "America/New_York", Gap(ms("2026-03-08T07:00Z"), 3_600_000)),
        ("2026-03-08T03:00", "America/New_York", Once(ms("2026-03-08T07:00+00:00"))),
        ("2026-11-01T00:59:59.999", "America/New_York", Once(ms("2026-11-01T04:59:59.999Z"))),
        (
            "2026-11-01T01:00",
            "America/New_York",
            Twice(ms("2026-11-01T05:00Z"), ms("2026-11-01T06:00Z")),
        ),
        ("2026-11-01T02:00", "America/New_York", Once(ms("2026-11-01T07:00Z"))),
        # Lord Howe, half an hour
        ("2026-10-04T02:15", "Australia/Lord_Howe", Gap(ms("2026-10-03T15:30Z"), 1_800_000)),
        # Troll, two hours
        ("2026-03-29T01:30", "Antarctica/Troll", Gap(ms("2026-03-29T01:00Z"), 7_200_000)),
        # Samoa left out a whole day
        ("2011-12-30T00:00", "Pacific/Apia", Gap(ms("2011-12-30T10:00Z"), 86_400_000)),
        ("2011-12-30T23:59:59.999", "Pacific/Apia", Gap(ms("2011-12-30T10:00Z"), 86_400_000)),
        ("2011-12-31T00:00", "Pacific/Apia", Once(ms("2011-12-30T10:00Z"))),
        # Kwajalein had one day twice
        (
            "1969-09-30T12:00",
            "Pacific/Kwajalein",
            Twice(ms("1969-09-30T01:00Z"), ms("1969-10-01T00:00Z")),
        ),
        # Where the future rule takes over, ZoneInfo itself sees a second pass that never was.
        ("2023-10-28T23:30", "America/Nuuk", Once(ms("2023-10-29T01:30Z"))),
        # Local mean time had seconds.
        ("1800-01-01T00:00", "Europe/Amsterdam", Once(ms("1799-12-31T23:42:30+00:00"))),
    ],
)
def test_a_local_time_exists_once_twice_or_not(naive, name, expected):
    assert resolve_local(datetime.fromisoformat(naive), zone(name)) == expected


def test_the_fold_of_the_question_does_not_matter():
    naive, place = datetime(2026, 11, 1, 1, 30), zone("America/New_York")

    assert resolve_local(naive, place) == resolve_local(naive.replace(fold=1), place)


@pytest.mark.parametrize("name", ["UTC", "Etc/GMT+12", "Pacific/Kiritimati", "America/New_York"])
@pytest.mark.parametrize("naive", [datetime.min, datetime.max])
def test_the_first_and_the_last_moment_of_the_calendar_are_no_trouble(naive, name):
    assert isinstance(resolve_local(naive, zone(name)), Once)


def test_around_every_kind_of_change_the_answer_is_what_the_instants_say():
    """Three changes of each zone in 2020-2030: local times are looked up among the instants."""
    rng = random.Random(2020)
    first_s, last_s = ms("2020-01-01T00:00Z") // 1000, ms("2031-01-01T00:00Z") // 1000
    for place in different_zones():
        changes = list(changes_s(place, first_s, last_s))
        for change_s in rng.sample(changes, min(3, len(changes))):
            offsets = {offset_s(place, change_s - 1), offset_s(place, change_s)}
            edges = [change_s + offset for offset in offsets]
            for local_s in (*edges, edges[0] - 1, edges[1] - 1, rng.randint(*sorted(edges))):
                check_local(place, local_s, offsets, change_s)


def different_zones():
    """One zone of those that are the same under several names."""
    data = files("tzdata").joinpath("zoneinfo")
    by_content = {data.joinpath(*name.split("/")).read_bytes(): name for name in sorted(ZONE_NAMES)}
    return [zone(name) for name in by_content.values()]


def check_local(place, local_s, offsets, change_s):
    real_s = sorted(local_s - o for o in offsets if offset_s(place, local_s - o) == o)
    naive = EPOCH.replace(tzinfo=None) + timedelta(seconds=local_s)
    match resolve_local(naive, place):
        case Once(at_ms):
            assert real_s == [at_ms // 1000], (place, naive)
        case Twice(first_ms, second_ms):
            assert real_s == [first_ms // 1000, second_ms // 1000], (place, naive)
        case Gap(end_ms, size_ms):
            assert real_s == [], (place, naive)
            assert end_ms == change_s * 1000
            assert size_ms == (max(offsets) - min(offsets)) * 1000


@given(
    st.sampled_from(sorted(ZONE_NAMES)),
    st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)),
)
@MANY
def test_every_instant_is_found_again_from_its_local_time(name, utc):
    at_ms = (utc.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
    local = utc.replace(tzinfo=UTC).astimezone(zone(name)).replace(tzinfo=None)

    match resolve_local(local, zone(name)):
        case Once(only_ms):
            assert only_ms == at_ms
        case Twice(first_ms, second_ms):
            assert at_ms in {first_ms, second_ms}
        case Gap():
            pytest.fail("an instant has a local time")
