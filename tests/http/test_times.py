"""Times and durations as they arrive in bodies: read exactly, or refused at their place."""

import pytest
from tests.http.conftest import CHARGE, assert_problem, pointers

pytestmark = pytest.mark.anyio


async def create(rig, **members):
    return await rig.ask("POST", "/tasks", {"target": CHARGE, **members})


@pytest.mark.parametrize(
    ("run_at", "utc"),
    [
        ("2099-01-01T00:00:00Z", "2099-01-01T00:00:00.000Z"),
        ("2200-01-01T00:00:00Z", "2200-01-01T00:00:00.000Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
        ("1969-12-31T23:59:59Z", "1969-12-31T23:59:59.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("2026-03-08T09:00:00+05:45", "2026-03-08T03:15:00.000Z"),
        ("2026-03-08 09:00:00Z", "2026-03-08T09:00:00.000Z"),
        ("2026-03-08T09:00:00-00:00", "2026-03-08T09:00:00.000Z"),
    ],
)
async def test_instants_are_exact(rig, run_at, utc):
    """time-input-002, time-input-007, time-input-008"""
    answer = await create(rig, run_at=run_at)

    assert answer.status_code == 201
    assert answer.json()["run_at"] == utc
    assert (await rig.show(answer.json()["task_id"]))["timestamps"]["run_at"] == utc


async def test_a_past_time_is_due_at_once(rig):
    """time-input-007"""
    task_id = await rig.make(run_at="0001-01-01T00:00:00Z")

    started = await rig.start()

    assert [grant.id for _, grant in started] == [task_id]


@pytest.mark.parametrize(
    "run_at",
    ["9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2026-03-08T09:00:00", "2026-02-30T00:00:00Z",
     "2026-W10-1", "tomorrow", "", "20260308T090000Z", True, [], {}, 1772445600, 1772445600000,
     1772445600000000, 999999999, 10000000000, "1772445600", -1.5],
)  # fmt: skip
async def test_what_is_no_instant_is_refused(rig, run_at):
    """time-input-002, time-input-008, time-input-009"""
    assert pointers(assert_problem(await create(rig, run_at=run_at), 422)) == ["/run_at"]


@pytest.mark.parametrize("delay", [0, 0.5, "1h30m", "PT1H", "1d2h", 315_360_000])
async def test_delays(rig, delay):
    assert (await create(rig, delay=delay)).status_code == 201


@pytest.mark.parametrize(
    "delay", [-1, True, "60", "", "1y", "P1M", "1h2d", 1e15, 1e18, 1e308, [], {}, "-5s", "NaN"]
)
async def test_what_is_no_delay_is_refused(rig, delay):
    """time-input-002, time-input-007, fixed-rate-006"""
    assert pointers(assert_problem(await create(rig, delay=delay), 422)) == ["/delay"]


@pytest.mark.parametrize(
    ("local", "zone", "utc"),
    [
        ("2026-03-08T02:30:00", "America/New_York", "2026-03-08T07:00:00.000Z"),
        ("2026-11-01T01:30:00", "America/New_York", "2026-11-01T05:30:00.000Z"),
        ("2026-03-29T02:30:00", "Europe/Paris", "2026-03-29T01:00:00.000Z"),
    ],
)
async def test_local_times(rig, local, zone, utc):
    """time-input-003"""
    answer = await create(rig, run_at=local, timezone=zone)

    assert answer.status_code == 201
    assert answer.json()["run_at"] == utc


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"run_at": "2011-12-30T12:00:00", "timezone": "Pacific/Apia"}, "/run_at"),
        ({"run_at": "2026-03-08T09:00:00Z", "timezone": "UTC"}, "/run_at"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": "europe/berlin"}, "/timezone"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": "posix/Europe/Berlin"}, "/timezone"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": "../../etc/passwd"}, "/timezone"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": "Europe/Berlin\0"}, "/timezone"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": "A" * 5000}, "/timezone"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": ""}, "/timezone"),
        ({"run_at": "2026-03-08T09:00:00", "timezone": 5}, "/timezone"),
        ({"timezone": "UTC"}, "/timezone"),
        ({"timezone": "UTC", "delay": 5}, "/timezone"),
        ({"run_at": "2030-01-01T00:00:00Z", "delay": 5}, "/delay"),
        ({"expires_at": "2030-01-01T00:00:00"}, "/expires_at"),
        ({"expires_at": 5}, "/expires_at"),
        ({"timeout": 0}, "/timeout"),
        ({"timeout": "5"}, "/timeout"),
        ({"lease": 0.5}, "/lease"),
        ({"lease": "2d"}, "/lease"),
    ],
)
async def test_what_contradicts_is_refused_at_its_place(rig, members, pointer):
    """time-input-003, time-zone-names-001, time-zone-names-003"""
    assert pointers(assert_problem(await create(rig, **members), 422)) == [pointer]


async def test_a_local_expiry_uses_the_timezone_too(rig):
    task_id = await rig.make(
        run_at="2030-07-01T00:00:00", expires_at="2030-07-01T01:00:00", timezone="Europe/Paris"
    )

    shown = await rig.show(task_id)

    assert shown["timestamps"]["run_at"] == "2030-06-30T22:00:00.000Z"
    assert shown["expires_at"] == "2030-06-30T23:00:00.000Z"


async def test_null_means_not_given(rig):
    names = ("run_at", "timezone", "delay", "timeout", "lease", "expires_at", "retry", "tags")

    answer = await create(rig, idempotency_key=None, **dict.fromkeys(names))

    assert answer.status_code == 201, answer.text
