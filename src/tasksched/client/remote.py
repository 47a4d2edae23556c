"""Remote: the client over the HTTP API, for programs that reach no Redis. Producers only.

A request is sent again after a refusal that says "later" (429, 503 with Retry-After) and after a
connection that failed, with growing pauses, until patience ends. After a *lost reply* only what is
safe to repeat is: a create carries an ``Idempotency-Key`` made here before its first send, so the
repeat finds the task of the first. A verb that may have been executed is not repeated.
"""

import asyncio
import os
import random
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from tasksched import clock
from tasksched.client import wire
from tasksched.client.ask import REPLY_S, Ask
from tasksched.client.backend import Change, Explanation, Page, Query
from tasksched.client.remote_recurring import RemoteRecurring
from tasksched.commands.tasks import Changes
from tasksched.errors import Invalid, TaskschedError, Unavailable
from tasksched.model.durations import format_duration
from tasksched.model.states import FINAL
from tasksched.model.task import Attempt, Created, Task, TaskSpec
from tasksched.settings import Settings

PATIENCE_MS = 10_000
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0
CONNECT_S = 5.0
WAIT_MAX_MS = 20_000
WAIT_PAUSE_S = 1.0  # between two looks, where the API answers a wait at once
BATCH_MAX = 1_000
BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCHES_AT_ONCE = 4
_LATER = frozenset({429, 503})  # refused before anything was done
_UNKNOWN = frozenset({500, 502, 504})  # it may have been done
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Remote:
    """A Backend over HTTP."""

    call_max = keyed_max = BATCH_MAX
    calls_at_once = BATCHES_AT_ONCE

    def __init__(self, client: httpx2.AsyncClient, *, patience_ms: int = PATIENCE_MS) -> None:
        self._client = client
        self._patience_ms = patience_ms
        self.recurring = RemoteRecurring(self._ask)

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
            reply = await self._ask(Ask("POST", "/tasks/batch", tenant, body, headers=headers))
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
        reply = await self._ask(Ask("GET", _path(task_id), tenant))
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
        reply = await self._ask(Ask("GET", _path(task_id, "/attempts"), tenant))
        return wire.read_attempts(reply.content)

    async def wait(self, tenant: str, task_id: str, timeout_ms: int) -> Task:
        wait_ms = min(timeout_ms, WAIT_MAX_MS)
        began_ms = clock.mono_ms()
        ask = Ask(
            "GET",
            _path(task_id),
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

    async def queues(self, tenant: str) -> dict[str, dict[str, int]]:
        found = await self._dict("/queues", tenant)
        return {each["name"]: each["counts"] for each in found.get("items", ())}

    async def workers(self) -> list[dict[str, Any]]:
        found = await self._dict("/workers")
        return list(found.get("items", ()))

    async def _dict(self, path: str, tenant: str = "") -> dict[str, Any]:
        reply = await self._ask(Ask("GET", path, tenant))
        found: dict[str, Any] = msgspec.json.decode(reply.content)
        return found

    # -- changing -------------------------------------------------------------------------------

    async def cancel(self, tenant: str, task_id: str, version: int | None) -> Change:
        # Cancelling twice is cancelling once, unless a version is named, which the first changed.
        return await self._verb(tenant, _path(task_id, "/cancel"), version, again=version is None)

    async def run_now(self, tenant: str, task_id: str, version: int | None) -> Change:
        return await self._verb(tenant, _path(task_id, "/run-now"), version)

    async def redrive(self, tenant: str, task_id: str, version: int | None) -> Change:
        return await self._verb(tenant, _path(task_id, "/retry"), version)

    async def edit(
        self, tenant: str, task_id: str, changes: Changes, version: int | None
    ) -> Change:
        body = msgspec.json.encode(wire.changes_body(changes))
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        ask = Ask(
            "PATCH", _path(task_id), tenant, body, headers=headers, repeatable=version is None
        )
        return wire.read_change((await self._ask(ask)).content)

    async def _verb(
        self, tenant: str, path: str, version: int | None, *, again: bool = False
    ) -> Change:
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        ask = Ask("POST", path, tenant, headers=headers, repeatable=again)
        return wire.read_change((await self._ask(ask)).content)

    # -- sending --------------------------------------------------------------------------------

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, ask: Ask) -> httpx2.Response:
        """The answer, once there is one. Raises what it says, or Unavailable."""
        until_ms = clock.mono_ms() + self._patience_ms
        pause_s = PAUSE_S
        while True:
            outcome = await self._try(ask)
            if isinstance(outcome, httpx2.Response):
                return outcome
            error, may_repeat = outcome
            wait_s = max(pause_s * (0.5 + random.random()), _asked_s(error))
            if not may_repeat or clock.mono_ms() + wait_s * 1000 > until_ms:
                raise error
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

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
        status = reply.status_code
        may_repeat = status in _LATER or (status in _UNKNOWN and ask.repeatable)
        return _refusal(reply), may_repeat

    async def _send(self, ask: Ask) -> httpx2.Response:
        headers = dict(ask.headers)
        if ask.tenant not in {"", "default"}:
            headers["Tasksched-Tenant"] = ask.tenant
        if ask.body is not None:
            headers["Content-Type"] = "application/json"
        return await self._client.request(
            ask.method,
            ask.path,
            params=dict(ask.query) or None,
            content=ask.body,
            headers=headers,
            timeout=httpx2.Timeout(ask.reply_s, connect=CONNECT_S),
        )


async def open_remote(settings: Settings, api_key: str | None = None) -> Remote:
    """A backend for the API at ``settings.url``. Connects when first asked."""
    key = api_key if api_key is not None else key_from_environment()
    headers = {"User-Agent": "tasksched", "Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Remote(httpx2.AsyncClient(base_url=settings.url, headers=headers))


def key_from_environment() -> str | None:
    """TASKSCHED_API_KEY, or the text of the file that TASKSCHED_API_KEY_FILE names."""
    if key := os.environ.get("TASKSCHED_API_KEY"):
        return key
    path = os.environ.get("TASKSCHED_API_KEY_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise Invalid(f"TASKSCHED_API_KEY_FILE: {error}") from error


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


def _path(task_id: str, rest: str = "") -> str:
    """The path of a task; an id that could not be one is asked for in a form that cannot mislead."""
    safe = task_id if task_id.isascii() and task_id.isalnum() else "unknown"
    return f"/tasks/{safe}{rest}"


def _refusal(reply: httpx2.Response) -> TaskschedError:
    if reply.is_redirect:
        place = reply.headers.get("location", "elsewhere")
        return TaskschedError(f"the API redirects to {place}: give its own URL")
    seconds = reply.headers.get("retry-after", "")
    retry_after_ms = int(seconds) * 1000 if seconds.isascii() and seconds.isdigit() else None
    return wire.read_error(reply.status_code, reply.content, retry_after_ms)


def _unavailable(failure: Exception) -> Unavailable:
    said = str(failure) or type(failure).__name__
    return Unavailable(f"the API does not answer: {said}")


def _asked_s(error: TaskschedError) -> float:
    return float(error.extra.get("retry_after_ms") or 0) / 1000
