"""Heartbeat: keeps the leases of this worker's runs, from a thread of its own.

A handler that blocks the event loop keeps its lease, because renewals do not pass through the loop:
the thread reads the set of live runs, sends beats on a blocking connection, and hands the words
``cancel`` and ``stale`` back to the loop. It also announces the worker to every shard and shows it
to whoever lists workers, which has to go on while a handler blocks as well. Invariant: a run is
renewed when a third of its lease has passed, and is watched until its verdict is settled, not only
until its handler ends. No outage ends the thread: what failed stays due and is repeated.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from tasksched import clock, log
from tasksched.errors import TaskschedError
from tasksched.runtime.context import Run, pulsed_at
from tasksched.store.beats import SyncBeats
from tasksched.store.protocol import BATCH_MAX, Beat
from tasksched.store.scripts import Arg

ANNOUNCE_EVERY_S = 15.0
ANNOUNCE_TTL_MS = 45_000
PRESENT_EVERY_S = 10.0
PRESENT_TTL_MS = 30_000
RETRY_S = 0.3

_log = log.get("heartbeat")

Hear = Callable[[Run, str], None]


class Heartbeat:
    """``hear(run, word)`` is called in the loop. ``describe()``: what the presence shows."""

    def __init__(
        self,
        open_sync: Callable[[], SyncBeats],
        name: str,
        serves: Sequence[str],
        *,
        shards: int,
        hear: Hear,
        describe: Callable[[], Mapping[str, Arg]],
    ) -> None:
        self._open = open_sync
        self._name = name
        self._serves = serves
        self._hear = hear
        self._describe = describe
        self._runs: set[Run] = set()
        self._wake = threading.Event()
        self._wakes_at = math.inf
        self._ended = False
        self._announce_at = dict.fromkeys(range(shards), 0.0)
        self._present_at = 0.0
        self._server_ahead_ms = 0.0  # of this host's monotonic clock
        self._failing = False
        self.renewed = 0

    # -- in the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Announcements were made before by the caller: the first of ours is due in a while."""
        self._loop = asyncio.get_running_loop()
        self._announce_at = dict.fromkeys(self._announce_at, clock.mono() + ANNOUNCE_EVERY_S)
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)
        self._thread.start()

    async def stop(self, patience_s: float) -> None:
        """Ends the thread, which takes the worker's leave of every shard before."""
        self._ended = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, patience_s)

    def watch(self, runs: Sequence[Run]) -> None:
        """Renew the leases of these runs from now on."""
        self._runs.update(runs)
        if any(run.beat_at < self._wakes_at for run in runs):
            self._wake.set()

    def forget(self, runs: Iterable[Run]) -> None:
        self._runs.difference_update(runs)

    def hurry(self, run: Run) -> None:
        """Beat for this run soon: it has progress to tell. From any thread."""
        run.beat_at = min(run.beat_at, pulsed_at(run))
        if run.beat_at < self._wakes_at:
            self._wake.set()

    # -- in the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        sync = self._open()
        while True:
            # While we work every new run sets the event: none is missed between look and sleep.
            self._wakes_at = math.inf
            self._wake.clear()
            if (
                self._ended
            ):  # looked at after the clearing, or the call to end could be cleared away
                break
            try:
                self._tick(sync)
                if self._failing:
                    _log.info("heartbeat.back", worker=self._name)
                self._failing = False
                wait_s = max(self._next() - clock.mono(), 0.0)
            except TaskschedError as error:
                if not self._failing:
                    _log.warning("heartbeat.failed", worker=self._name, error=str(error))
                self._failing = True
                wait_s = RETRY_S
            except Exception as error:  # noqa: BLE001 - the leases of all runs hang on this thread
                _log.error("heartbeat.broken", worker=self._name, error=repr(error))
                wait_s = RETRY_S
            self._wakes_at = clock.mono() + wait_s
            self._wake.wait(wait_s)
        self._leave(sync)
        sync.close()

    def _tick(self, sync: SyncBeats) -> None:
        """All that is due: leases first, for they end; then what others know of us."""
        now = clock.mono()
        due: dict[int, list[Run]] = {}
        for run in self._copy():
            if run.beat_at <= now:
                due.setdefault(run.shard, []).append(run)
        failed: TaskschedError | None = None
        for shard, runs in due.items():
            try:
                for first in range(0, len(runs), BATCH_MAX):
                    self._beat(sync, shard, runs[first : first + BATCH_MAX])
            except TaskschedError as error:  # its runs stay due; the other shards' do not wait
                failed = error
        if failed is not None:
            raise failed
        for shard, at in self._announce_at.items():
            if at <= now:
                self._announce(sync, shard)
        if self._present_at <= now:
            self._present(sync)

    def _beat(self, sync: SyncBeats, shard: int, runs: list[Run]) -> None:
        told = [run.progress for run in runs]
        beats = [
            Beat(run.grant.id, run.grant.fence, run.lease_ms, run.timeout_ms, progress)
            for run, progress in zip(runs, told, strict=True)
        ]
        asked = clock.mono()
        words = sync.heartbeat(shard, beats)
        news: list[tuple[Run, str]] = []
        for run, progress, word in zip(runs, told, words, strict=True):
            run.beaten_at = asked
            run.beat_at = asked + run.lease_ms / 3000
            if run.progress == progress:
                run.progress = ""
            else:
                run.beat_at = pulsed_at(run)
            if word != "ok":
                news.append((run, word))
            if word == "stale":
                self._runs.discard(run)
        self.renewed += len(runs)
        if news:
            self._tell(news)

    def _tell(self, news: Iterable[tuple[Run, str]]) -> None:
        try:
            for run, word in news:
                self._loop.call_soon_threadsafe(self._hear, run, word)
        except RuntimeError:  # the loop is closed
            self._ended = True

    def _announce(self, sync: SyncBeats, shard: int) -> None:
        asked = clock.mono_ms()
        now_ms = sync.announce(shard, self._name, ANNOUNCE_TTL_MS, self._serves)
        self._server_ahead_ms = now_ms - asked
        self._announce_at[shard] = clock.mono() + ANNOUNCE_EVERY_S

    def _present(self, sync: SyncBeats) -> None:
        if not self._server_ahead_ms:
            self._announce(sync, 0)
        now_ms = round(clock.mono_ms() + self._server_ahead_ms)
        sync.present(self._name, self._describe(), now_ms=now_ms, ttl_ms=PRESENT_TTL_MS)
        self._present_at = clock.mono() + PRESENT_EVERY_S

    def _next(self) -> float:
        """When something will be due; never later than a new run with a usual lease."""
        at = min(self._present_at, *self._announce_at.values())
        return min([at, *(run.beat_at for run in self._copy())])

    def _copy(self) -> list[Run]:
        """The runs of this moment. Adding to a set while it is copied may raise: then again."""
        while True:
            try:
                return list(self._runs)
            except RuntimeError:
                continue

    def _leave(self, sync: SyncBeats) -> None:
        """Best effort, once: what we do not take back runs out by itself."""
        try:
            sync.absent(self._name)
            for shard in self._announce_at:
                sync.announce(shard, self._name, 0, self._serves)
        except TaskschedError as error:
            _log.info("heartbeat.left_silently", worker=self._name, error=str(error))
