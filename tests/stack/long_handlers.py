"""The app of the stories about long runs: what it hands over stands in the witness file."""

import asyncio
import json
import os

from tasksched import App, Ctx
from tasksched.model.retry import Retry

app = App()
_file = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task(retry=Retry(max_attempts=5, initial="100ms", max="100ms"))
async def elsewhere(ctx: Ctx, lease: str):
    """Hands its run over to whoever reads the witness file."""
    ctx.line(f"attempt {ctx.attempt} goes elsewhere")
    token = ctx.callback_token
    line = {"what": "start", "id": ctx.task_id, "attempt": ctx.attempt, "fence": ctx.fence}
    os.write(
        _file, json.dumps({**line, "pid": os.getpid(), "at": 0, "token": token}).encode() + b"\n"
    )
    return ctx.defer(lease)


@app.task
async def talk(ctx: Ctx, lines: int) -> int:
    """Says so many lines."""
    for n in range(lines):
        ctx.line(f"line {n}")
    await ctx.heartbeat(1.0, "said")
    await asyncio.sleep(0.5)  # a beat takes a moment, and is not waited for
    return lines
