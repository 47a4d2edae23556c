"""Every state of a schedule under every verb, in one table; versions, replays, bad arguments."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.protocol.kit import BROKEN
from tests.protocol.schedules.kit import MINUTE_MS, REF, SchedulesKit, Work
from tests.protocol.test_arguments import NO_NUMBERS

from tasksched.errors import Conflict, NotFound, PreconditionFailed, TaskschedError
from tasksched.model.schedule import Cron, Delay, Every
from tasksched.store import scripts
from tasksched.store.schedules import Retiming

pytestmark = pytest.mark.anyio
STATES = ("ACTIVE", "PAUSED", "BLOCKED", "ENDED", "none")
# What a refused or repeated call may write all the same.
BOOKKEEPING = ("clock", "unread", "stats")


async def schedule_in(kit: SchedulesKit, state: str) -> None:
    """A schedule that got into this state the usual way. Only a chain is ever blocked by a verdict."""
    match state:
        case "ACTIVE":
            await kit.put(Every("60s"))
        case "PAUSED":
            await kit.put(Every("60s"))
            await kit.pause()
        case "BLOCKED":
            kit.handler = lambda _: Work(0, BROKEN)
            await kit.put(Delay("60s"), after="success")
            await kit.after(MINUTE_MS)
        case "ENDED":
            await kit.put(Every("60s"), max_runs=1)
            await kit.after(MINUTE_MS)
    assert state in {status(kit), "none"}


def status(kit: SchedulesKit) -> str:
    found = kit.plain.hget(kit.keys.schedule(REF), "status")
    return found.decode() if found else "none"


def rule_of(state: str) -> Any:
    return Delay("60s") if state == "BLOCKED" else Every("60s")


# The word and the state afterwards, or the error, by verb and by state before.
TABLE: dict[str, dict[str, Any]] = {
    "put": {
        "ACTIVE": ("replaced", "ACTIVE"), "PAUSED": ("replaced", "PAUSED"),
        "BLOCKED": ("replaced", "BLOCKED"), "ENDED": ("replaced", "ACTIVE"),
        "none": ("created", "ACTIVE"),
    },
    "put unconditionally": {
        **{state: ("exists", state) for state in STATES[:4]}, "none": ("created", "ACTIVE"),
    },
    "pause": {
        "ACTIVE": ("paused", "PAUSED"), "PAUSED": ("paused", "PAUSED"),
        "BLOCKED": ("paused", "PAUSED"), "ENDED": Conflict, "none": NotFound,
    },
    "resume": {
        "ACTIVE": ("resumed", "ACTIVE"), "PAUSED": ("resumed", "ACTIVE"),
        "BLOCKED": ("resumed", "ACTIVE"), "ENDED": Conflict, "none": NotFound,
    },
    "remove": {**dict.fromkeys(STATES[:4], ("removed", "none")), "none": NotFound},
    "trigger": {**{state: ("", state) for state in STATES[:4]}, "none": NotFound},
    "backfill": {
        "ACTIVE": ("", "ACTIVE"), "PAUSED": ("", "PAUSED"), "BLOCKED": TaskschedError,
        "ENDED": ("", "ENDED"), "none": NotFound,
    },
    "fire": {state: ("stale" if state != "ACTIVE" else "fired", state) for state in STATES},
    "retime": {
        **{state: ("retimed", state) for state in STATES[:4]}, "none": ("stale", "none"),
    },
}  # fmt: skip


async def do(kit: SchedulesKit, verb: str, state: str) -> str:
    """The word that the verb answers."""
    recurring = kit.recurring
    match verb:
        case "put":
            before = await kit.schedules.get(REF)
            spec = kit.spec(rule_of(state), payload=b"\x07")
            version = before.version if before else None
            return (await recurring.put(spec, version=version))[0].word
        case "put unconditionally":
            return (await recurring.put(kit.spec(rule_of(state), payload=b"\x07")))[0].word
        case "pause" | "resume" | "remove":
            return (await getattr(kit, verb)()).word
        case "trigger":
            assert await kit.trigger()
        case "backfill":
            span = (kit.now_ms - 90_000, kit.now_ms)
            assert (await recurring.backfill("default", "s", span, dry_run=False)).count <= 1
        case "retime":
            row = Retiming(REF, *stored(kit))
            return (await kit.schedules.retime(0, [row]))[0]
        case "fire":
            version, next_ms, _ = stored(kit)
            kit.leap(MINUTE_MS)
            at_ms = next_ms or kit.now_ms
            row = (REF, version, at_ms, at_ms + MINUTE_MS, at_ms, f"{at_ms}:{at_ms}:0", "")
            return (await kit.raw("fire", {"tzdata": ""}, [row]))[0].decode()
    return ""


def stored(kit: SchedulesKit) -> tuple[int, int | None, int | None]:
    """version, next_ms, and the same again: as a retiming that changes nothing."""
    version, next_ms = kit.plain.hmget(kit.keys.schedule(REF), "version", "next_ms")
    at_ms = int(next_ms) if next_ms else None
    return int(version or 1), at_ms, at_ms


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", TABLE)
async def test_every_verb_in_every_state(each: SchedulesKit, verb: str, state: str):
    await schedule_in(each, state)
    expected = TABLE[verb][state]
    if isinstance(expected, type):
        before = each.dump(without=BOOKKEEPING)
        with pytest.raises(expected):
            await do(each, verb, state)
        assert before == each.dump(without=BOOKKEEPING)
    else:
        word = await do(each, verb, state)
        assert expected == (word, status(each))


@pytest.mark.parametrize("state", STATES[:4])
@pytest.mark.parametrize("verb", ["put", "pause", "resume", "remove"])
async def test_another_version_is_refused_and_changes_nothing(
    each: SchedulesKit, verb: str, state: str
):
    await schedule_in(each, state)
    if (verb, state) in {("pause", "PAUSED"), ("resume", "ACTIVE")}:
        return  # it is as asked
    before = each.dump(without=BOOKKEEPING)
    spec = each.spec(Cron("* * * * *"))
    call = (
        each.recurring.put(spec, version=99) if verb == "put" else getattr(each, verb)(version=99)
    )
    with pytest.raises(PreconditionFailed):
        await call
    assert before == each.dump(without=BOOKKEEPING)


async def test_a_version_where_there_is_nothing(each: SchedulesKit):
    with pytest.raises(NotFound):
        await each.recurring.put(each.spec(Every("60s")), version=1)
    assert {} == each.dump(without=BOOKKEEPING)


async def test_the_right_version_is_accepted_and_grows(each: SchedulesKit):
    await each.put(Every("60s"))
    assert 2 == (await each.pause(version=1)).version
    assert 3 == (await each.resume(version=2)).version
    spec = each.spec(Every("60s"), payload=b"\x07")
    assert 4 == (await each.recurring.put(spec, version=3))[0].version
    assert "removed" == (await each.remove(version=4)).word


# -- the same call again -------------------------------------------------------------------------------

Call = Callable[[SchedulesKit], Awaitable[Any]]


def changing() -> dict[str, Call]:
    async def put(kit: SchedulesKit) -> Any:
        before = await kit.schedules.get(REF)
        spec = kit.spec(Delay("60s") if before and before.status == "BLOCKED" else Every("60s"),
                        payload=b"\x07")  # fmt: skip
        return await kit.schedules.put_schedule(
            spec, expected=before.version if before else None, created_ms=kit.now_ms,
            next_ms=kit.now_ms + MINUTE_MS, fingerprint="f",
        )  # fmt: skip

    return {
        "put": put,
        "pause": lambda kit: kit.schedules.pause_schedule(REF, None),
        "resume": lambda kit: kit.schedules.resume_schedule(REF, None, next_ms=kit.now_ms + 5),
        "remove": lambda kit: kit.schedules.remove_schedule(REF, None),
        "trigger": lambda kit: kit.schedules.trigger(REF, [("x1", 5, "+5"), ("77", 77, "+5")]),
    }


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", changing())
async def test_a_call_whose_reply_was_lost_is_answered_as_the_first_time(
    each: SchedulesKit, verb: str, state: str, monkeypatch: pytest.MonkeyPatch
):
    await schedule_in(each, state)
    sent: list[Any] = []
    send = each.schedules._run

    async def record(*call: Any) -> Any:
        sent.append((call, await send(*call), each.dump(without=BOOKKEEPING)))
        return sent[-1][1]

    monkeypatch.setattr(each.schedules, "_run", record)
    await changing()[verb](each)
    (call, reply, after) = sent[-1]
    assert reply == await send(*call)
    each.leap(1)
    assert reply == await send(*call)
    assert after == each.dump(without=BOOKKEEPING)


async def test_an_identical_put_changes_nothing(each: SchedulesKit):
    each.at("10:00:00")
    fields = {"payload": b"\x82\xa1a\x01\xa1b\x02", "overlap": "queue", "jitter_ms": 5}
    await each.put(Every("60s"), **fields)
    await each.advance("10:02:10")
    before = each.dump(without=BOOKKEEPING)
    same = {**fields, "payload": b"\x82\xa1b\x02\xa1a\x01"}  # another order of keys
    changed, _ = await each.recurring.put(each.spec(Every("1m"), **same))
    assert ("same", 1) == (changed.word, changed.version)
    assert before == each.dump(without=BOOKKEEPING)


async def test_a_pause_that_is_sent_again_after_a_resume_does_not_pause(each: SchedulesKit):
    """It was done once, and answered once; its late copy is told so."""
    await each.put(Every("60s"))
    await each.schedules.pause_schedule(REF, None, op="a")
    before = each.dump(without=BOOKKEEPING)
    await each.schedules.pause_schedule(REF, None, op="a")
    assert before == each.dump(without=BOOKKEEPING)


# -- bad arguments -------------------------------------------------------------------------------------

PUT = {
    "ref": REF, "expected": 1, "created_ms": "<now>", "op": "o", "kind": "interval",
    "rule": '{"interval":"1m"}', "policy": "", "overlap": "", "after": "", "owner": "",
    "delay_ms": 5, "jitter_ms": 5, "end_ms": 5, "max_runs": 5, "lane": "a:normal:default:charge",
    "payload": b"=x", "options": "", "lease_ms": 5, "wants": "", "concurrency": "", "next_ms": "<later>", "fingerprint": "f",
    "tzdata": "",
}  # fmt: skip
VALID: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "put_schedule": (PUT, []),
    "pause_schedule": ({"ref": REF, "expected": 1, "op": "o"}, []),
    "resume_schedule": (
        {"ref": REF, "expected": 1, "op": "o", "next_ms": "<later>", "tzdata": ""}, [],
    ),
    "remove_schedule": ({"ref": REF, "expected": 1, "op": "o"}, []),
    "trigger": ({"ref": REF, "op": "o"}, [("x1", 5, "+5"), ("77", 77, "+5")]),
    "owed": ({"limit": 9}, []),
    "fire": (
        {"tzdata": ""},
        [(REF, 1, "<next>", "<later>", "<next>", "5:5:0", "missed:1:2:2:1"), ("a:b", 1, 5, 6, 5, "", "")],
    ),
    "retime": ({"tzdata": ""}, [(REF, 1, "<next>", "<later>", ""), ("a:b", 1, 5, 6, "")]),
}  # fmt: skip


async def call_of(kit: SchedulesKit, name: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """A valid call, on a schedule that exists."""
    if not kit.plain.exists(kit.keys.schedule(REF)):
        await kit.put(Every("60s"))
        kit.is_down = True
        await kit.after(MINUTE_MS if name == "fire" else 5_000)
    next_ms = int(kit.plain.hget(kit.keys.schedule(REF), "next_ms"))
    names = {"<now>": kit.now_ms, "<later>": next_ms + MINUTE_MS, "<next>": next_ms}
    values, rows = VALID[name]
    own = {"clock": kit.keys.clock, "now_ms": kit.now_ms}
    packed = {k: names.get(v, v) if isinstance(v, str) else v for k, v in values.items()}
    return {**own, **packed}, [
        [names.get(v, v) if isinstance(v, str) else v for v in row] for row in rows
    ]


async def refused(kit: SchedulesKit, name: str, values: Any, rows: Any) -> str:
    before = kit.dump()
    with pytest.raises(TaskschedError) as caught:
        await kit.store.gateway.run(name, values, rows)
    assert before == kit.dump()
    return str(caught.value)


def slots(name: str, block: str) -> list[tuple[int, str, str]]:
    text = (scripts.home() / f"{name}.lua").read_text().partition("\n")[2]
    found = scripts._header(name, text)[0][block]
    return [(n, slot, kind) for n, (slot, kind) in enumerate(found) if kind in {"int", "opt"}]


def test_every_script_of_schedules_has_a_valid_call():
    from tests.protocol.kit import RECURRING  # noqa: PLC0415

    assert RECURRING == VALID.keys()


@pytest.mark.parametrize("name", VALID)
async def test_the_valid_calls_are_valid(one: SchedulesKit, name: str):
    await one.store.gateway.run(name, *await call_of(one, name))


@pytest.mark.parametrize("name", VALID)
async def test_a_number_that_is_none_leaves_nothing_behind(one: SchedulesKit, name: str):
    for _, slot, kind in slots(name, "ARGV"):
        for bad in NO_NUMBERS + ([""] if kind == "int" else []):
            values, rows = await call_of(one, name)
            assert f"BADARG {slot}" in await refused(one, name, {**values, slot: bad}, rows)
    for column, slot, kind in slots(name, "ROWS"):
        for bad in NO_NUMBERS + ([""] if kind == "int" else []):
            values, rows = await call_of(one, name)
            rows[-1][column] = bad
            assert f"BADARG row 2: {slot}" in await refused(one, name, values, rows)


@pytest.mark.parametrize(
    ("name", "slot", "bad"),
    [
        ("put_schedule", "lane", "a:b:c"), ("put_schedule", "lane", ""),
        ("put_schedule", "ref", "nocolon"), ("put_schedule", "ref", "a:b:c"),
        ("put_schedule", "created_ms", 5), ("put_schedule", "op", ""), ("trigger", "op", ""),
    ],
)  # fmt: skip
async def test_a_bad_value_leaves_nothing_behind(one: SchedulesKit, name: str, slot: str, bad: Any):
    values, rows = await call_of(one, name)
    assert "BADARG" in await refused(one, name, {**values, slot: bad}, rows)


async def test_a_fixed_delay_needs_its_delay(one: SchedulesKit):
    values, rows = await call_of(one, "put_schedule")
    spoilt = {**values, "kind": "delay", "delay_ms": ""}
    assert "BADARG delay_ms" in await refused(one, "put_schedule", spoilt, rows)


@pytest.mark.parametrize(
    ("column", "bad"),
    [(5, "x"), (5, "1:2"), (5, "1:2:3:4"), (5, "1:2:3 x"), (5, "1:2:-3"), (6, "x"),
     (6, "fired:1:2:1:1"), (6, "missed:1:2:1"), (6, "missed:1:2:1:7"), (6, "missed:1:2:1:1 y"),
     (3, 5), (3, "<next>"), (4, 5)],
)  # fmt: skip
async def test_a_plan_that_is_none_is_refused(one: SchedulesKit, column: int, bad: Any):
    """Every next is later than the last one fired; a word of runs or skipped is never dropped."""
    values, rows = await call_of(one, "fire")
    rows.reverse()
    rows[-1][column] = rows[-1][2] if bad == "<next>" else bad
    assert "BADARG row 2" in await refused(one, "fire", values, rows)


@pytest.mark.parametrize(
    ("column", "bad"),
    [(0, ""), (0, "n5"), (0, "x"), (0, "x 1"), (0, "1.5"), (0, "x1:y"), (2, ""), (2, "nan"),
     (2, "+"), (2, "1e400")],
)  # fmt: skip
async def test_an_extra_run_that_is_none_is_refused(one: SchedulesKit, column: int, bad: str):
    """Above all none that takes the id of a link of the chain."""
    values, rows = await call_of(one, "trigger")
    rows[-1][column] = bad
    assert "BADARG row 2" in await refused(one, "trigger", values, rows)
