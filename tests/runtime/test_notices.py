"""Notices: from a verdict to signed messages at each receiver, through a real worker."""

import json
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError
from tests.runtime.kit import Site, grant_of
from tests.runtime.targets import Target
from tests.servers import ServerProcess

from tasksched import clock
from tasksched.commands.endpoints import EndpointChanges, Endpoints, EndpointSpec
from tasksched.commands.removal import Memory, Removal
from tasksched.errors import Conflict, NotFound
from tasksched.model import codec, ids
from tasksched.model.endpoint import ENDPOINTS_MAX
from tasksched.model.notify import EVENT_TYPES, Cause, Delivery, Receiver
from tasksched.model.outcome import Outcome
from tasksched.model.retry import Retry
from tasksched.model.seal import AesGcmCodec, Bodies
from tasksched.model.signature import new_secret
from tasksched.model.task import HttpTarget, Options
from tasksched.runtime.notices import GONE, REMEMBERED_MAX, ROWS_MAX, Notices, Secrets
from tasksched.store.webhooks import WebhookRecords

pytestmark = pytest.mark.anyio

ONCE = Retry(1)
NOW_MS = 1_764_000_000_001  # as grants of the kit say


async def add(a: int, b: int) -> int:
    return a + b


async def broken() -> None:
    raise ValueError("no such account")


@pytest.fixture
async def site(valkey_server: ServerProcess):
    valkey_server.flush()
    async with Site(valkey_server.url) as made:
        yield made


@pytest.fixture
async def target():
    async with Target() as made:
        yield made


def read(request: tuple[str, bytes]) -> tuple[str, dict[str, str], Any]:
    """Path, headers and body of a request."""
    head, body = request
    first, *lines = head.strip().split("\r\n")
    headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
    return first.split(" ")[1], headers, json.loads(body)


async def tasks_of(site: Site, kind: str) -> dict[str, dict[str, str]]:
    """Id → record of the notifications (n) or the deliveries (d)."""
    found = {}
    for shard, keys in enumerate(site.store.keys):
        pattern = keys.task(f"{kind}*").replace("{", r"\{")
        for key in await site.gateway.redis.keys(pattern):
            task_id = key.decode().rsplit(":", 1)[1]
            found[task_id] = await site.record(task_id, shard)
    return found


async def settle_all(site: Site) -> None:
    """Until every notification and every delivery has its verdict."""
    for kind in ("n", "d"):
        for task_id in await tasks_of(site, kind):
            shard = ids.shard_of(task_id, 2)
            assert shard is not None
            await site.ends(task_id, shard)


async def run(site: Site, name: str = "add", payload: Any = (1, 2), **fields: Any) -> str:
    task_id = await site.submit(name, payload, retry=ONCE, **fields)
    await site.ends(task_id)
    await settle_all(site)
    return task_id


def spec(target: Target, *events: Any, **fields: Any) -> EndpointSpec:
    return EndpointSpec(url=target.url, events=events or EVENT_TYPES, **fields)


async def test_each_receiver_gets_the_message_once_and_can_verify_it(site, target):
    endpoints, own = Endpoints(site.store), new_secret()
    made = await endpoints.create("default", spec(target))
    await endpoints.create("default", spec(target, "task.failed"))
    await endpoints.create("default", spec(target, enabled=False))
    await endpoints.create("other", spec(target))
    await site.started(add, queues=("default",))
    own_url = f"http://127.0.0.1:{target.port}/own"
    task_id = await run(
        site, tags=("a", "b"), notify=(Receiver(own_url, ("task.succeeded",), own),)
    )

    (notice_id,) = await tasks_of(site, "n")
    assert {"deliveries": 2} == await site.result(notice_id)
    found = {path: (headers, body) for path, headers, body in map(read, target.requests)}
    assert 2 == len(target.requests)
    assert {"/hook?x=1", "/own"} == set(found)
    for path, secret in (("/hook?x=1", made.secret), ("/own", own)):
        headers, body = found[path]
        raw = next(raw for head, raw in target.requests if f" {path} " in head)
        assert body == Webhook(secret).verify(raw, headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(new_secret()).verify(raw, headers)
        assert f"msg_{notice_id}" == headers["webhook-id"]
        assert "task.succeeded" == body["type"]
        data = body["data"]
        assert (task_id, "SUCCESS", "default", "default", 1, 3, ["a", "b"]) == tuple(
            data[n] for n in ("task_id", "status", "tenant", "queue", "attempts", "result", "tags")
        )
        assert {"type": "handler", "name": "add", "version": None} == data["target"]
        assert data["finished_at"] == body["timestamp"]


async def test_a_failure_says_why_and_a_large_result_is_left_out(site, target):
    async def large() -> str:
        return "x" * 20_000

    await Endpoints(site.store).create("default", spec(target))
    await site.started(broken, large)
    await run(site, "broken", ...)
    await run(site, "large", ...)
    failed, succeeded = (read(each)[2] for each in target.requests)
    assert "task.failed" == failed["type"]
    assert {"type": "ValueError", "message": "no such account"} == failed["data"]["error"]
    assert "attempts_exhausted" == failed["data"]["reason"]
    assert "task.succeeded" == succeeded["type"]
    assert "result" not in succeeded["data"]


async def test_a_receiver_that_answers_410_is_told_no_more(site, target):
    endpoints = Endpoints(site.store)
    made = await endpoints.create("default", spec(target))
    target.says(410)
    await site.started(add)
    await run(site)
    shown = await endpoints.get("default", made.id)
    assert (False, GONE) == (shown.enabled, shown.disabled_reason)
    (delivery,) = (await endpoints.deliveries("default", made.id)).items
    assert ("FAILED", 1) == (delivery.status, delivery.attempts)
    await run(site)
    assert 1 == len(target.requests)
    assert 1 == len(await tasks_of(site, "n"))  # nobody wants it any more


async def test_a_410_of_where_an_endpoint_was_before_disables_nothing(site):
    endpoints = Endpoints(site.store)
    made = await endpoints.create(
        "acme", EndpointSpec(url="https://example.com/new", events=("task.failed",))
    )
    await Secrets(site.store).gone(delivery_grant(made.id))
    assert (await endpoints.get("acme", made.id)).enabled
    await endpoints.update("acme", made.id, EndpointChanges(url="https://example.com/own"))
    await Secrets(site.store).gone(delivery_grant(made.id))
    assert not (await endpoints.get("acme", made.id)).enabled


async def test_many_receivers_are_told_in_calls_of_a_bounded_size(site, monkeypatch):
    sizes, deliver = [], site.store.deliver

    async def counted(shard: int, tenant: str, rows: Any) -> int:
        sizes.append(len(rows))
        return await deliver(shard, tenant, rows)

    monkeypatch.setattr(site.store, "deliver", counted)
    endpoints = Endpoints(site.store)
    for n in range(ENDPOINTS_MAX):
        url = f"https://example.com/{n}"
        await endpoints.create("acme", EndpointSpec(url=url, events=("task.failed",)))
    cause = Cause("task.failed", ids.mint(0, 1), "1", 5)
    grant = grant_of("http@notify")._replace(
        id="n" + ids.mint(0, 1)[1:], lane="notifications:normal:acme:http@notify",
        options=Options(cause=cause),
    )  # fmt: skip
    assert codec.encode({"deliveries": ENDPOINTS_MAX}) == await Notices(site.store)(grant)
    assert ENDPOINTS_MAX == sum(sizes) == len(await tasks_of(site, "d"))
    assert max(sizes) <= ROWS_MAX


async def test_the_fan_out_again_makes_no_second_delivery(site, target):
    await Endpoints(site.store).create("default", spec(target))
    task_id = await site.submit("nobody", delay_ms=60_000, notify=())
    cause = Cause("task.cancelled", task_id, "1", 5)
    grant = grant_of("http@notify")._replace(
        id="n" + ids.mint(0, 1)[1:], lane="notifications:normal:default:http@notify",
        options=Options(cause=cause),
    )  # fmt: skip
    notices = Notices(site.store)
    for _ in range(2):
        assert codec.encode({"deliveries": 1}) == await notices(grant)
    (record,) = (await tasks_of(site, "d")).values()
    body = codec.decode(await site.gateway.redis.hget(
        site.store.keys[0].task(next(iter(await tasks_of(site, "d")))), "payload"
    ))  # fmt: skip
    assert "PENDING" == record["state"]
    # The task lives on in another state: only what the cause says is told.
    assert {"task_id": task_id, "status": "CANCELLED", "tenant": "default"} == body["data"]
    assert "1970-01-01T00:00:00.005Z" == body["timestamp"]


async def test_the_receiver_of_a_deleted_task_gets_a_signed_message(site, target):
    own = new_secret()
    task_id = await site.submit(
        "nobody", delay_ms=60_000, notify=(Receiver(target.url, ("task.cancelled",), own),)
    )
    await Removal(site.store, Memory(60_000, 60_000)).delete("default", task_id)
    assert {} == await site.record(task_id)
    await site.started(add)
    await settle_all(site)
    ((_, raw),) = target.requests
    _, headers, body = read(target.requests[0])
    assert body == Webhook(own).verify(raw, headers)
    (notice_id,) = await tasks_of(site, "n")
    assert f"msg_{notice_id}" == headers["webhook-id"]
    assert "task.cancelled" == body["type"]
    assert {"task_id": task_id, "status": "CANCELLED", "tenant": "default"} == body["data"]


async def test_an_outage_costs_a_notification_no_attempt(site):
    class Away(WebhookRecords):
        async def all(self, _: str) -> Any:
            from tasksched.errors import Unavailable  # noqa: PLC0415 - raised here alone

            raise Unavailable("away")

    notices = Notices(site.store)
    notices._webhooks = Away(site.store)
    cause = Cause("task.failed", ids.mint(0, 1), "1", 5)
    grant = grant_of("http@notify")._replace(options=Options(cause=cause))
    outcome = await notices(grant)
    assert isinstance(outcome, Outcome)
    assert ("RELEASED", "store_unavailable") == (outcome.kind, outcome.reason)
    assert 0 < (outcome.retry_ms or 0) < 2_000


# -- secrets --------------------------------------------------------------------------------------


def delivery_grant(endpoint: str | None = None, secret: str | None = None) -> Any:
    grant = grant_of("http", http=HttpTarget("https://example.com/own"))
    delivery = Delivery("msg_1", "task.failed", endpoint, secret)
    return grant._replace(options=msgspec.structs.replace(grant.options, delivery=delivery))


@pytest.mark.parametrize("bodies", [Bodies(), Bodies(AesGcmCodec({"k": b"x" * 32}, "k"))])
async def test_what_each_request_is_signed_with(site, bodies):
    secrets = Secrets(site.store, bodies)
    endpoints = Endpoints(site.store, bodies)
    plain = grant_of("http", http=HttpTarget("https://example.com/"))
    assert [] == await secrets(plain)  # no secret is made for ordinary targets
    (tenants,) = await secrets(delivery_grant())
    secrets._known.clear()
    assert [tenants] == await secrets(plain) == await secrets(delivery_grant())
    made = await endpoints.create(
        "acme", EndpointSpec(url="https://example.com/", events=("task.failed",))
    )
    assert [made.secret] == await secrets(delivery_grant(made.id))
    assert [made.secret] != [tenants]
    newer = await endpoints.rotate_tenant_secret("acme", overlap_ms=60_000)
    secrets._known.clear()
    assert [newer, tenants] == await Secrets(site.store, bodies)(
        plain._replace(started_ms=clock.wall_ms())
    )
    stored = await site.gateway.redis.hgetall(site.store.global_keys.endpoints("acme"))
    stored |= await site.gateway.redis.hgetall(site.store.global_keys.tenants)
    is_plain = bodies.codec is None
    for secret in (made.secret, newer, tenants):
        assert is_plain == (secret.encode() in b"".join(stored.values()))


async def test_rotation_signs_with_both_until_the_overlap_ends(site):
    endpoints = Endpoints(site.store)
    site.store.now_ms = NOW_MS
    made = await endpoints.create(
        "acme", EndpointSpec(url="https://example.com/", events=("task.failed",))
    )
    newer = await endpoints.rotate_secret("acme", made.id, overlap_ms=10)
    grant = delivery_grant(made.id)
    assert [newer.secret, made.secret] == await Secrets(site.store)(grant)
    after = grant._replace(started_ms=NOW_MS + 10)
    assert [newer.secret] == await Secrets(site.store)(after)
    last = await endpoints.rotate_secret("acme", made.id, overlap_ms=0)
    assert [last.secret] == await Secrets(site.store)(grant)
    site.store.now_ms = 0


async def test_an_endpoint_that_gets_nothing_has_no_signature(site):
    endpoints = Endpoints(site.store)
    made = await endpoints.create(
        "acme", EndpointSpec(url="https://example.com/", events=("task.failed",))
    )
    await endpoints.update("acme", made.id, EndpointChanges(enabled=False))
    with pytest.raises(Conflict, match="disabled"):
        await Secrets(site.store)(delivery_grant(made.id))
    await endpoints.remove("acme", made.id)
    with pytest.raises(NotFound):
        await Secrets(site.store)(delivery_grant(made.id))


async def test_what_is_remembered_is_bounded(site):
    secrets = Secrets(site.store)
    for n in range(REMEMBERED_MAX + 5):
        secrets._known["t", str(n), False] = (1e18, ())
    await secrets(grant_of("http"))
    assert {("acme", "tenant", False)} == set(secrets._known)
