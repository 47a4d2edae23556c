"""Link: an App's settings and its connections, one per running event loop.

Settings are read when first needed, not when the module that makes the App is imported, so that a
supervisor may still set the environment. A connection belongs to the loop that opened it (asyncio
allows nothing else); each loop that uses the App gets its own, and what closed loops left behind is
forgotten when the next one is opened. Nothing is connected before the first request.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from tasksched.client.backend import Backend
from tasksched.client.direct import embedded_url, open_direct
from tasksched.client.remote import open_remote
from tasksched.client.sync import SyncLoop
from tasksched.errors import Invalid
from tasksched.model.durations import parse_duration
from tasksched.model.names import check_name
from tasksched.model.seal import Codec
from tasksched.settings import Settings, from_environment

R = TypeVar("R")

HTTP = ("http://", "https://")
REDIS = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")
EMBEDDED = "embedded:"

ReadSettings = Callable[[], Settings]


class Link:
    """Where requests go, and as whom."""

    def __init__(self, read_settings: ReadSettings, codec: Codec | None = None) -> None:
        self._read_settings = read_settings
        self._codec = codec
        self._open: dict[asyncio.AbstractEventLoop, Backend] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._instead: Backend | None = None
        self._instead_loop: asyncio.AbstractEventLoop | None = None
        self._sync = SyncLoop("tasksched-sync")

    @cached_property
    def settings(self) -> Settings:
        return self._read_settings()

    @property
    def tenant(self) -> str:
        return self.settings.tenant

    async def backend(self) -> Backend:
        """The connection of the running loop, opened if it is the first request in it."""
        if self._instead is not None:
            return self._instead
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        return found if found is not None else await self._connect(loop)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Backend:
        lock = self._opening.setdefault(loop, asyncio.Lock())
        async with lock:
            if loop not in self._open:
                for old in [each for each in self._open if each.is_closed()]:
                    del self._open[old]
                    self._opening.pop(old, None)
                self._open[loop] = await open_backend(self.settings, codec=self._codec)
            return self._open[loop]

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """``work`` in the background loop, for callers without one."""
        loop = self._instead_loop
        if loop is None:
            return self._sync.run(work)
        if loop is _running_loop():
            work.close()
            raise RuntimeError("a …_sync call here would wait for this very loop: await the other")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    @contextlib.contextmanager
    def using(self, backend: Backend) -> Iterator[None]:
        """Every request goes to ``backend`` meanwhile, in the loop that runs now: for tests."""
        before = self._instead, self._instead_loop
        self._instead, self._instead_loop = backend, _running_loop()
        try:
            yield
        finally:
            self._instead, self._instead_loop = before

    async def close(self) -> None:
        """Closes the connection of the running loop, and the background thread with its own."""
        await self._close_mine()
        if self._sync.is_running:
            await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        if self._sync.is_running:
            self._sync.run(self._close_mine())
            self._sync.stop()

    async def _close_mine(self) -> None:
        loop = asyncio.get_running_loop()
        self._opening.pop(loop, None)
        backend = self._open.pop(loop, None)
        if backend is not None:
            await backend.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def settings_of(
    url: str | None, namespace: str | None, tenant: str | None, api_key: str | None = None
) -> Settings:
    """The environment's settings with what the program says laid over them."""
    settings = from_environment(parse_duration).with_flags(
        url=url, namespace=namespace, tenant=tenant, api_key=api_key
    )
    check_name(settings.tenant, "/tenant")
    check_name(settings.namespace, "/namespace")
    return settings


async def open_backend(
    settings: Settings,
    *,
    start_embedded: bool = True,
    codec: Codec | None = None,
) -> Backend:
    """A connected backend for ``settings.url``. Raises Unavailable, or Invalid for a strange URL.

    ``codec`` seals payloads in this process: not over HTTP, where the API's keys do it.
    """
    url = settings.url
    if url.startswith(HTTP):
        if codec is not None:
            raise Invalid("over HTTP the API encrypts: an App takes no codec there", "/codec")
        return await open_remote(settings)
    if url.startswith(REDIS):
        return await open_direct(settings, codec)
    if url.startswith(EMBEDDED):
        reached = await asyncio.to_thread(
            embedded_url, url.removeprefix(EMBEDDED), start=start_embedded
        )
        return await open_direct(replace(settings, url=reached), codec)
    raise Invalid(f"the URL begins with none of {', '.join((*REDIS, *HTTP, EMBEDDED))}", "/url")
