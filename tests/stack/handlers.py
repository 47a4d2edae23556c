"""The app of the stories. Every start and every end is witnessed: one line in a file, from inside.

The witness is what the outside world would see of a run. A line is one ``write`` to a file opened for
appending, so lines of several processes do not mix, and a killed process leaves whole lines only.
"""

import asyncio
import json
import os
import signal
import time

from tasksched import App, Ctx
from tasksched.model.retry import Retry

SOON = Retry(max_attempts=10, initial="100ms", max="200ms", max_lost=10)

app = App()
_file = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def witness(ctx: Ctx, what: str) -> None:
    line = {"what": what, "id": ctx.task_id, "attempt": ctx.attempt, "fence": ctx.fence}
    line |= {"pid": os.getpid(), "at": time.time()}
    os.write(_file, json.dumps(line).encode() + b"\n")


@app.task(retry=SOON)
async def work(ctx: Ctx, seconds: float = 0) -> float:
    """Takes its time, and gives way to the others."""
    witness(ctx, "start")
    await asyncio.sleep(seconds)
    witness(ctx, "end")
    return seconds


@app.task(retry=SOON)
async def busy(ctx: Ctx, seconds: float) -> str:
    """Holds the event loop all the time."""
    witness(ctx, "start")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    witness(ctx, "end")
    return "done"


@app.task(retry=SOON, process=True)
def crunch(ctx: Ctx, seconds: float) -> str:
    """Holds the interpreter lock of a process of its own."""
    witness(ctx, "start")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    witness(ctx, "end")
    return "done"


@app.task(retry=SOON)
async def flaky(ctx: Ctx, failures: int) -> int:
    """Fails so many times, then succeeds."""
    witness(ctx, "start")
    if ctx.attempt <= failures:
        raise RuntimeError(f"attempt {ctx.attempt} fails")
    witness(ctx, "end")
    return ctx.attempt


@app.task(retry=Retry(max_attempts=3, initial="100ms", max="100ms"))
async def suicide(ctx: Ctx) -> None:
    """Takes its whole process along."""
    witness(ctx, "start")
    os.kill(os.getpid(), signal.SIGKILL)


async def _late(ctx: Ctx) -> str:
    witness(ctx, "start")
    witness(ctx, "end")
    return "at last"


# What only some workers know: "late" or "report@2", as a rolling deployment would have it.
for _route in filter(None, os.environ.get("KNOWS", "").split(",")):
    _name, _, _version = _route.partition("@")
    app.task(name=_name, version=_version or None, retry=SOON)(_late)
