"""Schedulers that are killed: others take over, nothing is lost and nothing doubled."""

import signal
import time

import pytest
from tests.stack.kit import Stack, handler, until

pytestmark = pytest.mark.stack


def test_when_one_of_two_schedulers_is_killed_the_other_takes_its_shards_in_seconds(stack: Stack):
    api, _ = stack.api()
    schedulers = [stack.scheduler(), stack.scheduler()]
    stack.worker()
    until(lambda: api.get("/health")["schedulers"] == 2, "both are seen")
    with stack.load([api], handler("work", delay="300ms")) as load:
        until(lambda: load.created > 50, "some load")
        stack.kill(schedulers[0])
        killed = time.monotonic()
        # One per shard at least: some of them were the dead one's.
        watched = [stack.submit(api, handler("work", delay="100ms")) for _ in range(16)]
        assert {api.task(each, wait_s=15)["status"] for each in watched} == {"SUCCESS"}
        print(f"all shards served {time.monotonic() - killed:.2f} s after the kill")
        assert time.monotonic() - killed < 2 * 6
    assert load.troubles == []
    assert api.get("/health")["schedulers"] == 1
    stack.audit()


def test_when_all_schedulers_are_killed_a_new_one_finds_everything(stack: Stack):
    api, _ = stack.api()
    schedulers = [stack.scheduler(), stack.scheduler()]
    stack.worker()
    with stack.load([api], handler("work", delay="200ms")) as load:
        until(lambda: load.created > 50, "some load")
        for scheduler in schedulers:
            stack.kill(scheduler)
        waiting = [stack.submit(api, handler("work", delay="100ms")) for _ in range(16)]
        # Nobody is left to hand over what becomes due; creating goes on.
        time.sleep(1.0)
        assert any(api.task(each)["status"] == "PENDING" for each in waiting)
        begun = time.monotonic()
        stack.scheduler()
        assert {api.task(each, wait_s=15)["status"] for each in waiting} == {"SUCCESS"}
        print(f"a new scheduler had served all {time.monotonic() - begun:.2f} s after its start")
    assert load.troubles == []
    stack.audit()


def test_a_frozen_scheduler_that_wakes_harms_nothing(stack: Stack):
    """Two on one shard are merely wasteful: every script is safe to run by anybody."""
    api, _ = stack.api()
    schedulers = [stack.scheduler(), stack.scheduler()]
    stack.worker()
    until(lambda: api.get("/health")["schedulers"] == 2, "both are seen")
    with stack.load([api], handler("work", delay="300ms")) as load:
        until(lambda: load.created > 50, "some load")
        schedulers[0].send(signal.SIGSTOP)
        until(lambda: api.get("/health")["schedulers"] == 1, "it is missed")
        watched = [stack.submit(api, handler("work", delay="100ms")) for _ in range(16)]
        assert {api.task(each, wait_s=15)["status"] for each in watched} == {"SUCCESS"}
        schedulers[0].send(signal.SIGCONT)
        until(lambda: api.get("/health")["schedulers"] == 2, "it is back")
        until(lambda: load.created > 500, "some more load")
    assert load.troubles == []
    stack.audit()
    assert [each.end() for each in schedulers] == [0, 0]
