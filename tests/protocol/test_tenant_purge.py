"""Purge of a tenant: asked until it is done, nothing of the tenant is left, and others stay as they were."""

from typing import Any

import pytest
from tests.protocol.kit import BROKEN, DONE, HOUR_MS, Kit, open_kit, spec
from tests.servers import ServerProcess

from tasksched.commands import tenant_purge
from tasksched.commands.endpoints import Endpoints, EndpointSpec
from tasksched.commands.keys import Keys, KeySpec
from tasksched.commands.operations import Operations, Request
from tasksched.commands.queues import Queues
from tasksched.commands.recurring import Recurring
from tasksched.commands.removal import Memory
from tasksched.commands.tenant_purge import Purged, TenantPurge
from tasksched.commands.tenants import RetentionChoice, Tenants
from tasksched.model.filters import Filter
from tasksched.model.recurring import ScheduleSpec
from tasksched.model.schedule import Cron
from tasksched.model.states import STATES
from tasksched.model.task import Concurrency

pytestmark = pytest.mark.anyio
TENANT, OTHER = "acme", "acme2"


@pytest.fixture
async def kit(redis_server: ServerProcess):
    found = await open_kit(redis_server.url, shards=3)
    yield found
    assert found.audit() == []
    await found.close()


async def furnish(kit: Kit, tenant: str) -> None:
    """A tenant with some of everything."""
    store = kit.store
    await Queues(store).pause_share(tenant, "mail")
    await Endpoints(store).create(
        tenant, EndpointSpec(url="https://x.example/h", events=("task.failed",))
    )
    await Keys(store).create(KeySpec(name="k", tenant=tenant, scopes=("tasks:read",)))
    template = spec(tenant=tenant)
    await Recurring(store).put(ScheduleSpec(id="nightly", template=template, rule=Cron("@daily")))
    for state in STATES:
        await kit.task_in(state, tenant=tenant)
    await Tenants(store).put(
        tenant, retention=RetentionChoice(success_ms=HOUR_MS), limits={"max_running": 50}
    )
    held = Concurrency("one", 1)
    for _ in range(2):
        await kit.submit(spec(tenant=tenant, queue="mail", concurrency=held))
    for shard in (1, 2):
        await store.submit(
            shard, [(kit.new_id(shard), spec(tenant=tenant, payload=b"x" * 5000), "")]
        )
    await kit.dispatch()
    everything = Request(kind="redrive", tenant=tenant, filter=Filter(), rate=1)
    await Operations(store, Memory(0, 0)).start(everything)


async def finish(kit: Kit, tenant: str) -> int:
    """What runs of the tenant ends; how many."""
    running = []
    for key in kit.plain.scan_iter("*:task:*"):
        record = kit.plain.hgetall(key)
        if record[b"state"] == b"RUNNING" and f":{tenant}:" in record[b"lane"].decode():
            running.append((key.decode().rsplit(":", 1)[1], record[b"fence"].decode(), DONE))
    words = await kit.store.settle(0, running) if running else []
    assert set(words) <= {"SUCCESS"}
    return len(words)


async def purged(kit: Kit, tenant: str = TENANT) -> list[Purged]:
    """What each request said, until the last."""
    purge, found = TenantPurge(kit.store), []
    for _ in range(50):
        found.append(await purge.purge(tenant))
        if found[-1].done or found[-1].running:
            for shard in range(kit.store.shards):
                await kit.store.dispatch(shard)
            return found
    raise AssertionError(found[-1])


def named(kit: Kit, tenant: str) -> dict[str, Any]:
    """What names the tenant, but what is said to stay: the audit, the rules' versions, the event log."""
    stays = ("audit", "conf", "events", "api_keys")
    return {
        key: value
        for key, value in kit.dump().items()
        if f"{tenant}:" in f"{key}:{value}:".replace("'", ":").replace("/", ":")
        and not key.endswith(stays)
        and ":purged:" not in key
        and ":stub:" not in key
    }


async def test_all_of_it_goes_and_others_stay(kit: Kit):
    await furnish(kit, TENANT)
    await furnish(kit, OTHER)
    before = {key: value for key, value in named(kit, OTHER).items() if "task:" in key}

    first = (await purged(kit))[-1]
    assert (first.done, first.api_keys, first.webhooks, first.recurring_tasks) == (False, 1, 1, 1)
    assert first.running == await finish(kit, TENANT) > 0
    last = (await purged(kit))[-1]

    assert (last.done, last.left, last.api_keys) == (True, 0, 0)
    assert named(kit, TENANT) == {}
    assert before == {key: value for key, value in named(kit, OTHER).items() if "task:" in key}
    (gone, stays) = sorted(await Keys(kit.store).list(), key=lambda key: key.tenant)
    assert [(gone.tenant, gone.state), (stays.tenant, stays.state)] == [
        (TENANT, "revoked"), (OTHER, "active"),
    ]  # fmt: skip
    assert [state.name for state in await Tenants(kit.store).all()] == [OTHER]
    (_, entry) = kit.plain.xrevrange(kit.store.global_keys.audit, count=1)[0]
    assert (b"purge", b"keys revoke") == (entry[b"key"], entry[b"route"])


async def test_nothing_starts_while_it_is_not_done(kit: Kit):
    waits = await kit.task_in("PENDING", tenant=TENANT)
    runs = await kit.task_in("RUNNING", tenant=TENANT)
    found = await TenantPurge(kit.store).purge(TENANT)
    state = (await Tenants(kit.store).get(TENANT)).state

    assert (found.done, found.tasks, found.left, found.running) == (False, 1, 1, 1)
    assert (state.rules.paused, state.rules.draining) == (True, True)
    assert kit.state(waits) == ""
    assert kit.record(runs)["cancel_requested"] == "1"


async def test_a_run_that_ends_meanwhile_leaves_nothing(kit: Kit):
    """Also where its end would be tried again, or told to somebody."""
    runs = await kit.task_in("RUNNING", tenant=TENANT)
    await TenantPurge(kit.store).purge(TENANT)
    await kit.settle((runs, kit.fence(runs)), BROKEN)

    assert (await purged(kit))[-1].done
    assert named(kit, TENANT) == {}


async def test_a_tenant_that_was_purged_may_begin_anew(kit: Kit):
    await furnish(kit, TENANT)
    await finish(kit, TENANT)
    assert (await purged(kit))[-1].done
    state = (await Tenants(kit.store).get(TENANT)).state

    assert (state.rules.paused, state.rules.draining, state.rules.max_running) == (
        False,
        False,
        None,
    )
    assert kit.state(await kit.task_in("SUCCESS", tenant=TENANT)) == "SUCCESS"


async def test_nobody_is_purged_twice(kit: Kit):
    nothing = Purged(
        tasks=0, recurring_tasks=0, webhooks=0, api_keys=0, left=0, running=0, done=True
    )
    assert [nothing] == await purged(kit, "nobody")


async def test_a_request_does_a_bounded_part(kit: Kit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_purge, "TASKS_MAX", 200)
    await kit.submit_many(300, spec(tenant=TENANT))
    await kit.submit_many(150, spec(tenant=TENANT, delay_ms=HOUR_MS))

    assert [found.tasks for found in await purged(kit)] == [200, 200, 50]
