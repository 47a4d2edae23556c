"""Background tasks end, also where a cancellation is lost on its way to them."""

import asyncio

import pytest

from tasksched.ending import end

pytestmark = pytest.mark.anyio


async def deaf(cancellations: int, heard: list[int]) -> None:
    """Loses that many cancellations, as ``asyncio.wait_for`` may before Python 3.12."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(cancellations)
            if len(heard) > cancellations:
                raise


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_cancellation_that_is_lost_is_said_again(lost: int):
    heard: list[int] = []
    task = asyncio.create_task(deaf(lost, heard))
    await asyncio.sleep(0)

    await end([task], again_s=0)

    assert task.cancelled()
    assert heard == [lost] * (lost + 1)


async def test_what_they_raise_is_dropped():
    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it ended")

    async def ready() -> int:
        return 1

    tasks = [asyncio.create_task(broken()), asyncio.create_task(ready())]
    await asyncio.sleep(0)

    await end(tasks)

    assert [isinstance(tasks[0].exception(), ValueError), tasks[1].result()] == [True, 1]


async def test_nothing_is_ended_at_once():
    await end([])
