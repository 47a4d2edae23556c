"""The first version of a program: amounts are in euros."""

import asyncio

from tests.stack.handlers import SOON, witness

from tasksched import App, Ctx

app = App()


@app.task(version="1", retry=SOON)
async def charge(ctx: Ctx, euros: int) -> list:
    witness(ctx, "start")
    await asyncio.sleep(0.01)
    witness(ctx, "v1")
    return ["v1", euros * 100]
