"""present, enlist: a worker shows itself, for a while, also on a server that is full."""

import pytest

from tasksched.store.beats import SyncBeats
from tasksched.store.reads import Reads

pytestmark = pytest.mark.anyio

FIELDS = {"host": "h", "pid": 1, "slots": 100}


async def test_a_worker_is_listed_with_what_it_says_until_its_time_is_over(kit):
    beats = SyncBeats(kit.url, kit.store)
    beats.present("w1", FIELDS, now_ms=kit.now_ms, ttl_ms=30_000)
    reads = Reads(kit.store)

    assert [{"worker": "w1", "host": "h", "pid": "1", "slots": "100"}] == await reads.workers()
    kit.store.now_ms += 30_001
    assert [] == await reads.workers()
    beats.absent("w1")
    beats.close()
    assert not kit.plain.exists("ts:worker:w1", "ts:workers")


async def test_a_full_server_still_lists_its_workers(spawn):
    server = spawn("valkey")
    from tests.protocol.kit import open_kit  # noqa: PLC0415 - a namespace on a server of our own

    kit = await open_kit(server.url)
    kit.plain.config_set("maxmemory", "1mb")
    beats = SyncBeats(kit.url, kit.store)
    beats.present("w1", FIELDS, now_ms=kit.now_ms, ttl_ms=30_000)

    assert ["w1"] == await Reads(kit.store).members("workers")
    beats.close()
    await kit.close()
