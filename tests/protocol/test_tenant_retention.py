"""Retention by the janitor: what a tenant has set for itself, else what the installation says."""

import pytest
from tests.protocol.kit import DAY_MS, HOUR_MS, Kit

from tasksched.commands.tenants import RetentionChoice, Tenants
from tasksched.errors import PreconditionFailed
from tasksched.model.tenant import Secret, TenantSettings
from tasksched.runtime.janitor import Janitor, Retention
from tasksched.store.records import Records

pytestmark = pytest.mark.anyio

USUAL = Retention(
    success_ms=DAY_MS,
    failed_ms=14 * DAY_MS,
    count_max=1_000,
    bytes_max=1 << 40,
    key_memory_ms=DAY_MS,
    id_memory_ms=HOUR_MS,
)


async def clean(kit: Kit) -> int:
    janitor = Janitor(kit.store, USUAL, look_ms=1_000)
    await janitor.clean(0)
    return janitor.removed


async def choose(kit: Kit, tenant: str = "default", **choice: int) -> None:
    await Tenants(kit.store).put(tenant, retention=RetentionChoice(**choice))


async def test_without_a_choice_the_installations_settings_hold(valkey: Kit):
    done = await valkey.task_in("SUCCESS")
    dead = await valkey.task_in("FAILED")
    valkey.leap(DAY_MS)
    assert 1 == await clean(valkey)
    assert ("", "FAILED") == (valkey.state(done), valkey.state(dead))


async def test_where_the_choice_cannot_be_read_nothing_goes(valkey: Kit):
    """Seeded by hand: it may have chosen more than the usual."""
    mine = await valkey.task_in("SUCCESS", tenant="acme")
    theirs = await valkey.task_in("SUCCESS")
    valkey.plain.hset(valkey.store.global_keys.tenants, "acme", "1 {")
    valkey.leap(DAY_MS)
    assert 1 == await clean(valkey)
    assert ("SUCCESS", "") == (valkey.state(mine), valkey.state(theirs))


@pytest.mark.parametrize(
    ("choice", "gone"),
    [
        ({"success_ms": HOUR_MS}, {"SUCCESS", "CANCELLED"}),
        ({"failed_ms": HOUR_MS}, {"FAILED"}),
        ({"count_max": 1}, {"SUCCESS"}),
        ({"count_max": 0}, {"SUCCESS", "CANCELLED"}),
        ({"bytes_max": 1}, {"SUCCESS", "CANCELLED", "FAILED"}),
        ({"success_ms": 0, "failed_ms": 0}, {"SUCCESS", "CANCELLED", "FAILED"}),
    ],
)
async def test_a_tenant_has_its_own(valkey: Kit, choice: dict[str, int], gone: set[str]):
    mine, theirs = {}, {}
    for state in ("SUCCESS", "CANCELLED", "FAILED"):
        mine[state] = await valkey.task_in(state, tenant="acme")
        theirs[state] = await valkey.task_in(state)
        valkey.leap(1)
    await choose(valkey, "acme", **choice)
    valkey.leap(HOUR_MS)
    assert len(gone) == await clean(valkey)
    assert gone == {state for state, task_id in mine.items() if not valkey.state(task_id)}
    assert set(theirs) == {valkey.state(task_id) for task_id in theirs.values()}


async def test_retention_takes_the_groups_along(valkey: Kit):
    await valkey.task_in("FAILED")
    await choose(valkey, failed_ms=0)
    assert 1 == await clean(valkey)
    assert [] == [key for key in valkey.dump() if ":group" in key]


async def test_a_choice_leaves_secrets_alone_and_may_name_the_version(valkey: Kit):
    records = Records(valkey.store, valkey.store.global_keys.tenants, TenantSettings)
    await records.put("default", TenantSettings(secrets=(Secret("whsec_x"),)))
    tenants = Tenants(valkey.store)
    await tenants.put("default", retention=RetentionChoice(count_max=5), version=1)
    kept = await tenants.get("default")
    assert (2, 5, "whsec_x") == (
        kept.state.version,
        kept.settings.retention_count_max,
        kept.settings.secrets[0].value,
    )
    with pytest.raises(PreconditionFailed):
        await tenants.put("default", retention=RetentionChoice(), version=1)
    await tenants.put("default", retention=RetentionChoice(count_max=5))
    assert 2 == (await tenants.get("default")).state.version
