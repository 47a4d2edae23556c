"""A schedule every second while schedulers are killed: each nominal time fires once, none is lost."""

import time

import pytest
from tests.stack.kit import Api, Stack, handler, until

from tasksched.model.durations import parse_duration
from tasksched.model.instants import parse_instant

pytestmark = pytest.mark.stack

SHORT_S, LONG_S = 12.0, 60.0
KILL_EVERY_S = 3.0


def runs_of(api: Api, schedule_id: str) -> list[dict]:
    return api.get(f"/recurring-tasks/{schedule_id}/runs")["items"]


def waiting(api: Api) -> list[dict]:
    """Occurrences that have not finished."""
    unfinished = ("PENDING", "QUEUED", "RUNNING")
    return [task for task in api.get("/tasks")["items"] if task["status"] in unfinished]


def test_every_second_fires_once_while_one_scheduler_after_the_other_is_killed(
    stack: Stack, chaos: bool
):
    """duplicate-schedulers by real processes: two at a time, one killed every few seconds."""
    api, _ = stack.api()
    schedulers = [stack.scheduler(), stack.scheduler()]
    stack.worker()
    until(lambda: api.get("/health")["schedulers"] == 2, "both are seen")
    made = api.call(
        "POST",
        "/recurring-tasks",
        {
            "id": "tick",
            "cron": "* * * * * *",
            "overlap": "allow",
            "catch_up": "all",
            **handler("work"),
        },
    )
    assert made.status == 201, made
    began = time.monotonic()
    while time.monotonic() - began < (LONG_S if chaos else SHORT_S):
        time.sleep(KILL_EVERY_S)
        stack.kill(schedulers.pop(0))
        schedulers.append(stack.scheduler())
    assert api.call("POST", "/recurring-tasks/tick/pause", {}).status == 200
    until(lambda: not waiting(api), "what was missed has been caught up with", 30)

    runs = runs_of(api, "tick")
    nominals = sorted(parse_instant(run["nominal_at"]) for run in runs)
    assert {run["outcome"] for run in runs} == {"fired"}
    assert nominals == list(range(nominals[0], nominals[-1] + 1, 1_000))
    assert len({run["task_id"] for run in runs}) == len(runs)
    for run in runs:
        assert api.task(run["task_id"], wait_s=10)["status"] == "SUCCESS"
    late = sorted(time_ms(run["lateness"]) for run in runs)
    print(f"{len(runs)} runs, lateness p50 {late[len(late) // 2]} ms, max {late[-1]} ms")
    stack.audit()


def time_ms(text: str) -> int:
    return parse_duration(text)
