"""An API without the key of a payload serves the task all the same, and says so."""

import base64
from collections.abc import AsyncIterator

import pytest
from tests.http.conftest import CHARGE, Rig, open_rig
from tests.servers import ServerProcess

pytestmark = pytest.mark.anyio

KEYS = "k1:" + base64.b64encode(b"k" * 32).decode()
HOURLY = {"target": CHARGE, "interval": "1h", "payload": {"a": 1}}


@pytest.fixture
async def rigs(valkey_server: ServerProcess) -> AsyncIterator[tuple[Rig, Rig]]:
    """An API with the key, and one without."""
    valkey_server.flush()
    made = [await open_rig(valkey_server.url, encryption_keys=keys) for keys in (KEYS, "")]
    yield made[0][0], made[1][0]
    for rig, session in made:
        await rig.http.aclose()
        await session.close()


async def test_without_the_key_the_payload_is_null(rigs: tuple[Rig, Rig]):
    keyed, blind = rigs
    task_id = await keyed.make(payload={"a": 1}, delay="1h")
    seen, unseen = await keyed.show(task_id), await blind.show(task_id)
    assert ({"a": 1}, None) == (seen["payload"], seen.get("encrypted"))
    assert (None, True) == (unseen["payload"], unseen["encrypted"])
    assert "corrupt" not in unseen
    for name in ("status", "version", "target", "timestamps"):
        assert seen[name] == unseen[name]


async def test_without_the_key_a_task_is_still_edited_and_cancelled(rigs: tuple[Rig, Rig]):
    keyed, blind = rigs
    task_id = await keyed.make(payload={"a": 1}, delay="1h")
    answer = await blind.ask("PATCH", f"/tasks/{task_id}", {"delay": "2h"}, If_Match="*")
    assert 200 == answer.status_code, answer.text
    assert {"a": 1} == (await keyed.show(task_id))["payload"]
    assert 200 == (await blind.ask("POST", f"/tasks/{task_id}/cancel")).status_code


async def test_a_body_that_does_not_belong_there_is_corrupt(rigs: tuple[Rig, Rig]):
    keyed, _ = rigs
    made = [await keyed.make(payload={"n": n}, delay="1h") for n in range(2)]
    stores = keyed.session.store
    keys = [stores.keys[int(task_id[-2:], 32)].task(task_id) for task_id in made]
    raw = await keyed.session.gateway.command("HGET", keys[0], "payload")
    await keyed.session.gateway.command("HSET", keys[1], "payload", raw)
    view = await keyed.show(made[1])
    assert (None, True, None) == (view["payload"], view["corrupt"], view.get("encrypted"))


async def test_a_recurring_task_says_so_too(rigs: tuple[Rig, Rig]):
    keyed, blind = rigs
    path = "/recurring-tasks/hourly"
    assert 201 == (await keyed.ask("PUT", path, HOURLY)).status_code
    seen = (await keyed.ask("GET", path)).json()
    unseen = (await blind.ask("GET", path)).json()
    assert ({"a": 1}, None) == (seen["payload"], seen.get("encrypted"))
    assert (None, True) == (unseen["payload"], unseen["encrypted"])
    page = (await blind.ask("GET", "/recurring-tasks")).json()
    assert [True] == [item["encrypted"] for item in page["items"]]
    assert "payload" not in page["items"][0]


async def test_a_payload_that_was_not_read_is_not_lost_by_an_edit(rigs: tuple[Rig, Rig]):
    keyed, blind = rigs
    path = "/recurring-tasks/hourly"
    await keyed.ask("PUT", path, HOURLY)
    shown = await blind.ask("GET", path)
    etag = shown.headers["etag"]
    put = await blind.ask("PUT", path, {**shown.json(), "interval": "2h"}, If_Match=etag)
    patch = await blind.ask("PATCH", path, {"interval": "2h"}, If_Match=etag)
    assert (422, 409) == (put.status_code, patch.status_code)
    assert "/payload" == put.json()["errors"][0]["pointer"]
    assert {"a": 1} == (await keyed.ask("GET", path)).json()["payload"]
    again = await keyed.ask("PATCH", path, {"interval": "2h"}, If_Match=etag)
    assert (200, {"a": 1}) == (again.status_code, again.json()["payload"])
