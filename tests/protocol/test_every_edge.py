"""Every state against every verb: the word that answers, the state after it, and nothing else."""

import re
from collections.abc import Awaitable, Callable

import pytest
from tests.protocol.kit import (
    BEGIN_MS,
    BOOKKEEPING,
    BROKEN,
    DAY_MS,
    DONE,
    LEASE_MS,
    STOPPED,
    WORKER,
    Kit,
    lost,
    retry_in,
    spec,
)

from tasksched.model.outcome import Outcome
from tasksched.model.states import EDGES, FINAL, STATES
from tasksched.store.protocol import Beat, Edit
from tasksched.store.scripts import home

pytestmark = pytest.mark.anyio

Verb = Callable[[Kit, str], Awaitable[str]]

# Where a task can stand: its six states, and two that a verdict tells apart: RETRYING waits for its
# second attempt, STOPPING runs though a cancel was requested.
STANDS = ("PENDING", "RETRYING", "QUEUED", "RUNNING", "STOPPING", "SUCCESS", "FAILED", "CANCELLED")
STATE_OF = {"RETRYING": "PENDING", "STOPPING": "RUNNING"}


async def bring(kit: Kit, stand: str) -> str:
    match stand:
        case "RETRYING":
            task_id = await kit.task_in("RUNNING")
            await kit.settle((task_id, kit.fence(task_id)), retry_in(DAY_MS))
        case "STOPPING":
            task_id = await kit.task_in("RUNNING")
            await kit.store.cancel(0, task_id, "default", None)
        case _:
            task_id = await kit.task_in(stand)
    return task_id


def settling(outcome: Outcome) -> Verb:
    async def settle(kit: Kit, task_id: str) -> str:
        return await kit.settle((task_id, kit.fence(task_id)), outcome)

    return settle


async def submit(kit: Kit, task_id: str) -> str:
    _, words = await kit.store.submit(0, [(task_id, spec(), "")])
    return words.get(0, "created")


async def dispatch(kit: Kit, task_id: str) -> str:
    return str((await kit.dispatch()).moved)


async def take(kit: Kit, task_id: str) -> str:
    return str(len(await kit.take()))


async def release(kit: Kit, task_id: str) -> str:
    (word,) = await kit.store.release(0, [(task_id, kit.fence(task_id))])
    return word


async def reap(kit: Kit, task_id: str) -> str:
    (word,) = await kit.store.reap(0, [(task_id, kit.fence(task_id), lost(DAY_MS))])
    return word


async def reap_late(kit: Kit, task_id: str) -> str:
    await kit.wait(LEASE_MS)
    return await reap(kit, task_id)


async def bury_late(kit: Kit, task_id: str) -> str:
    await kit.wait(LEASE_MS)
    (word,) = await kit.store.reap(0, [(task_id, kit.fence(task_id), lost())])
    return word


async def reclaim(kit: Kit, task_id: str) -> str:
    (word,) = await kit.store.reclaim(0, [task_id])
    return word


async def reclaim_late(kit: Kit, task_id: str) -> str:
    await kit.wait(LEASE_MS)
    return await reclaim(kit, task_id)


async def sweep(kit: Kit, task_id: str) -> str:
    swept = await kit.store.sweep(0, "default:normal:charge", "-")
    return f"{swept.removed} {swept.watched}"


async def heartbeat(kit: Kit, task_id: str) -> str:
    (word,) = await kit.store.heartbeat(0, [Beat(task_id, kit.fence(task_id), LEASE_MS)])
    return word


async def cancel(kit: Kit, task_id: str) -> str:
    return (await kit.store.cancel(0, task_id, "default", None)).word


async def edit(kit: Kit, task_id: str) -> str:
    return (await kit.store.edit(0, task_id, "default", None, Edit(due="+9000"))).word


async def run_now(kit: Kit, task_id: str) -> str:
    return (await kit.store.run_now(0, task_id, "default", None)).word


async def redrive(kit: Kit, task_id: str) -> str:
    return (await kit.store.redrive(0, task_id, "default", None)).word


async def prune(kit: Kit, task_id: str) -> str:
    return await _prune(kit, 1_000)


async def prune_all(kit: Kit, task_id: str) -> str:
    return await _prune(kit, 0)


async def _prune(kit: Kit, age_ms: int) -> str:
    removed, _ = await kit.store.prune(
        0, "default", done_ms=age_ms, dead_ms=age_ms, count_max=1000, bytes_max=1 << 40,
        keyed_ms=DAY_MS, unkeyed_ms=DAY_MS, limit=100,
    )  # fmt: skip
    return str(removed)


# verb → the answer for each of STANDS, as "word" (the state stays) or "word>STATE".
TABLE: dict[Verb, str] = {
    submit: "exists exists exists exists exists exists exists exists",
    dispatch: "0 0 0 0 0 0 0 0",
    take: "0 0 1>RUNNING 0 0 0 0 0",
    settling(DONE): "stale conflict stale SUCCESS>SUCCESS SUCCESS>SUCCESS SUCCESS conflict stale",
    settling(BROKEN): "stale PENDING stale FAILED>FAILED CANCELLED>CANCELLED conflict FAILED stale",
    settling(retry_in(5)): (
        "stale PENDING stale PENDING>PENDING CANCELLED>CANCELLED conflict FAILED stale"
    ),
    settling(Outcome(kind="TIMED_OUT", reason="attempts_exhausted")): (
        "stale conflict stale FAILED>FAILED CANCELLED>CANCELLED conflict conflict stale"
    ),
    settling(STOPPED): (
        "stale conflict stale CANCELLED>CANCELLED CANCELLED>CANCELLED conflict conflict stale"
    ),
    release: "stale conflict stale PENDING>PENDING CANCELLED>CANCELLED conflict conflict stale",
    reap: "stale stale stale alive alive stale stale stale",
    reap_late: "stale stale stale PENDING>PENDING CANCELLED>CANCELLED stale stale stale",
    bury_late: "stale stale stale FAILED>FAILED CANCELLED>CANCELLED stale stale stale",
    reclaim: "stray stray waits waits waits stray stray stray",
    reclaim_late: "stray stray waits waits waits stray stray stray",
    sweep: "0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0",
    heartbeat: "stale stale stale ok cancel stale stale stale",
    cancel: (
        "cancelled>CANCELLED cancelled>CANCELLED cancelled>CANCELLED requested requested"
        " finished finished cancelled"
    ),
    edit: "edited edited edited>PENDING state state state state state",
    run_now: "edited edited edited>PENDING state state state state state",
    redrive: "state state state state state state redriven>PENDING redriven>PENDING",
    prune: "0 0 0 0 0 0 0 0",
    prune_all: "0 0 0 0 0 1> 1> 1>",
}
NAMED = ("settle_done", "settle_broken", "settle_retry", "settle_late", "settle_stopped")


def cases() -> list[object]:
    names = iter(NAMED)
    found: list[object] = []
    for verb, row in TABLE.items():
        name = next(names) if verb.__name__ == "settle" else verb.__name__
        for stand, cell in zip(STANDS, row.split(), strict=True):
            found.append(pytest.param(verb, stand, cell.replace(".", " "), id=f"{name}-{stand}"))
    return found


# The cells in which the state stays and something visible does change all the same.
CHANGING = {
    ("edit", "PENDING"), ("edit", "RETRYING"), ("run_now", "PENDING"), ("run_now", "RETRYING"),
    ("cancel", "RUNNING"), ("heartbeat", "RUNNING"), ("heartbeat", "STOPPING"),
    ("reclaim_late", "QUEUED"),
    # An empty stream goes away.
    ("sweep", "RETRYING"), ("sweep", "SUCCESS"), ("sweep", "FAILED"), ("sweep", "CANCELLED"),
}  # fmt: skip


@pytest.mark.parametrize(("verb", "stand", "cell"), cases())
async def test_every_state_answers_every_verb_as_the_table_says(
    kit: Kit, verb: Verb, stand: str, cell: str
):
    others = [
        await kit.task_in(state, worker="w2", route="refund", tenant="other") for state in STATES
    ]
    task_id = await bring(kit, stand)
    await kit.announce(WORKER, "queue:*", "route:charge")
    kit.leap(1)  # so that what is rewritten can be told from what stays
    before, stood = kit.dump(without=BOOKKEEPING), kit.record(task_id)
    untouched = [kit.record(other) for other in others]
    word, moves, after = cell.partition(">")

    assert word == await verb(kit, task_id)

    assert (after if moves else STATE_OF.get(stand, stand)) == kit.state(task_id)
    assert untouched == [kit.record(other) for other in others]
    if moves and after:
        assert int(stood.get("version", 1)) + 1 == kit.version(task_id)
    if not moves and (verb.__name__, stand) not in CHANGING:
        left = kit.dump(without=BOOKKEEPING)
        for each in (before, left):  # a take notes its number
            each.pop(kit.keys.worker(WORKER))
        assert before == left


@pytest.mark.parametrize("stand", ["PENDING", "QUEUED"])
async def test_a_task_that_did_not_start_in_time_fails_as_expired(kit: Kit, stand: str):
    task_id = await kit.task_in(stand, expires_at_ms=BEGIN_MS + 5_000)
    kit.leap(5_000)

    await kit.dispatch()
    assert 1 == kit.expired

    assert ("FAILED", "expired") == (kit.state(task_id), kit.record(task_id)["reason"])


@pytest.mark.parametrize("stand", ["RETRYING", "RUNNING", "STOPPING", "SUCCESS", "CANCELLED"])
async def test_expiry_does_not_touch_what_has_started_or_ended(kit: Kit, stand: str):
    task_id = await bring(kit, stand)
    kit.plain.hset(kit.keys.task(task_id), "expires_ms", BEGIN_MS + 2_000)
    kit.plain.zadd(kit.keys.expiry, {task_id: BEGIN_MS + 2_000})  # as if the start had left it
    kit.leap(5_000)
    before = kit.record(task_id)

    await kit.dispatch()

    assert before == kit.record(task_id)


async def test_verbs_on_a_task_of_another_tenant_find_nothing(kit: Kit):
    """One answer for "not yours" and "not there", so that ids cannot be probed."""
    for state in STATES:
        task_id = await kit.task_in(state, tenant="acme")
        before = kit.dump(without=BOOKKEEPING)
        for tenant, which in (("default", task_id), ("acme", kit.new_id())):
            changed = [
                await kit.store.cancel(0, which, tenant, None),
                await kit.store.edit(0, which, tenant, None, Edit(due="+0")),
                await kit.store.run_now(0, which, tenant, None),
                await kit.store.redrive(0, which, tenant, None),
            ]
            assert {("missing", "", 0)} == set(changed)
        assert before == kit.dump(without=BOOKKEEPING)


@pytest.mark.parametrize("state", STATES)
async def test_another_version_than_the_stored_one_changes_nothing(kit: Kit, state: str):
    """If-Match: the version is looked at before the state."""
    task_id = await kit.task_in(state)
    version = kit.version(task_id)
    before = kit.dump(without=BOOKKEEPING)
    for wrong in (version - 1, version + 1, -1):
        changed = [
            await kit.store.cancel(0, task_id, "default", wrong),
            await kit.store.edit(0, task_id, "default", wrong, Edit(due="+0")),
            await kit.store.run_now(0, task_id, "default", wrong),
            await kit.store.redrive(0, task_id, "default", wrong),
        ]
        assert {("version", state, version)} == set(changed)
    assert before == kit.dump(without=BOOKKEEPING)


async def test_the_stored_version_lets_the_verb_through(kit: Kit):
    first = await kit.task_in("PENDING")
    assert ("edited", "PENDING", 2) == await kit.store.edit(
        0, first, "default", 1, Edit(due="+5000")
    )
    assert ("edited", "PENDING", 3) == await kit.store.run_now(0, first, "default", 2)
    assert ("cancelled", "CANCELLED", 4) == await kit.store.cancel(0, first, "default", 3)
    assert ("redriven", "PENDING", 5) == await kit.store.redrive(0, first, "default", 4)


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


def edges_of_lua() -> dict[str, frozenset[str]]:
    text = (home() / "lib" / "move.lua").read_text()
    table = re.search(r"^local EDGES = \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\s+(\w+) = \{(.*?)\},$", table[1], re.MULTILINE)
    return {state: frozenset(re.findall(r"(\w+) = true", to)) for state, to in rows}


def test_the_scripts_know_the_same_edges():
    assert EDGES == edges_of_lua()


def test_the_table_above_walks_every_edge_that_does_not_need_an_expiry():
    walked = {("PENDING", "QUEUED"), ("PENDING", "FAILED"), ("QUEUED", "FAILED")}  # tests beside it
    for row in TABLE.values():
        for stand, cell in zip(STANDS, row.split(), strict=True):
            _, moves, after = cell.partition(">")
            if moves and after:
                walked.add((STATE_OF.get(stand, stand), after))
    assert walked == {(before, after) for before, afters in EDGES.items() for after in afters}


def test_only_move_writes_the_state():
    """Every other script would be a second author of the state machine."""
    for path in sorted(home().rglob("*.lua")):
        if path.name == "move.lua":
            continue
        assert not re.search(r"HSET[^\n]*'state'", path.read_text()), path.name


def test_success_is_final_and_every_state_can_be_reached():
    assert frozenset() == EDGES["SUCCESS"]
    assert set(STATES) - {"PENDING"} <= {to for edges in EDGES.values() for to in edges}
    assert set(FINAL) == {"SUCCESS", "FAILED", "CANCELLED"}
