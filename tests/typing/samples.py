"""What type checkers must accept, and reject. A line that ends with ``# wrong`` has an error.

Nothing here is run: ``test_typing.py`` has it checked and compares the lines.
"""

from datetime import UTC, datetime, timedelta
from typing import assert_type

from tasksched import (
    App,
    Cron,
    Ctx,
    Delay,
    Discard,
    Every,
    Operation,
    Recurring,
    Retry,
    RetryLater,
    RRule,
    Submitter,
    Task,
    TaskFailed,
)

app = App()


@app.task(retry=Retry(max_attempts=5, initial="1s", max="5m", never=(ValueError,)), timeout="30s")
async def charge(ctx: Ctx, invoice: str, cents: int = 1) -> str:
    await ctx.heartbeat(0.5, "calling the bank")
    if cents == 0:
        raise Discard("nothing to charge")
    if cents < 0:
        raise RetryLater("30s", reason="bank busy")
    return f"{invoice} {cents}"


@app.task
async def notify(address: str, *, subject: str) -> None: ...


@app.task
def resize(ctx: Ctx, path: str) -> int:
    return len(path) + ctx.attempt


@app.task(queue="cpu")
def add(a: int, b: int) -> int:
    return a + b


@app.task(version="3", accepts=("1", None), process=True)
def crunch(ctx: Ctx, numbers: list[int]) -> int:
    return sum(numbers) + ctx.attempt


@crunch.upgrade("1")
def one_number(payload: list[int]) -> list[list[int]]:
    return [payload]


@app.task(cron=Cron("30 2 * * *", tz="Europe/Paris"), schedule_options={"overlap": "allow"})
async def nightly() -> None: ...


@app.task(every="15m", schedule_options={"id": "often", "jitter": timedelta(seconds=5)})
def often(ctx: Ctx, much: int = 1) -> int:
    return much + (0 if ctx.nominal_at is None else ctx.nominal_at.hour)


async def accepted(ctx: Ctx) -> None:
    assert_type(await charge.submit("inv_1", cents=100), Task[str])
    assert_type(await charge(ctx, "inv_1", 100), str)
    assert_type(await (await charge.submit("inv_1")).result("30s"), str)
    assert_type(await notify("a@b.c", subject="hi"), None)
    assert_type(resize(ctx, "/a.png"), int)
    assert_type(resize.submit_sync("/a.png"), Task[int])
    assert_type(add(1, 2), int)
    assert_type(await crunch.submit([1, 2]), Task[int])
    assert_type(one_number([1]), list[list[int]])
    assert_type(await add.options(delay=timedelta(minutes=5)).submit(1, b=2), Task[int])
    chosen: Submitter[[int, int], int] = add.options(
        at=datetime(2026, 12, 24, 18, tzinfo=UTC), key="k", tags=["q4"], priority="high"
    )
    assert_type(await app.submit_many(chosen.call(n, 1) for n in range(10)), list[Task[int]])
    assert_type(app.submit_many_sync([add.call(1, 2)]), list[Task[int]])
    await app.submit("billing.charge", "inv_1", 100, key="charge:inv_1")
    async for task in app.find(status="FAILED", handler="billing.*"):
        try:
            print(await task.result(1), task.created)
        except TaskFailed as failed:
            print(failed.error, failed.record.attempts)


async def accepted_recurring() -> None:
    s = await charge.every(Every("15m"), id="quarterly", overlap="skip").create("inv_9", 5)
    assert_type(s, Recurring[str])
    assert_type(await s.trigger(), Task[str])
    assert_type([fire.at_ms for fire in s.next_fires(10)], list[int])
    await s.edit(rule=Cron("@daily"), queue="q", jitter=None, version=2)
    await s.backfill("2026-01-01T00:00:00Z", datetime(2026, 1, 2, tzinfo=UTC), dry_run=True)
    assert_type(notify.every("1h", id="n").put_sync("a@b.c", subject="hi"), Recurring[None])
    assert_type(await add.options(queue="q").every("@hourly", id="a").put(1, b=2), Recurring[int])
    await resize.every(Delay("5m"), id="d", after="success").create("/a.png")
    await nightly.every(RRule("FREQ=MONTHLY"), id="m", tenant="acme", max_runs=3).create()
    async for each in app.find_recurring(status="PAUSED"):
        print(each.id, each.description, (await each.resume()).next_ms)
    print(app.recurring("quarterly").record, app.declared)


async def rejected_recurring() -> None:
    await charge.every("15m", id="q").create(1)  # wrong
    await notify.every("15m", id="q").put("a@b.c")  # wrong
    await add.every("15m", id="q").create(1, 2, overlap="skip")  # wrong
    add.every("15m", id="q", overlap="maybe")  # wrong
    add.every("15m", id="q", colour="red")  # wrong
    add.every("15m", overlap="skip")  # wrong
    app.task(cron="@daily", schedule_options={"overlap": "maybe"})  # wrong
    app.find_recurring_sync(status="RUNNING")  # wrong
    await app.recurring("q").edit(priority="urgent")  # wrong


async def many_at_once(task: Task[str]) -> None:
    assert_type(await app.dead.redrive(queue="billing", rate=50), Operation)
    async for dead in app.dead.list(handler="billing.*", finished_from=datetime.now(UTC)):
        print(dead.id)
    print([group.count for group in await app.dead.groups(reason="expired")])
    await app.operations.edit({"delay": timedelta(hours=2)}, status=["PENDING", "QUEUED"])
    await (await app.operations.cancel(tag="eu", priority="low")).wait("1m")
    await task.retry(payload=["inv_1"], queue="slow", delay="1h")
    task.delete_sync(version=3)


async def rejected_many(task: Task[str]) -> None:
    await app.dead.redrive(colour="red")  # wrong
    await app.dead.purge(rate="fast")  # wrong
    await app.dead.groups(tag="x")  # wrong
    await app.operations.cancel(priority="urgent")  # wrong
    await app.operations.edit({"colour": "red"}, all=True)  # wrong
    await task.retry(colour="red")  # wrong


async def rejected(ctx: Ctx) -> None:
    await charge.submit(1)  # wrong
    await charge.submit("inv_1", euros=1)  # wrong
    await charge.submit(ctx, "inv_1")  # wrong
    await charge("inv_1", 100)  # wrong
    await notify.submit("a@b.c")  # wrong
    resize.submit_sync()  # wrong
    resize("/a.png")  # wrong
    add("1", 2)  # wrong
    add.options(delay="1h").call(1)  # wrong
    add.options(prio="high")  # wrong
    add.options(priority="urgent")  # wrong
    await add.submit(1, 2, delay="1h")  # wrong
    number: str = await (await add.submit(1, 2)).result()  # wrong
    app.task(lease=None, colour="red")  # wrong
    app.task(accepts=(1, 2))  # wrong
    crunch.upgrade(1)  # wrong
    print(number)
