"""SyncLoop: one background thread with an event loop, for callers that have none.

Started when first needed; a daemon, so that it keeps no program alive. Many threads may wait on it
at a time, and their single submits share script calls. After a fork the child has no such thread:
it starts its own, and leaves the parent's connections alone.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tasksched.ending import end

R = TypeVar("R")

STOP_S = 5.0


class SyncLoop:
    """Runs coroutines for threads that wait."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owner = 0

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of ``work``, run in the background; Ctrl-C cancels it."""
        with self._lock:  # handed over before the loop is told to stop, or to the next one
            future: Future[R] = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_running(self) -> bool:
        return self._loop is not None and self._owner == os.getpid()

    def stop(self) -> None:
        """Ends the thread, if there is one in this process. It may be started again."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or self._owner != os.getpid():
                return
            self._loop = self._thread = None
            atexit.unregister(self.stop)
            loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; the caller holds the lock."""
        if self._loop is not None and self._owner == os.getpid():
            return self._loop
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
        self._loop, self._owner = loop, os.getpid()
        self._thread.start()
        atexit.register(self.stop)
        return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(end(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
