"""cell: the child process in which handlers run, started by a worker (``runtime/cells.py``).

``python -m tasksched.cell APP FD LEVEL`` loads APP and runs one job at a time from the socket FD: synchronous
handlers in the main thread, coroutines in an event loop there. It is an executor without Redis: what a
run says about itself goes to the worker, which keeps its lease and its time. Invariant: it ends when
the worker does, also while a handler computes: a thread reads the socket, whose end is the worker's
end; for a handler that holds the interpreter lock the kernel does it (``embedded.die_with_parent``).
"""

import asyncio
import concurrent.futures
import itertools
import os
import queue
import random
import socket
import sys
import threading
from typing import Literal, cast

from tasksched import clock, log
from tasksched.errors import BY_CODE, Conflict, TaskschedError
from tasksched.loading import load_app
from tasksched.model.outcome import Failure, Outcome, error_info, judge
from tasksched.runtime import frames
from tasksched.runtime.context import PULSE_EVERY_S, Run, Why
from tasksched.runtime.executor import Executor, failure_of
from tasksched.runtime.registry import Registry
from tasksched.runtime.threads import Here, without_loop

Verb = Literal["checkpoint", "restore", "token"]

_log = log.get("cell")


class Line:
    """The socket to the worker. Frames may be sent from any thread; one thread reads."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._file = end.makefile("rb")
        self._lock = threading.Lock()

    def say(self, said: frames.ToWorker) -> None:
        try:
            with self._lock:
                self._socket.sendall(frames.frame_of(said))
        except OSError:
            os._exit(0)

    def hear(self) -> frames.ToCell:
        """The next frame; does not return when the worker is gone."""
        try:
            head = self._file.read(frames.HEAD_BYTES)
            body = self._file.read(frames.length_of(head)) if head else b""
        except OSError:
            body = b""
        if not body:
            os._exit(0)
        return frames.read_by_cell(body)


class CellDesk:
    """What runs have to say goes to the worker's desk: at once, or a little after the last time.

    Invariant: nothing is said for a run after its end, by a thread or a task that it left behind: the
    worker would take it for a word of the next run.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._told_at = 0.0
        self._wants_beat = False
        self._timer: threading.Timer | None = None
        self._asked: dict[int, concurrent.futures.Future[bytes | None]] = {}
        self._numbers = itertools.count(1)

    def pulse(self, run: Run) -> None:
        with self._lock:
            self._wants_beat = self._wants_beat or not run.ended
            self._tell_soon(run)

    def say(self, run: Run) -> None:
        with self._lock:
            self._tell_soon(run)

    async def checkpoint(self, run: Run, value: bytes) -> None:
        await self._ask(run, "checkpoint", value)

    async def restore(self, run: Run) -> bytes | None:
        return await self._ask(run, "restore")

    def token(self, run: Run) -> str:
        return (self._begin(run, "token").result() or b"").decode()

    def answered(self, answer: frames.Answer) -> None:
        """In the thread that reads."""
        asked = self._asked.pop(answer.number)
        if answer.code:
            asked.set_exception(BY_CODE.get(answer.code, TaskschedError)(answer.detail))
        else:
            asked.set_result(answer.value)

    def end(self, run: Run, outcome: Outcome) -> None:
        """The last words first."""
        with self._lock:
            run.ended = True
            if self._timer is not None:
                self._timer.cancel()
                self._tell(run)
            self._line.say(frames.Ended(outcome))

    async def _ask(self, run: Run, verb: Verb, value: bytes = b"") -> bytes | None:
        asked = self._begin(run, verb, value)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a synchronous handler: its thread waits
            return asked.result()
        return await asyncio.wrap_future(asked)

    def _begin(
        self, run: Run, verb: Verb, value: bytes = b""
    ) -> "concurrent.futures.Future[bytes | None]":
        number = next(self._numbers)
        asked: concurrent.futures.Future[bytes | None] = concurrent.futures.Future()
        asked.set_running_or_notify_cancel()  # who is cancelled meanwhile leaves the answer be
        with self._lock:
            if run.ended:
                raise Conflict("this run is over", task_id=run.grant.id)
            self._asked[number] = asked
            self._line.say(frames.Ask(number=number, verb=verb, value=value))
        return asked

    def _tell_soon(self, run: Run) -> None:
        if self._timer is not None or run.ended:
            return
        wait_s = self._told_at + PULSE_EVERY_S - clock.mono()
        if wait_s <= 0:
            self._tell(run)
        else:
            self._timer = threading.Timer(wait_s, self._tell_later, (run,))
            self._timer.daemon = True
            self._timer.start()

    def _tell_later(self, run: Run) -> None:
        with self._lock:
            if self._timer is not None and not run.ended:
                self._tell(run)

    def _tell(self, run: Run) -> None:
        lines = run.take_lines()
        progress = run.progress if self._wants_beat else None
        self._timer, self._wants_beat, self._told_at = None, False, clock.mono()
        self._line.say(frames.News(progress=progress, lines=lines))


class Cell:
    """Jobs from the line, one after the other."""

    def __init__(self, registry: Registry, line: Line) -> None:
        self._registry = registry
        self._line = line
        self._desk = CellDesk(line)
        self._jobs: queue.SimpleQueue[frames.Job] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._run: Run | None = None

    def serve(self) -> None:
        """For ever: the end of the line ends the process."""
        threading.Thread(target=self._listen, name="line", daemon=True).start()
        self._line.say(frames.Ready())
        while True:
            job = self._jobs.get()
            run = self._run
            assert run is not None
            outcome = self._do(job, run)
            self._desk.end(run, outcome)
            del job, run, outcome

    def _listen(self) -> None:
        """Without it nothing would be heard any more: what ends it ends the process."""
        try:
            self._hear_all()
        except Exception as error:  # noqa: BLE001 - whatever it is
            _log.error("cell.deaf", error=repr(error))
            os._exit(1)

    def _hear_all(self) -> None:
        while True:
            match self._line.hear():
                case frames.Job() as job:
                    # Known before it begins: a word that follows at once must find it.
                    self._run = _run_of(job)
                    self._jobs.put(job)
                case frames.Stop(why=why) if self._run is not None:
                    self._stop(self._run, cast("Why", why))
                case frames.Answer() as answer:
                    self._desk.answered(answer)
                case frames.LeaseLost() if self._run is not None:
                    self._run.lease_lost = True

    def _stop(self, run: Run, why: Why) -> None:
        run.why = why  # at once: the loop may be busy, or not run at all
        self._loop.call_soon_threadsafe(run.interrupt, why)

    def _do(self, job: frames.Job, run: Run) -> Outcome:
        handler = self._registry.get(run.grant.route)
        if handler is None:  # the code on disk is not what the worker has loaded
            error = error_info("UnknownHandler", f"this process does not know {run.grant.route}")
            failure, attempts = Failure(error=error), run.grant.attempts
            return judge(failure, run.grant.options.retry, attempts=attempts, rng=lambda: 1.0)
        executor = Executor(self._registry, Here(), result_bytes_max=job.result_bytes_max)
        executor.keeps_time = False
        executor.desk = self._desk
        self._line.say(frames.Begun())
        if job.timeout_ms is not None:
            run.timeout_ms = job.timeout_ms
            run.deadline = clock.mono() + job.timeout_ms / 1000
        if handler.mode == "thread":
            return without_loop(executor.run(run))
        running = self._loop.create_task(executor.run(run))
        run.task = cast("asyncio.Task[None]", running)
        try:
            return self._loop.run_until_complete(running)
        except asyncio.CancelledError as error:  # the handler's own: nobody cancels without a word
            failure, attempts = failure_of(error, handler.retry.never), run.grant.attempts
            return judge(failure, run.grant.options.retry, attempts=attempts, rng=random.random)


def _run_of(job: frames.Job) -> Run:
    return Run(frames.grant_of(job), 0, job.lease_ms, clock.mono())


def main(argv: list[str]) -> None:
    target, number, level = argv
    log.set_up(level)
    os.set_inheritable(int(number), False)
    line = Line(socket.socket(fileno=int(number)))
    try:
        app = load_app(target)
    except TaskschedError as error:
        _log.error("cell.not_loaded", error=str(error))
        sys.exit(1)
    Cell(app.registry, line).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
