"""The connection to Redis: pools, replays, and what each error reply means. Once, here.

The library's own replays are switched off: redis-py would send a write that timed out again up to
ten times. We do replay, knowingly: every script of ours may be run again after an unknown outcome
(a lost reply), so ``run`` repeats it until it is answered or patience ends. Every reply that says
"not now" (LOADING, READONLY, MISCONF, OOM …) is an outage to be survived, never a reason to die.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
import redis.asyncio as redis_asyncio
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tasksched import clock
from tasksched.errors import BY_CODE, TaskschedError, Unavailable
from tasksched.store.scripts import Arg, script

COMMAND_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64
PATIENCE_MS = 10_000
RETRY_AFTER_MS = 1_000
HERE = "the server of this connection"
NAMING_MAX = 16  # arguments of a command that names the server; longer ones are not searched

# Replies that mean "this server cannot serve now"; each is refused before anything ran.
_OUTAGE = (
    "LOADING", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN",
    "BUSY", "UNBLOCKED", "MOVED", "ASK",
)  # fmt: skip


class Unannounced(TaskschedError):
    """This shard does not know the worker (any more): announce, then ask again."""

    code = "UNANNOUNCED"


class Gateway:
    """All commands of one process to one Redis. Safe for concurrent use in one event loop."""

    def __init__(self, client: Any, *, patience_ms: int = PATIENCE_MS) -> None:
        # Any: the library leaves execute_command and friends untyped.
        self.redis: Any = client
        self._patience_ms = patience_ms
        self.server: str = HERE  # a test may name another one
        self.replays = 0

    @classmethod
    def open(cls, url: str, *, patience_ms: int = PATIENCE_MS) -> "Gateway":
        """A gateway to ``url`` (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``).

        ``patience_ms``: for how long ``run`` repeats a call during an outage.
        """

        async def greet(connection: Connection) -> None:
            """Every new connection says which server it reached: a failover is a new run id."""
            connection.pack_command = _packer("")  # type: ignore[method-assign]
            await connection.on_connect()
            await connection.send_command("INFO", "server")
            run_id = _run_id(await connection.read_response())
            connection.pack_command = _packer(run_id)  # type: ignore[method-assign]

        options: dict[str, Any] = {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": COMMAND_TIMEOUT_S,
            "socket_connect_timeout": COMMAND_TIMEOUT_S,
            "max_connections": CONNECTIONS_MAX,
            "redis_connect_func": greet,
        }
        return cls(_client(url, options), patience_ms=patience_ms)

    async def run(
        self,
        name: str,
        values: Mapping[str, Arg],
        rows: Sequence[Sequence[Arg]] = (),
        *,
        patience_ms: int | None = None,
    ) -> Any:
        """The reply of the script ``name``; replayed after lost replies until patience ends.

        Raises Unavailable when Redis did not answer (what was sent may have run), or the error
        whose code the script answered.
        """
        found = script(name)
        count = len(found.keys)
        until_ms = clock.mono_ms() + (self._patience_ms if patience_ms is None else patience_ms)
        wait_s = 0.02
        while True:
            packed = found.pack({**values, "server": self.server}, rows)
            try:
                return await self._evaluate(found.sha, found.source, count, packed)
            except RedisError as error:
                meant = meaning(error)
                if not meant.retryable or clock.mono_ms() + wait_s * 1000 > until_ms:
                    raise meant from error
            self.replays += 1
            await asyncio.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 1.0)

    async def _evaluate(self, sha: str, source: str, count: int, packed: list[Arg]) -> Any:
        try:
            return await self.redis.execute_command("EVALSHA", sha, count, *packed)
        except NoScriptError:  # a restart, a failover or SCRIPT FLUSH: nothing ran
            return await self.redis.execute_command("EVAL", source, count, *packed)

    async def command(self, *args: Any) -> Any:
        """One plain command, asked once. Raises Unavailable, or TaskschedError for a refusal."""
        try:
            return await self.redis.execute_command(*args)
        except RedisError as error:
            raise meaning(error) from error

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Several reads in one round trip, not atomic. Errors as ``command``."""
        pipe = self.redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        try:
            return list(await pipe.execute())
        except RedisError as error:
            raise meaning(error) from error

    async def close(self) -> None:
        await self.redis.aclose()


def _packer(run_id: str) -> Callable[..., list[bytes]]:
    """Commands as bytes, with the server that this connection reached where one is to be named.

    Only the connection knows: what the last reply came from may be dead when the command is sent.
    redis-py itself would encode 1,600 arguments of a batch one by one, in Python.
    """

    def pack(*args: Any) -> list[bytes]:
        if len(args) < NAMING_MAX and any(arg is HERE for arg in args):
            args = tuple(run_id if arg is HERE else arg for arg in args)
        return [hiredis.pack_command(args)]

    return pack


def meaning(error: RedisError) -> TaskschedError:
    """What an error of the client library means to us."""
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return Unavailable(f"Redis does not answer: {error}", retry_after_ms=RETRY_AFTER_MS)
    text = str(error)
    code = text.split(" ", 1)[0]
    # redis-py turns some codes into classes and strips them from the text.
    kind = type(error).__name__.removesuffix("Error").upper()
    if code in _OUTAGE or kind in {"BUSYLOADING", "READONLY", "MASTERDOWN", "TRYAGAIN"}:
        return Unavailable(f"Redis refuses: {text}", retry_after_ms=RETRY_AFTER_MS)
    if code == "OOM" or kind == "OUTOFMEMORY":
        refusal = Unavailable(
            "Redis is out of memory: nothing new is accepted", retry_after_ms=5000
        )
        refusal.retryable = False  # type: ignore[misc]  # waiting here would only add load
        return refusal
    if isinstance(error, ResponseError) and code == Unannounced.code:
        return Unannounced(text)
    if isinstance(error, ResponseError) and code in BY_CODE:
        return BY_CODE[code](text)
    return TaskschedError(f"Redis refused a command: {text}")


def _run_id(info: bytes | str) -> str:
    text = info.decode() if isinstance(info, bytes) else info
    for line in text.splitlines():
        if line.startswith("run_id:"):
            return line[7:]
    return ""


def _client(url: str, options: dict[str, Any]) -> Any:
    if url.startswith("redis+sentinel://"):
        hosts, _, service = url.removeprefix("redis+sentinel://").partition("/")
        pairs = [
            (host, int(port or 26379))
            for host, _, port in (h.partition(":") for h in hosts.split(","))
        ]
        sentinel: Any = Sentinel(pairs, socket_timeout=COMMAND_TIMEOUT_S)  # type: ignore[no-untyped-call]  # untyped there
        client: Any = sentinel.master_for(service or "mymaster", **options)
    else:
        client = redis_asyncio.Redis.from_url(url, **options)
    client.connection_pool.connection_class = _cancellable(client.connection_pool.connection_class)
    return client


def _cancellable(kind: Any) -> Any:
    """The connection class, able to be cancelled while it sends.

    The library sends inside ``asyncio.wait_for``, which before Python 3.12 loses a cancellation
    that comes in the turn in which the sending is done (gh-86296): Ctrl-C went unheard, and so did
    the timeouts of callers. It also made a task for each command.
    """

    class Cancellable(kind):  # type: ignore[misc]  # its base is known when it runs
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if not self.is_connected:
                await self.connect()
            if check_health:
                await self.check_health()
            try:
                async with asyncio.timeout(self.socket_timeout):
                    self._writer.writelines([command] if isinstance(command, bytes) else command)
                    await self._writer.drain()
            except TimeoutError:
                await self.disconnect(nowait=True)
                raise RedisTimeoutError("Timeout writing to socket") from None
            except OSError as error:
                await self.disconnect(nowait=True)
                raise RedisConnectionError(f"Error while writing to socket: {error}") from error
            except BaseException:
                await self.disconnect(nowait=True)  # half a command may be on its way
                raise

    return Cancellable
