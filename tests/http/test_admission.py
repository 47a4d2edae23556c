"""The memory budget: what is new is refused early, what was accepted goes on, looks are few."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import exceptions
from tests.http.conftest import CHARGE, JSON, Rig, assert_problem, open_rig
from tests.servers import ServerProcess

from tasksched.commands.admission import LOOK_MS, Admission
from tasksched.errors import Invalid, MemoryBudget, Unavailable
from tasksched.model import ids
from tasksched.model.durations import parse_duration
from tasksched.model.notify import NOTIFY_ROUTE
from tasksched.model.outcome import Outcome, error_info
from tasksched.settings import from_environment
from tasksched.store.connect import Gateway
from tasksched.store.protocol import Release, Store

pytestmark = pytest.mark.anyio

AGAIN = Outcome(kind="FAILED", retry_ms=0, error=error_info("OSError", "later"))
STOPPED = Outcome(kind="CANCELLED")
NIGHTLY = {"target": CHARGE, "cron": "0 3 * * *", "timezone": "UTC"}
CREATES: list[tuple[str, str, Any]] = [
    ("POST", "/tasks", {"target": CHARGE}),
    ("POST", "/tasks/batch", [{"target": CHARGE}, {"target": CHARGE, "idempotency_key": "k"}]),
    ("POST", "/recurring-tasks", NIGHTLY),
    ("PUT", "/recurring-tasks/other", NIGHTLY),
    ("POST", "/recurring-tasks/nightly/trigger", None),
    ("POST", "/recurring-tasks/nightly/backfill",
     {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z"}),
    ("POST", "/dead-letters/redrive", {"all": True}),
]  # fmt: skip


class Info:
    """A gateway whose server uses as much memory as a test says, and counts who asks."""

    def __init__(self) -> None:
        self.admission: Any = None
        self.used, self.most = 0, 1_000
        self.asked = 0
        self.fails = False

    async def command(self, *words: str) -> dict[str, int]:
        assert ("INFO", "memory") == words
        self.asked += 1
        if self.fails:
            raise Unavailable("frozen")
        return {"used_memory": self.used, "maxmemory": self.most}


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def info() -> Info:
    return Info()


@pytest.fixture
def hand() -> Clock:
    return Clock()


def admission(info: Info, hand: Clock, budget: int = 0) -> Admission:
    return Admission(info, budget=budget, refuse=0.9, now=hand)  # type: ignore[arg-type]


async def accepts(found: Admission) -> bool:
    try:
        await found.admit()
    except MemoryBudget:
        return False
    return True


async def test_refused_above_the_share_and_accepted_again_only_well_below(info: Info, hand: Clock):
    found = admission(info, hand)
    seen = []
    for used in (500, 900, 901, 890, 871, 870, 899, 901):
        info.used = used
        hand.now_ms += LOOK_MS
        seen.append((used, await accepts(found)))
    assert [
        (500, True), (900, True), (901, False), (890, False), (871, False), (870, True),
        (899, True), (901, False),
    ] == seen  # fmt: skip


async def test_the_server_is_asked_once_a_second_and_only_while_somebody_creates(
    info: Info, hand: Clock
):
    found = admission(info, hand)
    for now_ms in range(0, 3_000, 10):
        hand.now_ms = now_ms
        await found.admit()
    assert 3 == info.asked
    hand.now_ms += 3_600_000  # an idle hour costs one look, when somebody creates again
    assert 3 == info.asked
    await found.admit()
    assert 4 == info.asked


async def test_a_budget_of_its_own_goes_before_the_servers(info: Info, hand: Clock):
    info.used = 460
    assert not await accepts(admission(info, hand, budget=500))
    assert await accepts(admission(info, hand))


async def test_without_any_budget_nothing_is_refused(info: Info, hand: Clock):
    info.used, info.most = 1 << 40, 0
    assert await accepts(admission(info, hand))


async def test_a_look_that_fails_refuses_nobody_and_is_not_repeated_at_once(
    info: Info, hand: Clock
):
    info.used, info.fails = 999, True
    found = admission(info, hand)
    assert [True, True, 1] == [await accepts(found), await accepts(found), info.asked]


class Away:
    """A client of a server that loses a reply and then has no memory any more."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)

    async def execute_command(self, *_: object) -> None:
        raise self.answers.pop(0)


async def test_a_refusal_after_a_lost_reply_does_not_say_that_nothing_was_done():
    oom = exceptions.ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
    values: dict[str, Any] = {"clock": "{ts:0}:clock", "now_ms": 0}
    lost = exceptions.ConnectionError("lost")
    for answers, kind in (([oom], MemoryBudget), ([lost, oom], Unavailable)):
        with pytest.raises(Unavailable, match="out of memory") as refused:
            await Gateway(Away(*answers)).run("submit", values)
        assert type(refused.value) is kind


def test_the_share_of_the_budget_is_a_number_below_one():
    read = from_environment(parse_duration, {"TASKSCHED_MEMORY_REFUSE": "0.8"})
    assert 0.8 == read.memory_refuse
    for wrong in ("nan", "1.5", "most", "-1"):
        with pytest.raises(Invalid):
            from_environment(parse_duration, {"TASKSCHED_MEMORY_REFUSE": wrong})


@pytest.fixture
async def tight(redis_server: ServerProcess) -> AsyncIterator[Rig]:
    """The API over each server, with a task and a recurring task, and a dead letter."""
    found, session = await open_rig(redis_server.url)
    await found.make()
    failed = await found.start()
    await found.finish(failed)
    answer = await found.ask("PUT", "/recurring-tasks/nightly", NIGHTLY)
    assert 201 == answer.status_code, answer.text
    yield found
    await session.gateway.command("CONFIG", "SET", "maxmemory", 0)
    await found.http.aclose()
    await session.close()


async def fill(rig: Rig, share: float) -> None:
    """The server has so much memory that ``share`` of it is used. It is looked at again."""
    used = int((await rig.session.gateway.command("INFO", "memory"))["used_memory"])
    most = max(int(used / share), 1)
    await rig.session.gateway.command("CONFIG", "SET", "maxmemory", most)
    rig.session.admission._looked_ms = None


@pytest.mark.parametrize(("verb", "path", "body"), CREATES, ids=lambda v: v or None)
async def test_what_is_new_is_refused_as_a_problem(tight: Rig, verb: str, path: str, body: Any):
    await fill(tight, 0.95)
    answer = await tight.ask(verb, path, body)
    problem = assert_problem(answer, 503)
    assert ("MEMORY_BUDGET", "/problems/memory-budget") == (problem["code"], problem["type"])
    assert "5" == answer.headers["retry-after"]


async def test_the_servers_own_refusal_is_the_same_problem(tight: Rig):
    await tight.session.gateway.command("CONFIG", "SET", "maxmemory", 1)
    tight.session.admission._looked_ms = tight.session.admission._now()  # it was not seen yet
    for path, body in (("/tasks", {"target": CHARGE}), ("/tasks/batch", [{"target": CHARGE}])):
        problem = assert_problem(await tight.ask("POST", path, body), 503)
        assert "MEMORY_BUDGET" == problem["code"]


async def test_what_was_accepted_goes_on_and_then_there_is_room_again(tight: Rig):
    waiting = await tight.make(delay="1h")
    due = await tight.make()
    await fill(tight, 1.2)
    assert (
        200 == (await tight.ask("POST", f"/tasks/{waiting}/cancel", Content_Type=JSON)).status_code
    )
    await tight.finish(await tight.start())
    assert "SUCCESS" == (await tight.show(due))["status"]
    assert_problem(await tight.ask("POST", "/tasks", {"target": CHARGE}), 503)
    await fill(tight, 0.5)
    await tight.make()


async def test_a_full_server_is_drained_to_the_end(tight: Rig):
    """Real OOM: not one write that is not needed would pass, and nothing stays behind."""
    store, tenant = tight.session.store, "default"
    told = {"notify": [{"url": "https://example.com/hook", "events": ["task.succeeded"]}]}
    made = {name: await tight.make(**told) for name in ("ends", "fails", "handed", "stopped")}
    waiting = [await tight.make(delay="1h") for _ in range(2)]
    await tight.session.gateway.command("CONFIG", "SET", "maxmemory", 1)
    assert_problem(await tight.ask("POST", "/tasks", {"target": CHARGE}), 503)

    runs = {grant.id: (shard, grant) for shard, grant in await tight.start()}
    await tight.finish([runs[made["ends"]]])
    await tight.finish([runs[made["fails"]]], AGAIN)
    shard, grant = runs[made["handed"]]
    assert ["PENDING"] == await store.release(shard, [Release(grant.id, grant.fence, 0, "busy")])
    assert 202 == (await tight.ask("POST", f"/tasks/{made['stopped']}/cancel")).status_code
    await tight.finish([runs[made["stopped"]]], STOPPED)
    assert 200 == (await tight.ask("POST", f"/tasks/{waiting[0]}/cancel")).status_code
    assert 200 == (await tight.ask("POST", f"/tasks/{waiting[1]}/run-now")).status_code
    await tight.finish(await tight.start())

    notices = await tight.start(NOTIFY_ROUTE)
    assert 3 == len(notices)  # of the three that succeeded after all
    for number, (shard, grant) in enumerate(notices):
        row = (ids.mint(shard, number), "{}", b"\x80")
        assert 1 == await store.deliver(shard, grant.tenant, [row])
    await tight.finish(notices)
    for path in ("/tasks", f"/tasks/{made['ends']}"):
        assert 200 == (await tight.ask("GET", path)).status_code
    await asyncio.gather(*(_prune(store, shard, tenant) for shard in range(store.shards)))
    counts = await tight.services.system.counts(tenant)
    assert {0} == {0, *counts.by_queue.get("default", {}).values()}


async def _prune(store: Store, shard: int, tenant: str) -> None:
    limits = {"done_ms": 0, "dead_ms": 0, "count_max": 0, "bytes_max": 0}
    await store.prune(shard, tenant, **limits, keyed_ms=1, unkeyed_ms=1, limit=1_000)


async def test_health_and_metrics_tell(tight: Rig):
    await fill(tight, 0.95)
    assert_problem(await tight.ask("POST", "/tasks", {"target": CHARGE}), 503)
    health = (await tight.ask("GET", "/health")).json()
    assert ("degraded", False) == (health["status"], health["redis"]["accepts"])
    assert 0.9 < health["redis"]["memory_budget_ratio"] < 1
    assert [text for text in health["warnings"] if "creates are refused" in text]
    text = (await tight.ask("GET", "/metrics")).text
    assert "\ntasksched_memory_budget_ratio 0.9" in text
    assert '\ntasksched_refused_total{reason="memory_budget"} 1.0\n' in text
    assert '\ntasksched_refused_total{reason="create_rate"} 0.0\n' in text
