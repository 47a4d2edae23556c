"""Limits: exact over all shards, whoever asks when and whatever answer is lost; nothing is stuck."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.protocol.audit import audit
from tests.protocol.kit import DONE, WORKER, Kit, open_kit, spec
from tests.servers import ServerProcess

from tasksched.model.task import Concurrency, TaskSpec, permit_key_of
from tasksched.store.limits import Limits, Tell
from tasksched.store.protocol import Grant
from tasksched.store.records import set_conf

pytestmark = pytest.mark.anyio

SHARDS = 3
LONG_MS = 10**8


class City:
    """Several shards, their scheduler and one worker, step by step; limits may lose answers."""

    def __init__(self, kit: Kit, seed: int) -> None:
        self.kit, self.store = kit, kit.store
        self.limits = Limits(kit.store)
        self.random = random.Random(seed)
        self.running: list[tuple[int, Grant]] = []
        self.started: list[tuple[int, Grant]] = []
        self.calls = [0] * SHARDS
        self.most = 0
        self.loses = 0.0

    async def begin(self) -> None:
        for shard in range(SHARDS):
            await self.store.announce(shard, WORKER, LONG_MS, ["route:charge", "queue:*"])

    async def submit(self, shard: int, asked: TaskSpec) -> str:
        task_id = self.kit.new_id(shard)
        _, words = await self.store.submit(shard, [(task_id, asked, "")])
        assert words == {}
        return task_id

    async def dispatch(self, shard: int) -> None:
        done = await self.store.dispatch(shard)
        for ask in done.asks:
            if self.random.random() >= self.loses:
                await self.limits.meet(shard, ask)

    async def take(self, shard: int, slots: int = 5) -> list[Grant]:
        self.calls[shard] += 1
        _, _, grants = await self.store.take(
            shard, WORKER, call=self.calls[shard], slots=slots, lease_ms=LONG_MS
        )
        self.running += [(shard, grant) for grant in grants]
        self.started += [(shard, grant) for grant in grants]
        return grants

    async def end(self, at: int) -> None:
        shard, grant = self.running.pop(at)
        assert ["SUCCESS"] == await self.store.settle(shard, [(grant.id, grant.fence, DONE)])

    async def held(self) -> int:
        """Tasks that are QUEUED or RUNNING, over all shards."""
        total = 0
        for keys in self.store.keys:
            counts = self.kit.plain.hgetall(keys.counts)
            total += sum(
                int(n) for name, n in counts.items() if name.endswith((b":QUEUED", b":RUNNING"))
            )
        self.most = max(self.most, total)
        return total

    async def step(self) -> None:
        self.kit.store.now_ms += 20
        shard, dice = self.random.randrange(SHARDS), self.random.random()
        if dice < 0.5:
            await self.dispatch(shard)
        elif dice < 0.75:
            await self.take(shard)
        elif self.running:
            await self.end(self.random.randrange(len(self.running)))

    async def drain(self, count: int, most: int, steps: int = 8_000) -> None:
        """Until ``count`` tasks have ended; never more than ``most`` at a time."""
        for _ in range(steps):
            await self.step()
            assert await self.held() <= most
            if len(self.started) == count and not self.running:
                return
        raise AssertionError(f"stuck: {len(self.started)} of {count} started")

    def findings(self) -> list[str]:
        found = []
        for keys in self.store.keys:
            found += audit(self.kit.plain, keys, self.kit.now_ms)
        return found


@pytest.fixture
async def city(valkey_server: ServerProcess, request: Any) -> AsyncIterator[City]:
    valkey_server.flush()
    kit = await open_kit(valkey_server.url, shards=SHARDS)
    made = City(kit, getattr(request, "param", 0))
    await made.begin()
    yield made
    assert made.findings() == []
    await kit.close()


KEY = Concurrency("invoice 7", 2)
CASES = {
    "tenant": ("tenant:default", {}),
    "queue": ("queue:default", {}),
    "key": (None, {"concurrency": KEY}),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("city", range(4), indirect=True)
async def test_a_limit_holds_over_all_shards_and_nothing_is_stuck(city: City, kind: str):
    field, fields = CASES[kind]
    if field:
        await set_conf(city.store, field, "running=2")
    for _ in range(30):
        await city.submit(city.random.randrange(SHARDS), spec(**fields))
    await city.drain(30, 2)
    assert city.most == 2


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("city", range(3), indirect=True)
async def test_answers_that_are_lost_leave_permits_unused_for_a_while_only(city: City, kind: str):
    """A scheduler dies between asking and telling: a third of what is asked comes to nothing."""
    field, fields = CASES[kind]
    if field:
        await set_conf(city.store, field, "running=2")
    for _ in range(12):
        await city.submit(city.random.randrange(SHARDS), spec(**fields))
    city.loses = 0.33
    await city.drain(12, 2, steps=20_000)


async def test_a_limit_that_comes_while_tasks_run_counts_them(city: City):
    for shard in range(SHARDS):
        for _ in range(2):
            await city.submit(shard, spec())
        await city.dispatch(shard)
        await city.take(shard)
    assert await city.held() == 6
    await set_conf(city.store, "tenant:default", "running=4")
    await city.submit(0, spec())
    await city.dispatch(0)
    assert await city.take(0) == []
    for _ in range(3):
        await city.end(0)
    await city.drain(7, 4)


async def test_more_permits_let_more_go_on_at_once(city: City):
    await set_conf(city.store, "tenant:default", "running=1")
    for _ in range(5):
        await city.submit(0, spec())
    for _ in range(3):
        await city.dispatch(0)
    assert len(await city.take(0)) == 1
    await set_conf(city.store, "tenant:default", "running=4")
    for _ in range(3):
        await city.dispatch(0)
    assert len(await city.take(0)) == 3


async def test_a_stale_answer_changes_nothing(city: City):
    limit = "t/default"
    assert (2, 50) == await city.limits.apportion(limit, Tell(0, 2, 50, 0, 0))
    assert (2, 50) == await city.limits.apportion(limit, Tell(0, 9, 49, 0, 0))
    assert (2, 50) == await city.limits.apportion(limit, Tell(0, 9, 50, 0, 0))
    assert (9, 51) == await city.limits.apportion(limit, Tell(0, 9, 51, 0, 0))


async def test_what_is_not_used_goes_back_when_others_wait(city: City):
    assert (3, 50) == await city.limits.apportion("t/x", Tell(0, 3, 50, 0, 0))
    assert (0, 51) == await city.limits.apportion("t/x", Tell(0, 3, 51, 1, 0))


@pytest.mark.parametrize(
    ("field", "why"),
    [("all", "paused all"), ("queue:default", "paused queue:default"),
     ("tenant:default", "paused tenant:default"),
     ("share:default:default", "paused share:default:default")],
)  # fmt: skip
async def test_a_pause_stops_what_was_dispatched_and_not_started(city: City, field: str, why: str):
    task_id = await city.submit(0, spec())
    await city.dispatch(0)
    await set_conf(city.store, field, "paused")
    assert await city.take(0) == []
    assert city.kit.state(task_id) == "PENDING"
    await city.dispatch(0)
    whys = city.kit.plain.hgetall(city.store.keys[0].parked_why).values()
    assert [why.encode()] == list(whys)
    assert (await city.store.dispatch(0)).moved == 0
    await set_conf(city.store, field, "")
    await city.dispatch(0)
    assert [task_id] == [grant.id for grant in await city.take(0)]


async def test_a_pause_lets_run_what_runs(city: City):
    await city.submit(0, spec())
    await city.dispatch(0)
    await city.take(0)
    await set_conf(city.store, "tenant:default", "paused")
    await city.end(0)


async def test_other_tenants_go_on(city: City):
    await set_conf(city.store, "tenant:default", "paused")
    await city.submit(0, spec())
    other = await city.submit(0, spec(tenant="acme"))
    await city.dispatch(0)
    assert [other] == [grant.id for grant in await city.take(0)]


async def test_a_key_is_first_come_first_served_by_due_time(city: City):
    one = spec(concurrency=Concurrency("k", 1))
    made = [
        await city.submit(0, spec(concurrency=one.concurrency, run_at_ms=city.kit.now_ms - ago))
        for ago in (10, 40, 20, 30)
    ]
    order = [made[1], made[3], made[2], made[0]]
    seen = []
    while len(seen) < 4:
        await city.dispatch(0)
        grants = await city.take(0)
        assert len(grants) <= 1
        for grant in grants:
            seen.append(grant.id)
            await city.end(0)
    assert order == seen


async def test_keys_of_two_tenants_are_two_keys(city: City):
    key = Concurrency("k", 1)
    assert permit_key_of("a", key) != permit_key_of("b", key)
    await city.submit(0, spec(concurrency=key))
    await city.submit(0, spec(concurrency=key, tenant="acme"))
    for _ in range(3):
        await city.dispatch(0)
    assert len(await city.take(0)) == 2


@pytest.mark.parametrize("verb", ["cancel", "edit", "run_now"])
async def test_a_held_task_can_be_changed(city: City, verb: str):
    from tasksched.store.protocol import Edit  # noqa: PLC0415 - beside its one use

    key = Concurrency("k", 1)
    await city.submit(0, spec(concurrency=key))
    held = await city.submit(0, spec(concurrency=key))
    for _ in range(3):
        await city.dispatch(0)
    assert city.kit.record(held)["held"] == "1"
    match verb:
        case "cancel":
            assert (await city.store.cancel(0, held, "default", None)).word == "cancelled"
        case "run_now":
            assert (await city.store.run_now(0, held, "default", None)).word == "edited"
        case _:
            await city.store.edit(0, held, "default", None, Edit(due="+5", concurrency=""))
    assert "held" not in city.kit.record(held)
    city.kit.store.now_ms += 10
    await city.take(0)
    await city.end(0)
    for _ in range(4):
        await city.dispatch(0)
        await city.take(0)
    assert (verb != "cancel") == (held in [grant.id for _, grant in city.started])


@pytest.mark.parametrize("field", ["tenant:default", "queue:default"])
async def test_a_rate_is_never_above_its_bound(city: City, field: str):
    """10 a second: at most 10 more than 10 a second in any stretch (the bucket, see ration)."""
    await set_conf(city.store, field, "rate=10")
    for _ in range(60):
        await city.submit(city.random.randrange(SHARDS), spec())
    begin_ms, starts = city.kit.now_ms, []
    for _ in range(4_000):
        city.kit.store.now_ms += 5
        for shard in range(SHARDS):
            await city.dispatch(shard)
            starts += [city.kit.now_ms - begin_ms] * len(await city.take(shard, 100))
        if len(starts) == 60:
            break
    assert len(starts) == 60
    for n, first_ms in enumerate(starts):
        for m in range(n, len(starts)):
            assert m - n + 1 <= 10 * (starts[m] - first_ms) / 1000 + 10 + 10
    assert starts[-1] >= 4_000
    assert starts[-1] <= 9_000


async def test_a_paused_tenant_costs_the_others_nothing(city: City):
    """Its lanes are noticed once and then stand outside of what a call looks at."""
    for n in range(200):
        await set_conf_quietly(city, f"tenant:t{n}", "paused")
        await city.submit(0, spec(tenant=f"t{n}"))
    while (await city.store.dispatch(0)).again_ms == city.kit.now_ms:
        pass
    assert city.kit.plain.zcard(city.store.keys[0].parked) == 200
    before = calls_of(city)
    await city.store.dispatch(0)
    with_parked = calls_of(city) - before
    parked = city.kit.plain.zrange(city.store.keys[0].parked, 0, -1, withscores=True)
    city.kit.plain.delete(city.store.keys[0].parked)
    before = calls_of(city)
    await city.store.dispatch(0)
    assert with_parked == calls_of(city) - before
    city.kit.plain.zadd(city.store.keys[0].parked, dict(parked))


async def set_conf_quietly(city: City, field: str, text: str) -> None:
    await city.store.configure(0, [(field, f"1 {text}")])


def calls_of(city: City) -> int:
    """Commands that this server has run, those inside of scripts included."""
    stats = city.kit.plain.info("commandstats")
    return sum(row["calls"] for name, row in stats.items() if "info" not in name)
