"""submit_many: order, keys, refusals, iterables of every kind."""

from collections.abc import AsyncIterator

import pytest
from tests.client.conftest import Stage

from tasksched import Call, KeyReused, PartlyFailed, Task, Unavailable
from tasksched.client.direct import Direct

pytestmark = pytest.mark.anyio


async def test_handles_come_in_the_order_of_the_calls(stage: Stage):
    tasks = await stage.app.submit_many(stage.add.options(delay="1h").call(n) for n in range(2_345))

    assert len({task.id for task in tasks}) == 2_345
    assert await stage.count() == 2_345
    for n in (0, 199, 200, 999, 1_000, 2_344):
        record = await tasks[n].refresh()
        assert record.payload == bytes([0x91]) + _packed(n)


def _packed(number: int) -> bytes:
    if number < 128:
        return bytes([number])
    return b"\xcc" + bytes([number]) if number < 256 else b"\xcd" + number.to_bytes(2)


async def test_keys_are_honoured_and_many_may_be_repeated(stage: Stage):
    def calls() -> list[Call[int]]:
        return [stage.add.options(key=f"k{n}").call(n) for n in range(300)]

    first = await stage.app.submit_many(calls())
    again = await stage.app.submit_many(calls())

    assert [task.id for task in again] == [task.id for task in first]
    assert {task.created for task in first} == {True}
    assert {task.created for task in again} == {False}
    assert await stage.count() == 300


async def test_a_refusal_does_not_stop_the_others(stage: Stage):
    await stage.add.options(key="k1").submit(99)

    with pytest.raises(PartlyFailed, match="1 of 3 tasks were refused") as refused:
        await stage.app.submit_many(stage.add.options(key=f"k{n}").call(n) for n in range(3))

    kinds = [type(answer) for answer in refused.value.answers]
    assert kinds == [Task, KeyReused, Task]
    assert await stage.count() == 3


async def test_tenants_may_be_mixed(stage: Stage):
    tasks = await stage.app.submit_many(
        stage.add.options(tenant=f"t{n % 3}").call(n) for n in range(9)
    )
    assert [(await task.refresh()).tenant for task in tasks] == ["t0", "t1", "t2"] * 3


async def test_asynchronous_iterables_are_taken(stage: Stage):
    async def calls() -> AsyncIterator[Call[int]]:
        for n in range(450):
            yield stage.add.call(n)

    assert len(await stage.app.submit_many(calls())) == 450
    assert await stage.app.submit_many([]) == []


async def test_an_error_in_the_callers_iterable_comes_through(stage: Stage):
    with pytest.raises(TypeError, match="missing a required argument"):
        await stage.app.submit_many(stage.add.call() for _ in range(3))  # type: ignore[call-arg]


async def test_nobody_answering_ends_it(direct: Stage, monkeypatch: pytest.MonkeyPatch):
    async def away(self: Direct, specs: object) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(Direct, "submit_many", away)
    with pytest.raises(Unavailable):
        await direct.app.submit_many(direct.add.call(n) for n in range(1_000))
