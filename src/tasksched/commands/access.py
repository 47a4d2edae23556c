"""Access: who asks, by the key that was sent. For processes that serve strangers.

What is known of a key is remembered for TTL_MS, keys that nobody has likewise, so that a revocation or
an expiry is in force within seconds and a flood of guesses costs Redis little. Invariant: nobody is let
in by what is older: while Redis does not answer, callers are told to come again. A namespace that ever
had a key is never open again to this process.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from tasksched import clock, log
from tasksched.errors import Overloaded, TaskschedError, Unauthorized
from tasksched.model.apikey import ApiKey, KeyText, is_proved, read_key
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.records import Records

TTL_MS: Final = 2_000
KNOWN_MAX: Final = 10_000
UNKNOWN_MAX: Final = 1_000
USED_EVERY_MS: Final = 60_000
WAITING_MAX: Final = 1_000
SLOW_MS: Final = 1_000
_RETRY_MS: Final = 1_000

T = TypeVar("T")
_log = log.get("access")


class Known(NamedTuple):
    """What was read of a key (None: there is none), when by our clock, and the server's time then."""

    key: ApiKey | None
    read_ms: int
    server_ms: int


class Bearer(NamedTuple):
    """Whoever holds this key."""

    id: str
    key: ApiKey


class Access:
    """One per process. Safe for concurrent use in one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        needs_keys: bool = False,
        waiting_max: int = WAITING_MAX,
        slow_ms: int = SLOW_MS,
        now: Callable[[], int] = clock.mono_ms,
    ) -> None:
        """``needs_keys``: never open, also while no key was made. ``waiting_max``: callers that may
        wait for Redis here; ``slow_ms``: after which nobody else begins to.
        """
        self._gateway = store.gateway
        self._keys = store.global_keys
        self._records = Records(store, store.global_keys.api_keys, ApiKey)
        self._reads = Reads(store)
        self._now = now
        self._waiting_max, self._slow_ms = waiting_max, slow_ms
        self._is_closed = needs_keys
        self._looked_ms: int | None = None
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._unknown: OrderedDict[str, Known] = OrderedDict()
        self._used: OrderedDict[str, int] = OrderedDict()
        self._loading: dict[str, tuple[int, asyncio.Task[Any]]] = {}
        self._noting: set[asyncio.Task[None]] = set()
        self._waiting = 0

    @property
    def seems_open(self) -> bool:
        """As ``is_open``, by what was known last; nothing is asked."""
        return not self._is_closed

    @property
    def was_seen_open(self) -> bool:
        return self.seems_open and self._looked_ms is not None

    async def is_open(self) -> bool:
        """Whether no key was ever made here. Raises Unavailable."""
        if self._is_closed:
            return False
        now_ms = self._now()
        if self._looked_ms is None or now_ms - self._looked_ms >= TTL_MS:
            await self._once("", self._look)
        return not self._is_closed

    async def bearer(self, text: str) -> Bearer:
        """Who holds the key. Raises Unauthorized, Unavailable."""
        parts = read_key(text)
        known = self._recall(parts.id)
        if known is None or self._now() - known.read_ms >= TTL_MS:
            known = await self._once(parts.id, lambda: self._read(parts.id))
        bearer = self._proved(parts, known)
        self._note_use(parts.id, self._server_ms(known))
        return bearer

    def remembered(self, text: str) -> Bearer | None:
        """As ``bearer`` by what was known last, however old. Only for what tells nothing of tasks."""
        try:
            parts = read_key(text)
            known = self._recall(parts.id)
            return None if known is None else self._proved(parts, known)
        except Unauthorized:
            return None

    def _recall(self, key_id: str) -> Known | None:
        return self._known.get(key_id) or self._unknown.get(key_id)

    def _proved(self, parts: KeyText, known: Known) -> Bearer:
        now_ms = self._server_ms(known)
        if not is_proved(known.key, parts, now_ms) or known.key is None:
            raise Unauthorized("the API key is not valid")
        if (state := known.key.state_at(now_ms)) != "active":
            raise Unauthorized(f"the API key is {state}")
        return Bearer(parts.id, known.key)

    def _server_ms(self, known: Known) -> int:
        return known.server_ms + self._now() - known.read_ms

    # -- asking Redis -----------------------------------------------------------------------------

    async def _look(self) -> None:
        began_ms = self._now()
        self._is_closed |= bool(await self._gateway.command("HLEN", self._keys.api_keys))
        self._looked_ms = began_ms

    async def _read(self, key_id: str) -> Known:
        began_ms = self._now()
        kept = await self._records.get(key_id)
        known = Known(kept.value if kept else None, began_ms, await self._reads.now_ms())
        home, other = self._known, self._unknown
        if known.key is None:
            home, other = other, home
        other.pop(key_id, None)
        _remember(home, key_id, known, KNOWN_MAX if known.key else UNKNOWN_MAX)
        return known

    async def _once(self, name: str, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``load`` gives; callers who want the same wait for the same. Raises Overloaded."""
        now_ms = self._now()
        began_ms, task = self._loading.get(name, (now_ms, None))
        if self._waiting >= self._waiting_max or now_ms - began_ms > self._slow_ms:
            raise Overloaded(
                "Redis is slow now: keys wait too long for it; nothing was done",
                retry_after_ms=_RETRY_MS,
            )
        if task is None:
            task = asyncio.create_task(load())
            self._loading[name] = (began_ms, task)
            task.add_done_callback(lambda done: self._loaded(name, done))
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1

    def _loaded(self, name: str, task: asyncio.Task[Any]) -> None:
        self._loading.pop(name, None)
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits any more

    # -- last use ---------------------------------------------------------------------------------

    def _note_use(self, key_id: str, at_ms: int) -> None:
        """Writes when the key was used, once a minute at most, while nobody waits for it."""
        now_ms = self._now()
        before_ms = self._used.get(key_id)
        if before_ms is not None and now_ms - before_ms < USED_EVERY_MS:
            return
        _remember(self._used, key_id, now_ms, KNOWN_MAX)
        task = asyncio.create_task(self._write_use(key_id, at_ms))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_use(self, key_id: str, at_ms: int) -> None:
        try:
            await self._gateway.command("HSET", self._keys.api_keys_used, key_id, at_ms)
        except TaskschedError as error:
            _log.debug("use.lost", key=key_id, error=str(error))

    async def close(self) -> None:
        """Waits for what is being written and read."""
        loads = [task for _, task in self._loading.values()]
        await asyncio.gather(*self._noting, *loads, return_exceptions=True)


def _remember(home: OrderedDict[str, T], name: str, value: T, most: int) -> None:
    home[name] = value
    home.move_to_end(name)
    while len(home) > most:
        home.popitem(last=False)
