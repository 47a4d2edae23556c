"""Workers that are killed, that block, that are told to stop; handlers that nobody knows yet."""

import os
import signal
import time

import pytest
from tests.embedding import servers_of
from tests.stack.books import pid_of
from tests.stack.kit import HANDLERS, LEASE_S, Stack, handler, is_running, until

pytestmark = pytest.mark.stack

MANY = {"max_attempts": 10, "max_lost": 10, "backoff": {"initial": "100ms", "max": "100ms"}}
ONCE = {"max_attempts": 1}
QUICK = {"max_attempts": 3, "backoff": {"initial": "100ms", "max": "100ms"}}


def test_the_tasks_of_a_killed_worker_start_again_within_its_lease(stack: Stack):
    """Lease, look of the reaper, back-off. retry-backoff-006: a single attempt is a single start."""
    api, first = stack.up()
    again = stack.submit(api, handler("work", {"seconds": 2}, retry=QUICK))
    once = stack.submit(api, handler("work", {"seconds": 60}, retry=ONCE))
    stack.await_start(again)
    stack.await_start(once)
    stack.kill(first)
    killed = time.time()
    stack.worker()
    late = stack.await_start(again, 2) - killed
    print(f"started again {late:.2f} s after the kill (lease {LEASE_S} s)")
    assert late < 2 * (LEASE_S + 1.5)
    done = api.task(again, wait_s=20)
    assert (done["status"], done["result"], done["attempts"]) == ("SUCCESS", 2, 2)
    assert api.outcomes(again) == ["LOST", "SUCCEEDED"]
    lost = api.task(once, wait_s=20)
    assert (lost["status"], lost["reason"], lost["attempts"]) == ("FAILED", "worker_lost", 1)
    assert lost["error"]["type"] == "WorkerLost"
    stack.audit()
    assert len(stack.seen(once)) == 1


def test_a_task_that_kills_its_worker_each_time_ends_and_harms_no_other(home: Stack):
    """retry-backoff-001: the supervisor starts workers again; the others' work goes on.

    From its second start on it is a suspect, and takes a process of its own along, not the worker.
    """
    home.env["TASKSCHED_LEASE"] = "1s"
    api, _ = home.dev()
    poison = home.submit(api, handler("suicide", retry=QUICK))
    others = [home.submit(api, handler("work", {"seconds": 0.3}, retry=MANY)) for _ in range(20)]
    done = api.task(poison, wait_s=30)
    assert (done["status"], done["reason"], done["attempts"]) == ("FAILED", "worker_lost", 3)
    assert {api.task(each, wait_s=20)["status"] for each in others} == {"SUCCESS"}
    assert api.outcomes(poison) == ["LOST"] * 3
    attempts = api.get(f"/tasks/{poison}/attempts")["items"]
    home.harmed |= {pid_of(attempt["worker"]) for attempt in attempts}
    home.audit()
    assert len(home.seen(poison)) == 3


def test_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_lease(stack: Stack):
    """lease-010, lease-002 scaled: leases are renewed from a thread of its own."""
    api, _ = stack.up("--concurrency", "1")
    task_id = stack.submit(api, handler("busy", {"seconds": 3 * LEASE_S}))
    stack.await_start(task_id)
    stack.worker()  # somebody who would take over
    assert api.task(task_id, wait_s=25)["status"] == "SUCCESS"
    stack.audit()
    assert len(stack.seen(task_id)) == 1


def test_a_frozen_worker_is_fenced_off_and_its_late_result_does_not_count(stack: Stack):
    """lease-008: who sleeps longer than its lease loses it, and is told so when it wakes."""
    api, first = stack.up()
    task_id = stack.submit(api, handler("work", {"seconds": 1}))
    stack.await_start(task_id)
    stack.harmed.add(first.pid)
    first.send(signal.SIGSTOP)
    stack.worker()
    stack.await_start(task_id, 2)
    first.send(signal.SIGCONT)
    assert api.task(task_id, wait_s=20)["status"] == "SUCCESS"
    until(lambda: len(stack.seen(task_id, "end")) == 2, "the frozen run ended too")
    assert api.outcomes(task_id) == ["LOST", "SUCCEEDED"]
    assert first.end() == 0
    assert '"stale": 1' in first.said()
    stack.audit()


def test_sigterm_lets_short_runs_finish_and_hands_a_long_one_over_at_once(stack: Stack):
    """shutdown-003, shutdown-002: the lease is longer than the test, so nobody waits for it."""
    stack.env["TASKSCHED_LEASE"] = "30s"
    api, first = stack.up("--grace", "3s")
    tasks = [stack.submit(api, handler("work", {"seconds": s})) for s in (0.5, 2, 60)]
    for task_id in tasks:
        stack.await_start(task_id)
    second = stack.worker()
    told = time.time()
    first.send(signal.SIGTERM)
    fresh = stack.submit(api, handler("work"))
    assert api.task(fresh, wait_s=10)["status"] == "SUCCESS"
    assert first.wait() == 0
    print(f"the worker was gone {time.time() - told:.2f} s after SIGTERM (grace 3 s)")
    assert time.time() - told < 8
    again = stack.await_start(tasks[2], 2)
    print(f"the released run started elsewhere {again - told:.2f} s after SIGTERM")
    assert again - told < 3 + 5
    starts = stack.seen(tasks[2])
    assert [start["pid"] for start in starts] == [first.pid, second.pid]
    assert [start["pid"] for start in stack.seen(fresh)] == [second.pid]
    assert [api.task(each)["status"] for each in tasks[:2]] == ["SUCCESS", "SUCCESS"]
    running = api.task(tasks[2])
    assert (running["status"], running["attempts"]) == ("RUNNING", 1)
    api.call("POST", f"/tasks/{tasks[2]}/cancel")
    books = stack.audit()
    assert books.attempts_that_count(tasks[2]) == 0
    assert [a["outcome"] for a in books.attempts[tasks[2]]] == ["RELEASED", "CANCELLED"]


def test_no_task_is_lost_when_workers_are_told_to_stop_while_they_take(stack: Stack):
    """shutdown-004: the signal falls between the grant and the start of the handler."""
    stack.env["TASKSCHED_LEASE"] = "30s"
    api, _ = stack.api("--scheduler")
    ends = []
    with stack.load([api], handler("work", {"seconds": 0.01})) as load:
        for _ in range(3):
            worker = stack.worker("--grace", "1s")
            until(lambda: any(s["pid"] == worker.pid for s in stack.seen()), "it works")  # noqa: B023
            ends.append(worker.end())
    stack.worker()
    assert ends == [0] * 3
    assert load.troubles == []
    began = time.monotonic()
    stack.audit()
    assert time.monotonic() - began < 10  # nobody waited for a lease


def test_a_second_signal_ends_a_worker_now(stack: Stack):
    api, worker = stack.up("--grace", "60s")
    task_id = stack.submit(api, handler("work", {"seconds": 1.5}))
    stack.await_start(task_id)
    worker.send(signal.SIGTERM)
    until(lambda: "worker.drain" in worker.said(), "it drains")
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 1
    stack.harmed.add(worker.pid)
    stack.worker()
    stack.audit()


LEFT = """
import asyncio, time
from tasksched import App
app = App()

@app.task
async def deaf():
    print("entered", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@app.task
async def in_thread():
    print("entered", flush=True)
    await asyncio.to_thread(time.sleep, 3600)
"""


def left_app(stack: Stack) -> str:
    path = stack.directory / "left.py"
    path.write_text(LEFT)
    return f"{path}:app"


@pytest.mark.parametrize(
    ("name", "times", "argv"),
    [("deaf", 1, []), ("in_thread", 40, []), ("deaf", 1, ["--processes", "2"])],
)
def test_a_handler_that_does_not_end_keeps_no_worker_from_ending(stack: Stack, name, times, argv):
    """Neither in the loop nor in its threads, of which 40 are more than there are."""
    api, _ = stack.api("--scheduler")
    worker = stack.start("worker", left_app(stack), "--grace", "1s", *argv)
    tasks = [stack.submit(api, handler(name)) for _ in range(times)]
    until(lambda: worker.said().count("entered") == times, "all run")
    pids = [each["pid"] for each in api.get("/workers")["items"]]
    began = time.monotonic()
    assert worker.end() == 0
    print(f"the worker was gone {time.monotonic() - began:.2f} s after SIGTERM (grace 1 s)")
    assert worker.said().count("process.left_over") == 1
    assert pids
    assert not any(is_running(pid) for pid in pids)
    for task_id in tasks:
        assert api.task(task_id)["status"] in {"PENDING", "QUEUED"}
        api.call("POST", f"/tasks/{task_id}/cancel")
    stack.audit()


def test_a_worker_that_leaves_a_handler_behind_ends_its_embedded_server_first(home: Stack):
    home.env["TASKSCHED_URL"] = f"embedded:{home.data}"
    worker = home.start("worker", left_app(home), "--grace", "1s")
    until(lambda: "worker.start" in worker.said(), "it runs the server")
    api, _ = home.api("--scheduler")
    home.submit(api, handler("deaf"))
    until(lambda: "entered" in worker.said(), "it runs")
    assert servers_of(home.data.resolve())
    assert worker.end() == 0
    assert "process.left_over" in worker.said()
    assert not servers_of(home.data.resolve())


def test_a_task_waits_parked_until_a_worker_that_knows_its_handler_arrives(stack: Stack):
    """payload-result-002: neither failed nor spun on; it costs no attempt."""
    api, _ = stack.up()
    task_id = stack.submit(api, handler("late"))
    until(
        lambda: (
            [why["reason"] for why in api.task(task_id)["why_waiting"]] == ["no_worker_for_handler"]
        ),
        "it says why it waits",
    )
    waiting = api.task(task_id)
    assert (waiting["status"], waiting["attempts"]) == ("PENDING", 0)
    stack.worker(KNOWS="late")
    done = api.task(task_id, wait_s=10)
    assert (done["status"], done["result"], done["attempts"]) == ("SUCCESS", "at last", 1)
    stack.audit()


def test_a_task_of_version_2_waits_for_a_worker_of_version_2(stack: Stack):
    """A rolling deployment: both versions run side by side, each task where it belongs."""
    api, old = stack.up(KNOWS="report@1")
    first = stack.submit(api, handler("report", version="1"))
    second = stack.submit(api, handler("report", version="2"))
    plain = stack.submit(api, handler("report"))
    assert api.task(first, wait_s=10)["status"] == "SUCCESS"
    assert api.task(second)["status"] == "PENDING"
    new = stack.worker(KNOWS="report@2,report")
    assert api.task(second, wait_s=10)["status"] == "SUCCESS"
    assert api.task(plain, wait_s=10)["status"] == "SUCCESS"
    assert [s["pid"] for s in stack.seen(first)] == [old.pid]
    assert [s["pid"] for s in stack.seen(second)] == [new.pid]
    stack.audit()


def test_many_worker_processes_are_one_command_and_end_with_it(stack: Stack):
    api, _ = stack.api("--scheduler")
    parent = stack.start("worker", HANDLERS, "--processes", "2")
    until(lambda: len(api.get("/workers")["items"]) == 2, "two workers")
    pids = [worker["pid"] for worker in api.get("/workers")["items"]]
    tasks = [stack.submit(api, handler("work", {"seconds": 0.1})) for _ in range(10)]
    for task_id in tasks:
        assert api.task(task_id, wait_s=10)["status"] == "SUCCESS"
    os.kill(pids[0], signal.SIGKILL)
    stack.harmed.add(pids[0])
    until(lambda: len(set(pids) | {w["pid"] for w in api.get("/workers")["items"]}) == 3, "a third")
    assert parent.end() == 0
    assert not any(is_running(pid) for pid in pids)
    stack.audit()
