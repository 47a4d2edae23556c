"""The proxy itself, against real servers: a fault injector that lies is worse than none."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as LateReply
from tests.proxy import Proxy, command
from tests.servers import ServerProcess

pytestmark = pytest.mark.anyio

INCR = "return redis.call('INCR', KEYS[1])"


def connect(url: str, **options) -> Redis:
    """A client that sends everything exactly once."""
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


@pytest.fixture
async def proxy(redis_server: ServerProcess) -> AsyncIterator[Proxy]:
    async with Proxy(redis_server.url) as started:
        yield started


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
async def client(request, proxy: Proxy) -> AsyncIterator[Redis]:
    async with connect(proxy.url, protocol=request.param) as connected:
        yield connected


async def test_replies_of_every_shape_pass_unchanged(client: Redis):
    await client.hset("hash", mapping={"field": b"\r\n\0binary\xff", "empty": ""})
    await client.zadd("zset", {"a": 1.5, "b": 2})
    await client.set("long", "x" * 1_000_000)

    assert await client.hgetall("hash") == {b"field": b"\r\n\0binary\xff", b"empty": b""}
    assert [tuple(pair) for pair in await client.zrange("zset", 0, -1, withscores=True)] == [
        (b"a", 1.5),
        (b"b", 2.0),
    ]
    assert len(await client.get("long")) == 1_000_000
    assert await client.get("absent") is None
    assert await client.eval("return {1, {'two', {false}}, ''}", 0) == [1, [b"two", [None]], b""]
    assert "redis_version" in await client.info("server")


async def test_a_dropped_reply_was_executed_once_and_ends_the_connection(
    client: Redis, proxy: Proxy
):
    rule = proxy.drop_reply(command("EVAL"))

    with pytest.raises(LostConnection):
        await client.eval(INCR, 1, "counter")

    assert await client.get("counter") == b"1"
    assert await client.eval(INCR, 1, "counter") == 2
    assert (rule.hits, proxy.dropped) == (1, 1)


async def test_a_rule_sees_the_arguments(client: Redis, proxy: Proxy):
    proxy.drop_reply(lambda words: words[:2] == [b"SET", b"this"])

    await client.set("other", 1)
    with pytest.raises(LostConnection):
        await client.set("this", 1)

    assert proxy.dropped == 1


async def test_the_right_reply_of_a_pipeline_is_dropped(client: Redis, proxy: Proxy):
    proxy.drop_reply(command("LPUSH"))
    pipeline = client.pipeline(transaction=False)
    pipeline.set("before", 1).lpush("list", "a").set("after", 1)

    with pytest.raises(LostConnection):
        await pipeline.execute()

    assert await client.mget("before", "after") == [b"1", b"1"]
    assert await client.llen("list") == 1


async def test_a_delayed_reply_comes_late_and_others_do_not(client: Redis, proxy: Proxy):
    proxy.delay(command("ECHO"), 0.1)
    begun = time.monotonic()

    await client.ping()
    undelayed_s = time.monotonic() - begun
    await client.echo("hello")
    total_s = time.monotonic() - begun

    assert undelayed_s < 0.1 <= total_s


async def test_refused_connections_are_closed_until_it_is_over(proxy: Proxy):
    async with connect(proxy.url) as client:
        proxy.refuse()
        with pytest.raises(LostConnection):
            await client.ping()
        proxy.refuse(False)
        assert await client.ping()


async def test_a_cut_ends_a_blocking_read(client: Redis, proxy: Proxy):
    reading = asyncio.create_task(client.blpop(["nothing"], timeout=30))
    await seen(proxy, command_count=proxy.commands_seen + 1)

    proxy.cut()

    with pytest.raises(LostConnection):
        await reading
    assert await client.ping()


async def test_a_blackhole_is_silent_and_delivers_when_it_ends(proxy: Proxy):
    async with connect(proxy.url, socket_timeout=0.1) as hasty, connect(proxy.url) as patient:
        await hasty.ping()
        await patient.ping()
        proxy.blackhole()

        waiting = asyncio.create_task(patient.set("late", 1))
        with pytest.raises(LateReply):
            await hasty.ping()
        assert not waiting.done()
        proxy.blackhole(False)

        assert await waiting


async def test_messages_pass_beside_replies(client: Redis, proxy: Proxy):
    proxy.drop_reply(command("GET"))
    async with client.pubsub() as listener:
        await listener.subscribe("first", "second")
        await listener.psubscribe("sec*")
        kinds = [(await hear(listener))["type"] for _ in range(3)]
        await client.publish("second", "hello")
        kinds += [(await hear(listener))["type"] for _ in range(2)]
        await listener.ping()
        kinds.append((await hear(listener))["type"])

    assert kinds == ["subscribe", "subscribe", "psubscribe", "message", "pmessage", "pong"]
    assert proxy.dropped == 0


async def test_a_push_is_not_taken_for_a_reply(proxy: Proxy):
    async with connect(proxy.url, protocol=3, single_connection_client=True) as client:
        await client.execute_command("CLIENT", "TRACKING", "ON", "BCAST", "NOLOOP")
        proxy.drop_reply(command("INCRBY"))
        async with connect(proxy.url) as other:
            await other.set("x", 1)  # the server pushes an invalidation to the first client

        assert await client.echo("PONG") == b"PONG"
        with pytest.raises(LostConnection):
            await client.incr("x")


async def test_commands_are_counted(client: Redis, proxy: Proxy):
    await client.ping()
    before = proxy.commands_seen

    await client.pipeline(transaction=True).set("a", 1).set("b", 2).execute()

    assert proxy.commands_seen - before == 4  # MULTI, two, EXEC


async def test_tcp_works_like_a_socket(valkey_server: ServerProcess):
    async with Proxy(valkey_server.url, tcp=True) as proxy, connect(proxy.url) as client:
        assert await client.ping()
        proxy.cut()
        with pytest.raises(LostConnection):
            await client.ping()


async def seen(proxy: Proxy, command_count: int) -> None:
    async with asyncio.timeout(5):
        while proxy.commands_seen < command_count:
            await asyncio.sleep(0)


async def hear(listener) -> dict:
    async with asyncio.timeout(5):
        while (message := await listener.get_message(timeout=5)) is None:
            pass
    return message
