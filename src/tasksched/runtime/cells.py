"""Cells: child processes in which handlers run, one run at a time in each.

For what must not share the worker's process: handlers that hold the interpreter lock, and suspects,
tasks that may have killed the process of their last attempt. A cell loads the app once and is used
again, up to RUNS_MAX runs; at most ``most`` exist, and a run that finds none free waits. Invariant:
a run ends with its own outcome, or with the end of its process, which is noticed at once; and no cell
outlives its worker (``tasksched.cell`` has that half). Who should stop is told so, then terminated,
then killed, each after STOP_S. The worker's rules (what an end means for the task) are not here.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tasksched import log
from tasksched.embedded import die_with_parent
from tasksched.errors import Invalid, TaskschedError
from tasksched.model.outcome import Outcome
from tasksched.runtime import frames
from tasksched.runtime.context import Desk, Run
from tasksched.store.reads import LINES_MAX

RUNS_MAX = 1_000  # of one cell, which is then replaced: what handlers leak ends with it
START_S = 60.0  # to load the app in
STARTS_MAX = 3  # cells tried for one run, when they die before it has begun
STOP_S = 0.3  # between the word, SIGTERM and SIGKILL
LAST_WORDS_S = 0.1  # to read what a process had said before it ended
END_S = 2.0  # for a process that was killed to be gone

_log = log.get("cells")


class NotStarted(TaskschedError):
    """No cell could begin the run: not the task's fault, and no attempt."""


class Died(TaskschedError):
    """The process ended in the middle of the run."""


class _Gone(Exception):
    """The other end of the line is closed."""


class Cells:
    """``target``: the app as the worker's command line names it."""

    def __init__(self, target: str, most: int, *, runs_max: int = RUNS_MAX) -> None:
        self._target = target
        self._directory = Path.cwd()  # where a relative target was meant, wherever the app goes
        self._runs_max = runs_max
        self._free = asyncio.Semaphore(most)
        self._idle: list[_Cell] = []
        self._living: set[_Cell] = set()
        self._at_work: dict[Run, _Cell] = {}
        self._closed = False
        self.started = 0

    @property
    def pids(self) -> list[int]:
        """The processes that exist now."""
        return sorted(cell.pid for cell in self._living)

    async def run(
        self, run: Run, job: frames.Job, *, begun: Callable[[], None], desk: Desk
    ) -> Outcome | None:
        """The outcome of the run; None if it was interrupted and did not end by itself.

        ``begun()`` when its handler is about to be called; what it says goes to ``desk``. Raises
        Died and NotStarted. A cancellation of the caller's task stops the run; one that has no
        ``run.why`` goes on to the caller.
        """
        async with self._free:
            for _ in range(STARTS_MAX):
                cell = await self._take()
                self._at_work[run] = cell
                try:
                    return await cell.run(run, job, begun, desk)
                except _Gone:
                    if cell.has_begun:
                        raise Died(f"its process {await cell.obituary()}") from None
                finally:
                    del self._at_work[run]
                    await self._put_back(cell)
        raise NotStarted("its process ended before the run began")

    def tell_lease_lost(self, run: Run) -> None:
        if cell := self._at_work.get(run):
            cell.say(frames.LeaseLost())

    async def close(self) -> None:
        """Ends every cell now, whatever runs in it."""
        self._closed = True
        self._idle.clear()
        await asyncio.gather(*(cell.kill() for cell in list(self._living)))
        self._living.clear()

    async def _take(self) -> "_Cell":
        while self._idle:
            cell = self._idle.pop()
            if cell.is_usable:
                return cell
            await self._end(cell)
        if self._closed:
            raise NotStarted("the worker ends")
        self.started += 1
        cell = await _Cell.start(self._target, self._directory)
        self._living.add(cell)
        try:
            await cell.await_ready()
        except BaseException:
            await self._end(cell)
            raise
        return cell

    async def _put_back(self, cell: "_Cell") -> None:
        if cell.is_usable and cell.runs < self._runs_max and not self._closed:
            self._idle.append(cell)
        else:
            await self._end(cell)

    async def _end(self, cell: "_Cell") -> None:
        """Shielded: whoever is cancelled meanwhile leaves no process behind."""
        await asyncio.shield(asyncio.ensure_future(cell.kill()))
        self._living.discard(cell)


class _Cell:
    """One child process and the line to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._is_resting = True  # between runs, at a boundary of frames
        self._asking: set[asyncio.Future[None]] = set()
        self._watching = asyncio.ensure_future(self._watch())
        self.pid = process.pid
        self.runs = 0
        self.has_begun = False

    @classmethod
    async def start(cls, target: str, directory: Path) -> "_Cell":
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                return await cls._launch(target, directory, ours, theirs.fileno())
        except OSError as error:
            raise NotStarted(f"no process can be started: {error}") from error

    @classmethod
    async def _launch(
        cls, target: str, directory: Path, ours: socket.socket, theirs: int
    ) -> "_Cell":
        level = logging.getLevelName(logging.getLogger("tasksched").getEffectiveLevel())
        argv = [sys.executable, "-m", "tasksched.cell", target, str(theirs), level]
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            # A session of its own: Ctrl-C in a terminal reaches the worker alone, which drains.
            process = await asyncio.create_subprocess_exec(
                *die_with_parent(argv),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,
                cwd=directory,
            )
        except BaseException:
            writer.close()
            raise
        return cls(process, reader, writer)

    @property
    def is_usable(self) -> bool:
        return self._is_resting and self._process.returncode is None and not self._reader.at_eof()

    async def await_ready(self) -> None:
        """Until the app is loaded. Raises NotStarted."""
        try:
            async with asyncio.timeout(START_S):
                await self._hear()
        except (_Gone, TimeoutError):
            raise NotStarted(f"a process for {sys.executable} did not get ready") from None

    async def run(
        self,
        run: Run,
        job: frames.Job,
        begun: Callable[[], None],
        desk: Desk,
    ) -> Outcome | None:
        """Raises _Gone when the process ends; ``has_begun`` tells whether the run had."""
        self.runs += 1
        self.has_begun = self._is_resting = False
        self.say(job)
        ending = asyncio.ensure_future(self._await_end(run, begun, desk))
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError:
            if run.why:
                return await self._stop(run, ending)
            ending.cancel()
            raise
        self._is_resting = not ending.cancelled() and ending.exception() is None
        return ending.result()

    async def _await_end(self, run: Run, begun: Callable[[], None], desk: Desk) -> Outcome:
        while True:
            match await self._hear():
                case frames.Begun():
                    self.has_begun = True
                    begun()
                case frames.News() as news:
                    _tell(news, run, desk)
                case frames.Ask() as ask:
                    asking = asyncio.ensure_future(self._answer(ask, run, desk))
                    self._asking.add(asking)
                    asking.add_done_callback(self._asking.discard)
                case frames.Ended(outcome=outcome):
                    return outcome
                case frames.Ready():
                    raise Invalid("a cell is ready twice")

    async def _answer(self, ask: frames.Ask, run: Run, desk: Desk) -> None:
        value: bytes | None = None
        try:
            match ask.verb:
                case "checkpoint":
                    await desk.checkpoint(run, ask.value)
                case "restore":
                    value = await desk.restore(run)
                case "token":
                    value = desk.token(run).encode()
        except Exception as error:  # noqa: BLE001 - raised again in the handler, which waits for it
            code = error.code if isinstance(error, TaskschedError) else TaskschedError.code
            self.say(frames.Answer(number=ask.number, code=code, detail=str(error)))
        else:
            self.say(frames.Answer(number=ask.number, value=value))

    async def _stop(self, run: Run, ending: "asyncio.Future[Outcome]") -> Outcome | None:
        """What the run still makes of it, within the patience; then its process ends."""
        self.say(frames.Stop(run.why))
        await _wait(ending, STOP_S)
        if not ending.done():
            self._signal(signal.SIGTERM)
            await _wait(ending, STOP_S)
        if ending.done() and not ending.cancelled() and ending.exception() is None:
            self._is_resting = True
            return ending.result()
        ending.cancel()
        return None

    async def _watch(self) -> None:
        """Its end is the end of the line, also where what it forked holds the other end open."""
        await self._process.wait()
        await asyncio.sleep(LAST_WORDS_S)
        self._writer.transport.abort()

    def say(self, said: frames.ToCell) -> None:
        """A process that is gone is noticed by reading."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(frames.frame_of(said))

    async def _hear(self) -> frames.ToWorker:
        try:
            head = await self._reader.readexactly(frames.HEAD_BYTES)
            return frames.read_by_worker(await self._reader.readexactly(frames.length_of(head)))
        except (EOFError, OSError, msgspec.DecodeError, Invalid) as error:
            raise _Gone from error

    async def obituary(self) -> str:
        """How the process ended, in words. It is about to: a signal would blur what with."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._process.wait()
        await self.kill()
        status = self._process.returncode or 0
        if status >= 0:
            return f"ended with status {status}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
        return f"was ended by signal {-status}"

    async def kill(self) -> None:
        """Ends the process, if it has not, and waits until it is gone."""
        self._writer.close()
        # It ends by itself when its line is closed; the signal is for one that cannot notice.
        self._signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            _log.error("cell.immortal", pid=self.pid)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.send_signal(number)


def _tell(news: frames.News, run: Run, desk: Desk) -> None:
    """What the run in the cell has said is said by ours."""
    if news.lines:
        run.said = news.lines[-1][0]
        run.lines = [*(run.lines or []), *news.lines][-LINES_MAX:]
        desk.say(run)
    if news.progress is not None:
        run.progress = news.progress or run.progress
        desk.pulse(run)


async def _wait(future: "asyncio.Future[Any]", patience_s: float) -> None:
    """Cancelled again meanwhile (the worker ends): no more patience, and no exception either."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([future], timeout=patience_s)
