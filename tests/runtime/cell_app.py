"""The app of the cells' tests: what a handler can do to the process it runs in."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from tasksched import App, Ctx
from tasksched.errors import Conflict
from tasksched.model.control import Discard, RetryLater

app = App()


@app.task(process=True)
def whoami(*args, **kwargs):
    in_main = threading.current_thread() is threading.main_thread()
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        in_main = False
    return [os.getpid(), in_main, list(args), kwargs]


@app.task(process=True)
async def whoami_async():
    await asyncio.sleep(0)
    return os.getpid()


@app.task
def plain():
    return os.getpid()


@app.task(process=True)
def broken(word):
    raise ValueError(word)


@app.task(process=True)
async def broken_async(word):
    await asyncio.sleep(0)
    raise ValueError(word)


@app.task(process=True)
def later():
    raise RetryLater("7s")


@app.task(process=True)
def discarded():
    raise Discard("no such invoice")


@app.task(process=True)
def unencodable():
    return {1, 2}


@app.task(process=True)
async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(30)


@app.task(process=True)
def big(length):
    return "x" * length


@app.task(process=True)
def said(ctx: Ctx, word):
    ctx.log.info("said", word=word)
    ctx.heartbeat_sync(0.25, "first")
    for n in range(2_000):
        ctx.heartbeat_sync(n / 2_000, "many")
    ctx.heartbeat_sync(1.0, word)
    timed = ctx.deadline is not None and 0 < ctx.deadline - time.monotonic() < 60
    return [ctx.task_id, ctx.attempt, ctx.fence, ctx.tenant, ctx.queue, list(ctx.tags), timed]


@app.task(process=True)
def kept(ctx: Ctx, value):
    for n in range(300):
        ctx.line(f"line {n}")
    before = ctx.restore_sync("nothing")
    ctx.checkpoint_sync(value)
    return [before, ctx.restore_sync(), ctx.callback_token]


@app.task(process=True)
async def kept_async(ctx: Ctx, value):
    before = await ctx.restore("nothing")
    await ctx.checkpoint(value)
    ctx.line("the last word")
    return [before, await ctx.restore(), ctx.callback_token]


@app.task(process=True)
def deferred(ctx: Ctx):
    return ctx.defer("5s")


def _mark(path):
    Path(path).write_text(str(os.getpid()))


@app.task(process=True)
def busy(path):
    _mark(path)
    while True:
        sum(range(1000))


@app.task(process=True)
def stubborn(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    busy.entry.function(path)


@app.task(process=True)
def polite(ctx: Ctx, path):
    _mark(path)
    while not ctx.cancelled:
        time.sleep(0.005)
    return "so be it"


@app.task(process=True)
async def tidy(path, trace):
    _mark(path)
    try:
        await asyncio.sleep(60)
    finally:
        _mark(trace)


@app.task(process=True)
def lonely(ctx: Ctx, path):
    _mark(path)
    while not ctx.lease_lost:
        time.sleep(0.005)
    return "fenced off"


@app.task(process=True)
def exits(status):
    os._exit(status)


@app.task(process=True)
def killed(*, forks=False):
    if forks and os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(process=True)
def quits():
    raise SystemExit(3)


@app.task
def fragile():
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(version="3", accepts=("1", "2"), process=True)
def moved(cents):
    return cents


@moved.upgrade("1")
def _(payload):
    return {"euros": payload[0]}


@moved.upgrade("2")
def _(payload):
    return {"cents": payload["euros"] * 100}


@app.task(process=True)
def haunting(ctx: Ctx, path):
    """Leaves a thread behind that goes on speaking for a run that is over."""

    def haunt():
        while not Path(path).exists():
            ctx.line("from beyond")
            ctx.heartbeat_sync(0.5, "from beyond")
            with contextlib.suppress(Conflict):
                ctx.checkpoint_sync("from beyond")

    threading.Thread(target=haunt, daemon=True).start()


@app.task(process=True)
def haunted(ctx: Ctx, path):
    time.sleep(0.6)
    ctx.line("mine")
    Path(path).write_text("enough")
    return ctx.restore_sync("nothing")
