"""Quotas of the creating side: exact over all shards and sessions, all of it usable, keys unused."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.protocol.kit import DONE, WORKER, Kit, open_kit, spec
from tests.servers import ServerProcess
from tests.users import of_roles

from tasksched.commands import quota as module
from tasksched.commands.quota import EXHAUSTED_MS, RULES_TTL_MS, Quota
from tasksched.errors import Unavailable
from tasksched.model.notify import QUEUE
from tasksched.store.connect import Gateway
from tasksched.store.limits import Limits
from tasksched.store.protocol import Grant, Store
from tasksched.store.records import set_conf

pytestmark = pytest.mark.anyio

SHARDS = 4
LONG_MS = 10**8


class Town:
    """Sessions that create in one namespace, each with quotas of its own, and a worker."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.store = kit, kit.store
        self.mono_ms = 0
        self.made = 0
        self._gateways: list[Gateway] = []
        self._calls = [0] * SHARDS

    async def session(self) -> Quota:
        gateway = Gateway.open(of_roles(self.kit.url))
        self._gateways.append(gateway)
        return Quota(Store(gateway, self.store.namespace, SHARDS, now_ms=self.kit.now_ms))

    async def set(self, words: str, tenant: str = "default") -> None:
        """What is set from now on, for sessions that have forgotten what was."""
        await set_conf(self.store, f"tenant:{tenant}", words)
        self.mono_ms += max(RULES_TTL_MS, EXHAUSTED_MS)

    async def create(
        self, session: Quota, count: int, shard: int | None = None, **fields: Any
    ) -> list[str]:
        """The words for so many tasks, all in one call."""
        number = random.randrange(SHARDS) if shard is None else shard
        rows = [(self.kit.new_id(number), spec(**fields), "") for _ in range(count)]
        words = [made.word for made in await session.submit(number, rows)]
        self.made += words.count("")
        return words

    async def open(self, tenant: str = "default") -> int:
        """Unfinished tasks of the tenant over all shards, at one moment."""
        pipe = self.kit.plain.pipeline(transaction=True)
        for keys in self.store.keys:
            pipe.hgetall(keys.counts)
        states = {b"PENDING", b"QUEUED", b"RUNNING"}
        total = 0
        for counts in await asyncio.to_thread(pipe.execute):
            for name, number in counts.items():
                owner, _, state = name.rpartition(b":")
                if state in states and owner.startswith(tenant.encode() + b":"):
                    total += int(number)
        return total

    async def start(self, shard: int) -> list[Grant]:
        self._calls[shard] += 1
        await self.store.dispatch(shard)
        _, _, grants = await self.store.take(
            shard, WORKER, call=self._calls[shard], slots=50, lease_ms=LONG_MS
        )
        return grants

    async def finish(self, most: int) -> int:
        """So many tasks end, wherever they are."""
        ended = 0
        for shard in range(SHARDS):
            for grant in (await self.start(shard))[: most - ended]:
                await self.store.settle(shard, [(grant.id, grant.fence, DONE)])
                ended += 1
        return ended

    async def close(self) -> None:
        for gateway in self._gateways:
            await gateway.close()


@pytest.fixture
async def town(
    valkey_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Town]:
    valkey_server.flush()
    kit = await open_kit(valkey_server.url, shards=SHARDS)
    made = Town(kit)
    monkeypatch.setattr(module.clock, "mono_ms", lambda: made.mono_ms)
    for shard in range(SHARDS):
        await kit.store.announce(shard, WORKER, LONG_MS, ["route:charge", "queue:*"])
    yield made
    await made.close()
    await kit.close()


async def test_all_of_it_can_be_used_from_one_shard_and_no_more(town: Town):
    await town.set("pending=10")
    session = await town.session()
    assert [""] * 3 == await town.create(session, 3, shard=0)
    assert [""] * 4 == await town.create(session, 4, shard=1)
    assert ["", "", "", "quota"] == await town.create(session, 4, shard=3)
    assert ["quota"] == await town.create(session, 1, shard=0)
    assert 10 == await town.open()


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_sessions_fill_it_exactly(town: Town, seed: int):
    random.seed(seed)
    await town.set("pending=37")
    sessions = [await town.session() for _ in range(4)]
    seen: list[int] = []

    async def creator(session: Quota) -> None:
        for _ in range(12):
            await town.create(session, random.randint(1, 3))
            seen.append(await town.open())

    await asyncio.gather(*(creator(session) for session in sessions for _ in range(2)))
    assert max(seen) <= 37
    town.mono_ms += EXHAUSTED_MS
    await town.create(sessions[0], 37)
    assert 37 == town.made == await town.open()


@pytest.mark.parametrize("seed", range(3))
async def test_it_stays_exact_while_tasks_finish(town: Town, seed: int):
    random.seed(seed)
    await town.set("pending=12")
    sessions = [await town.session() for _ in range(3)]
    going = True
    seen: list[int] = []

    async def creator(session: Quota) -> None:
        while going:
            await town.create(session, random.randint(1, 4))
            town.mono_ms += EXHAUSTED_MS
            seen.append(await town.open())

    creators = [asyncio.create_task(creator(session)) for session in sessions]
    ended = 0
    while ended < 60:
        ended += await town.finish(random.randint(1, 6))
    going = False
    await asyncio.gather(*creators)
    assert max(seen) <= 12
    await town.finish(50)
    town.mono_ms += EXHAUSTED_MS
    await town.create(sessions[0], 20, shard=2)
    assert 12 == await town.open()


async def test_a_lower_limit_holds_as_soon_as_it_is_noticed(town: Town):
    await town.set("pending=200")
    session = await town.session()
    for shard in range(SHARDS):  # every shard has some to spare
        await town.create(session, 1, shard=shard)
    await town.set("pending=6")
    for shard in (0, 1, 2, 3):
        await town.create(session, 2, shard=shard)
    assert 6 == await town.open()


async def test_a_higher_limit_and_none_at_all(town: Town):
    await town.set("pending=1")
    session = await town.session()
    assert ["", "quota"] == await town.create(session, 2, shard=0)
    await town.set("pending=3")
    assert ["", "", "quota"] == await town.create(session, 3, shard=0)
    await town.set("weight=2")
    assert [""] * 5 == await town.create(session, 5, shard=0)


async def test_a_limit_on_what_is_there_already_counts_it(town: Town):
    session = await town.session()
    await town.create(session, 5, shard=0)
    await town.set("pending=7")
    assert ["", "", "quota"] == await town.create(session, 3, shard=1)


async def test_tenants_do_not_touch_each_other_in_one_call(town: Town):
    await town.set("pending=1", tenant="small")
    session = await town.session()
    rows = [
        (town.kit.new_id(1), spec(tenant=tenant), "") for tenant in ("small", "big", "small", "big")
    ]
    assert ["", "", "quota", ""] == [made.word for made in await session.submit(1, rows)]


async def test_what_is_refused_leaves_its_key_unused(town: Town):
    await town.set("pending=1")
    session = await town.session()
    first, second = town.kit.new_id(0), town.kit.new_id(0)
    asked = spec(key="k")
    assert [""] == [made.word for made in await session.submit(0, [(first, asked, "f")])]
    assert ["quota"] == [made.word for made in await session.submit(0, [(second, asked, "f")])]
    # The replay of what exists is no creation.
    assert ["exists"] == [made.word for made in await session.submit(0, [(first, asked, "f")])]
    await town.finish(1)
    town.mono_ms += EXHAUSTED_MS
    assert [""] == [made.word for made in await session.submit(0, [(second, asked, "f")])]


async def test_notifications_are_never_refused(town: Town):
    await town.set("pending=1 creates=1")
    session = await town.session()
    assert ["", "rate"] == await town.create(session, 2, shard=0)
    assert [""] * 5 == await town.create(session, 5, shard=0, queue=QUEUE)


async def test_who_is_refused_leaves_no_wish_behind_that_others_must_serve(town: Town):
    await town.set("pending=2")
    session = await town.session()
    for shard in range(SHARDS):
        await town.create(session, 2, shard=shard)
    home = town.store.keys[session._limits.home_of("p/default")].shard
    fields = town.kit.plain.hkeys(f"{home}:limit:p/default")
    assert [] == [name for name in fields if name.startswith(b"w")]
    assert [name for name in fields if name.startswith(b"a")]


async def test_a_flood_of_refusals_does_not_ask_the_home_each_time(town: Town):
    await town.set("pending=1")
    session = await town.session()
    await town.create(session, 2, shard=0)
    calls = _Calls(session)
    for _ in range(10):
        assert ["quota"] == await town.create(session, 1, shard=1)
    assert {"submit": 10} == calls.made
    town.mono_ms += EXHAUSTED_MS + 1
    await town.create(session, 1, shard=1)
    assert calls.made["allot"] >= 1


@pytest.mark.parametrize(("script", "calls"), [("allot", 0), ("submit", 1)])
async def test_redis_that_goes_away_meanwhile_does_not_undo_what_was_made(
    town: Town, script: str, calls: int
):
    await town.set("pending=160")
    session = await town.session()
    await town.create(session, 1, shard=0)  # and ten to spare
    _Calls(session, fails=script, after=calls)
    assert [""] * 10 + ["quota"] * 2 == await town.create(session, 12, shard=0)
    assert 11 == await town.open()


class _Calls:
    """Counts the scripts of a session; one of them may fail after so many calls."""

    def __init__(self, session: Quota, fails: str = "", after: int = 0) -> None:
        self.made: Counter[str] = Counter()
        run = session._store.gateway.run

        async def counted(name: str, *args: Any, **named: Any) -> Any:
            self.made[name] += 1
            if name == fails and self.made[name] > after:
                raise Unavailable("away")
            return await run(name, *args, **named)

        session._store.gateway.run = counted  # type: ignore[method-assign]
        session._limits._run = counted


# -- the rate -----------------------------------------------------------------------------------


async def burst(town: Town, sessions: Sequence[Quota], seconds: float, each: int) -> list[int]:
    """Every 50 ms each session tries to create ``each``; how many were made in each step."""
    made: list[int] = []
    for _ in range(int(seconds * 20)):
        before = town.made
        for session in sessions:
            session._store.now_ms = town.kit.store.now_ms
            await town.create(session, each)
        made.append(town.made - before)
        town.kit.leap(50)
        town.mono_ms += 50
    return made


@pytest.mark.parametrize(("rate", "sessions"), [(40, 1), (40, 3), (5, 2), (0.5, 2)])
async def test_no_more_than_the_bound_in_any_window_and_no_less_than_the_rate(
    town: Town, rate: float, sessions: int
):
    await town.set(f"creates={rate:g}")
    steps = await burst(town, [await town.session() for _ in range(sessions)], 10, each=4)
    for size in (20, 60, 200):
        most = max(sum(steps[n : n + size]) for n in range(len(steps) - size + 1))
        assert most <= rate * size / 20 + 2 * max(rate, 1)
    assert sum(steps) >= rate * 10 * 0.9


async def test_the_first_of_a_call_go_first_and_the_refusal_says_when(town: Town):
    await town.set("creates=4")
    session = await town.session()
    assert [""] * 4 + ["rate"] * 2 == await town.create(session, 6, shard=0)
    refusal = session.refusal("default", "rate")
    assert ("create_rate", 0.25) == (refusal.limit, refusal.retry_after)
    assert (4, 1) == (refusal.extra["quota"], refusal.extra["window_s"])
    session._store.now_ms += 249
    assert ["rate"] == await town.create(session, 1, shard=0)
    session._store.now_ms += 1
    assert [""] == await town.create(session, 1, shard=0)


async def test_tokens_that_nobody_used_are_not_saved_up(town: Town):
    await town.set("creates=40")
    sessions = [await town.session() for _ in range(10)]
    for session in sessions:
        assert [""] == await town.create(session, 1)  # and three more that are leased
    town.kit.leap(2_000)
    words: list[str] = []
    for session in sessions:
        session._store.now_ms = town.kit.now_ms
        words += await town.create(session, 10)
    assert 40 == words.count("")


async def test_a_slow_rate_is_told_as_one_in_so_many_seconds(town: Town):
    await town.set("creates=0.4")
    session = await town.session()
    assert ["", "rate"] == await town.create(session, 2, shard=0)
    refusal = session.refusal("default", "rate")
    assert (1, 3, 2.5) == (
        refusal.extra["quota"], refusal.extra["window_s"], refusal.retry_after,
    )  # fmt: skip


async def test_the_home_hands_out_no_more_than_its_bucket_holds(town: Town):
    limits = Limits(town.store)
    assert (4, town.kit.now_ms + 1_000) == (await limits.ration("c/x", 4, 10))[:2]
    given, _, next_ms = await limits.ration("c/x", 4, 1)
    assert (0, town.kit.now_ms + 250) == (given, next_ms)
    town.kit.leap(500)
    assert 2 == (await limits.ration("c/x", 4, 10))[0]
    town.kit.leap(3_600_000)
    assert 4 == (await limits.ration("c/x", 4, 10))[0]
    assert 4 == (await limits.ration("c/y", 4, 10))[0]  # another tenant's is another bucket
