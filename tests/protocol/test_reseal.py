"""reseal: a body is replaced where it still is what was read, and nothing else moves."""

from typing import Any

import pytest
from tests.protocol.kit import DONE, Kit, spec

from tasksched.errors import TaskschedError
from tasksched.model import codec, ids
from tasksched.model.outcome import Outcome
from tasksched.model.recurring import ScheduleSpec
from tasksched.model.schedule import Every
from tasksched.model.states import STATES, State
from tasksched.store.schedules import Schedules
from tasksched.store.sealed import Sealed, Stored

pytestmark = pytest.mark.anyio

SMALL, OTHER = codec.encode("small"), codec.encode("other bytes")
LARGE = codec.encode("x" * 2_000)


def stored(task_id: str, raw: bytes, field: str = "payload", kind: str = "task") -> Stored:
    return Stored(kind, task_id, field, 0, ("",), raw)


async def reseal(kit: Kit, old: Stored, new: bytes) -> str:
    (word,) = await Sealed(kit.store).reseal(0, [(old, new)])
    return word


def body(kit: Kit, task_id: str) -> bytes | None:
    large = kit.plain.get(kit.keys.body(task_id))
    return large if large is not None else kit.plain.hget(kit.keys.task(task_id), "payload")


def changed_fields(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Which keys, and which fields of hashes, differ."""
    found = set()
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= {f"{key} {f}" for f in old.keys() | new.keys() if old.get(f) != new.get(f)}
        elif old != new:
            found.add(key)
    return found


@pytest.mark.parametrize("state", STATES)
async def test_in_any_state_nothing_but_the_payload_changes(kit: Kit, state: State):
    task_id = await kit.task_in(state, payload=SMALL)
    before = kit.dump()
    assert "resealed" == await reseal(kit, stored(task_id, SMALL), OTHER)
    assert OTHER == body(kit, task_id)
    counted = (
        {f"{kit.keys.counts} bytes:default"}
        if state in {"SUCCESS", "FAILED", "CANCELLED"}
        else set()
    )
    assert {f"{kit.keys.task(task_id)} payload"} | counted == changed_fields(before, kit.dump())


@pytest.mark.parametrize("first", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("second", [OTHER, LARGE + b"!"], ids=["to-small", "to-large"])
@pytest.mark.parametrize("state", ["PENDING", "SUCCESS"])
async def test_a_payload_moves_by_its_length(kit: Kit, first: bytes, second: bytes, state: State):
    """The audit of the kit checks where it stands, its length, and the bytes of the tenant."""
    task_id = await kit.task_in(state, payload=first)
    assert "resealed" == await reseal(kit, stored(task_id, first), second)
    assert second == body(kit, task_id)
    assert (len(second) > 1024) == kit.plain.exists(kit.keys.body(task_id))


async def test_a_result_is_replaced(kit: Kit):
    task_id = await kit.task_in("SUCCESS")
    assert "resealed" == await reseal(kit, stored(task_id, DONE.result, "result"), LARGE)
    assert LARGE == kit.plain.hget(kit.keys.task(task_id), "result")


async def test_options_are_replaced_and_cost_nobody_anything(kit: Kit):
    """A finished record's options are not counted for its tenant."""
    for state in ("PENDING", "SUCCESS"):
        task_id = await kit.task_in(state, tags=("a",))
        options = kit.plain.hget(kit.keys.task(task_id), "options")
        longer = options.replace(b'"a"', b'"abc"')
        before = kit.dump()
        assert "resealed" == await reseal(kit, stored(task_id, options, "options"), longer)
        assert {f"{kit.keys.task(task_id)} options"} == changed_fields(before, kit.dump())


async def test_what_holds_other_bytes_by_now_stays(kit: Kit):
    task_id = await kit.task_in("PENDING", payload=SMALL)
    before = kit.dump()
    assert "changed" == await reseal(kit, stored(task_id, LARGE), OTHER)
    assert "changed" == await reseal(kit, stored(task_id, SMALL, "result"), OTHER)
    assert "changed" == await reseal(kit, stored(kit.new_id(), SMALL), OTHER)
    assert "changed" == await reseal(kit, stored("acme:s", SMALL, kind="schedule"), OTHER)
    assert before == kit.dump()


async def test_the_same_call_again_is_answered_again(kit: Kit):
    task_id = await kit.task_in("SUCCESS", payload=SMALL)
    assert "resealed" == await reseal(kit, stored(task_id, SMALL), LARGE)
    before = kit.dump()
    assert "resealed" == await reseal(kit, stored(task_id, SMALL), LARGE)
    assert before == kit.dump()


async def test_rows_are_answered_each(kit: Kit):
    made = [await kit.task_in("PENDING", payload=SMALL) for _ in range(3)]
    rows = [(stored(task_id, SMALL), OTHER) for task_id in made]
    rows[1] = (stored(made[1], LARGE), OTHER)
    assert ["resealed", "changed", "resealed"] == await Sealed(kit.store).reseal(0, rows)
    assert [OTHER, SMALL, OTHER] == [body(kit, task_id) for task_id in made]


async def test_a_new_payload_is_what_the_worker_gets(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(spec(payload=SMALL))
    await reseal(kit, stored(task_id, SMALL), LARGE)
    grant = await kit.start(task_id)
    assert LARGE == grant.payload
    await kit.settle(grant, Outcome(kind="SUCCEEDED", result=SMALL))


@pytest.mark.parametrize(
    "row",
    [
        ("task", "0123", "error", b"a", b"b"),
        ("task", "0123", "state", b"a", b"b"),
        ("schedule", "acme:s", "result", b"a", b"b"),
        ("queue", "0123", "payload", b"a", b"b"),
        ("task", "", "payload", b"a", b"b"),
        ("task", "0123", "payload", b"", b"b"),
        ("task", "0123", "payload", b"a", b""),
    ],
)
async def test_a_bad_row_is_refused_before_the_first_is_written(valkey: Kit, row: tuple[Any, ...]):
    task_id = await valkey.task_in("PENDING", payload=SMALL)
    before = valkey.dump()
    with pytest.raises(TaskschedError, match="BADARG row 2"):
        await valkey.raw("reseal", {}, [("task", task_id, "payload", SMALL, OTHER), row])
    assert before == valkey.dump()


async def schedule(kit: Kit, payload: bytes) -> str:
    template = spec(payload=payload, tenant="acme")
    made = ScheduleSpec(id="s", template=template, rule=Every("1h").bind("acme:s", kit.now_ms))
    await Schedules(kit.store).put_schedule(
        made, expected=None, created_ms=kit.now_ms, next_ms=kit.now_ms + 3_600_000, fingerprint="f"
    )
    return made.ref


@pytest.mark.parametrize("first", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("second", [OTHER, LARGE + b"!"], ids=["to-small", "to-large"])
async def test_a_schedule_keeps_all_but_its_payload(kit: Kit, first: bytes, second: bytes):
    ref = await schedule(kit, first)
    before = await Schedules(kit.store).get(ref)
    old = stored(ref, first, kind="schedule")
    assert ["resealed", "resealed"] == [await reseal(kit, old, second) for _ in range(2)]
    after = await Schedules(kit.store).get(ref)
    assert before is not None
    assert after is not None
    assert (first, second) == (before.spec.template.payload, after.spec.template.payload)
    assert (before.version, before.next_ms) == (after.version, after.next_ms)
    (task_id,) = await Schedules(kit.store).trigger(ref, [("x01", kit.now_ms, "+0")]) or []
    assert second == body(kit, task_id or "")


async def test_the_walk_finds_every_body_where_it_belongs(kit: Kit):
    small = await kit.task_in("PENDING", payload=SMALL)
    large = await kit.task_in("PENDING", payload=LARGE, tenant="acme")
    done = await kit.task_in("SUCCESS", payload=SMALL)
    await kit.task_in("PENDING")
    ref = await schedule(kit, LARGE)
    (made,) = await Schedules(kit.store).trigger(ref, [("x01", kit.now_ms, "+0")]) or []
    found = {each for batch in [b async for b in Sealed(kit.store).walk()] for each in batch}
    assert {
        Stored("task", small, "payload", 0, (f"task:default:{small}:payload",), SMALL),
        Stored("task", large, "payload", 0, (f"task:acme:{large}:payload",), LARGE),
        Stored("task", done, "payload", 0, (f"task:default:{done}:payload",), SMALL),
        Stored("task", done, "result", 0, (f"task:default:{done}:result",), DONE.result),
        Stored("schedule", ref, "payload", 0, ("schedule:acme:s:payload",), LARGE),
        Stored(
            "task", made or "", "payload", 0,
            ("schedule:acme:s:payload", f"task:acme:{made}:payload"), LARGE,
        ),
    } == found  # fmt: skip


async def test_the_walk_leaves_other_namespaces_and_strange_keys_alone(kit: Kit):
    kit.audited = False
    kit.plain.hset("{other:0}:task:" + ids.mint(0, kit.now_ms), mapping={"payload": b"x"})
    kit.plain.hset("{ts:0}:task:strange", mapping={"payload": b"x"})
    assert [] == [each async for each in Sealed(kit.store).walk()]
