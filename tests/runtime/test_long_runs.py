"""What runs say while they run, what they leave to the next attempt, and runs that go on elsewhere."""

import asyncio
import threading

import pytest
from tests.runtime.kit import Site, until

from tasksched.errors import Conflict, Invalid, TooLarge
from tasksched.model.callback import callback_token
from tasksched.model.outcome import Outcome
from tasksched.runtime.context import Ctx
from tasksched.store.protocol import Beat
from tasksched.store.reads import LINES_MAX, Reads

pytestmark = pytest.mark.anyio

DONE = Outcome(kind="SUCCEEDED", result=b"\x01")


async def texts_of(site: Site, task_id: str) -> list[str]:
    return [line.text for line in await Reads(site.store).lines(task_id)]


# -- lines ----------------------------------------------------------------------------------------


async def test_lines_are_there_while_it_runs_and_all_of_them_at_its_end(site: Site):
    go_on = asyncio.Event()

    async def talk(ctx: Ctx) -> None:
        ctx.line("one")
        ctx.line("two")
        await go_on.wait()
        ctx.line("three")

    await site.started(talk)
    task_id = await site.submit("talk")
    async with asyncio.timeout(10):
        while await texts_of(site, task_id) != ["one", "two"]:
            await asyncio.sleep(0.02)
    go_on.set()
    assert "SUCCESS" == (await site.ends(task_id))["state"]
    assert ["one", "two", "three"] == await texts_of(site, task_id)


async def test_a_verdict_waits_for_lines_that_are_under_way(site: Site):
    """A task that has ended takes no more lines: those must not be overtaken on another connection."""
    sent, go_on = asyncio.Event(), asyncio.Event()

    async def talk(ctx: Ctx) -> None:
        ctx.line("the last word")
        await sent.wait()

    worker = site.worker(talk)
    lines = worker._store.lines

    async def slow(*args: object) -> list[str]:
        sent.set()
        await go_on.wait()
        return await lines(*args)  # type: ignore[arg-type]

    worker._store.lines = slow  # type: ignore[method-assign,assignment]
    await worker.start()
    task_id = await site.submit("talk")
    await sent.wait()
    await until(lambda: worker._completer.held == 1)
    assert "RUNNING" == (await site.record(task_id))["state"]
    go_on.set()
    await site.ends(task_id)
    assert ["the last word"] == await texts_of(site, task_id)


async def test_of_a_flood_the_last_lines_are_kept_in_order(site: Site):
    async def flood(ctx: Ctx) -> None:
        for n in range(5_000):
            ctx.line(f"{n}")
            if n % 1_000 == 0:
                await asyncio.sleep(0.05)

    await site.started(flood)
    task_id = await site.submit("flood")
    await site.ends(task_id)
    assert [str(n) for n in range(5_000 - LINES_MAX, 5_000)] == await texts_of(site, task_id)


async def test_threads_may_speak_at_once(site: Site):
    def choir(ctx: Ctx) -> None:
        def sing(voice: int) -> None:
            for n in range(40):
                ctx.line(f"{voice} {n}")

        voices = [threading.Thread(target=sing, args=(voice,)) for voice in range(4)]
        for each in voices:
            each.start()
        for each in voices:
            each.join()

    await site.started(choir)
    task_id = await site.submit("choir")
    assert "SUCCESS" == (await site.ends(task_id))["state"]
    found = await texts_of(site, task_id)
    for voice in range(4):
        mine = [text for text in found if text.startswith(f"{voice} ")]
        assert [f"{voice} {n}" for n in range(40)] == mine


async def test_a_line_of_any_size_and_text_does_no_harm(site: Site):
    async def odd(ctx: Ctx) -> None:
        ctx.line("x" * 100_000)
        ctx.line("\ud800 \x00 ü")

    await site.started(odd)
    task_id = await site.submit("odd")
    assert "SUCCESS" == (await site.ends(task_id))["state"]
    first, second = await texts_of(site, task_id)
    assert len(first.encode()) <= 1_024
    assert "\\ud800 \x00 ü" == second


# -- checkpoints ----------------------------------------------------------------------------------


async def test_the_next_attempt_finds_the_checkpoint_of_one_that_crashed(site: Site):
    seen: list[object] = []

    async def pages(ctx: Ctx) -> int:
        page = await ctx.restore(0)
        seen.append(page)
        if page < 2:
            await ctx.checkpoint(page + 1)
            raise RuntimeError("crash")
        return page

    await site.started(pages)
    task_id = await site.submit("pages")
    assert "SUCCESS" == (await site.ends(task_id))["state"]
    assert ([0, 1, 2], 2) == (seen, await site.result(task_id))


async def test_threads_keep_and_restore_too(site: Site):
    def pages(ctx: Ctx) -> object:
        if ctx.attempt == 1:
            ctx.checkpoint_sync({"page": 7})
            raise RuntimeError("crash")
        return ctx.restore_sync()

    await site.started(pages)
    task_id = await site.submit("pages")
    await site.ends(task_id)
    assert {"page": 7} == await site.result(task_id)


@pytest.mark.timeout(30)  # one that waits for its own loop hears nothing else
async def test_a_coroutine_that_would_wait_for_its_own_loop_is_told_so(site: Site):
    told: list[str] = []

    async def confused(ctx: Ctx) -> str:
        for wait in (lambda: ctx.checkpoint_sync(1), ctx.restore_sync):
            with pytest.raises(RuntimeError) as raised:
                wait()
            told.append(str(raised.value))
        await asyncio.to_thread(ctx.checkpoint_sync, "kept")
        return await ctx.restore()

    await site.started(confused)
    task_id = await site.submit("confused")
    assert "SUCCESS" == (await site.ends(task_id))["state"]
    assert "kept" == await site.result(task_id)
    assert [
        "checkpoint_sync here would wait for this very loop: await checkpoint",
        "restore_sync here would wait for this very loop: await restore",
    ] == told


async def test_what_cannot_be_kept_is_refused_to_its_handler(site: Site):
    refused: list[type] = []

    async def greedy(ctx: Ctx) -> None:
        for value in ("x" * 70_000, {1}):
            try:
                await ctx.checkpoint(value)
            except (TooLarge, Invalid) as error:
                refused.append(type(error))

    await site.started(greedy)
    task_id = await site.submit("greedy")
    assert "SUCCESS" == (await site.ends(task_id))["state"]
    assert [TooLarge, Invalid] == refused


async def test_a_run_that_was_overtaken_keeps_nothing(site: Site):
    go_on, refused = asyncio.Event(), []

    async def slow(ctx: Ctx) -> None:
        await go_on.wait()
        try:
            await ctx.checkpoint("late")
        except Conflict as error:
            refused.append(error)

    await site.started(slow)
    task_id = await site.submit("slow")
    await site.comes_to(task_id, "RUNNING")
    key = site.store.keys[0].task(task_id)
    fence = int(await site.gateway.command("HGET", key, "fence")) + 1
    await site.gateway.command("HSET", key, "fence", fence)
    go_on.set()
    await until(lambda: len(refused) == 1)
    assert None is await Reads(site.store).checkpoint(task_id)


# -- going on elsewhere ---------------------------------------------------------------------------


async def test_a_deferred_run_frees_its_slot_and_is_completed_by_its_token(site: Site):
    site.store.secret = b"secret"
    told: list[tuple[int, str]] = []

    async def later(ctx: Ctx):
        ctx.line("over to you")
        told.append((ctx.fence, ctx.callback_token))
        return ctx.defer("1h")

    async def now() -> str:
        return "ran"

    worker = await site.started(later, now, concurrency=1)
    ids = [await site.submit("later") for _ in range(3)]
    other = await site.submit("now")
    assert "SUCCESS" == (await site.ends(other))["state"]
    await until(lambda: worker.statistics()["deferred"] == 3)
    assert (0, 0) == (worker.statistics()["running"], worker.statistics()["held"])

    for task_id in ids:
        record = await site.record(task_id)
        assert ("RUNNING", "1") == (record["state"], record["deferred"])
        assert ["over to you"] == await texts_of(site, task_id)
        token = callback_token(b"secret", task_id, record["fence"])
        assert (int(record["fence"]), token) in told
        assert ["SUCCESS"] == await site.store.settle(0, [(task_id, record["fence"], DONE)])


async def test_a_worker_that_leaves_leaves_what_it_deferred(site: Site):
    async def later(ctx: Ctx):
        return ctx.defer("1h")

    worker = await site.started(later)
    task_id = await site.submit("later")
    await until(lambda: worker.statistics()["deferred"] == 1)
    await worker.drain(0)
    record = await site.record(task_id)
    assert ("RUNNING", "1") == (record["state"], record["deferred"])
    assert ["ok"] == await site.store.heartbeat(0, [Beat(task_id, record["fence"], 1_000)])


async def test_a_callback_that_comes_before_the_handler_returns_is_the_verdict(site: Site):
    go_on = asyncio.Event()

    async def later(ctx: Ctx):
        await go_on.wait()
        return ctx.defer()

    worker = await site.started(later)
    task_id = await site.submit("later")
    fence = (await site.comes_to(task_id, "RUNNING"))["fence"]
    assert ["SUCCESS"] == await site.store.settle(0, [(task_id, fence, DONE)])
    go_on.set()
    await until(lambda: worker.statistics()["running"] == 0 and not worker.statistics()["held"])
    record = await site.record(task_id)
    assert ("SUCCESS", "SUCCEEDED") == (record["state"], record["outcome"])


@pytest.mark.parametrize("lease", ["100ms", "31d", -1, "soon"])
async def test_a_lease_that_is_none_fails_the_attempt(site: Site, lease):
    async def later(ctx: Ctx):
        return ctx.defer(lease)

    await site.started(later)
    task_id = await site.submit("later")
    record = await site.ends(task_id)
    assert ("FAILED", "attempts_exhausted") == (record["state"], record["reason"])
