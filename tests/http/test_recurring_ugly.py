"""Whatever is asked of recurring tasks: never a 500, always problem+json, and every wrong member named."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.http.conftest import CHARGE, assert_problem, pointers
from tests.http.recurring_kit import CASES, DAILY, EVERY, PATH, look, make
from tests.http.test_ugly import ANYTHING, IDS, TARGETS, UNREADABLE

from tasksched.http.schema_recurring import DEFINITION, PREVIEW, READ_ONLY

pytestmark = pytest.mark.anyio

CRON = {"target": CHARGE, "cron": "0 0 * * *"}
DELAY = {"target": CHARGE, "delay": 5}

INVALID = [
    ([], [""]), (None, [""]), (5, [""]), ("x", [""]),
    ({}, ["/target", ""]), (CHARGE, ["/type", "/name", "/target", ""]),
    ({"target": CHARGE}, [""]), ({"target": None, "cron": "@daily"}, ["/target"]),
    ({**CRON, "interval": 5}, ["/cron", "/interval"]),
    ({**CRON, "rrule": "FREQ=DAILY", "delay": 5}, ["/cron", "/delay", "/rrule"]),
    ({**CRON, "nope": 1}, ["/nope"]), ({**CRON, "run_at": "2030-01-01T00:00:00Z"}, ["/run_at"]),
    ({**CRON, "expires_at": None}, ["/expires_at"]), ({**CRON, "idempotency_key": "k"}, ["/idempotency_key"]),
    ({**CRON, "cron": 5}, ["/cron"]), ({**CRON, "cron": ["*"]}, ["/cron"]), ({**CRON, "cron": "* " * 200}, ["/cron"]),
    ({**CRON, "cron": "0 0 1 1 * 2020 2020"}, ["/cron"]), ({**CRON, "cron": "0 0 0 1 1 * 2020"}, ["/cron"]),
    ({**CRON, "timezone": "Mars/Olympus"}, ["/timezone"]), ({**CRON, "timezone": ["UTC"]}, ["/timezone"]),
    ({**CRON, "timezone": "\ud800"}, ["/timezone"]), ({**CRON, "cron": "\ud800 * * * *"}, ["/cron"]),
    ({**CRON, "start_at": 5}, ["/start_at"]), ({**CRON, "end_at": "tomorrow"}, ["/end_at"]),
    ({**CRON, "start_at": "2030-01-01T00:00:00Z", "end_at": "2029-01-01T00:00:00Z"}, ["/end_at"]),
    ({**CRON, "end_at": "2020-01-01T00:00:00Z"}, ["/cron"]),
    ({**CRON, "start_at": "2011-12-30T12:00:00", "timezone": "Pacific/Apia"}, ["/start_at"]),
    ({**CRON, "on_gap": "first"}, ["/on_gap"]), ({**CRON, "on_fold": {}}, ["/on_fold"]),
    ({**EVERY, "on_gap": "skip"}, ["/on_gap"]), ({**EVERY, "on_fold": "both"}, ["/on_fold"]),
    ({**EVERY, "interval": "1ms"}, ["/interval"]), ({**EVERY, "interval": "11w1y"}, ["/interval"]),
    ({**EVERY, "interval": "4000d"}, ["/interval"]), ({**EVERY, "interval": {}}, ["/interval"]),
    ({**DELAY, "delay": 0.999}, ["/delay"]), ({**DELAY, "overlap": "queue"}, ["/overlap"]),
    ({**CRON, "after": "success"}, ["/after"]), ({**DELAY, "after": "never"}, ["/after"]),
    ({"target": CHARGE, "rrule": "FREQ=SECONDLY"}, ["/rrule"]), ({"target": CHARGE, "rrule": "FREQ=DAILY;COUNT=0"}, ["/rrule"]),
    ({"target": CHARGE, "rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, ["/rrule"]), ({"target": CHARGE, "rrule": True}, ["/rrule"]),
    ({"target": CHARGE, "rrule": "RRULE:\r\nFREQ=DAILY\ud800"}, ["/rrule"]),
    *(({**CRON, "max_runs": n}, ["/max_runs"]) for n in (0, -1, 1.0, "5", True, 10**30)),
    *(({**CRON, "catch_up_limit": n}, ["/catch_up_limit"]) for n in (0, 1_001, 1.5, "5", True)),
    ({**CRON, "catch_up": "some"}, ["/catch_up"]), ({**CRON, "catch_up": "none"}, ["/misfire_grace"]),
    ({**CRON, "catch_up": "none", "misfire_grace": "x"}, ["/misfire_grace"]),
    ({**CRON, "misfire_grace": -1}, ["/misfire_grace"]), ({**CRON, "jitter": "60"}, ["/jitter"]),
    ({**CRON, "overlap": "maybe"}, ["/overlap"]), ({**CRON, "owner": "a b"}, ["/owner"]),
    ({**CRON, "id": "a:b"}, ["/id"]), ({**CRON, "id": "a" * 65}, ["/id"]), ({**CRON, "id": "{ts:1}"}, ["/id"]),
    ({**CRON, "id": "\ud800"}, ["/id"]), ({**CRON, "id": 5}, ["/id"]), ({**CRON, "id": ""}, ["/id"]),
    ({**CRON, "queue": "a:b"}, ["/queue"]), ({**CRON, "priority": "urgent"}, ["/priority"]), ({**CRON, "tags": ["a", "a"]}, ["/tags/1"]),
    ({**CRON, "retry": {"tries": 1}}, ["/retry/tries"]), ({**CRON, "timeout": 0}, ["/timeout"]), ({**CRON, "lease": "1ms"}, ["/lease"]),
    ({**CRON, "payload": "\ud800"}, ["/payload"]), ({**CRON, "payload": {"a": [10**30]}}, ["/payload/a/0"]),
    ({"target": {"type": "http", "url": 5}, "cron": "x", "timezone": "y", "jitter": -1, "overlap": 1,
      "catch_up": 2, "max_runs": 0, "queue": "-", "owner": "", "id": "*", "z": 1},
     ["/z", "/id", "/target/url", "/queue", "/cron", "/timezone", "/overlap", "/catch_up", "/jitter",
      "/max_runs", "/owner"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wrong"), INVALID, ids=[str(n) for n in range(len(INVALID))])
async def test_every_wrong_member_is_named_at_once(rig, body, wrong):
    answer = await rig.ask("POST", PATH, json.dumps(body))

    assert sorted(pointers(assert_problem(answer, 422))) == sorted(wrong)
    assert (await rig.ask("GET", PATH)).json()["items"] == []


async def test_a_large_payload_is_refused(rig):
    answer = await rig.ask("POST", PATH, {**CRON, "payload": "x" * 300_000})

    assert pointers(assert_problem(answer, 413)) == ["/payload"]


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_is_no_json_is_malformed(rig, raw):
    await make(rig)

    for verb, path in [
        ("POST", PATH), ("PUT", f"{PATH}/s1"), ("PATCH", f"{PATH}/s1"),
        ("POST", f"{PATH}/s1/backfill"), ("POST", "/preview"),
    ]:  # fmt: skip
        assert_problem(await rig.ask(verb, path, raw, If_Match="*"), 400)
    assert (await look(rig))["version"] == 1


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded"])
async def test_a_body_must_say_that_it_is_json(rig, media):
    for verb, path in [("POST", PATH), ("PUT", f"{PATH}/s1"), ("POST", "/preview")]:
        assert_problem(await rig.ask(verb, path, b"{}", Content_Type=media), 415)


@pytest.mark.parametrize("schedule_id", [one for one in IDS if one not in {"a", "A"}])
async def test_what_is_no_id_is_not_found(rig, schedule_id):
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}
    # A client that folds ".." away asks for the pause of everything, which there is.
    pauses = [] if schedule_id == ".." else [("POST", "/pause", None), ("POST", "/resume", None)]
    for verb, path, body in [
        ("GET", "", None), ("PATCH", "", {"queue": "a"}), ("DELETE", "", None), ("GET", "/next", None),
        ("GET", "/runs", None), *pauses, ("POST", "/trigger", None), ("POST", "/backfill", span),
    ]:  # fmt: skip
        answer = await rig.ask(verb, f"{PATH}/{schedule_id}{path}", body, If_Match="*")
        # Some spellings leave the path behind; then it is a path nobody serves.
        assert_problem(answer, 404, 405)


@pytest.mark.parametrize("schedule_id", ["a:b", "{x}", "*", "%20", "%00", "%C3%A9", "a" * 65, "-a"])
async def test_a_put_under_what_is_no_name_is_refused(rig, schedule_id):
    answer = await rig.ask("PUT", f"{PATH}/{schedule_id}", DAILY)

    assert assert_problem(answer, 422)["errors"][0]["parameter"] == "id"


@pytest.mark.parametrize(("verb", "path"), [("PUT", PATH), ("DELETE", PATH), ("POST", f"{PATH}/a"), ("GET", f"{PATH}/a/pause"), ("GET", "/preview")])  # fmt: skip
async def test_wrong_methods(rig, verb, path):
    assert_problem(await rig.ask(verb, path), 405)


# -- the corpus -----------------------------------------------------------------------------------


async def creates(rig, **members):
    """Whether POST takes it, and whether a preview does; they agree."""
    created = await rig.ask("POST", PATH, json.dumps({"target": CHARGE, **members}))
    previewed = await rig.ask("POST", "/preview", json.dumps(members))
    assert (created.status_code == 201) == (previewed.status_code == 200), members
    if created.status_code != 201:
        assert pointers(assert_problem(created, 422)) == pointers(assert_problem(previewed, 422))
        (pointer,) = pointers(created.json())
        assert pointer.removeprefix("/") in members
        assert created.json()["errors"][0]["detail"]
    return created.status_code


@pytest.mark.parametrize("case_id", ["cron-validate-001", "cron-validate-003", "cron-validate-004", "cron-validate-006"])  # fmt: skip
async def test_expressions(rig, case_id):
    """cron-validate-001, cron-validate-003, cron-validate-004, cron-validate-006"""
    case = CASES[case_id]
    accepted = case["expected"].get("accept", ())

    for expression in case["input"]["expressions"]:
        expected = 201 if expression in accepted else 422
        assert await creates(rig, cron=expression) == expected, expression


@pytest.mark.parametrize("case_id", ["time-zone-names-001", "time-zone-names-003"])
async def test_zone_names(rig, case_id):
    """time-zone-names-001, time-zone-names-003"""
    case = CASES[case_id]
    accepted = {*case["expected"]["accept"], "EST5EDT", "EST"}

    for name in case["input"]["timezones"]:
        text = name["repeat"] * name["times"] if isinstance(name, dict) else name
        expected = 201 if text is None or text in accepted else 422
        assert await creates(rig, cron="@daily", timezone=text) == expected, name


@pytest.mark.parametrize("kind", ["interval", "delay"])
async def test_intervals(rig, kind):
    """fixed-rate-006"""
    case = CASES["fixed-rate-006"]

    for value in case["input"]["values"]:
        expected = 201 if value in case["expected"]["accept"] and value is not True else 422
        assert await creates(rig, **{kind: value}) == expected, value


# -- anything -------------------------------------------------------------------------------------

BITS = ANYTHING | st.sampled_from(
    [
        "* * * * *",
        "H H * * *",
        "FREQ=DAILY",
        "1h",
        5,
        "Europe/Paris",
        "all",
        "none",
        "queue",
        "skip",
    ]
)
DEFINITIONS = st.dictionaries(st.sampled_from([*DEFINITION, *READ_ONLY, "x"]), BITS, max_size=6)
EXPECTED = {200, 201, 400, 404, 409, 412, 413, 422, 428}


@given(DEFINITIONS, TARGETS, st.booleans())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_json_whatever_breaks_a_definition(rig, body, target, is_good):
    if is_good:
        body = {**DAILY, **body}
    raw = json.dumps({**body, "target": target})

    answers = [
        await rig.ask("POST", PATH, raw),
        await rig.ask("PUT", f"{PATH}/s1", raw, If_None_Match="*"),
        await rig.ask("PATCH", f"{PATH}/s1", json.dumps(body), If_Match="*"),
        await rig.ask("GET", f"{PATH}/s1"),
    ]

    for answer in answers:
        assert answer.status_code in EXPECTED, (raw, answer.text)
        if answer.status_code >= 400:
            assert_problem(answer, answer.status_code)
    if answers[-1].status_code == 200:
        again = await rig.ask("PUT", f"{PATH}/s1", answers[-1].text)
        assert again.status_code == 200, (answers[-1].text, again.text)


@given(
    st.dictionaries(st.sampled_from([*PREVIEW, "from", "to", "rate", "dry_run"]), BITS, max_size=5)
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_json_whatever_breaks_a_preview_or_a_backfill(rig, body):
    for path in ("/preview", f"{PATH}/s1/backfill"):
        answer = await rig.ask("POST", path, json.dumps(body))
        assert answer.status_code in EXPECTED, (body, answer.text)
