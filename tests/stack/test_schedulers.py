"""Schedulers that are killed: others take over, nothing is lost and nothing doubled."""

import time

import pytest
from tests.stack.kit import Api, Stack, handler, until

pytestmark = pytest.mark.stack

SPREAD = 16  # tasks, one after the other: some in each shard
TAKEOVER_S = 2 * 6.0  # twice what is promised


def test_killed_schedulers_are_replaced_in_seconds_and_nothing_is_lost_or_doubled(stack: Stack):
    api, _ = stack.api()
    schedulers = [stack.scheduler(), stack.scheduler()]
    stack.worker()
    until(lambda: api.get("/health")["schedulers"] == 2, "both are seen")
    with stack.load([api], handler("work", delay="300ms")) as load:
        until(lambda: load.created > 50, "some load")
        stack.kill(schedulers[0])
        served(stack, api, "one of two was killed")
        stack.kill(schedulers[1])
        # Nobody is left to hand over what becomes due; creating goes on.
        waiting = [stack.submit(api, handler("work", delay="100ms")) for _ in range(SPREAD)]
        time.sleep(1.0)
        assert any(api.task(each)["status"] == "PENDING" for each in waiting)
        stack.scheduler()
        served(stack, api, "a new one was started")
        assert {api.task(each, wait_s=15)["status"] for each in waiting} == {"SUCCESS"}
    assert load.troubles == []
    assert api.get("/health")["schedulers"] == 1
    stack.audit()


def served(stack: Stack, api: Api, what: str) -> None:
    """Every shard hands over what becomes due."""
    began = time.monotonic()
    tasks = [stack.submit(api, handler("work", delay="100ms")) for _ in range(SPREAD)]
    assert {api.task(each, wait_s=15)["status"] for each in tasks} == {"SUCCESS"}
    print(f"every shard is served {time.monotonic() - began:.2f} s after {what}")
    assert time.monotonic() - began < TAKEOVER_S
