"""Limits that change, and words of the home that are lost, late or useless: still exact, nothing is stuck."""

from collections.abc import Callable

import pytest
from tests.protocol.kit import spec
from tests.protocol.test_limits import SHARDS, City, city
from tests.protocol.test_quotas import Town, town

from tasksched.model.task import Concurrency, TaskSpec, permit_key_of
from tasksched.store.limits import KEY_IDLE_MS, Tell
from tasksched.store.records import set_conf

__all__ = ["city", "town"]  # the fixtures

pytestmark = pytest.mark.anyio

MUTEX = Concurrency("mutex", 1)
FIELD, LIMIT = "tenant:default", "t/default"


def keyed() -> TaskSpec:
    return spec(concurrency=MUTEX)


async def rounds(city: City, count: int = 3) -> None:
    for _ in range(count):
        for shard in range(SHARDS):
            await city.dispatch(shard)


async def ten_minutes(city: City) -> None:
    """Everything is heard, and nothing new comes."""
    for _ in range(600):
        city.kit.store.now_ms += 1_000
        await rounds(city, 1)


async def run(city: City, shard: int, slots: int = 50) -> int:
    """What may start in a shard does; how many run then."""
    for _ in range(3):
        await city.dispatch(shard)
    await city.take(shard, slots)
    return len(city.running)


async def end_all(city: City) -> None:
    while city.running:
        await city.end(0)


def state(city: City, shard: int, task_id: str) -> str:
    return city.kit.plain.hget(city.store.keys[shard].task(task_id), "state").decode()


# -- limits that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["tenant:default", "queue:default"])
async def test_a_lowered_limit_takes_back_what_is_unused(city: City, field: str):
    await set_conf(city.store, field, "running=10")
    for _ in range(10):
        await city.submit(0, spec())
    assert await run(city, 0) == 10
    await end_all(city)
    await rounds(city)
    await set_conf(city.store, field, "running=5")
    await rounds(city)
    for _ in range(8):
        await city.submit(0, spec())

    assert await run(city, 0) == 5
    await end_all(city)
    assert await run(city, 0) == 3


async def test_a_raised_limit_gives_more_at_once(city: City):
    await set_conf(city.store, FIELD, "running=2")
    for _ in range(9):
        await city.submit(0, spec())
    assert await run(city, 0) == 2
    await set_conf(city.store, FIELD, "running=7")
    assert await run(city, 0) == 7


async def test_what_began_without_a_limit_counts_when_there_is_one_again(city: City):
    await set_conf(city.store, FIELD, "running=4")
    for shard in range(2):
        await city.submit(shard, spec())
        await run(city, shard)
    await end_all(city)
    await set_conf(city.store, FIELD, "")
    for _ in range(20):
        await city.submit(0, spec())
    assert await run(city, 0) == 20
    await set_conf(city.store, FIELD, "running=4")
    await rounds(city)
    for _ in range(3):
        await city.submit(1, spec())

    assert await run(city, 1) == 20
    for _ in range(17):
        await city.end(0)
    await rounds(city)
    assert await run(city, 1) == 4


async def test_what_was_created_without_a_quota_counts_when_there_is_one_again(town: Town):
    session = await town.session()
    await town.set("pending=4")
    await town.create(session, 1, 0)
    await town.create(session, 1, 1)
    await town.set("")
    assert (await town.create(session, 20, 0)).count("") == 20
    await town.set("pending=4")

    assert (await town.create(session, 3, 1)).count("") == 0


async def test_nothing_may_be_unfinished(town: Town):
    session = await town.session()
    await town.set("pending=10")
    await town.create(session, 1, 0)
    await town.set("pending=0")

    assert (await town.create(session, 3, 1)).count("") == 0


# -- words that are lost, late or useless ------------------------------------------------------------


async def test_whoever_should_have_told_a_shard_died(city: City):
    """Its unused permits are what another one waits for."""
    await set_conf(city.store, FIELD, "running=2")
    for _ in range(2):
        await city.submit(0, spec())
    assert await run(city, 0) == 2
    await end_all(city)
    await city.dispatch(0)
    waits = await city.submit(1, spec())
    (ask,) = (await city.store.dispatch(1)).asks
    row = (1, ask.epoch, ask.permits, ask.want, ask.head_ms)
    rows = [row, *[await city.limits._reported(n, ask.limit) for n in (0, 2)]]
    is_ready, _ = await city.limits.allot(ask.limit, int(ask.capacity), SHARDS, rows)
    assert is_ready

    await ten_minutes(city)
    assert state(city, 1, waits) == "QUEUED"


@pytest.mark.parametrize("make", [keyed, spec])
async def test_what_a_permit_was_given_for_is_cancelled(city: City, make: Callable[[], TaskSpec]):
    """Whoever has a permit of no use gives it back, for others wait."""
    await set_conf(city.store, FIELD, "running=1")
    await city.submit(0, make())
    given = await city.submit(1, make())
    assert await run(city, 0) == 1
    city.kit.store.now_ms += 5
    waits = await city.submit(2, make())
    for shard in (1, 2, 1, 2, 1, 2):
        await city.dispatch(shard)
    await city.end(0)
    await city.dispatch(0)
    await city.store.cancel(1, given, "default", None)

    await ten_minutes(city)
    assert state(city, 2, waits) == "QUEUED"


async def test_an_ask_that_comes_late_is_not_believed(city: City):
    """A scheduler stalls between what its shard said and the home; both have moved on since."""
    await city.submit(0, keyed())
    assert await run(city, 0) == 1
    cancelled = await city.submit(0, keyed())
    late = (await city.store.dispatch(0)).asks
    await city.store.cancel(0, cancelled, "default", None)
    await city.end(0)
    for _ in range(2):
        await city.dispatch(0)
    await city.submit(1, keyed())
    assert await run(city, 1) == 1
    await city.submit(0, keyed())
    await city.store.dispatch(0)
    for ask in late:
        await city.limits.meet(0, ask)

    assert await run(city, 0) == 1


async def test_a_rate_whose_home_has_a_clock_that_is_behind(city: City):
    await set_conf(city.store, FIELD, "rate=10")
    shard = (city.limits.home_of("rt/default") + 1) % SHARDS
    city.kit.store.now_ms += 60_000
    await city.submit(shard, spec())
    moved = asked = 0
    for _ in range(10):
        city.kit.store.now_ms += 100
        done = await city.store.dispatch(shard)
        moved, asked = moved + done.moved, asked + len(done.asks)
        for ask in done.asks:
            city.kit.store.now_ms -= 1_500
            given = await city.limits.ration(ask.limit, ask.capacity, ask.want)
            city.kit.store.now_ms += 1_500
            await city.limits.credit(shard, ask.limit, *given)

    assert (moved, asked) == (1, 1)


# -- keys that nobody uses any more -------------------------------------------------------------------


def books(city: City) -> tuple[int, int, int]:
    """What is remembered of concurrency keys: by shards, in their counters, and at their homes."""
    plain, found = city.kit.plain, [0, 0, 0]
    for keys in city.store.keys:
        found[0] += sum(name.startswith(b"k/") for name in plain.hkeys(keys.allot))
        found[1] += sum(name.startswith(b"k/") for name in plain.hkeys(keys.counts))
        found[2] += len(list(plain.scan_iter(f"{keys.shard}:limit:k/*")))
    return found[0], found[1], found[2]


async def relinquish(city: City) -> None:
    for shard in range(SHARDS):
        cursor = await city.limits.relinquish(shard)
        while cursor:
            cursor = await city.limits.relinquish(shard, cursor)


async def test_keys_are_forgotten(city: City):
    for n in range(300):
        await city.submit(n % SHARDS, spec(concurrency=Concurrency(f"order {n}")))
    while len(city.started) < 300:
        for shard in range(SHARDS):
            await run(city, shard)
        await end_all(city)
    await relinquish(city)
    assert books(city)[0] == 300

    city.kit.store.now_ms += KEY_IDLE_MS
    await relinquish(city)
    assert books(city) == (0, 0, 0)


async def test_a_key_in_use_or_waited_for_is_not_forgotten(city: City):
    for _ in range(2):
        await city.submit(0, keyed())
    assert await run(city, 0) == 1
    city.kit.store.now_ms += KEY_IDLE_MS
    await relinquish(city)

    assert books(city) == (1, 1, 1)
    await end_all(city)
    assert await run(city, 0) == 1


async def test_a_forgotten_key_is_as_exact_as_before(city: City):
    """Also where the home did not hear of it, or says what it said before."""
    await city.submit(0, keyed())
    assert await run(city, 0) == 1
    limit = f"k/{permit_key_of('default', MUTEX).split(':')[0]}"
    permits, epoch, _ = await city.limits.report(0, limit)
    await end_all(city)
    city.kit.store.now_ms += KEY_IDLE_MS
    values = {"clock": city.store.keys[0].clock, "now_ms": city.kit.now_ms}
    await city.store.gateway.run("relinquish", {**values, "cursor": 0, "idle_ms": 0})
    assert await city.limits.apportion(limit, Tell(0, permits, epoch, 0, 0)) == (0, epoch)
    for shard in (1, 2):
        await city.submit(shard, keyed())
    await rounds(city, 9)

    assert [await run(city, shard) for shard in range(SHARDS)][-1] == 1
    await end_all(city)
    await ten_minutes(city)
    assert [await run(city, shard) for shard in range(SHARDS)][-1] == 1


@pytest.mark.parametrize("city", range(6), indirect=True)
async def test_a_key_that_is_forgotten_all_the_time(city: City):
    """Idle means at once here; some of what is said is lost."""
    city.loses = 0.2
    for _ in range(60):
        await city.submit(city.random.randrange(SHARDS), spec(concurrency=Concurrency("two", 2)))
    for _ in range(8_000):
        await city.step()
        assert await city.held() <= 2
        if city.random.random() < 0.2:
            shard = city.random.randrange(SHARDS)
            values = {"clock": city.store.keys[shard].clock, "now_ms": city.kit.now_ms}
            asked = {**values, "cursor": 0, "idle_ms": 0}
            _, *gone = await city.store.gateway.run("relinquish", asked)
            for limit, epoch in gone:
                if city.random.random() >= city.loses:
                    row = (shard, int(epoch), 0, 0, 0)
                    await city.limits.allot(limit.decode(), 0, 0, [row])
        if len(city.started) == 60 and not city.running:
            return
    raise AssertionError(f"stuck: {len(city.started)} of 60 started")
