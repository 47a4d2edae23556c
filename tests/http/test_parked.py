"""What waits without a worker: told by the task itself and by the metrics."""

import re

import pytest
from tests.http.conftest import CHARGE

from tasksched.http.system import ROUTES_MAX

pytestmark = pytest.mark.anyio


async def dispatched(rig) -> str:
    for shard in range(rig.session.store.shards):
        for _ in range(3):  # a call looks at a bounded number of streams
            await rig.session.store.dispatch(shard)
    return (await rig.ask("GET", "/metrics")).text


def of_routes(metrics: str) -> dict[str, float]:
    pairs = re.findall(r'tasksched_tasks_without_worker\{route="(.+?)"\} (\S+)', metrics)
    return {route: float(number) for route, number in pairs}


async def test_the_versions_that_are_served_are_named(rig):
    versioned = {**CHARGE, "version": "1"}
    homeless = await rig.make(target=versioned)
    for route in ("charge@2", "charge", "recharge", "charges@1"):
        await rig.start(route=route)
    (why,) = (await rig.show(homeless))["why_waiting"]

    assert why == {
        "reason": "no_worker_for_handler",
        "detail": "no live worker serves charge@1; served now: charge, charge@2",
        "route": "charge@1",
        "served": ["charge", "charge@2"],
    }


async def test_metrics_count_due_tasks_of_all_tenants_by_route_and_forget_them(rig):
    assert "tasksched_parked_streams{" not in await dispatched(rig)
    for version in ("1", "1", "2"):
        await rig.make(target={**CHARGE, "version": version})
    await rig.make(target={**CHARGE, "version": "1"}, delay="1h")
    text = await dispatched(rig)

    assert {"charge@1": 2, "charge@2": 1} == of_routes(text)
    assert re.search(r'tasksched_parked_streams\{reason="no_worker"\} [23]\.0', text)
    await rig.start(route="charge@1")
    assert {"charge@2": 1} == of_routes(await dispatched(rig))


async def test_beyond_so_many_routes_the_rest_is_one(rig):
    bodies = [{"target": {**CHARGE, "version": str(n)}} for n in range(ROUTES_MAX + 7)]
    await rig.ask("POST", "/tasks/batch", [*bodies, *bodies[:3]])
    found = of_routes(await dispatched(rig))

    assert ROUTES_MAX + 1 == len(found)
    assert [2, 2, 2, 7] == [found[name] for name in ("charge@0", "charge@1", "charge@2", "_other")]
