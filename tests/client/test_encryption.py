"""App(codec=…): the program encrypts before Redis sees anything, and its workers decrypt."""

import base64
from typing import Any

import pytest
from tests.client.conftest import Make, asgi, fresh, remote
from tests.servers import ServerProcess

from tasksched import App, Conflict, Every, Invalid
from tasksched.commands.session import open_session
from tasksched.model import codec
from tasksched.model.outcome import Outcome
from tasksched.model.seal import AesGcmCodec, is_sealed
from tasksched.settings import Settings, from_environment
from tasksched.testing import harness

pytestmark = pytest.mark.anyio

KEYS = AesGcmCodec({"k1": b"k" * 32}, "k1")


def app_with(settings: Settings, **fields: Any) -> App:
    app = App(settings=settings, **fields)

    @app.task
    async def charge(invoice: str, cents: int = 1) -> str:
        return f"{invoice} {cents}"

    return app


async def test_payloads_are_encrypted_before_they_leave(valkey_server: ServerProcess):
    settings = fresh(valkey_server.url)
    async with app_with(settings, codec=KEYS) as app:
        task = await app.submit("charge", "inv_1", delay="1h")
        record = await task.refresh()
        assert ["inv_1"] == codec.decode(record.payload or b"")
        blind = App(settings=settings)
        unread = await blind.task_handle(task.id).refresh()
        assert (None, True) == (unread.payload, unread.encrypted)
        await blind.close()


async def test_a_result_that_cannot_be_read_is_no_none(valkey_server: ServerProcess):
    settings = fresh(valkey_server.url)
    session = await open_session(settings, codec=KEYS)
    async with app_with(settings) as blind:
        task = await blind.submit("charge", "inv_1")
        store = session.store
        for shard in range(store.shards):
            await store.announce(shard, "w", 60_000, ("queue:*", "route:charge"))
            await store.dispatch(shard)
            _, _, grants = await store.take(shard, "w", call=1, slots=1, lease_ms=30_000)
            for grant in grants:
                result = session.bodies.seal_result(codec.encode("x"), "default", grant.id)
                assert is_sealed(result)
                outcome = Outcome(kind="SUCCEEDED", result=result)
                await store.settle(shard, [(grant.id, grant.fence, outcome)])
        with pytest.raises(Conflict, match="encrypted"):
            await task.result("5s")
        assert "x" == codec.decode((await session.tasks.get("default", task.id)).result or b"")
    await session.close()


async def test_over_http_an_app_takes_no_codec():
    app = App("http://localhost:1", codec=KEYS)
    with pytest.raises(Invalid, match="API encrypts"):
        await app.submit("charge", "inv_1")


async def test_over_http_the_client_is_told_that_the_api_has_no_key(valkey_server: ServerProcess):
    settings = fresh(valkey_server.url)
    keyed = await open_session(settings, codec=KEYS)
    blind = await open_session(settings)
    async with app_with(settings, codec=KEYS) as app:
        task = await app.submit("charge", "inv_1", delay="1h")
        for session, expected in ((keyed, (["inv_1"], False)), (blind, (None, True))):
            backend = remote(asgi(session))
            record = await backend.get("default", task.id)
            found = codec.decode(record.payload) if record.payload else None
            assert expected == (found, record.encrypted)
            await backend.close()
    await keyed.close()
    await blind.close()


async def test_the_harness_runs_an_app_with_a_codec():
    app = App(codec=KEYS)

    @app.task(every=Every("1h"))
    async def hourly() -> int:
        return 7

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with harness(app, start="2026-01-01T00:00:00Z") as h:
        task = await add.options(delay="1m").submit(1, b=2)
        await h.advance("1h")
        assert 3 == await task.result()
        assert [3] == [run.result for run in h.runs(add)]
        assert [7] == [run.result for run in h.runs(hourly)]


async def test_keys_of_the_settings_serve_apps_too(make_app: Make):
    app = make_app(encryption_keys="k1:" + base64.b64encode(b"k" * 32).decode())
    async with app:
        task = await app.submit("charge", "inv_1", delay="1h")
        record = await task.refresh()
        assert (["inv_1"], False) == (codec.decode(record.payload or b""), record.encrypted)


def test_settings_do_not_show_their_keys(tmp_path: Any):
    file = tmp_path / "keys"
    file.write_text("k1:c2VjcmV0\n")
    found = from_environment(
        lambda value, _: int(str(value)), {"TASKSCHED_ENCRYPTION_KEYS_FILE": str(file)}
    )
    assert "k1:c2VjcmV0" == found.encryption_keys
    assert "c2VjcmV0" not in repr(found)
