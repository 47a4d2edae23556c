"""Remote: the client over the HTTP API, for programs that reach no Redis. Producers only.

A request is sent again after a refusal that says "later" (429, 503), not before Retry-After or RateLimit
ask for it, and after a connection that failed, with growing pauses, until patience ends (``patience``).
Where it may have been done, a lost reply or a store that did not answer, only what is safe to repeat is: a create carries an ``Idempotency-Key`` made here before its first send, so the
repeat finds the task of the first. A verb that may have been executed is not repeated.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx2
import msgspec

from tasksched import clock
from tasksched.client import wire
from tasksched.client.ask import REPLY_S, Ask, task_path
from tasksched.client.backend import Change, Explanation, Page, Query
from tasksched.client.patience import Patience, retry_after_ms
from tasksched.client.remote_bulk import RemoteBulk
from tasksched.client.remote_limits import RemoteLimits
from tasksched.client.remote_live import RemoteCallbacks, RemoteLive
from tasksched.client.remote_recurring import RemoteRecurring
from tasksched.client.remote_webhooks import RemoteWebhooks
from tasksched.commands.tasks import Changes
from tasksched.errors import (
    Invalid,
    Overloaded,
    RateLimited,
    TaskschedError,
    Unauthorized,
    Unavailable,
)
from tasksched.model.apikey import read_key
from tasksched.model.durations import format_duration
from tasksched.model.states import FINAL
from tasksched.model.task import Attempt, Created, Task, TaskSpec
from tasksched.settings import Settings

PATIENCE_MS = 10_000
CONNECT_S = 5.0
WAIT_MAX_MS = 20_000
WAIT_PAUSE_S = 1.0  # between two looks, where the API answers a wait at once
BATCH_MAX = 1_000
BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCHES_AT_ONCE = 4
_UNKNOWN = frozenset({500, 502, 503, 504})  # it may have been done
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Remote:
    """A Backend over HTTP."""

    call_max = keyed_max = BATCH_MAX
    calls_at_once = BATCHES_AT_ONCE

    def __init__(self, client: httpx2.AsyncClient, *, patience_ms: int = PATIENCE_MS) -> None:
        self._client = client
        self._patience_ms = patience_ms
        self.recurring = RemoteRecurring(self._ask)
        self.bulk = RemoteBulk(self._ask)
        self.webhooks = RemoteWebhooks(self._ask)
        self.limits = RemoteLimits(self._ask, self._listen)
        self.callbacks = RemoteCallbacks(self._ask)
        self.live = RemoteLive(self._ask, self._listen)

    # -- creating -------------------------------------------------------------------------------

    async def submit(self, spec: TaskSpec) -> Created:
        # A caller's own key goes in the body, where it need not be ASCII.
        own_key = spec.key is None
        headers = {"Idempotency-Key": uuid.uuid4().hex} if own_key else {}
        body = msgspec.json.encode(wire.task_body(spec))
        reply = await self._ask(Ask("POST", "/tasks", spec.tenant, body, headers=headers))
        return wire.read_created(reply.status_code, reply.content, own_key=own_key)

    async def submit_many(self, specs: Sequence[TaskSpec]) -> list[Created | TaskschedError]:
        answers: list[Created | TaskschedError | None] = [None] * len(specs)
        for places, tenant, body in _batches(specs):
            headers = {"Idempotency-Key": uuid.uuid4().hex}
            try:
                reply = await self._ask(Ask("POST", "/tasks/batch", tenant, body, headers=headers))
            except (RateLimited, Overloaded) as refusal:  # of this batch; others may have been done
                answers = [refusal if n in places else each for n, each in enumerate(answers)]
                continue
            for place, answer in zip(
                places, wire.read_batch(reply.content, [specs[n] for n in places]), strict=True
            ):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    # -- looking --------------------------------------------------------------------------------

    async def get(self, tenant: str, task_id: str) -> Task:
        return (await self._task(tenant, task_id))[0]

    async def explain(self, tenant: str, task_id: str) -> Explanation:
        return Explanation(*await self._task(tenant, task_id))

    async def _task(self, tenant: str, task_id: str) -> tuple[Task, list[dict[str, Any]]]:
        reply = await self._ask(Ask("GET", task_path(task_id), tenant))
        return wire.read_task(reply.content)

    async def page(self, query: Query, cursor: str | None) -> Page:
        named = {
            "status": query.status,
            "queue": query.queue,
            "handler": query.handler,
            "tag": query.tag,
            "limit": str(query.limit),
            "cursor": cursor,
        }
        asked = {name: value for name, value in named.items() if value is not None}
        reply = await self._ask(Ask("GET", "/tasks", query.tenant, query=asked))
        return wire.read_page(reply.content)

    async def attempts(self, tenant: str, task_id: str) -> list[Attempt]:
        reply = await self._ask(Ask("GET", task_path(task_id, "/attempts"), tenant))
        return wire.read_attempts(reply.content)

    async def wait(self, tenant: str, task_id: str, timeout_ms: int) -> Task:
        wait_ms = min(timeout_ms, WAIT_MAX_MS)
        began_ms = clock.mono_ms()
        ask = Ask(
            "GET",
            task_path(task_id),
            tenant,
            query={"wait": format_duration(wait_ms)} if wait_ms else {},
            reply_s=wait_ms / 1000 + REPLY_S,
        )
        task, _ = wire.read_task((await self._ask(ask)).content)
        left_s = (began_ms + wait_ms - clock.mono_ms()) / 1000
        if task.status not in FINAL and left_s > 0:
            await asyncio.sleep(min(left_s, WAIT_PAUSE_S))
        return task

    async def stats(self) -> dict[str, Any]:
        return await self._dict("/stats")

    async def workers(self) -> list[dict[str, Any]]:
        found = await self._dict("/workers")
        return list(found.get("items", ()))

    async def audit(self, limit: int, cursor: str | None) -> dict[str, Any]:
        query = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}
        return await self._dict("/audit", query=query)

    async def _dict(
        self, path: str, tenant: str = "", query: dict[str, str] | None = None
    ) -> dict[str, Any]:
        reply = await self._ask(Ask("GET", path, tenant, query=query or {}))
        found: dict[str, Any] = msgspec.json.decode(reply.content)
        return found

    # -- changing -------------------------------------------------------------------------------

    async def cancel(self, tenant: str, task_id: str, version: int | None) -> Change:
        # Cancelling twice is cancelling once, unless a version is named, which the first changed.
        return await self._verb(
            tenant, task_path(task_id, "/cancel"), version, again=version is None
        )

    async def run_now(self, tenant: str, task_id: str, version: int | None) -> Change:
        return await self._verb(tenant, task_path(task_id, "/run-now"), version)

    async def redrive(
        self, tenant: str, task_id: str, version: int | None, changes: Changes | None = None
    ) -> Change:
        body = None if changes is None else msgspec.json.encode(wire.changes_body(changes))
        return await self._verb(tenant, task_path(task_id, "/retry"), version, body=body)

    async def edit(
        self, tenant: str, task_id: str, changes: Changes, version: int | None
    ) -> Change:
        body = msgspec.json.encode(wire.changes_body(changes))
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        ask = Ask(
            "PATCH", task_path(task_id), tenant, body, headers=headers, repeatable=version is None
        )
        return wire.read_change((await self._ask(ask)).content)

    async def _verb(
        self,
        tenant: str,
        path: str,
        version: int | None,
        *,
        again: bool = False,
        body: bytes | None = None,
    ) -> Change:
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        ask = Ask("POST", path, tenant, body, headers=headers, repeatable=again)
        return wire.read_change((await self._ask(ask)).content)

    # -- sending --------------------------------------------------------------------------------

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, ask: Ask) -> httpx2.Response:
        """The answer, once there is one. Raises what it says, or Unavailable."""
        patience = Patience(self._patience_ms)
        while True:
            outcome = await self._try(ask)
            if isinstance(outcome, httpx2.Response):
                return outcome
            error, may_repeat = outcome
            if not may_repeat:
                raise error
            await patience.pause(error)

    async def _try(self, ask: Ask) -> httpx2.Response | tuple[TaskschedError, bool]:
        """The answer; or the error, and whether the same request may be sent again."""
        try:
            reply = await self._send(ask)
        except _NOT_SENT as failure:
            return _unavailable(failure), True
        except httpx2.TransportError as failure:
            return _unavailable(failure), ask.repeatable
        except httpx2.InvalidURL as failure:
            raise Invalid(f"the URL of the API cannot be used: {failure}", "/url") from failure
        if reply.is_success:
            return reply
        error, status = _refusal(reply), reply.status_code
        is_refused = status == 429 or isinstance(error, Overloaded)  # before anything was done
        return error, is_refused or (status in _UNKNOWN and ask.repeatable)

    async def _send(self, ask: Ask) -> httpx2.Response:
        return await self._client.request(ask.method, ask.path, **_parameters(ask))

    async def _listen(self, ask: Ask) -> AsyncGenerator[str, None]:
        """The lines of an answer as they come. Raises what it says instead, or Unavailable."""
        try:
            async with self._client.stream(ask.method, ask.path, **_parameters(ask)) as reply:
                if not reply.is_success:
                    await reply.aread()
                    raise _refusal(reply)
                async for line in reply.aiter_lines():
                    yield line
        except httpx2.TransportError as failure:
            raise _unavailable(failure) from failure


async def open_remote(settings: Settings) -> Remote:
    """A backend for the API at ``settings.url``. Connects when first asked.

    Raises Unauthorized for a mistyped key, before it is sent anywhere.
    """
    headers = {"User-Agent": "tasksched", "Accept": "application/json"}
    if settings.api_key:
        headers["Authorization"] = f"Bearer {_sendable(settings.api_key)}"
    client = httpx2.AsyncClient(base_url=settings.url, headers=headers)
    return Remote(client, patience_ms=settings.patience_ms)


def _sendable(key: str) -> str:
    """One of ours, or what some proxy may ask for instead; nothing that an error would quote."""
    if key.startswith("ts_"):
        read_key(key)
    elif not (key.isascii() and key.isprintable() and " " not in key):
        raise Unauthorized("the API key has characters that cannot be sent")
    return key


def _parameters(ask: Ask) -> dict[str, Any]:
    headers = dict(ask.headers)
    if ask.tenant not in {"", "default"}:
        headers["Tasksched-Tenant"] = ask.tenant
    if ask.body is not None:
        headers["Content-Type"] = "application/json"
    return {
        "params": dict(ask.query) or None,
        "content": ask.body,
        "headers": headers,
        "timeout": httpx2.Timeout(ask.reply_s, connect=CONNECT_S),
    }


def _batches(specs: Sequence[TaskSpec]) -> list[tuple[list[int], str, bytes]]:
    """Places, tenant and body of each request: one tenant, bounded in number and bytes."""
    found: list[tuple[list[int], str, bytes]] = []
    by_tenant: defaultdict[str, list[int]] = defaultdict(list)
    for place, spec in enumerate(specs):
        by_tenant[spec.tenant].append(place)
    for tenant, places in by_tenant.items():
        batch: list[int] = []
        items: list[bytes] = []
        size = 0
        for place in places:
            item = msgspec.json.encode(wire.task_body(specs[place]))
            if batch and (len(batch) == BATCH_MAX or size + len(item) > BATCH_BYTES_MAX):
                found.append((batch, tenant, b"[" + b",".join(items) + b"]"))
                batch, items, size = [], [], 0
            batch.append(place)
            items.append(item)
            size += len(item) + 1
        found.append((batch, tenant, b"[" + b",".join(items) + b"]"))
    return found


def _refusal(reply: httpx2.Response) -> TaskschedError:
    if reply.is_redirect:
        place = reply.headers.get("location", "elsewhere")
        return TaskschedError(f"the API redirects to {place}: give its own URL")
    return wire.read_error(reply.status_code, reply.content, retry_after_ms(reply.headers))


def _unavailable(failure: Exception) -> Unavailable:
    said = str(failure) or type(failure).__name__
    return Unavailable(f"the API does not answer: {said}")
