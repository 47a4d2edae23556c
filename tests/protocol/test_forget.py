"""forget: a shard drops what it remembers of a tenant, once the tenant has no tasks there."""

import pytest
from tests.protocol.kit import BOOKKEEPING, DONE, Kit, spec

from tasksched.commands.removal import Memory, Removal
from tasksched.model.limits import TenantRules
from tasksched.model.states import FINAL, STATES
from tasksched.store.limits import Limits, Tell
from tasksched.store.rules import RuleBook, tenant_field

pytestmark = pytest.mark.anyio
TENANT = "acme"


def traces(kit: Kit) -> list[str]:
    """Keys that name the tenant, and entries within keys; the rules and the event log stay."""
    dump = kit.dump(without=["conf", "events"])
    home = kit.store.global_keys.conf
    return sorted(key for key, value in dump.items() if TENANT in f"{key} {value}" and key != home)


async def lived(kit: Kit) -> None:
    """The tenant has limits, and had a task that ran to its end and was removed."""
    rules = TenantRules(max_running=3, dispatch_rate=50)
    await RuleBook(kit.store).put(tenant_field(TENANT), rules.words, 0)
    await kit.dispatch()  # it is noticed
    limits = Limits(kit.store)
    await limits.allot(f"t/{TENANT}", 3, 0, [(0, 0, 0, 2, 0)])
    await limits.apportion(f"t/{TENANT}", Tell(0, 2, kit.now_ms, 0, 0))
    await limits.ration(f"rt/{TENANT}", 50, 9)
    await limits.credit(0, f"rt/{TENANT}", 9, kit.now_ms + 1_000, kit.now_ms)
    task_id = await kit.submit(spec(tenant=TENANT, queue="mail"))
    await kit.announce()
    await kit.settle(await kit.start(task_id), DONE)
    await Removal(kit.store, Memory(0, 0)).delete(TENANT, task_id)


@pytest.mark.parametrize("state", STATES)
async def test_who_has_a_task_is_not_forgotten(kit: Kit, state: str):
    await kit.task_in(state, tenant=TENANT)
    before = kit.dump()

    assert await kit.store.forget(0, TENANT, ["default"]) == "busy"
    assert before == kit.dump()


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_one_in_a_queue_that_was_not_named_is_noticed_too(kit: Kit, state: str):
    await kit.task_in(state, tenant=TENANT, queue="mail")
    assert await kit.store.forget(0, TENANT, []) == "busy"


async def test_nothing_names_the_tenant_any_more(kit: Kit):
    await lived(kit)
    assert traces(kit) != []

    assert await kit.store.forget(0, TENANT, ["mail"]) == "forgotten"
    assert traces(kit) == []


async def test_others_are_not_touched_and_again_is_nothing(kit: Kit):
    await kit.task_in("SUCCESS", tenant="acme2")
    await kit.task_in("PENDING", tenant="other")
    await lived(kit)
    await kit.store.forget(0, TENANT, ["mail"])
    before = kit.dump(without=BOOKKEEPING)

    assert await kit.store.forget(0, TENANT, ["mail"]) == "forgotten"
    assert before == kit.dump(without=BOOKKEEPING)
    assert kit.audit() == []


async def test_what_stood_parked_goes_too(kit: Kit):
    """Paused: its lanes wait for the setting; without a worker: its streams for the route."""
    book = RuleBook(kit.store)
    waiting = [await kit.submit(spec(tenant=TENANT)) for _ in range(2)]
    await book.switch(tenant_field(TENANT), "paused", on=True)
    await kit.dispatch()
    await kit.announce()
    await kit.dispatch()
    assert kit.plain.zrange(kit.keys.parked, 0, -1) == [b"default:normal:acme:charge"]
    for task_id in waiting:
        await Removal(kit.store, Memory(0, 0)).delete(TENANT, task_id)

    assert await kit.store.forget(0, TENANT, []) == "forgotten"
    assert traces(kit) == []


async def test_lanes_beyond_one_call(kit: Kit):
    for n in range(520):
        task_id = await kit.submit(spec(tenant=TENANT, queue=f"q{n}"))
        await Removal(kit.store, Memory(0, 0)).delete(TENANT, task_id)

    assert await kit.store.forget(0, TENANT, [f"q{n}" for n in range(520)]) == "forgotten"
    assert traces(kit) == []


async def test_a_tenant_with_more_queues_than_a_call_takes(kit: Kit):
    queues = [f"q{n}" for n in range(300)]
    for queue in ("q1", "q299"):
        task_id = await kit.submit(spec(tenant=TENANT, queue=queue))
        await Removal(kit.store, Memory(0, 0)).delete(TENANT, task_id)

    assert await kit.store.forget(0, TENANT, queues) == "forgotten"
    assert traces(kit) == []
