"""The audit of recurring tasks: every invariant of the schedules of a shard, from a full dump.

Written from the contract, as ``tests/protocol/audit.py`` is, which it completes.
"""

from collections.abc import Iterator
from typing import Any

import redis
from tests.protocol.audit import read_dump

from tasksched.model.recurring import occurrence_id
from tasksched.model.states import FINAL
from tasksched.store.keys import ShardKeys

KINDS = ("schedule", "open", "extra", "catchup", "ledger")
LEDGER_MAX = 100


def audit_schedules(plain: redis.Redis, keys: ShardKeys) -> list[str]:
    return list(_Audit(read_dump(plain), keys).findings())


class _Audit:
    def __init__(self, dump: dict[str, Any], keys: ShardKeys) -> None:
        self.keys = keys
        self.dump = dump
        self.records = self._group("task")
        self.all = self._group("schedule")
        self.bodies = {
            name.removesuffix(":body"): self.all.pop(name)
            for name in list(self.all)
            if name.endswith(":body")
        }
        self.scores = dump.get(keys.schedules, {})

    def _group(self, kind: str) -> dict[str, Any]:
        prefix = f"{self.keys.shard}:{kind}:"
        found = {k.removeprefix(prefix): v for k, v in self.dump.items() if k.startswith(prefix)}
        return {name: _text(value) for name, value in found.items()}

    def findings(self) -> Iterator[str]:
        if set(self.scores) != set(self.all):
            yield f"S22 schedules holds {set(self.scores)}, there are {set(self.all)}"
        for kind in KINDS:
            for ref in self._group(kind):
                if ref.removesuffix(":body") not in self.all:
                    yield f"S23 {kind} of {ref} without a schedule"
        for ref, schedule in self.all.items():
            yield from self._one(ref, schedule)

    def _one(self, ref: str, schedule: dict[str, str]) -> Iterator[str]:
        score = self.scores.get(ref)
        if score != float(schedule.get("next_ms", "inf")):
            yield f"S22 {ref} is scored {score}, its next_ms is {schedule.get('next_ms')}"
        if schedule["status"] != "ACTIVE" and "next_ms" in schedule:
            yield f"S14 {ref} is {schedule['status']} and owes {schedule['next_ms']}"
        if (
            schedule["status"] != "BLOCKED"
            and schedule["status"] != "PAUSED"
            and "reason" in schedule
        ):
            yield f"{ref} is {schedule['status']} with the reason {schedule['reason']}"
        if schedule.get("body", "") != str(len(self.bodies[ref]) if ref in self.bodies else ""):
            yield f"S25 {ref} has a payload of another length than it says"
        yield from self._open(ref, schedule)
        yield from self._waiting(ref, schedule)
        if len(self._group("ledger").get(ref, [])) > LEDGER_MAX:
            yield f"{ref} has a ledger that is too long"
        if "max_runs" in schedule and int(schedule.get("runs", 0)) > int(schedule["max_runs"]):
            yield f"{ref} made {schedule['runs']} runs of {schedule['max_runs']}"

    def _open(self, ref: str, schedule: dict[str, str]) -> Iterator[str]:
        """The open sets are what the records say."""
        generation_ms = int(schedule["generation"])
        shard = int(self.keys.shard.rsplit(":", 1)[1][:-1])
        unfinished: dict[bool, set[str]] = {True: set(), False: set()}
        for task_id, record in self.records.items():
            mine = record.get("schedule") == ref and task_id == occurrence_id(
                ref, generation_ms, record["occurrence"], shard
            )
            if mine and record["state"] not in FINAL:
                unfinished["by_hand" in record].add(task_id)
        for kind, by_hand in (("open", False), ("extra", True)):
            if (stored := self._group(kind).get(ref, set())) != unfinished[by_hand]:
                yield f"S22 {kind} of {ref} is {stored}, not {unfinished[by_hand]}"

    def _waiting(self, ref: str, schedule: dict[str, str]) -> Iterator[str]:
        opened = self._group("open").get(ref, set())
        status, catching = schedule["status"], schedule.get("catching")
        if catching and catching not in opened:
            yield f"{ref} waits for {catching}, which is not open"
        if self._group("catchup").get(ref) and not catching and status != "PAUSED":
            yield f"{ref} has times to catch up with, and nothing that goes on with them"
        if "held" in schedule:
            if schedule.get("overlap") not in {"queue", "cancel"}:
                yield f"{ref} keeps {schedule['held']} waiting by no policy"
            if status != "PAUSED" and not opened - {catching}:
                yield f"S13 {ref} keeps {schedule['held']} waiting for nothing"
        if schedule["kind"] != "delay":
            return
        chained = schedule.get("head") in opened
        if status == "ACTIVE" and chained == ("next_ms" in schedule):
            yield f"S12 {ref} hangs on {'both' if chained else 'neither'} of head and next_ms"


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v.decode("latin1") if isinstance(v, bytes) else v for k, v in value.items()}
    return value
