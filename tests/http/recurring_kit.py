"""Recurring tasks for tests: bodies, a fake clock, and a hand that plays scheduler and worker."""

import json
from pathlib import Path
from typing import Any

from tests.http.conftest import CHARGE, Rig

from tasksched.model.instants import parse_instant
from tasksched.runtime.ticker import fire_owed

START = "2026-03-02T10:00:00Z"
PATH = "/recurring-tasks"
DAILY = {"target": CHARGE, "cron": "30 2 * * *", "timezone": "Europe/Paris"}
EVERY = {"target": CHARGE, "interval": "1m"}
AFTER = {"target": CHARGE, "delay": "1m"}

_LINES = (Path(__file__).parent.parent / "cases" / "cases.jsonl").read_text().splitlines()
CASES: dict[str, Any] = {case["id"]: case for case in map(json.loads, _LINES)}


def set_clock(rig: Rig, text: str = START) -> None:
    rig.session.store.now_ms = parse_instant(text)


def advance(rig: Rig, ms: int) -> None:
    rig.session.store.now_ms += ms


async def make(rig: Rig, schedule_id: str = "s1", **members: Any) -> dict[str, Any]:
    """Put a recurring task, by default a daily one; what was answered."""
    answer = await rig.ask("PUT", f"{PATH}/{schedule_id}", {**DAILY, **members})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def make_of(rig: Rig, body: dict[str, Any], schedule_id: str = "s1") -> dict[str, Any]:
    answer = await rig.ask("PUT", f"{PATH}/{schedule_id}", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def look(rig: Rig, schedule_id: str = "s1") -> dict[str, Any]:
    answer = await rig.ask("GET", f"{PATH}/{schedule_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ledger(rig: Rig, schedule_id: str = "s1") -> list[dict[str, Any]]:
    return (await rig.ask("GET", f"{PATH}/{schedule_id}/runs")).json()["items"]


async def fire(rig: Rig) -> None:
    """As a scheduler: whatever is owed now."""
    schedules = rig.recurring.schedules
    for shard in range(rig.session.store.shards):
        while (await fire_owed(schedules, shard))[0]:
            pass


async def run(rig: Rig) -> list[str]:
    """Everything that is due now is fired, runs, and succeeds; the ids."""
    await fire(rig)
    started = await rig.start()
    await rig.finish(started)
    return [grant.id for _, grant in started]
