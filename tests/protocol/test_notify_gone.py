"""Notifications about tasks that are gone by the fan-out, or whose key has a new task."""

from typing import Any

import msgspec
import pytest
from tests.protocol.kit import BROKEN, DAY_MS, HOUR_MS, Kit, spec
from tests.protocol.test_notify import URL, causes, mark, notices, want, wanting

from tasksched.commands.removal import Memory, Removal
from tasksched.commands.reseal import reseal_all
from tasksched.model import codec
from tasksched.model.endpoint import open_secret, seal_secret, secret_place
from tasksched.model.notify import NOTIFY_ROUTE, QUEUE, Cause, Receiver
from tasksched.model.retry import Retry
from tasksched.model.seal import AesGcmCodec, Bodies
from tasksched.model.task import (
    DEFAULT_OPTIONS,
    Concurrency,
    HttpTarget,
    Options,
    TaskSpec,
    encode_options,
)
from tasksched.runtime.notices import Notices
from tasksched.store.protocol import Grant

pytestmark = pytest.mark.anyio

MEMORY = Memory(keyed_ms=HOUR_MS, unkeyed_ms=HOUR_MS)
SECRET = "whsec_" + "a" * 32
OWN = Receiver(URL, ("task.cancelled",), SECRET)
# Whatever a task may ask for beside its receivers.
FULL = TaskSpec(
    target=HttpTarget("https://example.com/run", headers=(("x-text", 'a"}{b'),)),
    retry=Retry(7, initial="2s"),
    timeout_ms=5,
    tags=("q4",),
    notify=(OWN,),
    concurrency=Concurrency("account"),
    traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    delay_ms=HOUR_MS,
)


async def take_notices(kit: Kit) -> list[Grant]:
    await kit.announce("w9", f"queue:{QUEUE}", f"route:{NOTIFY_ROUTE}")
    await kit.dispatch()
    return await kit.take(worker="w9")


async def deliveries(kit: Kit, grant: Grant) -> dict[str, Any]:
    """URL → body of what the run of this notification means to send."""
    assert isinstance(await Notices(kit.store)(grant), bytes)
    found = {}
    for name in kit.plain.keys(kit.keys.task("d*").replace("{", r"\{")):
        record = kit.plain.hgetall(name)
        options = msgspec.json.decode(record[b"options"])
        if options["delivery"]["message"] == f"msg_{grant.id}":
            found[options["http"]["url"]] = codec.decode(record[b"payload"])
    return found


# -- a key that is used again ----------------------------------------------------------------------


async def fail_and_purge(kit: Kit, task_id: str, receiver: str) -> None:
    """The life of a task from its creation to its removal."""
    asked = spec(notify=(Receiver(receiver, ("task.failed",)),))
    await kit.announce()
    await kit.submit(asked, task_id=task_id, mark="k")
    await kit.settle(await kit.start(task_id), BROKEN)
    memory = {"keyed_ms": HOUR_MS, "unkeyed_ms": HOUR_MS}
    assert ["purged"] == await kit.store.purge(0, "default", [(task_id, None)], **memory)
    assert "" == kit.state(task_id)
    kit.plain.delete(kit.keys.stub(task_id))  # as the server does it when its time has come
    kit.leap(HOUR_MS)


async def test_a_task_that_is_created_anew_has_a_notification_of_its_own(kit: Kit):
    task_id = kit.new_id()
    for n in range(2):
        await fail_and_purge(kit, task_id, f"{URL}/{n}")
    first, second = sorted(await take_notices(kit), key=lambda grant: grant.options.cause.at_ms)
    assert first.id != second.id
    assert [f"{URL}/0"] == list(await deliveries(kit, first))
    assert [f"{URL}/1"] == list(await deliveries(kit, second))


async def test_a_new_task_under_the_key_is_not_told_of_for_the_old_one(kit: Kit):
    task_id = kit.new_id()
    await fail_and_purge(kit, task_id, f"{URL}/old")
    await kit.submit(spec(notify=(Receiver(f"{URL}/new", ("task.failed",)),)), task_id=task_id)
    await kit.settle(await kit.start(task_id), BROKEN)
    (old,) = [
        grant for grant in await take_notices(kit) if grant.options.cause.mark != mark(kit, task_id)
    ]
    ((url, body),) = (await deliveries(kit, old)).items()
    assert f"{URL}/old" == url
    assert {"task_id": task_id, "status": "FAILED", "tenant": "default"} == body["data"]


# -- a task that is gone ---------------------------------------------------------------------------


async def test_a_waiting_task_that_is_deleted_tells_its_receivers(kit: Kit):
    task_id = await kit.submit(FULL)
    await Removal(kit.store, MEMORY).delete("default", task_id)
    assert "" == kit.state(task_id)
    (grant,) = await take_notices(kit)
    ((url, body),) = (await deliveries(kit, grant)).items()
    assert (URL, "task.cancelled") == (url, body["type"])
    assert {"task_id": task_id, "status": "CANCELLED", "tenant": "default"} == body["data"]
    assert [SECRET] == [each.secret for each in grant.options.notify]


async def test_a_notification_runs_by_rules_of_its_own(kit: Kit):
    """Of what its task asked for it keeps the receivers and nothing else, whatever may be added."""
    asked = msgspec.json.decode(FULL.options)
    added = set(Options.__struct_fields__) - {"delivery", "cause"}
    assert added == set(asked), "name it in FULL, and in lua/lib/notify.lua"
    task_id = await kit.submit(FULL)
    await kit.store.cancel(0, task_id, "default", None)
    (grant,) = await take_notices(kit)
    cause = grant.options.cause
    assert Cause("task.cancelled", task_id, mark(kit, task_id), kit.now_ms) == cause
    assert msgspec.structs.replace(DEFAULT_OPTIONS, notify=(OWN,), cause=cause) == grant.options
    assert set(kit.record(grant.id)).isdisjoint({"wants", "lease_ms", "concurrency"})


async def test_what_has_no_receivers_for_it_keeps_nothing(kit: Kit):
    await want(kit, "cancelled")
    for asked in (spec(tags=("q4",), delay_ms=1), wanting("task.failed", delay_ms=1)):
        await kit.store.cancel(0, await kit.submit(asked), "default", None)
    assert 2 == len(causes(kit))
    for grant in await take_notices(kit):
        assert {"cause"} == set(msgspec.json.decode(kit.record(grant.id)["options"]))
        assert {} == await deliveries(kit, grant)


async def test_retention_before_the_fan_out_keeps_nobody_in_the_dark(kit: Kit):
    task_id = await kit.submit(wanting(delay_ms=DAY_MS))
    await kit.store.cancel(0, task_id, "default", None)
    kit.leap(1_000)
    values = {"done_ms": 0, "dead_ms": 0, "count_max": 9, "bytes_max": 1 << 40, "limit": 9}
    await kit.raw("prune", {"tenant": "default", **values, **MEMORY._asdict()})
    assert "" == kit.state(task_id)
    (grant,) = await take_notices(kit)
    assert [URL] == list(await deliveries(kit, grant))


async def test_the_secret_that_was_kept_gets_the_new_key_like_any_other(kit: Kit):
    old, place = AesGcmCodec({"a": b"a" * 32}, "a"), secret_place("default", URL)
    both = AesGcmCodec({"a": b"a" * 32, "b": b"b" * 32}, "b")
    sealed = Receiver(URL, OWN.events, seal_secret(Bodies(old), SECRET, place))
    task_id = await kit.submit(msgspec.structs.replace(FULL, notify=(sealed,)))
    await Removal(kit.store, MEMORY).delete("default", task_id)
    assert 1 == (await reseal_all(kit.store, Bodies(both))).resealed
    (grant,) = await take_notices(kit)
    (kept,) = grant.options.notify
    newer = Bodies(AesGcmCodec({"b": b"b" * 32}, "b"))
    assert SECRET == open_secret(newer, kept.secret or "", place)
    assert [URL] == list(await deliveries(kit, grant))


# -- what an earlier release left --------------------------------------------------------------------


async def test_a_notification_of_an_earlier_release_is_told_as_it_was(kit: Kit):
    await kit.announce()
    task_id = await kit.submit(wanting("task.failed"))
    await kit.settle(await kit.start(task_id), BROKEN)
    (notice_id,) = notices(kit)
    old = Cause("task.failed", task_id, "1", kit.now_ms)
    options = encode_options(Options(cause=old))
    kit.plain.hset(kit.keys.task(notice_id), "options", options)
    (grant,) = await take_notices(kit)
    assert old == grant.options.cause
    ((url, body),) = (await deliveries(kit, grant)).items()
    assert (URL, "not_retryable") == (url, body["data"]["reason"])
