"""The books of an installation at rest: every record, compared with what the outside knows.

``Books`` reads the whole database once per shard (``tests.protocol.audit`` recomputes every invariant
and every counter) and joins it with the ids that were accepted, the starts the witness saw, and the
processes that were killed or frozen: a start beyond the first needs a cause.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import redis
from tests.protocol.audit import Audit

from tasksched.model.states import FINAL
from tasksched.store.keys import NamespaceKeys, ShardKeys

NAMESPACE = "ts"
COUNTED = {"FAILED", "TIMED_OUT", "LOST"}
CAUSES = {"FAILED", "TIMED_OUT", "RELEASED", "CANCELLED"}


def shard_keys(plain: redis.Redis) -> list[ShardKeys]:
    shards = int(plain.hget(NamespaceKeys(NAMESPACE).meta, "shards") or 0)
    return [ShardKeys.of(NAMESPACE, number) for number in range(shards)]


class Books:
    """All records and their attempts, and what is wrong with them by themselves."""

    def __init__(self, plain: redis.Redis) -> None:
        self.records: dict[str, dict[str, str]] = {}
        self.attempts: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.wrong: list[str] = []
        self.stats: Counter[str] = Counter()
        for keys in shard_keys(plain):
            seconds, micros = plain.time()
            shard = Audit(plain, keys, seconds * 1000 + micros // 1000)
            self.wrong += shard.findings()
            self.records |= shard.records
            for task_id, entries in shard.group("attempts").items():
                self.attempts[task_id] += [json.loads(entry) for entry in entries]
            for name, value in shard.one("stats").items():
                self.stats[name] += int(value)
        for task_id, record in self.records.items():
            if "attempt" in record:
                names = ("attempt", "fence", "worker", "outcome")
                self.attempts[task_id].append({n: record[n] for n in names if n in record})

    @staticmethod
    def unfinished(plain: redis.Redis) -> dict[str, int]:
        """By state, how many tasks are not final, from the counters."""
        found: Counter[str] = Counter()
        for keys in shard_keys(plain):
            for name, value in plain.hgetall(keys.counts).items():
                state = name.decode().rpartition(":")[2]
                if not name.startswith(b"bytes:") and state not in FINAL:
                    found[state] += int(value)
        return {state: number for state, number in found.items() if number != 0}

    def findings(
        self, accepted: set[str], starts: list[dict[str, Any]], harmed: set[int]
    ) -> list[str]:
        """What is wrong, a sentence each."""
        return [
            *self.wrong,
            *self._lost(accepted),
            *self._invented(starts),
            *self._doubled(harmed),
        ]

    def _lost(self, accepted: set[str]) -> Iterator[str]:
        for task_id in sorted(accepted - set(self.records)):
            yield f"S2 {task_id} was accepted and is gone"
        for task_id, record in self.records.items():
            if record["state"] not in FINAL:
                yield f"L1 {task_id} is {record['state']} still"

    def _invented(self, starts: list[dict[str, Any]]) -> Iterator[str]:
        """Every start that was seen is a recorded attempt, and none was seen twice."""
        seen: Counter[tuple[str, str]] = Counter((s["id"], str(s["fence"])) for s in starts)
        known = {(task_id, a["fence"]) for task_id, log in self.attempts.items() for a in log}
        for (task_id, fence), times in seen.items():
            if (task_id, fence) not in known:
                yield f"S3 {task_id} was seen to start with fence {fence}, which is on no record"
            if times > 1:
                yield f"S4 {task_id} was started {times} times with fence {fence}"

    def _doubled(self, harmed: set[int]) -> Iterator[str]:
        """Each attempt but the last ended in a way that calls for another one."""
        for task_id, log in self.attempts.items():
            fences = [int(attempt["fence"]) for attempt in log]
            if fences != sorted(set(fences)):
                yield f"S4 the fences of {task_id} do not grow: {fences}"
            for attempt in log[:-1]:
                if attempt.get("outcome") not in {*CAUSES, "LOST"}:
                    yield f"S9 {task_id} started again after {attempt}"
            for attempt in log:
                if attempt.get("outcome") == "LOST" and pid_of(attempt["worker"]) not in harmed:
                    yield f"S9 {task_id} lost its lease, though nobody harmed {attempt['worker']}"
            if not log and self.records[task_id]["state"] == "SUCCESS":
                yield f"S3 {task_id} is SUCCESS without any attempt"

    def attempts_that_count(self, task_id: str) -> int:
        return sum(attempt.get("outcome") in COUNTED for attempt in self.attempts[task_id])


def pid_of(worker: str) -> int:
    """host-pid-random."""
    return int(worker.split("-")[-2])
