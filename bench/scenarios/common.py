"""What scenarios share: the task they speak of, the audit of its records, the shape of a result."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from bench.measure import facts
from bench.servers import Server

from tasksched.model import ids
from tasksched.model.task import HandlerTarget, TaskSpec
from tasksched.store.keys import ShardKeys

HANDLER = "noop"
PAYLOAD = b"\xc4\x62" + bytes(range(98))  # 100 bytes, as msgpack holds them
PAD = "x" * 92  # the second argument of a no-op; with a number before it, a payload of 100 bytes
_CHUNK = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was asked for on the command line."""

    scenario: str
    length: str = "long"  # or "short"
    server: str = "valkey"
    aof: str | None = None  # None = as the question wants it
    peer: str | None = None
    pin: bool = False
    tasks: int | None = None  # None = as many as the length says

    def sealed(self, result: Mapping[str, Any], server: Server) -> dict[str, Any]:
        """The result with what makes it readable: the question, the length and the machine."""
        asked = {"scenario": self.scenario, "length": self.length, "pinned": self.pin}
        return {**asked, **result, **facts(server)}


@cache
def spec_of(tenant: str = "default", delay_ms: int = 0) -> TaskSpec:
    return TaskSpec(
        target=HandlerTarget(HANDLER), payload=PAYLOAD, tenant=tenant, delay_ms=delay_ms
    )


def audit_records(
    client: redis.Redis,
    namespace: str,
    task_ids: Sequence[str],
    runs: Mapping[str, int],
    state: str = "SUCCESS",
) -> dict[str, int]:
    """Looks at every record: ``lost`` ones are not in ``state``, ``doubled`` ran more than once.

    ``runs``: how often each was started, as those who ran it counted. The record must agree.
    """
    found: Counter[str] = Counter()
    for start in range(0, len(task_ids), _CHUNK):
        pipe = client.pipeline(transaction=False)
        chunk = task_ids[start : start + _CHUNK]
        for task_id in chunk:
            shard = ids.shard_of(task_id, ids.SHARDS_MAX)
            keys = ShardKeys.of(namespace, shard or 0)
            pipe.hmget(keys.task(task_id), "state", "attempt")
        for task_id, (now, attempt) in zip(chunk, pipe.execute(), strict=True):
            found["lost"] += now is None or now.decode() != state
            found["doubled"] += max(int(attempt or 0), runs.get(task_id, 0)) > 1
            found["unrun"] += state == "SUCCESS" and runs.get(task_id, 1) < 1
    return {
        "tasks": len(task_ids),
        "lost": found["lost"] + found["unrun"],
        "doubled": found["doubled"] + len(task_ids) - len(set(task_ids)),
    }


def wait_until(what: str, true: Any, seconds: float, every_s: float = 0.02) -> None:
    """Until ``true()``; a TimeoutError names what did not happen."""
    until_s = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every_s)
