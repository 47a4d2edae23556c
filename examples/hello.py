"""Five handlers to play with. ``make run`` serves them; so does ``tasksched dev examples/hello.py:app``.

Then, in another shell: ``tasksched submit hello name=world --wait 10s``.
"""

import asyncio
import random

from tasksched import App, Cron, Ctx, Retry

app = App()


@app.task
async def hello(name: str) -> str:
    return f"hello, {name}"


@app.task
def add(a: int, b: int) -> int:
    """Not a coroutine: it runs in a thread."""
    return a + b


@app.task(retry=Retry(max_attempts=10, initial="200ms", max="5s"))
async def flaky(ctx: Ctx) -> str:
    """Fails most of the time, and is tried again."""
    if random.random() < 0.7:
        raise ConnectionError(f"attempt {ctx.attempt} had no luck")
    return f"worked at attempt {ctx.attempt}"


@app.task(timeout="5m")
async def slow(ctx: Ctx, steps: int = 10) -> int:
    """Takes a second a step, and says how far it is."""
    for step in range(steps):
        await ctx.heartbeat(step / steps, f"step {step + 1} of {steps}")
        await asyncio.sleep(1)
    return steps


@app.task(cron=Cron("0 9 * * MON-FRI", tz="Europe/Paris"))
async def good_morning(ctx: Ctx) -> str:
    """Recurring: workers create it when they start. ``tasksched recurring trigger good_morning``."""
    return f"good morning, it is {ctx.nominal_at:%A}"
