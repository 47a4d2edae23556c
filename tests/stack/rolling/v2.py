"""Its second version: amounts are in cents. Old tasks are accepted where it is told so."""

import asyncio
import os

from tests.stack.handlers import SOON, witness

from tasksched import App, Ctx

app = App()
accepts = ("1",) if os.environ.get("ACCEPTS") else ()


@app.task(version="2", accepts=accepts, retry=SOON)
async def charge(ctx: Ctx, cents: int) -> list:
    witness(ctx, "start")
    await asyncio.sleep(0.01)
    witness(ctx, "v2")
    return ["v2", cents]


if accepts:

    @charge.upgrade("1")
    def _(payload: dict) -> dict:
        return {"cents": payload["euros"] * 100}
