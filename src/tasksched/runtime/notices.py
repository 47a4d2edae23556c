"""Notices: the run that tells everybody of one event, and what deliveries are signed with.

A notification is a task that a script made with its verdict (``lua/lib/notify.lua``). Its run reads what
happened, writes the message once, and makes a delivery for each receiver that wants it, under ids that
are functions of message and receiver: run twice, it makes none twice.
"""

import random
from collections.abc import Sequence
from typing import Any, Final

from tasksched import clock
from tasksched.errors import Conflict, Invalid, NotFound, TaskschedError
from tasksched.model import codec
from tasksched.model.endpoint import open_secret, secret_place
from tasksched.model.ids import shard_of
from tasksched.model.instants import format_instant
from tasksched.model.message import PREFIX, delivery_options, delivery_row, message_body
from tasksched.model.notify import Cause, Delivery, Receiver, delivery_id
from tasksched.model.outcome import Failure, Outcome, error_info
from tasksched.model.recurring import LedgerEntry, Schedule
from tasksched.model.seal import PLAIN, Bodies, task_place
from tasksched.model.task import HandlerTarget, HttpTarget, Target, Task
from tasksched.model.tenant import current
from tasksched.store.protocol import Grant, Store
from tasksched.store.reads import Reads
from tasksched.store.schedules import Schedules
from tasksched.store.webhooks import TENANT, WebhookRecords

RESULT_MAX: Final = 16 * 1024  # bytes of a result that a message repeats
ROWS_MAX: Final = 20  # deliveries of one call: each repeats the body
REST_MS: Final = 1_000
SECRETS_S: Final = 3.0  # so long a worker signs with what it has read
REMEMBERED_MAX: Final = 1_000
GONE: Final = "the receiver answered 410 Gone"

_MISSED: Final = frozenset({"missed", "coalesced", "catch_up_dropped"})
_STATUS: Final = {
    "task.succeeded": "SUCCESS",
    "task.failed": "FAILED",
    "task.cancelled": "CANCELLED",
}


class Notices:
    """What runs on the route of notifications. Call it with a grant."""

    def __init__(self, store: Store, bodies: Bodies = PLAIN) -> None:
        self._store = store
        self._bodies = bodies
        self._reads = Reads(store)
        self._schedules = Schedules(store)
        self._webhooks = WebhookRecords(store, bodies)

    async def __call__(self, grant: Grant) -> bytes | Failure | Outcome:
        """How many deliveries it means. While the store refuses, the run is handed back."""
        cause = grant.options.cause
        if cause is None:
            error = error_info("Invalid", "the record has no cause")
            return Failure(error=error, retryable=False)
        try:
            count = await self._tell(grant, cause)
        except TaskschedError as error:
            if not error.retryable:
                raise
            wait_ms = int(REST_MS * (0.5 + random.random()))
            return Outcome(kind="RELEASED", retry_ms=wait_ms, reason="store_unavailable")
        return codec.encode({"deliveries": count})

    async def _tell(self, grant: Grant, cause: Cause) -> int:
        message = PREFIX + grant.id
        if cause.event.startswith("task."):
            own, data = await self._of_task(grant, cause)
        else:
            own, data = await self._of_schedule(grant.tenant, cause)
        shard = shard_of(grant.id, self._store.shards)
        assert shard is not None, grant.id
        body = message_body(cause.event, cause.at_ms, data)
        rows = [
            self._row(grant.tenant, shard, body, url, delivery)
            for url, delivery in await self._receivers(grant.tenant, cause, message, own)
        ]
        for first in range(0, len(rows), ROWS_MAX):
            await self._store.deliver(shard, grant.tenant, rows[first : first + ROWS_MAX])
        return len(rows)

    async def _receivers(
        self, tenant: str, cause: Cause, message: str, own: Sequence[Receiver]
    ) -> list[tuple[str, Delivery]]:
        """Whom to tell at which URL: the subject's own receivers, and the tenant's endpoints."""
        event = cause.event
        found = [
            (each.url, Delivery(message, event, secret=each.secret))
            for each in own
            if event in each.events
        ]
        for name, (_, endpoint) in (await self._webhooks.all(tenant)).items():
            if endpoint.enabled and event in endpoint.events:
                found.append((endpoint.url, Delivery(message, event, endpoint=name)))
        return found

    def _row(
        self, tenant: str, shard: int, body: bytes, url: str, delivery: Delivery
    ) -> tuple[str, str, bytes]:
        made_id = delivery_id(delivery.message, delivery.endpoint or url, shard)
        return delivery_row(self._bodies, tenant, made_id, body, delivery_options(url, delivery))

    # -- what happened ----------------------------------------------------------------------------

    async def _of_task(
        self, grant: Grant, cause: Cause
    ) -> tuple[Sequence[Receiver], dict[str, Any]]:
        """Its receivers, and what to say of it: little where it is gone, or lives again.

        Those of a task that is gone are the ones that the notification kept of its options.
        """
        data: dict[str, Any] = {
            "task_id": cause.subject,
            "status": _STATUS[cause.event],
            "tenant": grant.tenant,
        }
        task = await self._reads.task(cause.subject)
        if task is None or task.tenant != grant.tenant or not cause.is_of_task(task.created_ms):
            return grant.options.notify, data
        if not cause.is_of_life(task.life) or task.status != data["status"]:
            return task.notify, data
        return task.notify, data | self._account(task)

    def _account(self, task: Task) -> dict[str, Any]:
        told: dict[str, Any] = {
            "queue": task.queue,
            "target": _target(task.target),
            "attempts": task.attempts,
            "reason": task.reason,
            "error": None,
            "run_at": format_instant(task.due_ms),
            "finished_at": None if task.finished_ms is None else format_instant(task.finished_ms),
            "tags": list(task.tags),
        }
        if task.error is not None:
            told["error"] = {"type": task.error.type, "message": task.error.message}
        if task.schedule is not None:
            told["recurring_task_id"] = task.schedule.partition(":")[2]
            if task.nominal_ms is not None:
                told["nominal_at"] = format_instant(task.nominal_ms)
        return told | self._result(task)

    def _result(self, task: Task) -> dict[str, Any]:
        """The result of a success, where it is small and can be read here."""
        if task.status != "SUCCESS" or not task.result:
            return {}
        try:
            raw = self._bodies.open(task.result, task_place(task.tenant, task.id, "result"))
            return {"result": codec.decode(raw)} if len(raw) <= RESULT_MAX else {}
        except Invalid:
            return {}

    async def _of_schedule(
        self, tenant: str, cause: Cause
    ) -> tuple[Sequence[Receiver], dict[str, Any]]:
        data: dict[str, Any] = {
            "recurring_task_id": cause.subject.partition(":")[2],
            "tenant": tenant,
        }
        generation, _, what = cause.mark.partition("/")
        is_missed = cause.event == "schedule.missed"
        if is_missed:
            data["missed"] = {"first_at": format_instant(int(what))}
        else:
            data["task_id"] = what
        schedule = await self._schedules.get(cause.subject)
        if schedule is None or str(schedule.generation_ms) != generation:
            return (), data
        if is_missed:
            data["missed"] |= await self._missed(schedule, int(what))
        elif schedule.status == "BLOCKED":
            data["reason"] = schedule.reason
        template = schedule.spec.template
        data |= {"queue": template.queue, "target": _target(template.target)}
        return template.notify, data

    async def _missed(self, schedule: Schedule, first_ms: int) -> dict[str, Any]:
        """How many nominal times had no run of their own, as the ledger has it by now."""
        found = await self._schedules.ledger(schedule, await self._reads.now_ms())
        entries = [entry for entry in found if _is_of(entry, first_ms)]
        if not entries:
            return {}
        entry = min(entries, key=lambda each: each.first_ms)
        return {
            "outcome": entry.outcome,
            "count": entry.count,
            "exact": entry.is_exact,
            "first_at": format_instant(entry.first_ms),
            "last_at": format_instant(entry.last_ms),
        }


def _is_of(entry: LedgerEntry, first_ms: int) -> bool:
    return entry.outcome in _MISSED and entry.last_ms >= first_ms


def _target(target: Target) -> dict[str, Any]:
    """What ran. Of a URL the query is left out, which may hold secrets."""
    if isinstance(target, HttpTarget):
        url = target.url.partition("?")[0]
        return {"type": "http", "url": url, "method": target.method}
    assert isinstance(target, HandlerTarget), target
    return {"type": "handler", "name": target.name, "version": target.version}


# -- secrets --------------------------------------------------------------------------------------


class Secrets:
    """What each request of a worker is signed with, remembered for a few seconds.

    A delivery: its endpoint's secrets, its receiver's, else the tenant's, made when first needed.
    Any other request: the tenant's, if it has any.
    """

    def __init__(self, store: Store, bodies: Bodies = PLAIN) -> None:
        self._bodies = bodies
        self._reads = Reads(store)
        self._webhooks = WebhookRecords(store, bodies)
        self._known: dict[tuple[str, str, bool], tuple[float, Any]] = {}

    async def __call__(self, grant: Grant) -> Sequence[str]:
        """The newest first. Raises NotFound or Conflict for an endpoint that gets nothing any more,
        Invalid where a secret's key is not here, Unavailable.
        """
        tenant, delivery, http = grant.tenant, grant.options.delivery, grant.options.http
        if delivery is not None and delivery.endpoint is not None:
            stored = await self._remembered(tenant, delivery.endpoint)
            return self._webhooks.opened(
                tenant, delivery.endpoint, current(stored, grant.started_ms)
            )
        if delivery is not None and delivery.secret is not None and http is not None:
            place = secret_place(tenant, http.url)
            return [open_secret(self._bodies, delivery.secret, place)]
        stored = await self._remembered(tenant, TENANT, make=delivery is not None)
        return self._webhooks.opened(tenant, TENANT, current(stored, grant.started_ms))

    async def gone(self, grant: Grant) -> None:
        """The receiver wants no more: its endpoint is disabled, if it still is where that was said."""
        delivery, http = grant.options.delivery, grant.options.http
        if delivery is None or delivery.endpoint is None or http is None:
            return
        now_ms = await self._reads.now_ms()
        await self._webhooks.disable(grant.tenant, delivery.endpoint, GONE, now_ms, url=http.url)
        self._known.pop((grant.tenant, delivery.endpoint, False), None)

    async def _remembered(self, tenant: str, owner: str, *, make: bool = False) -> Any:
        name = (tenant, owner, make)
        until, found = self._known.get(name, (0.0, ()))
        if until <= clock.mono():
            found = await self._read(tenant, owner, make=make)
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[name] = (clock.mono() + SECRETS_S, found)
        return found

    async def _read(self, tenant: str, owner: str, *, make: bool) -> Any:
        if owner == TENANT:
            now_ms = await self._reads.now_ms() if make else 0
            return await self._webhooks.tenant_secrets(tenant, now_ms, make=make)
        kept = await self._webhooks.get(tenant, owner)
        if kept is None:
            raise NotFound(f"no webhook endpoint {owner}")
        if not kept.value.enabled:
            raise Conflict(f"webhook endpoint {owner} is disabled")
        return kept.value.secrets
