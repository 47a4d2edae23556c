"""A bad argument is refused before anything is written, whichever script it is for."""

from typing import Any

import pytest
from tests.protocol.kit import LEASE_MS, RECURRING, WORKER, Kit, spec

from tasksched.errors import TaskschedError
from tasksched.model.states import STATES
from tasksched.store import scripts

pytestmark = pytest.mark.anyio

# Calls that each script accepts; the tests spoil one argument at a time. ID: a task that waits.
ID, RUN, FENCE = "<id>", "<run>", "<fence>"
ONE_TASK = {"id": ID, "tenant": "default", "version": "", "op": "o1"}
VALID: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "submit": (
        {},
        [
            ("0123", "default:normal:default:charge", "+5", b"\x80", "", "", "", "", "", ""),
            ("4567", "default:normal:default:charge", "77", b"", "", "f", 99, 1_000, "failed", "ab:1"),
        ],
    ),
    "dispatch": ({"limit": 10}, []),
    "take": ({"worker": WORKER, "call": 99, "slots": 8, "lease_ms": LEASE_MS, "server": ""}, []),
    "settle": ({}, [(RUN, FENCE, "FAILED", "5", "", "", b"", ""), (ID, "1", "SUCCEEDED", "", "", "", b"", "")]),
    "release": ({}, [(RUN, FENCE, "", ""), (ID, "1", 5, "host_busy")]),
    "reap": (
        {},
        [(RUN, FENCE, "LOST", "5", "", "{}", ""), (ID, "1", "TIMED_OUT", "", "worker_lost", "{}", "f")],
    ),
    "defer": ({}, [(RUN, FENCE, 1_000), (ID, "1", 1_000)]),
    "lines": ({}, [(RUN, FENCE, 1, "one"), (ID, "1", 1, "two")]),
    "checkpoint": ({"id": RUN, "fence": FENCE, "value": b"\x01"}, []),
    "deliver": ({"tenant": "default"}, [("d1", "{}", b"\x80"), ("d2", "{}", b"x" * 3_000)]),
    "purge": ({"tenant": "default", "keyed_ms": 1, "unkeyed_ms": 1, "op": "o1"}, [(ID, ""), (RUN, 3)]),
    "forget": ({"tenant": "gone"}, [("default",), ("mail",)]),
    "allot": ({"limit": "t/acme", "capacity": 3, "shards": 0}, [(0, 0, 0, 2, 5), (1, 0, 1, 0, 0)]),
    "apportion": ({"limit": "t/acme", "permits": 3, "epoch": 5, "contended": 0, "short_ms": 0}, []),
    "relinquish": ({"cursor": 0, "idle_ms": 0}, []),
    "report": ({"limit": "t/acme"}, []),
    "ration": ({"limit": "rt/acme", "per_kilo": 5_000, "want": 3}, []),
    "credit": ({"limit": "rt/acme", "tokens": 3, "until_ms": 9, "next_ms": 9}, []),
    "configure": ({}, [("hooks:default", "1 failed")]),
    "put_record": ({"home": "ts:conf", "field": "hooks:default", "expected": 0, "value": b"failed"}, []),
    "reclaim": ({}, [(ID,), (RUN,)]),
    "sweep": ({"stream": "default:normal:charge", "from": "-", "limit": 10}, []),
    "heartbeat": ({}, [(RUN, FENCE, LEASE_MS, "", ""), (ID, "1", LEASE_MS, 5, "")]),
    "cancel": (ONE_TASK, []),
    "edit": (
        {
            **ONE_TASK, "lane": "", "due": "+9", "payload": b"=x", "options": "={}",
            "expires": "=99", "lease": "=99", "wants": "=failed", "concurrency": "=ab:2",
        },
        [],
    ),
    "run_now": (ONE_TASK, []),
    "redrive": (
        {
            **ONE_TASK, "due": "+0", "lane": "", "payload": b"", "options": "", "expires": "",
            "lease": "", "wants": "", "concurrency": "",
        },
        [],
    ),
    "announce": ({"worker": WORKER, "ttl_ms": 1000}, [("route:charge",), ("queue:*",)]),
    "prune": (
        {
            "tenant": "default", "done_ms": 0, "dead_ms": 0, "count_max": 0, "bytes_max": 0,
            "keyed_ms": 1, "unkeyed_ms": 1, "limit": 9,
        },
        [],
    ),
    "expire": ({}, []),
    "overdue": ({"limit": 9}, []),
    "page": (
        {"newest": 0, "score": "", "id": "", "low": "-inf", "high": "+inf", "limit": 9},
        [("done:default",), ("dead:default",)],
    ),
    "reseal": (
        {},
        [("task", ID, "payload", b"old", b"new"), ("schedule", "default:s", "payload", b"old", b"new")],
    ),
    "enlist": ({"members": "ts:schedulers", "member": "me", "ttl_ms": 1000}, []),
    "present": ({"worker": "ts:worker:w1", "ttl_ms": 1000}, [("host", "h")]),
}  # fmt: skip
NO_NUMBERS = ["NaN", "nan", "inf", "-inf", "1.5", "1e400", "text", "1 2", "--1", b"\xff"]

Slots = dict[str, list[tuple[str, str]]]


def slots_of(name: str) -> Slots:
    text = (scripts.home() / f"{name}.lua").read_text().partition("\n")[2]
    return scripts._header(name, text)[0]


def bad_scalars() -> list[Any]:
    found = []
    for name in VALID:
        for slot, kind in slots_of(name)["ARGV"]:
            if kind in {"int", "opt"}:
                found.append(pytest.param(name, slot, kind, id=f"{name}-{slot}"))
    return found


def bad_columns() -> list[Any]:
    found = []
    for name in VALID:
        for column, (slot, kind) in enumerate(slots_of(name)["ROWS"]):
            if kind in {"int", "opt"}:
                found.append(pytest.param(name, column, slot, kind, id=f"{name}-{slot}"))
    return found


class World:
    """A database with a task in every state, and valid calls on it."""

    def __init__(self, kit: Kit, waiting: str, running: str) -> None:
        self.kit = kit
        self.names = {ID: waiting, RUN: running, FENCE: kit.fence(running)}

    def call(self, name: str) -> tuple[dict[str, Any], list[list[Any]]]:
        values, rows = VALID[name]
        own = {"clock": self.kit.keys.clock, "now_ms": self.kit.now_ms}
        packed = {**own, **{slot: self._named(value) for slot, value in values.items()}}
        return packed, [[self._named(value) for value in row] for row in rows]

    def _named(self, value: Any) -> Any:
        return self.names.get(value, value) if isinstance(value, str) else value

    async def refused(self, name: str, values: dict[str, Any], rows: list[list[Any]]) -> str:
        """The refusal of this call, which must leave every key as it was."""
        before = self.kit.dump()
        with pytest.raises(TaskschedError) as caught:
            await self.kit.store.gateway.run(name, values, rows)
        assert before == self.kit.dump()
        return str(caught.value)


async def world_of(kit: Kit) -> World:
    made = {state: await kit.task_in(state) for state in STATES}
    return World(kit, made["PENDING"], made["RUNNING"])


def test_the_table_of_valid_calls_is_complete():
    assert set(scripts.names()) == VALID.keys() | RECURRING


@pytest.mark.parametrize("name", VALID)
async def test_the_valid_calls_are_valid(valkey: Kit, name: str):
    """Else the refusals below would prove nothing."""
    world = await world_of(valkey)
    await valkey.store.gateway.run(name, *world.call(name))


@pytest.mark.parametrize(("name", "slot", "kind"), bad_scalars())
async def test_a_number_that_is_none_is_refused(valkey: Kit, name: str, slot: str, kind: str):
    world = await world_of(valkey)
    for bad in NO_NUMBERS + ([""] if kind == "int" else []):
        values, rows = world.call(name)
        values[slot] = bad
        assert f"BADARG {slot}" in await world.refused(name, values, rows)


@pytest.mark.parametrize(("name", "column", "slot", "kind"), bad_columns())
async def test_a_number_in_the_last_row_is_checked_before_the_first_is_written(
    valkey: Kit, name: str, column: int, slot: str, kind: str
):
    world = await world_of(valkey)
    for bad in NO_NUMBERS + ([""] if kind == "int" else []):
        values, rows = world.call(name)
        rows[-1][column] = bad
        assert f"BADARG row {len(rows)}: {slot}" in await world.refused(name, values, rows)


@pytest.mark.parametrize("name", VALID)
async def test_an_argument_too_few_or_too_many_is_refused(valkey: Kit, name: str):
    """The last one is cut off, or doubled, behind the back of the caller's own check."""
    world = await world_of(valkey)
    found = scripts.script(name)
    packed = found.pack(*world.call(name))
    wide = len(found.row) == 1  # one more argument is one more row there
    for spoilt in ([*packed[:-1]], [*packed, "0"], packed[: len(found.keys)]):
        if wide and len(spoilt) > len(found.keys) + len(found.args):
            continue
        before = valkey.dump()
        with pytest.raises(Exception, match="BADARG"):
            await valkey.store.gateway.redis.execute_command(
                "EVAL", found.source, len(found.keys), *spoilt
            )
        assert before == valkey.dump()


@pytest.mark.parametrize("name", ["submit", "settle", "heartbeat", "announce", "reclaim", "page"])
async def test_no_rows_at_all_are_refused(valkey: Kit, name: str):
    world = await world_of(valkey)
    values, _ = world.call(name)
    assert "BADARG count" in await world.refused(name, values, [])


def test_a_forgotten_argument_fails_in_python():
    with pytest.raises(KeyError, match="limit"):
        scripts.script("dispatch").pack({"clock": "c", "now_ms": 0})


BAD_TIMES = ["", "+", "nan", "+nan", "1e400", "+1e400", "inf", "1.5", "+0.5", "soon", "9" * 17]


@pytest.mark.parametrize("due", BAD_TIMES)
async def test_a_due_time_that_never_comes_is_refused(valkey: Kit, due: str):
    """``tonumber`` reads ``1e400`` as infinite: such a task would be stored and never start."""
    world = await world_of(valkey)
    values, rows = world.call("submit")
    rows[-1][2] = due
    assert "BADARG row 2: due" in await world.refused("submit", values, rows)
    failed = await valkey.task_in("FAILED")
    for name, task_id in (("edit", world.names[ID]), ("redrive", failed)):
        values, _ = world.call(name)
        if name == "edit" and due == "":  # unchanged
            continue
        refusal = await world.refused(name, {**values, "id": task_id, "due": due}, [])
        assert "BADARG due" in refusal


@pytest.mark.parametrize(
    "lane", ["", "a:b:c", "a:b:c:d:e", ":::", "a::c:d", "default:normal:default:"]
)
async def test_a_lane_without_its_four_parts_is_refused(valkey: Kit, lane: str):
    world = await world_of(valkey)
    values, rows = world.call("submit")
    rows[-1][1] = lane
    assert "BADARG row 2: id or lane" in await world.refused("submit", values, rows)
    if lane:
        values, _ = world.call("edit")
        assert "BADARG lane" in await world.refused("edit", {**values, "lane": lane}, [])


async def test_an_edit_cannot_give_a_task_to_another_tenant(valkey: Kit):
    world = await world_of(valkey)
    values, _ = world.call("edit")
    values["lane"] = "default:normal:other:charge"
    assert "BADARG lane" in await world.refused("edit", values, [])


@pytest.mark.parametrize("slot", ["expires", "lease"])
@pytest.mark.parametrize("bad", ["5", "x", "=x", "=1.5", "=nan", "=inf", "=1e400", "=-1", "= 5"])
async def test_an_edit_refuses_what_is_no_time(valkey: Kit, slot: str, bad: str):
    """A nan would fail in the sorted set, after the task has left its lane."""
    world = await world_of(valkey)
    values, _ = world.call("edit")
    assert f"BADARG {slot}" in await world.refused("edit", {**values, slot: bad}, [])


@pytest.mark.parametrize("slot", ["payload", "options"])
async def test_an_edit_refuses_a_value_without_its_mark(valkey: Kit, slot: str):
    world = await world_of(valkey)
    values, _ = world.call("edit")
    assert f"BADARG {slot}" in await world.refused("edit", {**values, slot: "{}"}, [])


@pytest.mark.parametrize("outcome", ["", "lost", "RELEASED", "succeeded", "DONE", "SUCCESS"])
async def test_settle_refuses_an_outcome_that_workers_do_not_report(valkey: Kit, outcome: str):
    world = await world_of(valkey)
    values, rows = world.call("settle")
    rows[-1][2] = outcome
    assert "BADARG row 2: outcome" in await world.refused("settle", values, rows)


@pytest.mark.parametrize("what", ["", "charge", "handler:x", "route:", ":x", "queue"])
async def test_announce_refuses_what_is_neither_route_nor_queue(valkey: Kit, what: str):
    world = await world_of(valkey)
    values, rows = world.call("announce")
    rows[-1][0] = what
    assert "BADARG row 2: serves" in await world.refused("announce", values, rows)


@pytest.mark.parametrize("name", ["dispatch", "sweep", "overdue", "page"])
@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_that_is_none_is_refused(valkey: Kit, name: str, limit: int):
    """To Redis -1 means all, and nothing of ours may be unbounded."""
    world = await world_of(valkey)
    values, rows = world.call(name)
    assert "BADARG limit" in await world.refused(name, {**values, "limit": limit}, rows)


async def test_a_row_of_plain_text_goes_through_unread(valkey: Kit):
    """Payloads are opaque: no byte of them means anything to a script."""
    await valkey.announce()
    nasty = b"=\x00\r\n{ts:0}:lanes*? \xff\xfe" + bytes(range(256))
    task_id = await valkey.submit(spec(payload=nasty))
    (grant,) = await valkey.take()
    assert (task_id, nasty) == (grant.id, grant.payload)
