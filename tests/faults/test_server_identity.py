"""Every call that names the server names the one it reaches, also right after a restart."""

from tests.servers import ServerProcess

from tasksched.store.connect import Gateway
from tasksched.store.protocol import Store

WORKER = "w-1"


async def test_the_first_take_after_a_restart_already_knows_the_new_server(anyio_backend, spawn):
    """Else it would start tasks before the time of the lost server's last grants has passed."""
    server: ServerProcess = spawn("valkey", "--appendonly", "yes")
    gateway = Gateway.open(server.url)
    store = Store(gateway, "ts", 1)
    await store.announce(0, WORKER, 60_000, ["route:work", "queue:*"])
    assert not (await store.take(0, WORKER, call=1, slots=1, lease_ms=2_000))[1]
    before = await gateway.command("HGET", store.keys[0].clock, "server")

    server.kill()
    server.restart()

    _, more, grants = await store.take(0, WORKER, call=2, slots=1, lease_ms=2_000)
    clock = store.keys[0].clock
    known, barrier_ms = await gateway.command("HMGET", clock, "server", "barrier_ms")
    assert known not in {None, before}
    assert barrier_ms is not None
    assert (more, grants) == (True, [])
    await gateway.close()
