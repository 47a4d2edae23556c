"""A task that kills the process it runs in, among others that do no harm."""

import signal

import pytest
from tests.stack.kit import Stack, handler, is_running, send, tree_of, until

pytestmark = pytest.mark.stack

QUICK = {"max_attempts": 10, "backoff": {"initial": "100ms", "max": "100ms"}}


def test_a_poisonous_task_costs_each_neighbour_one_attempt_at_most(stack: Stack):
    """The first death takes the worker along; from then on the suspect dies alone."""
    stack.env["TASKSCHED_CELLS"] = "2"
    api, _ = stack.api("--scheduler")
    others = [stack.submit(api, handler("work", {"seconds": 0.5}, retry=QUICK)) for _ in range(20)]
    poison = stack.submit(api, handler("suicide", retry=QUICK))
    first = stack.start_worker()
    assert first.wait() == -signal.SIGKILL
    stack.harmed.add(first.pid)
    worker = stack.worker()
    done = api.task(poison, wait_s=30)
    assert (done["status"], done["reason"], done["attempts"]) == ("FAILED", "worker_lost", 3)
    assert done["error"]["type"] == "WorkerLost"
    assert "SIGKILL" in done["error"]["message"]
    for each in others:
        assert api.task(each, wait_s=30)["status"] == "SUCCESS"
        assert api.outcomes(each) in (["SUCCEEDED"], ["LOST", "SUCCEEDED"])
    assert api.outcomes(poison) == ["LOST"] * 3
    assert worker.status is None  # it outlived the second and the third
    starts = stack.seen(poison)
    assert len(starts) == 3
    assert {start["pid"] for start in starts[1:]}.isdisjoint({first.pid, worker.pid})
    stack.harmed.add(worker.pid)  # the books know the worker by whose hand its process died
    stack.audit()


def test_a_cancel_and_a_kill_leave_no_process_behind(stack: Stack):
    """Busy processes of a worker: one is cancelled, the other loses its worker."""
    api, worker = stack.up(TASKSCHED_CELLS="2")
    tasks = [stack.submit(api, handler("crunch", {"seconds": 60}, retry=QUICK)) for _ in range(2)]
    for each in tasks:
        stack.await_start(each)
    first, second = (stack.seen(each)[0]["pid"] for each in tasks)
    assert worker.pid not in {first, second}
    assert api.call("POST", f"/tasks/{tasks[0]}/cancel").status in {200, 202}
    assert api.task(tasks[0], wait_s=10)["status"] == "CANCELLED"
    until(lambda: not is_running(first), "the cancelled one is gone")
    assert is_running(second)
    stack.kill(worker)
    until(lambda: not is_running(second), "the orphan is gone")
    assert api.call("POST", f"/tasks/{tasks[1]}/cancel").status in {200, 202}
    stack.audit()


def test_a_worker_that_is_told_to_stop_hands_its_processes_over(stack: Stack):
    stack.env["TASKSCHED_LEASE"] = "30s"
    api, first = stack.up("--grace", "300ms")
    task_id = stack.submit(api, handler("crunch", {"seconds": 60}, retry=QUICK))
    stack.await_start(task_id)
    children = tree_of(first.pid)[1:]
    assert first.end() == 0
    assert not any(is_running(pid) for pid in children)
    second = stack.worker()
    stack.await_start(task_id, 2)
    assert api.call("POST", f"/tasks/{task_id}/cancel").status in {200, 202}
    assert api.task(task_id, wait_s=10)["status"] == "CANCELLED"
    assert api.outcomes(task_id) == ["RELEASED", "CANCELLED"]
    idle = tree_of(second.pid)[1:]
    send(second.pid, signal.SIGTERM)
    assert second.wait() == 0
    assert not any(is_running(pid) for pid in idle)
    stack.audit()
