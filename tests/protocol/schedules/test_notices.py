"""What is told of recurring tasks: the bodies of ``schedule.missed`` and ``schedule.blocked``."""

from typing import Any

import msgspec
import pytest
from tests.protocol.kit import BROKEN, DONE
from tests.protocol.schedules.kit import MINUTE_MS, SchedulesKit, Work

from tasksched.model import codec
from tasksched.model.notify import NOTIFY_ROUTE, QUEUE, Receiver
from tasksched.model.schedule import Delay, Every
from tasksched.runtime.notices import Notices

pytestmark = pytest.mark.anyio

URL = "https://example.com/hook"


async def put(kit: SchedulesKit, rule: Any, *events: Any, **fields: Any) -> None:
    asked = kit.spec(rule, **fields)
    template = msgspec.structs.replace(asked.template, notify=(Receiver(URL, events),))
    await kit.recurring.put(msgspec.structs.replace(asked, template=template))


async def told(kit: SchedulesKit) -> list[dict[str, Any]]:
    """Runs the notifications that are due; the bodies of the deliveries they made."""
    await kit.announce("teller", f"queue:{QUEUE}", f"route:{NOTIFY_ROUTE}")
    await kit.dispatch()
    for grant in await kit.take(worker="teller"):
        await kit.settle(grant, msgspec.structs.replace(DONE, result=await tell(kit, grant)))
    names = kit.plain.keys(kit.keys.task("d*").replace("{", r"\{"))
    return [codec.decode(kit.plain.hget(name, "payload")) for name in sorted(names)]


async def tell(kit: SchedulesKit, grant: Any) -> bytes:
    found = await Notices(kit.store)(grant)
    assert isinstance(found, bytes)
    return found


async def test_how_many_times_were_missed(one: SchedulesKit):
    one.at("12:00:00")
    await put(one, Every("15s"), "schedule.missed")
    await one.advance("12:01:00")
    await one.down_until("12:02:05")
    (body,) = await told(one)
    assert body == {
        "type": "schedule.missed",
        "timestamp": "2026-03-02T12:02:05.000Z",
        "data": {
            "recurring_task_id": "s",
            "tenant": "default",
            "queue": "default",
            "target": {"type": "handler", "name": "charge", "version": None},
            "missed": {
                "outcome": "coalesced",
                "count": 3,
                "exact": True,
                "first_at": "2026-03-02T12:01:15.000Z",
                "last_at": "2026-03-02T12:01:45.000Z",
            },
        },
    }


async def test_what_stopped_it(one: SchedulesKit):
    one.at("12:00:00")
    one.handler = lambda _: Work(1_000, BROKEN)
    await put(one, Delay("60s"), "schedule.blocked", after="success")
    await one.after(MINUTE_MS + 2_000)
    (start,) = one.starts
    (body,) = await told(one)
    assert body["type"] == "schedule.blocked"
    assert body["data"]["task_id"] == start.id
    assert body["data"]["reason"] == f"occurrence {start.id} is FAILED"


async def test_a_definition_that_is_gone_has_no_receivers(one: SchedulesKit):
    one.at("12:00:00")
    await put(one, Every("15s"), "schedule.missed")
    await one.down_until("12:01:05")
    await one.remove()
    assert await told(one) == []
