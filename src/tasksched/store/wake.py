"""Wake: one subscription per process to the sharded channels of a kind (``wake``, ``finished``).

Messages are hints: work has arrived, an earlier due time, a verdict. Each loop that sleeps on them
also looks by itself now and then, so a lost message delays and never loses. After a reconnect
``missed`` is called, because what was said meanwhile is gone. A silent connection is probed, since
a frozen server keeps its sockets open.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError

from tasksched import log
from tasksched.ending import end
from tasksched.store.connect import Gateway, is_denial

PROBE_S = 15.0
RECONNECT_S = 0.2
DENIED_S = 10.0

_log = log.get("wake")


class Listener:
    """Calls ``hear(shard, message)`` for every message of the channels; survives every outage."""

    def __init__(
        self,
        gateway: Gateway,
        channels: Sequence[str],
        hear: Callable[[int, str], None],
        missed: Callable[[], None],
    ) -> None:
        self._gateway = gateway
        self._shards = {channel.encode(): n for n, channel in enumerate(channels)}
        self._hear = hear
        self._missed = missed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._listen(), name="wake")

    async def stop(self) -> None:
        if self._task is not None:
            await end([self._task])

    async def _listen(self) -> None:
        while True:
            try:
                await self._subscribed()
            except (RedisError, OSError, TimeoutError) as error:
                if is_denial(error):
                    _log.error("wake.denied", error=str(error), hint="see docs/security.md")
                    await asyncio.sleep(DENIED_S)
                    continue
                _log.info("wake.lost", error=repr(error))
            await asyncio.sleep(RECONNECT_S)

    async def _subscribed(self) -> None:
        connection = self._gateway.redis.connection_pool.make_connection()
        try:
            await connection.connect()
            await connection.send_command("SSUBSCRIBE", *self._shards)
            for _ in self._shards:
                await connection.read_response()
            self._missed()
            while True:
                self._deliver(await self._next(connection))
        finally:
            await connection.disconnect(nowait=True)

    async def _next(self, connection: Any) -> list[Any]:
        """The next reply; a long silence is answered by a PING that must come back."""
        try:
            return await connection.read_response(timeout=PROBE_S, disconnect_on_error=False)  # type: ignore[no-any-return]
        except (TimeoutError, RedisError):
            await connection.send_command("PING")
            return await connection.read_response(timeout=PROBE_S)  # type: ignore[no-any-return]

    def _deliver(self, reply: list[Any]) -> None:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"smessage":
            self._hear(self._shards[reply[1]], reply[2].decode())
