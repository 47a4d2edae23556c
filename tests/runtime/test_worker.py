"""Workers on a real server: taking, running, settling, keeping leases, and leaving."""

import asyncio
import contextlib
import threading
import time

import pytest
from tests.proxy import Proxy, command
from tests.runtime.kit import Site, handler_of, until
from tests.servers import ServerProcess

from tasksched.errors import Unavailable
from tasksched.model.control import RetryLater
from tasksched.model.retry import Retry
from tasksched.model.task import HttpTarget
from tasksched.runtime import heartbeat as heartbeat_module
from tasksched.runtime import taker as taker_module
from tasksched.runtime import worker as worker_module
from tasksched.runtime.context import Ctx
from tasksched.runtime.worker import make_name

pytestmark = pytest.mark.anyio


async def add(a, b):
    return a + b


class Gate:
    """A handler that runs until it is let go, in either mode, and notes what became of it."""

    def __init__(self):
        self.entered = 0
        self.cancelled = 0
        self.open = threading.Event()

    async def hold(self, ctx: Ctx):
        self.entered += 1
        try:
            while not self.open.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ctx.attempt

    def hold_thread(self, ctx: Ctx):
        self.entered += 1
        while not self.open.is_set():
            time.sleep(0.005)
            if ctx.cancelled:
                self.cancelled += 1
                raise RuntimeError("stopped")
        return ctx.attempt


@pytest.fixture
def gate():
    each = Gate()
    yield each
    each.open.set()


async def take_over(site: Site, task_id: str):
    """What the reaper and another worker would do to a task whose lease is over."""
    key = site.store.keys[0].task(task_id)
    fence = int(await site.gateway.command("HGET", key, "fence")) + 1
    await site.gateway.command("HSET", key, "fence", fence, "worker", "another")


# -- running ----------------------------------------------------------------------------------------


async def test_tasks_run_and_their_results_are_kept(site):
    worker = await site.started(add)

    ids = [(await site.submit("add", [n, 1], shard=n % 2), n % 2) for n in range(20)]

    for n, (task_id, shard) in enumerate(ids):
        assert "SUCCESS" == (await site.ends(task_id, shard))["state"]
        assert n + 1 == await site.result(task_id, shard)
    await until(lambda: worker.statistics()["held"] == 0)
    statistics = worker.statistics()
    assert (20, 20, 0, 0) == tuple(
        statistics[key] for key in ("started", "settled", "running", "stale")
    )


async def test_a_task_submitted_before_any_worker_runs_when_one_comes(site):
    task_id = await site.submit("add", [1, 2])

    await site.started(add)

    assert "SUCCESS" == (await site.ends(task_id))["state"]


async def test_a_failure_is_retried_until_it_succeeds(site):
    starts = []

    async def flaky(ctx: Ctx):
        starts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "at last"

    await site.started(flaky)
    task_id = await site.submit("flaky")

    record = await site.ends(task_id)
    assert ("SUCCESS", "3") == (record["state"], record["attempt"])
    assert [1, 2, 3] == starts


async def test_a_task_fails_when_its_attempts_are_used_up(site):
    def broken():
        raise ValueError("never")

    await site.started(broken)
    record = await site.ends(await site.submit("broken"))

    assert ("FAILED", "attempts_exhausted", "3") == (
        record["state"],
        record["reason"],
        record["attempt"],
    )
    assert '"type":"ValueError","message":"never"' in record["error"]


async def test_a_handler_may_ask_for_the_time_of_its_next_attempt(site):
    async def later(ctx: Ctx):
        if ctx.attempt == 1:
            raise RetryLater("150ms")
        return time.monotonic()

    await site.started(later)
    started = time.monotonic()
    task_id = await site.submit("later", retry=Retry(2, initial="1h"))
    await site.ends(task_id)

    assert await site.result(task_id) - started >= 0.15


async def test_no_more_runs_than_slots(site, gate):
    worker = await site.started(gate.hold, concurrency=3)
    ids = [await site.submit("hold", shard=n % 2) for n in range(8)]
    await until(lambda: gate.entered == 3)
    await asyncio.sleep(0.1)
    assert (3, 3) == (gate.entered, worker.statistics()["running"])

    gate.open.set()

    for n, task_id in enumerate(ids):
        await site.ends(task_id, n % 2)


async def test_a_flood_runs_each_task_once(site):
    ran = []

    async def note(n):
        ran.append(n)

    worker = await site.started(note, concurrency=64)
    ids = [(await site.submit("note", [n], shard=n % 2), n % 2) for n in range(600)]
    for task_id, shard in ids:
        await site.ends(task_id, shard)

    assert list(range(600)) == sorted(ran)
    assert 600 == worker.statistics()["started"]


async def test_two_workers_share_the_work(site):
    seen = []

    async def slow(ctx: Ctx):
        seen.append(1)
        await asyncio.sleep(0.02)

    first = await site.started(slow, concurrency=2)
    second = await site.started(slow, concurrency=2)
    ids = [await site.submit("slow") for _ in range(40)]
    for task_id in ids:
        await site.ends(task_id)

    assert 40 == len(seen)
    assert first.statistics()["started"] > 4
    assert second.statistics()["started"] > 4


async def test_a_worker_serves_only_its_queues(site):
    await site.started(add, queues=("mail",))
    other = await site.submit("add", [1, 1], queue="video")
    mine = await site.submit("add", [1, 1], queue="mail")

    await site.ends(mine)
    assert (await site.record(other))["state"] in {"PENDING", "QUEUED"}


async def test_http_targets_need_no_handler(site):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    await site.started()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    task_id = await site.submit("", target=HttpTarget(url, "GET"))
    await site.ends(task_id)
    server.close()

    assert {"status": 200, "body": {}} == await site.result(task_id)


async def test_a_lost_wake_up_is_repaired_by_the_look(site, monkeypatch):
    monkeypatch.setattr(taker_module, "LOOK_S", 0.05)
    worker = await site.started(add)
    monkeypatch.setattr(worker._listener, "_hear", lambda *_: None)

    assert "SUCCESS" == (await site.ends(await site.submit("add", [1, 1])))["state"]


async def test_a_worker_the_shard_has_forgotten_announces_itself_again(site):
    worker = await site.started(add)
    await site.gateway.command("DEL", *(keys.worker(worker.name) for keys in site.store.keys[:1]))

    assert "SUCCESS" == (await site.ends(await site.submit("add", [1, 1])))["state"]


# -- cancelling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hold", "hold_thread"])
async def test_a_running_task_that_is_cancelled_is_told_at_once(site, gate, name):
    await site.started(getattr(gate, name))
    task_id = await site.submit(name)
    await until(lambda: gate.entered == 1)

    await site.store.cancel(0, task_id, "default", None)

    assert "CANCELLED" == (await site.ends(task_id))["state"]
    assert 1 == gate.cancelled


async def test_a_cancel_that_nobody_heard_comes_with_the_next_heartbeat(site, gate):
    worker = await site.started(gate.hold, lease_ms=600)
    worker._listener._hear = lambda *_: None
    task_id = await site.submit("hold")
    await until(lambda: gate.entered == 1)

    await site.store.cancel(0, task_id, "default", None)

    assert "CANCELLED" == (await site.ends(task_id))["state"]


async def test_a_cancelled_run_that_succeeds_all_the_same_is_a_success(site):
    async def stubborn():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "done"

    worker = await site.started(stubborn)
    task_id = await site.submit("stubborn")
    await until(lambda: worker.statistics()["running"] == 1)
    await asyncio.sleep(0.02)
    await site.store.cancel(0, task_id, "default", None)

    record = await site.ends(task_id)
    assert ("SUCCESS", "1") == (record["state"], record["cancel_requested"])


# -- leases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", ["loop", "thread"])
async def test_a_handler_that_blocks_keeps_its_lease(site, blocks):
    async def loop():
        time.sleep(1.6)
        return "kept"

    def thread():
        time.sleep(1.6)
        return "kept"

    worker = await site.started({"loop": loop, "thread": thread}[blocks], lease_ms=600)
    task_id = await site.submit(blocks)
    record = await site.ends(task_id)

    assert ("SUCCESS", "1") == (record["state"], record["attempt"])
    assert worker.statistics()["renewed"] >= 4
    assert not (await site.store.overdue(0))[1]


async def test_a_tasks_own_lease_counts(site, gate):
    worker = await site.started(gate.hold)
    await site.submit("hold", lease_ms=900)
    await until(lambda: worker.statistics()["renewed"] >= 2, 3)


@pytest.mark.parametrize("abort", [False, True])
async def test_a_run_that_lost_its_task_reports_in_vain(site, gate, abort):
    worker = await site.started(gate.hold, lease_ms=600, abort_on_lease_loss=abort)
    task_id = await site.submit("hold")
    await until(lambda: gate.entered == 1)

    await take_over(site, task_id)
    await until(lambda: worker.statistics()["leases_lost"] == 1)
    if not abort:
        assert (0, 1) == (gate.cancelled, worker.statistics()["running"])
        gate.open.set()
    await until(lambda: worker.statistics()["stale"] == 1)

    assert int(abort) == gate.cancelled
    assert "RUNNING" == (await site.record(task_id))["state"]
    assert 0 == worker.statistics()["settled"]


async def test_progress_is_recorded_with_a_beat(site, gate):
    async def working(ctx: Ctx):
        await ctx.heartbeat(0.5, "half")
        await gate.hold(ctx)

    await site.started(working)
    task_id = await site.submit("working")
    async with asyncio.timeout(5):
        while "progress" not in (record := await site.record(task_id)):
            await asyncio.sleep(0.01)

    assert '{"at":0.5,"message":"half"}' == record["progress"]
    gate.open.set()


async def test_a_task_that_starts_again_where_its_lost_run_goes_on_is_told_apart(site, gate):
    worker = await site.started(gate.hold, lease_ms=600)
    task_id = await site.submit("hold")
    await until(lambda: gate.entered == 1)
    run = worker._runs[task_id]
    await site.store.release(0, [(task_id, run.grant.fence)])  # as if the reaper had been there
    await until(lambda: gate.entered == 2)

    await site.store.cancel(0, task_id, "default", None)
    record = await site.ends(task_id)
    assert ("CANCELLED", "2") == (record["state"], record["attempt"])
    assert 1 == gate.cancelled
    gate.open.set()
    await until(lambda: worker.statistics()["running"] == 0)


# -- timeouts ---------------------------------------------------------------------------------------


async def test_a_thread_that_hangs_keeps_its_slot_and_gets_its_verdict(site, gate):
    def hangs():
        gate.open.wait(30)

    worker = await site.started(hangs, add, concurrency=2, lease_ms=900)
    task_id = await site.submit("hangs", timeout_ms=50, retry=Retry(1))
    record = await site.ends(task_id)

    assert ("FAILED", "attempts_exhausted", "TIMED_OUT") == (
        record["state"], record["reason"], record["outcome"],
    )  # fmt: skip
    assert 1 == worker.statistics()["running"]
    await site.ends(await site.submit("add", [1, 1]))
    gate.open.set()
    await until(lambda: worker.statistics()["running"] == 0)


# -- what leaves the executor -----------------------------------------------------------------------


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(30)


async def leaks_a_cancellation():
    """As a library does that ends its own waiting by a cancellation and does not take it back."""
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(30)
    child = asyncio.ensure_future(asyncio.sleep(30))
    asyncio.get_running_loop().call_soon(child.cancel)
    await child


@pytest.mark.parametrize("function", [cancels_itself, leaks_a_cancellation])
@pytest.mark.parametrize(
    ("never", "attempt", "reason"),
    [((), "3", "attempts_exhausted"), ((asyncio.CancelledError,), "1", "not_retryable")],
)
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(
    site, function, never, attempt, reason
):
    worker = await site.started(handler_of(function, retry=Retry(3, never=never)))
    record = await site.ends(await site.submit(function.__name__))

    assert ("FAILED", attempt, reason) == (record["state"], record["attempt"], record["reason"])
    assert "CancelledError" in record["error"]
    assert 0 == worker.statistics()["running"]


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), Odd()])
async def test_whatever_leaves_the_executor_is_a_failure(site, monkeypatch, error):
    worker = await site.started(add)

    async def run(_):
        raise error

    monkeypatch.setattr(worker._executor, "run", run)
    record = await site.ends(await site.submit("add", [1, 1]))

    assert ("FAILED", "3") == (record["state"], record["attempt"])
    assert type(error).__name__ in record["error"]


@pytest.mark.parametrize(
    ("why", "state"), [("cancel", "CANCELLED"), ("timeout", "FAILED"), ("release", "SUCCESS")]
)
async def test_what_leaves_the_executor_of_an_interrupted_run_ends_it_as_asked(
    site, monkeypatch, why, state
):
    worker = await site.started(add)

    async def run(run):
        run.interrupt(why)
        monkeypatch.undo()  # once only
        raise Odd

    monkeypatch.setattr(worker._executor, "run", run)
    task_id = await site.submit("add", [1, 1], retry=Retry(1))

    await site.comes_to(task_id, state)


async def test_a_run_without_any_outcome_is_renewed_no_more_and_frees_its_slot(site, monkeypatch):
    worker = await site.started(cancels_itself, lease_ms=600)

    def broken(*_, **__):
        raise RuntimeError("no verdict")

    monkeypatch.setattr(worker_module, "judge", broken)
    await site.submit("cancels_itself")
    await until(lambda: worker.statistics()["started"] == 1)

    assert 0 == worker.statistics()["running"]
    async with asyncio.timeout(5):
        while not (await site.store.overdue(0))[1]:
            await asyncio.sleep(0.02)


# -- leaving ----------------------------------------------------------------------------------------


async def test_draining_lets_end_what_ends_and_hands_the_rest_back(site, gate):
    async def short():
        await asyncio.sleep(0.2)
        return "done"

    worker = await site.started(short, gate.hold, gate.hold_thread)
    short_id = await site.submit("short")
    held = [await site.submit("hold"), await site.submit("hold_thread")]
    await until(lambda: gate.entered == 2)

    draining = asyncio.create_task(worker.drain(600))
    await asyncio.sleep(0.05)
    late = await site.submit("short")
    started = time.monotonic()
    await draining

    assert "SUCCESS" == (await site.record(short_id))["state"]
    assert time.monotonic() - started < 2
    assert 2 == gate.cancelled
    for task_id in held:
        record = await site.record(task_id)
        assert record["state"] in {"PENDING", "QUEUED"}
        assert "1" == record["uncounted"]
    assert "0" == (await site.record(late)).get("attempt", "0")
    second = await site.started(short, gate.hold, gate.hold_thread)
    gate.open.set()
    for task_id in [late, *held]:
        assert "SUCCESS" == (await site.ends(task_id))["state"]
    assert 3 == second.statistics()["started"]


async def test_a_handler_that_ignores_the_end_is_handed_back_too(site, gate):
    def deaf():
        gate.entered += 1
        gate.open.wait(30)

    worker = await site.started(deaf)
    task_id = await site.submit("deaf")
    await until(lambda: gate.entered == 1)
    await worker.drain(50)

    assert (await site.record(task_id))["state"] in {"PENDING", "QUEUED"}


async def test_a_worker_that_stops_asks_no_more_a_shard_that_does_not_know_it(site, monkeypatch):
    worker = site.worker(add, grace_ms=3_000)
    take = site.store.take
    asked = 0

    async def counted(*args, **kwargs):
        nonlocal asked
        asked += 1
        return await take(*args, **kwargs)

    async def away(*_):
        raise Unavailable("gone")

    monkeypatch.setattr(site.store, "take", counted)
    monkeypatch.setattr(site.store, "announce", away)
    starting = asyncio.create_task(worker.start())
    await until(lambda: asked > 0)
    before, began = asked, time.monotonic()
    await worker.drain()
    await starting

    assert asked - before <= 4
    assert time.monotonic() - began < 2.5


async def test_handlers_that_hold_all_threads_of_the_loop_hold_up_no_drain(site, gate):
    async def in_thread():
        gate.entered += 1
        await asyncio.to_thread(gate.open.wait, 60)

    worker = await site.started(in_thread, concurrency=40)
    for _ in range(40):  # more than the threads there are
        await site.submit("in_thread")
    await until(lambda: gate.entered == 40)
    async with asyncio.timeout(10):
        await worker.drain(0)

    assert 40 == worker.statistics()["released"]


async def test_leases_are_kept_while_draining(site, gate):
    worker = await site.started(gate.hold, lease_ms=600)
    task_id = await site.submit("hold")
    await until(lambda: gate.entered == 1)
    draining = asyncio.create_task(worker.drain(5_000))
    await asyncio.sleep(1.2)
    assert not (await site.store.overdue(0))[1]
    gate.open.set()
    await draining

    assert "SUCCESS" == (await site.record(task_id))["state"]


async def test_a_second_request_ends_the_patience(site, gate):
    worker = await site.started(gate.hold)
    task_id = await site.submit("hold")
    await until(lambda: gate.entered == 1)
    draining = asyncio.create_task(worker.drain(60_000))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await worker.drain()
    await draining

    assert time.monotonic() - started < 1
    assert (await site.record(task_id))["state"] in {"PENDING", "QUEUED"}


async def test_what_is_granted_while_stopping_is_handed_back(site, monkeypatch):
    worker = await site.started(add)
    take = site.store.take
    asked = asyncio.Event()

    async def slow_take(*args, **kwargs):
        reply = await take(*args, **kwargs)
        if reply[2]:
            asked.set()
            await asyncio.sleep(0.1)
        return reply

    monkeypatch.setattr(site.store, "take", slow_take)
    task_id = await site.submit("add", [1, 1])
    await asked.wait()
    await worker.drain()

    record = await site.record(task_id)
    assert record["state"] in {"PENDING", "QUEUED"}
    assert (0, 1) == (worker.statistics()["started"], worker.statistics()["released"])


async def test_a_worker_is_seen_while_it_lives(site):
    worker = await site.started(add)
    keys = site.store.global_keys
    async with asyncio.timeout(5):
        while not (shown := await site.gateway.redis.hgetall(keys.worker(worker.name))):
            await asyncio.sleep(0.01)

    assert {
        b"host",
        b"pid",
        b"queues",
        b"routes",
        b"slots",
        b"running",
        b"since",
        b"version",
    } == set(shown)
    assert (b"8", b"add,http", b"*") == (shown[b"slots"], shown[b"routes"], shown[b"queues"])
    (server_s, _) = await site.gateway.redis.time()
    ((_, until_ms),) = await site.gateway.redis.zrange(keys.workers, 0, -1, withscores=True)
    assert 20_000 < until_ms - server_s * 1000 < 35_000

    await worker.drain(0)
    assert 0 == await site.gateway.redis.exists(keys.worker(worker.name), keys.workers)
    assert 0 == await site.gateway.redis.exists(
        *(each.worker(worker.name) for each in site.store.keys)
    )


async def test_run_until_is_a_whole_life(site):
    worker = site.worker(add)
    stop = asyncio.Event()
    living = asyncio.create_task(worker.run_until(stop))
    task_id = await site.submit("add", [1, 1])
    await site.ends(task_id)
    stop.set()
    await living

    assert 1 == worker.statistics()["settled"]


def test_names_are_within_their_grammar(monkeypatch):
    monkeypatch.setattr(worker_module.socket, "gethostname", lambda: "-höst:{x}" + "y" * 100)
    name = make_name()

    assert name.startswith("h-st-x-y")
    assert len(name) <= 64
    assert name != make_name()


# -- outages ----------------------------------------------------------------------------------------


async def test_lost_replies_lose_and_repeat_nothing(site):
    starts = []

    async def once(n):
        starts.append(n)

    async with Proxy(site.url) as proxy:
        worker = await site.started(once, url=proxy.url)
        for n in range(12):
            proxy.drop_reply(command("EVALSHA", "EVAL"), times=1)
            task_id = await site.submit("once", [n])
            record = await site.ends(task_id)
            assert ("SUCCESS", "1") == (record["state"], record["attempt"])
        assert list(range(12)) == starts
        assert 0 == worker.statistics()["stale"] + worker.statistics()["conflicts"]
        await worker.drain(0)
        await worker._store.gateway.close()


async def test_an_outage_is_survived_and_no_verdict_lost(site, gate):
    async with Proxy(site.url) as proxy:
        worker = await site.started(gate.hold, add, url=proxy.url, lease_ms=2_000)
        task_id = await site.submit("hold")
        await until(lambda: gate.entered == 1)
        proxy.refuse()
        proxy.cut()
        gate.open.set()
        await until(lambda: worker.statistics()["held"] == 1)
        await asyncio.sleep(0.7)
        assert "RUNNING" == (await site.record(task_id))["state"]
        proxy.refuse(False)

        assert "SUCCESS" == (await site.ends(task_id))["state"]
        assert "SUCCESS" == (await site.ends(await site.submit("add", [1, 1])))["state"]
        await worker.drain(0)
        await worker._store.gateway.close()


async def test_a_worker_that_starts_without_a_server_waits_for_it(site):
    async with Proxy(site.url) as proxy:
        proxy.refuse()
        worker = site.worker(add, url=proxy.url)
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(0.3)
        assert not starting.done()
        proxy.refuse(False)
        await starting
        assert "SUCCESS" == (await site.ends(await site.submit("add", [1, 1])))["state"]
        await worker.drain(0)
        await worker._store.gateway.close()


async def test_flushed_scripts_are_invisible(site):
    worker = await site.started(add)
    await site.gateway.command("SCRIPT", "FLUSH")

    assert "SUCCESS" == (await site.ends(await site.submit("add", [1, 1])))["state"]
    assert 0 == worker.statistics()["refused"]


async def test_a_row_the_server_refuses_does_not_hold_up_the_others(site, gate):
    worker = await site.started(gate.hold)
    ids = [await site.submit("hold") for _ in range(3)]
    await until(lambda: gate.entered == 3)
    await site.gateway.command("DEL", site.store.keys[0].task(ids[1]))
    await site.gateway.command("SET", site.store.keys[0].task(ids[1]), "broken")
    gate.open.set()

    assert "SUCCESS" == (await site.ends(ids[0]))["state"]
    assert "SUCCESS" == (await site.ends(ids[2]))["state"]
    await until(lambda: worker.statistics()["refused"] == 1)
    assert 0 == worker.statistics()["held"]


async def test_an_idle_worker_asks_little(site: Site, valkey_server: ServerProcess):
    await site.started(add)
    await asyncio.sleep(0.3)
    site._dispatching.cancel()
    await asyncio.sleep(0.05)

    before = (await site.gateway.redis.info("stats"))["total_commands_processed"]
    await asyncio.sleep(3)
    after = (await site.gateway.redis.info("stats"))["total_commands_processed"]

    # Scripts count with the commands they call: what is sent is fewer.
    assert (after - before) / 3 <= 12
    assert heartbeat_module.ANNOUNCE_EVERY_S * 3 * 1000 <= heartbeat_module.ANNOUNCE_TTL_MS
