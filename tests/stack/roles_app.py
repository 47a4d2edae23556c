"""The app of the story about roles: it talks, it fails, it recurs, and leaves a checkpoint."""

from tasksched import App, Ctx, Every
from tasksched.model.retry import Retry

app = App()


@app.task(retry=Retry(max_attempts=2, initial="50ms", max="50ms"))
async def talk(ctx: Ctx, words: int) -> int:
    """Uses all that a run may say; succeeds the second time."""
    for n in range(words):
        ctx.line(f"word {n}")
    await ctx.heartbeat(1.0, "said")
    await ctx.checkpoint({"words": words})
    if ctx.attempt == 1:
        raise OSError("not yet")
    return words


@app.task(retry=Retry(max_attempts=1))
async def broken() -> None:
    raise ValueError("no")


@app.task(every=Every("1h"))
async def hourly() -> None:
    """Declared in the code: the worker puts it."""
