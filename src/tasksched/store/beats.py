"""SyncBeats: what a worker's heartbeat thread says to Redis, on a blocking connection of its own.

Leases are renewed from outside the event loop, so that a handler that blocks the loop does not lose
its lease; the asyncio client cannot be used from there. One call, one try: the thread repeats. Every
failure is Unavailable or another TaskschedError, as ``Gateway.run`` raises them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from tasksched.store.address import NO_TLS, Tls, sync_client
from tasksched.store.connect import COMMAND_TIMEOUT_S, meaning
from tasksched.store.protocol import BATCH_MAX, Beat, Store, beat_rows
from tasksched.store.scripts import Arg, script


class SyncBeats:
    """Heartbeats, announcements and presence. To be used by one thread; connects when first used."""

    def __init__(self, url: str, store: Store, tls: Tls = NO_TLS) -> None:
        self._redis: Any = _client(url, tls)
        self._store = store

    def heartbeat(self, shard: int, beats: Sequence[Beat]) -> list[str]:
        """As ``Store.heartbeat``: a word a run, ``ok``, ``cancel`` or ``stale``."""
        assert 0 < len(beats) <= BATCH_MAX, len(beats)
        reply = self._run("heartbeat", self._values(shard), beat_rows(beats))
        return [word.decode() for word in reply]

    def announce(self, shard: int, worker: str, ttl_ms: int, serves: Sequence[str]) -> int:
        """As ``Store.announce``, but returns the server's now."""
        values = self._values(shard, worker=worker, ttl_ms=ttl_ms)
        return int(self._run("announce", values, [(what,) for what in serves])[0])

    def present(self, worker: str, fields: Mapping[str, Arg], *, now_ms: int, ttl_ms: int) -> None:
        """Shows the worker to whoever lists the live ones, for ``ttl_ms`` from the server's now."""
        keys = self._store.global_keys
        shown: dict[str, Arg] = {"worker": keys.worker(worker), "ttl_ms": ttl_ms}
        self._run("present", shown, list(fields.items()))
        listed: dict[str, Arg] = {"members": keys.workers, "member": worker}
        self._run("enlist", {**listed, "now_ms": now_ms, "ttl_ms": ttl_ms}, ())

    def absent(self, worker: str) -> None:
        """The worker is gone, and seen to be."""
        keys = self._store.global_keys
        self._pipeline(("DEL", keys.worker(worker)), ("ZREM", keys.workers, worker))

    def close(self) -> None:
        self._redis.close()

    def _values(self, shard: int, **values: Arg) -> dict[str, Arg]:
        return {"clock": self._store.keys[shard].clock, "now_ms": self._store.now_ms, **values}

    def _run(self, name: str, values: Mapping[str, Arg], rows: Sequence[Sequence[Arg]]) -> Any:
        found = script(name)
        packed = found.pack(values, rows)
        count = len(found.keys)
        try:
            try:
                return self._redis.execute_command("EVALSHA", found.sha, count, *packed)
            except NoScriptError:
                return self._redis.execute_command("EVAL", found.source, count, *packed)
        except RedisError as error:
            raise meaning(error) from error

    def _pipeline(self, *commands: Sequence[Arg]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        try:
            pipe.execute()
        except RedisError as error:
            raise meaning(error) from error


def _client(url: str, tls: Tls) -> Any:
    options: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": COMMAND_TIMEOUT_S,
        "socket_connect_timeout": COMMAND_TIMEOUT_S,
    }
    return sync_client(url, tls, options)
