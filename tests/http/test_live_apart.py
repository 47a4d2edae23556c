"""Event streams of several tenants: nobody takes them all, and no place tells of another's doings."""

from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack

import pytest
from tests.http.conftest import CHARGE, Rig, open_rig
from tests.http.keys_kit import Guarded, open_guarded
from tests.http.test_live import Listener, begun
from tests.servers import ServerProcess

from tasksched.errors import Malformed, TooManyRequests
from tasksched.http.streams import Streams
from tasksched.model.place import PlaceSeal
from tasksched.store.feed import Place, Places

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(valkey_server: ServerProcess) -> AsyncIterator[Guarded]:
    valkey_server.flush()
    async with open_guarded(valkey_server.url, sse_connections_max=8) as found:
        yield found


# -- how many -------------------------------------------------------------------------------------


async def test_a_tenant_has_a_quarter_of_the_streams_whatever_its_keys(api: Guarded):
    keys = [(await api.key(tenant="globex")).text for _ in range(2)]
    async with AsyncExitStack() as stack:
        for text in keys:
            sent = {"Authorization": f"Bearer {text}"}
            listener = await stack.enter_async_context(Listener(api, "/events", **sent))
            assert 200 == listener.status
        for path in ("/events", "/tenants/globex/export"):
            sent = {"Authorization": f"Bearer {keys[0]}"}
            listener = await stack.enter_async_context(Listener(api, path, **sent))
            assert 429 == listener.status
            assert 0 < int(listener.headers[b"retry-after"])
        for key in (await api.key(tenant="acme"), await api.key("admin", tenant="*")):
            sent = {"Authorization": f"Bearer {key.text}", "Tasksched_Tenant": key.tenant}
            sent = {name: value for name, value in sent.items() if value != "*"}
            listener = await stack.enter_async_context(Listener(api, "/events", **sent))
            assert 200 == listener.status
    assert (0, {}) == (api.services.streams.open, api.services.streams._of)
    assert 200 == await api.status("GET", "/tenants/globex/export", keys[0])


async def test_who_has_a_key_of_every_tenant_or_needs_none_may_have_all(
    api: Guarded, valkey_server: ServerProcess
):
    rig, session = await open_rig(valkey_server.url, sse_connections_max=8)
    root = {"Authorization": f"Bearer {(await api.key('admin', tenant='*')).text}"}
    async with AsyncExitStack() as stack:
        for _ in range(8):
            listener = await stack.enter_async_context(Listener(api, "/events", **root))
            assert 200 == listener.status
        for _ in range(8):
            listener = await stack.enter_async_context(Listener(rig, "/events"))
            assert 200 == listener.status
    await rig.http.aclose()
    await session.close()


@pytest.mark.parametrize(("most", "share"), [(1, 1), (3, 1), (7, 1), (8, 2), (100, 25)])
def test_a_share_is_a_quarter_and_at_least_one(most: int, share: int):
    streams, found = Streams(), 0
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(streams.one(most, "acme"))
            except TooManyRequests:
                break
            found += 1
    assert (share, 0) == (found, streams.open)


# -- where ----------------------------------------------------------------------------------------


async def test_a_place_tells_nothing_and_is_another_word_each_time(rig: Rig):
    places: list[str] = []
    for n in range(3):
        async with Listener(rig, "/events") as listener:
            await begun(listener)
            places.append(listener.place)
        if n:
            body = {"target": CHARGE, "delay": "1h"}
            await rig.ask("POST", "/tasks", body, Tasksched_Tenant="other")
    assert 3 == len(set(places))
    assert 1 == len({len(place) for place in places})
    found = [
        entry[0][0].split(b"-")[0]
        for keys in rig.session.store.keys
        if (entry := await rig.session.gateway.command("XREVRANGE", keys.events, "+", "-"))
    ]
    assert found
    for ms in found:
        raw = int(ms).to_bytes(6)
        assert not any(raw in urlsafe_b64decode(place + "==") for place in places)


async def test_a_place_of_one_process_is_read_by_another(rig: Rig, valkey_server: ServerProcess):
    other, session = await open_rig(valkey_server.url)
    async with Listener(rig, "/events") as listener:
        await begun(listener)
    task_id = await rig.make(delay="1h")
    async with Listener(other, "/events", Last_Event_ID=listener.place) as again:
        event = await again.next()
        assert event is not None
        assert task_id == event.data["task_id"]
    await other.http.aclose()
    await session.close()


def test_a_place_is_read_where_it_was_written_and_nowhere_else():
    place = Place([(1, 2), (3, 4)], 1, 5)
    ours = Places(b"ours", 2)
    word = ours.write(place)
    assert place == ours.read(word)
    changed = ("B" if word[0] == "A" else "A") + word[1:]
    for places, text in [
        (Places(b"theirs", 2), word), (ours, changed), (ours, word[:-4]), (ours, ""), (ours, "é"),
        (ours, PlaceSeal(b"ours").seal(b"")), (ours, Places(b"ours", 3).write(Place([(1, 2)] * 3))),
    ]:  # fmt: skip
        with pytest.raises(Malformed):
            places.read(text)
