"""Fairness: shares follow weights, nothing starves, and who may not run costs the others nothing.

Everybody here always has work waiting (or comes back one by one on purpose), so that a share is a
count. ``serve`` is one worker that takes ``slots`` at a time and ends what it took.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.protocol.kit import BEGIN_MS, DONE, Kit, retry_in, spec

from tasksched.store.limits import Limits
from tasksched.store.protocol import Grant, Store

pytestmark = pytest.mark.anyio

Feed = Callable[[], Awaitable[object]]


def queue_of(grant: Grant) -> str:
    return grant.lane.split(":")[0]


def class_of(grant: Grant) -> str:
    return grant.lane.split(":")[1]


async def end(kit: Kit, grants: Sequence[Grant]) -> None:
    if grants:
        await kit.store.settle(0, [(grant.id, grant.fence, DONE) for grant in grants])


async def serve(kit: Kit, count: int, slots: int, feed: Feed | None = None) -> list[Grant]:
    """The first ``count`` starts; ``feed`` runs before each dispatch."""
    order: list[Grant] = []
    while len(order) < count:
        if feed:
            await feed()
        await kit.dispatch()
        grants = await kit.take(slots)
        assert grants, f"nothing starts after {len(order)}"
        order += grants
        await end(kit, grants)
    return order[:count]


async def set_rules(store: Store, rules: dict[str, str], version: int = 1) -> None:
    """Settings of shard 0, as their home record has them."""
    rows = [(field, f"{version} {text or ' '}") for field, text in rules.items()]
    for first in range(0, len(rows), 500):
        await store.configure(0, rows[first : first + 500])


# ── weights of tenants ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("slots", [1, 7, 100])
@pytest.mark.parametrize(
    "weights", [{"a": 1, "b": 2, "c": 5}, {"a": 5, "b": 1, "c": 2}, {"a": 0.5, "b": 0.5, "c": 3}]
)
async def test_tenants_share_by_weight_within_a_tenth(
    valkey: Kit, weights: dict[str, float], slots: int
):
    await set_rules(valkey.store, {f"tenant:{t}": f"weight={w}" for t, w in weights.items()})
    await valkey.announce()
    count = 2_000 if slots > 1 else 600
    for tenant in weights:
        await valkey.submit_many(count, spec(tenant=tenant, delay_ms=1))
    valkey.leap(1)
    had = Counter(grant.tenant for grant in await serve(valkey, count, slots))
    for tenant, weight in weights.items():
        expected = count * weight / sum(weights.values())
        assert had[tenant] == pytest.approx(expected, rel=0.1, abs=8 * weight), had


async def test_who_comes_back_one_by_one_has_a_share_and_no_more(kit: Kit):
    """``a`` submits its next task when the last was handed over, and comes first by name."""
    await kit.announce()
    await kit.submit_many(400, spec(tenant="z", delay_ms=1))
    await kit.submit(spec(tenant="a", delay_ms=1))
    kit.leap(1)

    order = await serve(kit, 300, 1, lambda: kit.submit(spec(tenant="a")))

    had = Counter(grant.tenant for grant in order[64:])  # the first window was empty
    assert had["z"] == pytest.approx(118, abs=12), had


async def test_who_was_away_is_level_with_the_others_when_back(kit: Kit):
    await kit.announce()
    for tenant in "ab":
        await kit.submit_many(100, spec(tenant=tenant, delay_ms=1))
    kit.leap(1)
    await serve(kit, 200, 16)
    await kit.submit_many(700, spec(tenant="b", delay_ms=1))
    kit.leap(1)
    await serve(kit, 300, 16)
    await kit.submit_many(300, spec(tenant="a"))

    order = [grant.tenant for grant in await serve(kit, 300, 16)]

    assert order.index("a") <= 64 + 8  # the window that was full, and a turn
    assert order[64:264].count("a") == pytest.approx(100, rel=0.1)


async def test_new_tenants_without_end_starve_nobody(kit: Kit):
    """Each comes once and would be first by name and by service had."""
    await kit.announce()
    await kit.submit_many(100, spec(tenant="z", delay_ms=1))
    kit.leap(1)
    comers = iter(range(10_000))

    async def feed() -> None:
        for _ in range(4):
            await kit.submit(spec(tenant=f"a{next(comers) % 30:02}"))

    order = [grant.tenant for grant in await serve(kit, 600, 4, feed)]

    # Thirty-one tenants, all of them with more than can be done.
    assert order[64:].count("z") >= 0.9 * (600 - 64) / 31


# ── classes ──────────────────────────────────────────────────────────────────────────────────────

WEIGHTS = {"critical": 27, "high": 9, "normal": 3, "low": 1}


@pytest.mark.parametrize("slots", [1, 8, 128])
@pytest.mark.parametrize(
    "classes", [tuple(WEIGHTS), ("high", "normal", "low"), ("critical", "low"), ("high", "normal")]
)
async def test_classes_share_by_weight_within_a_tenth(
    valkey: Kit, classes: tuple[str, ...], slots: int
):
    await valkey.announce()
    count = 2_000 if slots > 1 else 800
    for priority in classes:
        await valkey.submit_many(count + 400, spec(priority=priority, delay_ms=1))
    valkey.leap(1)
    await serve(valkey, 400, slots)  # until the windows are as wide as the worker takes
    had = Counter(class_of(grant) for grant in await serve(valkey, count, slots))
    total = sum(WEIGHTS[each] for each in classes)
    for priority in classes:
        expected = count * WEIGHTS[priority] / total
        assert had[priority] == pytest.approx(expected, rel=0.1, abs=2), had


@pytest.mark.parametrize(
    ("others", "within"), [(("high", "normal"), 26), (("critical", "high", "normal"), 80)]
)
async def test_endless_higher_work_does_not_starve_a_low_task(
    kit: Kit, others: tuple[str, ...], within: int
):
    """priority-fairness-003: within two rounds of the weights that have work."""
    await kit.announce()
    for priority in others:
        await kit.submit_many(100, spec(priority=priority, delay_ms=1))
    kit.leap(1)
    await serve(kit, 30, 1)
    low = await kit.submit(spec(priority="low"))
    order = [grant.id for grant in await serve(kit, within, 1)]
    assert low in order


async def test_a_high_task_waits_for_a_slot_and_is_next(kit: Kit):
    """priority-fairness-001: four slots hold long low ones; none is kept free, nothing is lost."""
    await kit.announce()
    await kit.submit_many(20, spec(priority="low", delay_ms=1))
    kit.leap(1)
    await kit.dispatch()
    running = await kit.take(4)
    high = await kit.submit(spec(priority="high"))
    assert [] == await kit.take(0)
    assert "QUEUED" == kit.state(high)
    kit.leap(5_000)
    await end(kit, running[:1])
    assert [high] == [grant.id for grant in await kit.take(1)]


async def test_equal_priority_is_by_due_time_then_creation(kit: Kit):
    """priority-fairness-002, its instants in seconds before ``now``."""
    await kit.announce()
    asked = {"t1": ("normal", 0), "t2": ("normal", -1), "t3": ("normal", 0), "t4": ("high", 0)}
    made = {}
    for name, (priority, due_s) in asked.items():
        due_ms = BEGIN_MS + 60_000 + due_s * 1_000
        made[await kit.submit(spec(priority=priority, run_at_ms=due_ms))] = name
        kit.leap(1)
    kit.store.now_ms = BEGIN_MS + 61_000
    assert ["t4", "t2", "t1", "t3"] == [made[grant.id] for grant in await serve(kit, 4, 1)]


async def test_retries_do_not_push_aside_first_starts(kit: Kit):
    """They stand where their due time puts them: behind what was due before, before what comes."""
    await kit.announce()
    await kit.submit_many(40, spec(delay_ms=1))
    kit.leap(1)
    await kit.dispatch()
    failed = await kit.take(10)
    kit.leap(500)
    await kit.store.settle(0, [(grant.id, grant.fence, retry_in(500)) for grant in failed])
    first = await kit.submit_many(30, spec(delay_ms=499))
    later = await kit.submit_many(30, spec(delay_ms=501))
    kit.leap(501)

    order = [grant.id for grant in await serve(kit, 100, 5)]

    retried = {grant.id for grant in failed}
    assert set(first) == set(order[30:60])
    assert retried == set(order[60:70])
    assert set(later) == set(order[70:])


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("slots", [1, 2, 3, 12])
async def test_a_strict_queue_gives_its_higher_class_all_and_others_their_half(
    kit: Kit, slots: int
):
    await set_rules(kit.store, {"queue:loans": "strict"})
    await kit.announce()
    for fields in (
        {"queue": "loans", "priority": "critical"}, {"queue": "loans", "priority": "low"},
        {"queue": "mail", "priority": "low"}, {"queue": "mail", "priority": "high"},
    ):  # fmt: skip
        await kit.submit_many(150, spec(delay_ms=1, **fields))
    kit.leap(1)
    had = Counter((queue_of(g), class_of(g)) for g in await serve(kit, 240, slots))
    assert ("loans", "low") not in had
    assert had["loans", "critical"] == pytest.approx(120, rel=0.1)
    assert had["mail", "high"] == pytest.approx(108, rel=0.1)


async def test_a_strict_queue_alone_uses_every_slot(kit: Kit):
    await set_rules(kit.store, {"queue:loans": "strict", "queue:others": "strict"})
    await kit.announce()
    await kit.submit_many(30, spec(queue="others", delay_ms=1))
    kit.leap(1)
    await kit.dispatch()
    assert 30 == len(await kit.take(30))


async def test_the_window_of_a_strict_queue_reopens_whatever_its_name(kit: Kit):
    await set_rules(kit.store, {"queue:others": "strict"})
    await kit.announce()
    await kit.submit_many(100, spec(queue="others", delay_ms=1))
    kit.leap(1)
    assert 64 == (await kit.dispatch()).moved
    await kit.take(10)
    assert 10 == (await kit.dispatch()).moved


@pytest.mark.parametrize("queues", [2, 3, 4])
async def test_queues_share_a_class_that_is_served_now_and_then(valkey: Kit, queues: int):
    """High is served at every fourth call; its queues must not meet the same call each time."""
    await valkey.announce()
    await valkey.submit_many(900, spec(priority="critical", delay_ms=1))
    for n in range(queues):
        await valkey.submit_many(300, spec(queue=f"q{n}", priority="high", delay_ms=1))
    valkey.leap(1)
    order = await serve(valkey, 960, 1)
    had = Counter(queue_of(grant) for grant in order if class_of(grant) == "high")
    assert had.total() == pytest.approx(240, rel=0.1)
    for n in range(queues):
        assert had[f"q{n}"] == pytest.approx(240 / queues, rel=0.15), had


@pytest.mark.parametrize("priority", ["critical", "normal", "low"])
async def test_queues_that_fill_a_call_leave_room_for_the_next(valkey: Kit, priority: str):
    """Workers are faster than the dispatcher: what it moves in a call is what there is to share."""
    await valkey.announce()
    for queue in "abcdef":
        await valkey.submit_many(600, spec(queue=queue, priority=priority, delay_ms=1))
    valkey.leap(1)
    had: Counter[str] = Counter()
    for _ in range(40):
        await valkey.dispatch(64)
        while grants := await valkey.take(128):
            had.update(queue_of(grant) for grant in grants)
            await end(valkey, grants)
    for queue in "abcdef":
        assert had[queue] == pytest.approx(had.total() / 6, rel=0.3), had


# ── what may not run ─────────────────────────────────────────────────────────────────────────────

PAUSED, EXHAUSTED = 10_000, 1_000


def commands(kit: Kit) -> int:
    """Commands that this server has run, those inside of scripts included, this one left out."""
    stats = kit.plain.info("commandstats")
    return sum(row["calls"] for name, row in stats.items() if name != "cmdstat_info")


async def cost_of_a_dispatch(kit: Kit) -> int:
    """Commands of a call that moves ten tasks of a tenant which may run."""
    await kit.submit_many(10, spec(tenant="free", delay_ms=1))
    kit.leap(1)
    before = commands(kit)
    done = await kit.store.dispatch(0)
    spent = commands(kit) - before
    assert 10 == done.moved
    await end(kit, await kit.take(10))
    return spent


async def park_many(kit: Kit) -> None:
    """Paused tenants with a task each, and tenants whose one permit is in use."""
    limits = Limits(kit.store)
    rules = {f"tenant:p{n}": "paused" for n in range(PAUSED)}
    await set_rules(kit.store, {**rules, **{f"tenant:x{n}": "running=1" for n in range(EXHAUSTED)}})
    names = [f"p{n}" for n in range(PAUSED)] + [f"x{n % EXHAUSTED}" for n in range(2 * EXHAUSTED)]
    for first in range(0, len(names), 200):
        rows = [(kit.new_id(), spec(tenant=name), "") for name in names[first : first + 200]]
        await kit.store.submit(0, rows)
    started = 0
    while started < EXHAUSTED:
        done = await kit.store.dispatch(0)
        for ask in done.asks:
            await limits.meet(0, ask)
        started += len(await kit.take(128))
    while (await kit.store.dispatch(0)).again_ms == kit.now_ms:
        pass


async def test_ten_thousand_tenants_that_may_not_run_cost_a_call_nothing(valkey: Kit):
    await set_rules(valkey.store, {"tenant:free": "weight=2"})
    await valkey.announce()
    await valkey.submit(spec(tenant="free"))
    await valkey.take()  # something runs, with or without the others
    await cost_of_a_dispatch(valkey)
    alone = await cost_of_a_dispatch(valkey)

    await park_many(valkey)

    lanes = valkey.plain.zcard(valkey.keys.parked)
    assert PAUSED + EXHAUSTED <= lanes
    await cost_of_a_dispatch(valkey)
    assert [alone] * 3 == [await cost_of_a_dispatch(valkey) for _ in range(3)]
    # A minute later each call looks again at a hundred of them, and no more.
    await valkey.wait(61_000)
    assert await cost_of_a_dispatch(valkey) <= alone + 100 * 12
