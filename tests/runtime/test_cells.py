"""Handlers in processes of their own: real child processes, and every way in which they end."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runtime import cell_app
from tests.runtime.kit import grant_of, until

from tasksched import clock
from tasksched.errors import Conflict
from tasksched.model import codec
from tasksched.model.outcome import Outcome
from tasksched.model.retry import Retry
from tasksched.runtime.cells import START_S, Cells
from tasksched.runtime.context import Run
from tasksched.runtime.executor import Executor
from tasksched.runtime.threads import Threads

pytestmark = pytest.mark.anyio

TARGET = f"{cell_app.__file__}:app"
PATIENCE_S = 20


class Desk:
    """A worker's desk that writes down what it is told. ``fenced``: another run has the task."""

    def __init__(self) -> None:
        self.progress: list[str] = []
        self.lines: list[tuple[int, str]] = []
        self.kept: bytes | None = None
        self.fenced = False

    def pulse(self, run: Run) -> None:
        self.progress.append(run.progress)

    def say(self, run: Run) -> None:
        self.lines += run.lines or []
        run.lines = None

    async def checkpoint(self, run: Run, value: bytes) -> None:
        if self.fenced:
            raise Conflict("another run has it by now")
        self.kept = value

    async def restore(self, run: Run) -> bytes | None:
        return self.kept

    def token(self, run: Run) -> str:
        return f"token of {run.grant.fence}"


class Bench:
    """An executor with cells, and runs that go through it as a worker sends them."""

    def __init__(self, most: int = 1, target: str = TARGET, **limits: int) -> None:
        self.cells = Cells(target, most, **limits)
        self.threads = Threads(2)
        self.executor = Executor(cell_app.app.registry, self.threads, result_bytes_max=1_000)
        self.executor.cells = self.cells
        self.executor.rng = lambda: 0.5
        self.desk = self.executor.desk = Desk()
        self.abandoned: list[Outcome] = []
        self.executor.abandon = lambda _run, outcome: self.abandoned.append(outcome)

    def start(self, route: str, payload=..., **fields) -> Run:
        run = Run(grant_of(route, payload, **fields), 0, 30_000, clock.mono())
        run.task = asyncio.get_running_loop().create_task(self.executor.run(run))  # type: ignore[assignment]
        return run

    async def run(self, route: str, payload=..., **fields) -> Outcome:
        return await self.start(route, payload, **fields).task  # type: ignore[return-value]

    async def value(self, route: str, payload=..., **fields):
        outcome = await self.run(route, payload, **fields)
        assert outcome.kind == "SUCCEEDED", outcome
        return codec.decode(outcome.result)


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    await made.cells.close()
    made.threads.close()
    assert [] == made.cells.pids


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_written(path: Path) -> bool:
    return path.exists() and path.read_text() != ""


async def pid_in(path: Path) -> int:
    await until(lambda: is_written(path), PATIENCE_S)
    return int(path.read_text())


# -- what comes back ------------------------------------------------------------------------------


async def test_a_function_runs_in_the_main_thread_of_another_process_which_is_used_again(bench):
    first = await bench.value("whoami", {"a": 1})
    second = await bench.value("whoami", [b"".decode(), 2**63])
    third = await bench.value("whoami_async")

    pid = first[0]
    assert pid != os.getpid()
    assert [[pid, True, [], {"a": 1}], [pid, True, ["", 2**63], {}], pid] == [first, second, third]
    assert [1, [pid]] == [bench.cells.started, bench.cells.pids]


@pytest.mark.parametrize("route", ["broken", "broken_async"])
async def test_an_error_comes_with_its_traceback_and_leaves_the_process(bench, route):
    outcome = await bench.run(route, ["why"])
    again = await bench.run(route, ["why"], attempt=3)

    assert ("FAILED", 1000) == (outcome.kind, outcome.retry_ms)
    assert ("ValueError", "why") == (outcome.error.type, outcome.error.message)
    assert "raise ValueError(word)" in outcome.error.traceback
    assert "tasksched/" not in outcome.error.traceback
    assert ("attempts_exhausted", None) == (again.reason, again.retry_ms)
    assert 1 == bench.cells.started


@pytest.mark.parametrize(
    ("route", "payload", "ends"),
    [
        ("later", ..., ("FAILED", 7_000, "", "RetryLater")),
        ("discarded", ..., ("FAILED", None, "not_retryable", "Discard")),
        ("unencodable", ..., ("FAILED", None, "result_not_serialisable", "Invalid")),
        ("big", [2_000], ("FAILED", None, "result_too_large", "TooLarge")),
        ("big", [], ("FAILED", None, "payload_not_readable", "TypeError")),
        ("big", b"\xc1", ("FAILED", None, "payload_not_readable", "Invalid")),
        ("quits", ..., ("FAILED", 1_000, "", "SystemExit")),
    ],
)
async def test_an_end_in_a_process_is_judged_as_any_other(bench, route, payload, ends):
    outcome = await bench.run(route, payload)

    assert ends == (outcome.kind, outcome.retry_ms, outcome.reason, outcome.error.type)


async def test_the_context_works_from_afar(bench):
    fields = {"attempt": 2, "tags": ("q4",), "timeout_ms": 60_000}
    found = await bench.value("said", ["done"], **fields)

    grant = grant_of("said", **fields)
    assert [2, int(grant.fence), "acme", "default", ["q4"], True] == found[1:]
    assert '{"at":1.0,"message":"done"}' == bench.desk.progress[-1]
    assert len(bench.desk.progress) < 100  # not each of two thousand


@pytest.mark.parametrize("route", ["kept", "kept_async"])
async def test_lines_and_checkpoints_go_to_the_worker(bench, route):
    token = f"token of {grant_of().fence}"
    first = await bench.value(route, [{"page": 7}])
    second = await bench.value(route, ["on"])

    assert [["nothing", {"page": 7}, token], [{"page": 7}, "on", token]] == [first, second]
    last = (300, "line 299") if route == "kept" else (1, "the last word")
    assert last == bench.desk.lines[-1]
    assert [number for number, _ in bench.desk.lines[-100:]] == sorted(
        number for number, _ in bench.desk.lines[-100:]
    )


@pytest.mark.parametrize("route", ["kept", "kept_async"])
async def test_an_error_of_the_desk_is_raised_in_the_handler(bench, route):
    bench.desk.fenced = True
    outcome = await bench.run(route, [1])

    assert ("Conflict", "another run has it by now") == (outcome.error.type, outcome.error.message)


async def test_what_a_run_left_behind_does_not_speak_for_the_next(bench, tmp_path):
    await bench.run("haunting", [str(tmp_path / "end")])
    bench.desk.lines, bench.desk.progress, bench.desk.kept = [], [], None
    found = await bench.value("haunted", [str(tmp_path / "end")])

    assert 1 == bench.cells.started
    assert "nothing" == found
    assert [None, [], [(1, "mine")]] == [bench.desk.kept, bench.desk.progress, bench.desk.lines]


async def test_a_process_that_hears_nonsense_ends(bench):
    ready = await bench.value("whoami")
    (cell,) = bench.cells._living
    cell._writer.write(b"\0\0\0\1\xc1")
    await until(lambda: not is_running(ready[0]), PATIENCE_S)
    assert ready[0] != (await bench.value("whoami"))[0]


async def test_a_deferred_run_leaves_its_process_to_others(bench):
    outcome = await bench.run("deferred")

    assert ("DEFERRED", 5_000) == (outcome.kind, outcome.lease_ms)
    assert "SUCCEEDED" == (await bench.run("whoami")).kind
    assert 1 == bench.cells.started


async def test_an_older_payload_is_upgraded_there(bench):
    found = [
        await bench.value("moved@1", [3]),
        await bench.value("moved@2", {"euros": 4}),
        await bench.value("moved@3", {"cents": 5}),
    ]
    assert [300, 400, 5] == found


# -- who waits, who is replaced -------------------------------------------------------------------


async def test_runs_wait_for_a_free_process_and_waiting_costs_no_time_of_theirs(bench, tmp_path):
    first = bench.start("polite", [str(tmp_path / "first")])
    pid = await pid_in(tmp_path / "first")
    second = bench.start("whoami", timeout_ms=50)
    await asyncio.sleep(0.2)
    assert not second.task.done()
    first.interrupt("cancel")

    assert ["so be it", pid] == [
        codec.decode((await first.task).result),
        codec.decode((await second.task).result)[0],
    ]


async def test_a_waiting_run_that_is_cancelled_never_begins(bench, tmp_path):
    first = bench.start("busy", [str(tmp_path / "first")])
    await pid_in(tmp_path / "first")
    second = bench.start("busy", [str(tmp_path / "second")])
    await asyncio.sleep(0)
    second.interrupt("cancel")

    assert "CANCELLED" == (await second.task).kind
    first.interrupt("release")
    assert "RELEASED" == (await first.task).kind
    assert not (tmp_path / "second").exists()


async def test_a_process_is_replaced_after_so_many_runs():
    bench = Bench(runs_max=2)
    pids = [(await bench.value("whoami"))[0] for _ in range(5)]

    assert [pids[0]] * 2 + [pids[2]] * 2 + [pids[4]] == pids
    assert 3 == len(set(pids)) == bench.cells.started
    assert [pids[4]] == bench.cells.pids
    await bench.cells.close()
    assert not is_running(pids[4])


async def test_two_processes_work_side_by_side():
    bench = Bench(most=2)
    pids = await asyncio.gather(*(bench.value("whoami_async") for _ in range(6)))

    assert len(set(pids)) == bench.cells.started == 2
    await bench.cells.close()


async def test_an_idle_process_that_died_costs_nobody_an_attempt(bench):
    pid = (await bench.value("whoami"))[0]
    os.kill(pid, signal.SIGKILL)

    assert pid != (await bench.value("whoami"))[0]


async def test_an_app_that_cannot_be_loaded_costs_no_attempt():
    bench = Bench(target="no.such.module:app")

    outcome = await bench.run("whoami")
    assert ("RELEASED", 5_000, "no_process") == (outcome.kind, outcome.retry_ms, outcome.reason)
    assert [] == bench.cells.pids


@pytest.mark.parametrize("place", ["socket.socketpair", "asyncio.open_connection"])
async def test_no_descriptor_for_a_process_costs_no_attempt(bench, monkeypatch, place):
    def none_left(**_):
        raise OSError(errno.EMFILE, "Too many open files")

    descriptors = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(f"tasksched.runtime.cells.{place}", none_left)
        outcome = await bench.run("whoami")

    assert ("RELEASED", 5_000, "no_process") == (outcome.kind, outcome.retry_ms, outcome.reason)
    assert descriptors == open_descriptors()
    assert "SUCCEEDED" == (await bench.run("whoami")).kind


# -- interrupted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["busy", "stubborn"])
@pytest.mark.parametrize(("why", "ends"), [("cancel", "CANCELLED"), ("release", "RELEASED")])
async def test_a_busy_loop_is_ended_with_its_process(bench, tmp_path, route, why, ends):
    run = bench.start(route, [str(tmp_path / "pid")])
    pid = await pid_in(tmp_path / "pid")
    run.interrupt(why)

    assert ends == (await run.task).kind
    assert not is_running(pid)
    assert pid != (await bench.value("whoami"))[0]


async def test_a_coroutine_is_cancelled_first_and_cleans_up(bench, tmp_path):
    run = bench.start("tidy", [str(tmp_path / "pid"), str(tmp_path / "trace")])
    pid = await pid_in(tmp_path / "pid")
    run.interrupt("cancel")

    assert "CANCELLED" == (await run.task).kind
    assert str(pid) == (tmp_path / "trace").read_text()
    assert pid == (await bench.value("whoami"))[0]


async def test_time_over_is_a_timeout_and_the_process_ends(bench, tmp_path):
    run = bench.start("busy", [str(tmp_path / "pid")], timeout_ms=300)
    outcome = await run.task

    assert ("TIMED_OUT", 1_000) == (outcome.kind, outcome.retry_ms)
    assert "TimedOut" == outcome.error.type
    assert not is_running(await pid_in(tmp_path / "pid"))


async def test_a_lost_lease_is_heard_of(bench, tmp_path):
    run = bench.start("lonely", [str(tmp_path / "pid")])
    await pid_in(tmp_path / "pid")
    bench.cells.tell_lease_lost(run)

    assert "fenced off" == codec.decode((await run.task).result)


# -- death ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "payload", "how"),
    [
        ("exits", [3], "its process ended with status 3"),
        ("exits", [0], "its process ended with status 0"),
        ("killed", ..., "its process was ended by SIGKILL"),
        ("killed", {"forks": True}, "its process was ended by SIGKILL"),
    ],
)
async def test_a_process_that_ends_in_a_run_ends_the_attempt_at_once(bench, route, payload, how):
    began = time.monotonic()
    outcome = await bench.run(route, payload)

    assert ("LOST", 1_000) == (outcome.kind, outcome.retry_ms)
    assert ("WorkerLost", f"{how} (lost 1 in a row)") == (outcome.error.type, outcome.error.message)
    assert time.monotonic() - began < 15  # the lease is longer
    assert "SUCCEEDED" == (await bench.run("whoami")).kind


async def test_a_suspect_runs_in_a_process_whatever_its_mode_until_it_is_given_up(bench):
    lost = [await bench.run("fragile", attempt=n, lost=n - 1, retry=Retry(10)) for n in (2, 3)]

    assert ["LOST", "LOST"] == [outcome.kind for outcome in lost]
    assert [True, False] == [outcome.retry_ms is not None for outcome in lost]
    assert ["", "worker_lost"] == [outcome.reason for outcome in lost]
    assert "SIGSEGV" in lost[0].error.message
    assert os.getpid() == await bench.value("plain")
    assert os.getpid() != await bench.value("plain", lost=1)


ORPHAN = """
import asyncio, sys
from tests.runtime.test_cells import Bench
async def main():
    bench = Bench()
    await bench.run("busy", [sys.argv[1]])
asyncio.run(main())
"""


async def test_no_process_outlives_its_worker(tmp_path):
    path = tmp_path / "pid"
    worker = subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)])
    try:
        # Two interpreters start one after the other, which takes long on a busy machine.
        await until(lambda: is_written(path) or worker.poll() is not None, START_S)
        assert worker.poll() is None
        pid = int(path.read_text())
    finally:
        worker.kill()
        worker.wait()

    await until(lambda: not is_running(pid), PATIENCE_S)


async def test_a_handler_that_cancels_itself_has_failed_and_its_process_goes_on(bench):
    first = await bench.run("whoami")
    outcome = await bench.run("cancels_itself")

    assert ("FAILED", "CancelledError") == (outcome.kind, outcome.error.type)
    assert first.result == (await bench.run("whoami")).result
