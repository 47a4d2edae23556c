"""The connection to Redis: pools, replays, and what each error reply means. Once, here.

The library's own replays are switched off: redis-py would send a write that timed out again up to
ten times. We do replay, knowingly: every script of ours may be run again after an unknown outcome
(a lost reply), so ``run`` repeats it until it is answered or patience ends. Every reply that says
"not now" (LOADING, READONLY, MISCONF, OOM …) is an outage to be survived, never a reason to die.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import hiredis
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tasksched import clock
from tasksched.errors import (
    BY_CODE,
    MemoryBudget,
    Overloaded,
    TaskschedError,
    Unavailable,
    Unsafe,
)
from tasksched.store.acl import script_commands
from tasksched.store.address import NO_TLS, Tls, async_client, remarks
from tasksched.store.scripts import Arg, Script, script

COMMAND_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64
PATIENCE_MS = 10_000
RETRY_AFTER_MS = 1_000
HERE = "the server of this connection"
OOM_RETRY_AFTER_MS = 5_000
NAMING_MAX = 16  # arguments of a command that names the server; longer ones are not searched

# Replies that mean "this server cannot serve now"; each is refused before anything ran.
_OUTAGE = (
    "LOADING", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN",
    "BUSY", "UNBLOCKED", "MOVED", "ASK",
)  # fmt: skip


_DENIALS = ("ACL failure in script", "The user executing the script can't run this command")

INTAKE = frozenset({"submit", "put_schedule", "trigger", "redrive"})
"""Scripts that take something in: the admission is asked first."""


class Admission(Protocol):
    """Who is asked before something is taken in (``commands.admission``)."""

    async def carry(self, call: Callable[[], Awaitable[Any]], /) -> Any: ...


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
        self.admission: Admission | None = None
        self.denied: frozenset[str] = frozenset()  # commands that our user may not run
        self.knows_denied = False
        self.remarks: list[str] = []  # about the way to the server
        self.replays = 0

    @classmethod
    def open(cls, url: str, *, patience_ms: int = PATIENCE_MS, tls: Tls = NO_TLS) -> "Gateway":
        """A gateway to ``url`` (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``).

        ``patience_ms``: for how long ``run`` repeats a call during an outage. Raises Invalid for a
        URL or for files of ``tls`` that cannot be used.
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
        gateway = cls(_client(url, tls, options), patience_ms=patience_ms)
        gateway.remarks = remarks(url)
        return gateway

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
        replayed = partial(self._replayed, name, values, rows, patience_ms)
        if self.admission is not None and name in INTAKE:
            return await self.admission.carry(replayed)
        return await replayed()

    async def _replayed(
        self,
        name: str,
        values: Mapping[str, Arg],
        rows: Sequence[Sequence[Arg]],
        patience_ms: int | None,
    ) -> Any:
        found, is_unknown = script(name), False
        if self.denied and (missing := script_commands(name) & self.denied):
            raise Unsafe(  # Redis would run it up to there, and keep what it wrote
                f"the Redis user may not run {', '.join(sorted(missing))}, so {name} was not begun"
            )
        until_ms = clock.mono_ms() + (self._patience_ms if patience_ms is None else patience_ms)
        wait_s = 0.02
        while True:
            packed = found.pack({**values, "server": self.server}, rows)
            try:
                return await self._evaluate(found, packed)
            except RedisError as error:
                meant = meaning(error)
                # Waiting here for memory would only add load: whoever asked may do that.
                is_final = not meant.retryable or isinstance(meant, Overloaded)
                if is_unknown and isinstance(meant, Overloaded):  # it may have been done before
                    meant = Unavailable(meant.detail, **meant.extra)
                if is_final or clock.mono_ms() + wait_s * 1000 > until_ms:
                    raise meant from error
            self.replays += 1
            is_unknown = True
            await asyncio.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 1.0)

    async def _evaluate(self, found: Script, packed: list[Arg]) -> Any:
        count, send = len(found.keys), self.redis.execute_command
        try:
            if found.reads_only:  # for users who may do no more
                return await send("EVALSHA_RO", found.sha, count, *packed)
            return await send("EVALSHA", found.sha, count, *packed)
        except NoScriptError:  # a restart, a failover or SCRIPT FLUSH: nothing ran
            if found.reads_only:
                return await send("EVAL_RO", found.source, count, *packed)
            return await send("EVAL", found.source, count, *packed)

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

    async def attempts(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As ``pipeline``, but a command's error stands where its reply would; replies are raw."""
        pipe = self.redis.pipeline(transaction=False)
        for name, *arguments in commands:
            pipe.execute_command(name.encode(), *arguments)
        try:
            return list(await pipe.execute(raise_on_error=False))
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


def is_denial(error: object) -> bool:
    """Whether our user lacks a permission. Within scripts, Redis has no code for it but a sentence."""
    return isinstance(error, NoPermissionError) or (
        isinstance(error, ResponseError) and str(error).startswith(_DENIALS)
    )


def meaning(error: RedisError) -> TaskschedError:
    """What an error of the client library means to us."""
    if is_denial(error):
        return Unsafe(f"the Redis user lacks a permission, see docs/security.md: {error}")
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return Unavailable(f"Redis does not answer: {error}", retry_after_ms=RETRY_AFTER_MS)
    text = str(error)
    code = text.split(" ", 1)[0]
    # redis-py turns some codes into classes and strips them from the text.
    kind = type(error).__name__.removesuffix("Error").upper()
    if code in _OUTAGE or kind in {"BUSYLOADING", "READONLY", "MASTERDOWN", "TRYAGAIN"}:
        return Unavailable(f"Redis refuses: {text}", retry_after_ms=RETRY_AFTER_MS)
    if code == "OOM" or kind == "OUTOFMEMORY":
        return MemoryBudget(
            "Redis is out of memory: nothing new is accepted", retry_after_ms=OOM_RETRY_AFTER_MS
        )
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


def _client(url: str, tls: Tls, options: dict[str, Any]) -> Any:
    client = async_client(url, tls, options)
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
