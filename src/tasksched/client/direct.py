"""Direct: the client over Redis itself, by the same commands that stand behind the HTTP API.

Opens a session on the namespace for one event loop. For ``embedded:DIR`` it attaches to the server
that runs on the directory, or starts one that lives as long as this process; it only stores then:
nothing is dispatched or run until a scheduler and a worker come, as ``tasksched dev`` brings them.
"""

import atexit
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tasksched import embedded
from tasksched.client.backend import Change, Explanation, Page, Query
from tasksched.client.direct_bulk import DirectBulk
from tasksched.client.direct_limits import DirectLimits
from tasksched.client.direct_recurring import DirectRecurring
from tasksched.client.patience import until_accepted
from tasksched.commands.audit import Audit, told
from tasksched.commands.bulk import Bulk
from tasksched.commands.endpoints import Endpoints
from tasksched.commands.explain import redis_cli, why_waiting
from tasksched.commands.listing import LIMIT_MAX, TaskQuery, list_tasks
from tasksched.commands.session import Session, open_session
from tasksched.commands.system import System
from tasksched.commands.tasks import Changes
from tasksched.errors import Conflict, TaskschedError, Unavailable
from tasksched.model.durations import format_duration
from tasksched.model.seal import Codec
from tasksched.model.states import STATES
from tasksched.model.task import Attempt, Created, Task, TaskSpec
from tasksched.settings import Settings
from tasksched.store.protocol import SUBMIT_MAX, Changed

CALLS_AT_ONCE = 3
START_RACE_S = 15.0


class Direct:
    """A Backend over one session."""

    call_max = SUBMIT_MAX
    calls_at_once = CALLS_AT_ONCE

    def __init__(self, session: Session) -> None:
        self.session = session
        self.recurring = DirectRecurring(session.store, session.bodies)
        self.webhooks = Endpoints(session.store, session.bodies)
        self.callbacks = session.callbacks
        self.live = session.live
        self.bulk = DirectBulk(Bulk.of(session.store, session.settings))
        self.limits = DirectLimits(session.store)
        self._tasks = session.tasks
        self._patience_ms = session.settings.patience_ms
        self._system = System(session.store, session.settings)
        # Keys decide the shard, so a whole call for each shard needs so many.
        self.keyed_max = SUBMIT_MAX * session.store.shards

    async def submit(self, spec: TaskSpec) -> Created:
        return await until_accepted(partial(self._tasks.submit, spec), self._patience_ms)

    async def submit_many(self, specs: Sequence[TaskSpec]) -> list[Created | TaskschedError]:
        return await self._tasks.submit_many(specs)

    async def get(self, tenant: str, task_id: str) -> Task:
        return await self._tasks.get(tenant, task_id)

    async def page(self, query: Query, cursor: str | None) -> Page:
        found = await list_tasks(
            self._tasks.reads,
            TaskQuery(
                tenant=query.tenant,
                status=() if query.status is None else (query.status,),
                queue=query.queue,
                handler=query.handler,
                tag=query.tag,
                limit=min(query.limit, LIMIT_MAX),
                cursor=cursor,
            ),
        )
        return Page(found.items, found.next_cursor)

    async def attempts(self, tenant: str, task_id: str) -> list[Attempt]:
        return await self._tasks.attempts(tenant, task_id)

    async def wait(self, tenant: str, task_id: str, timeout_ms: int) -> Task:
        return await self._tasks.wait(tenant, task_id, timeout_ms)

    async def cancel(self, tenant: str, task_id: str, version: int | None) -> Change:
        return _change(await self._tasks.cancel(tenant, task_id, version=version))

    async def edit(
        self, tenant: str, task_id: str, changes: Changes, version: int | None
    ) -> Change:
        return _change(await self._tasks.edit(tenant, task_id, changes, version=version))

    async def run_now(self, tenant: str, task_id: str, version: int | None) -> Change:
        return _change(await self._tasks.run_now(tenant, task_id, version=version))

    async def redrive(
        self, tenant: str, task_id: str, version: int | None, changes: Changes | None = None
    ) -> Change:
        return _change(await self._tasks.redrive(tenant, task_id, changes, version=version))

    async def explain(self, tenant: str, task_id: str) -> Explanation:
        task = await self._tasks.get(tenant, task_id, bodies=False)
        reasons = await why_waiting(self._tasks.reads, task)
        return Explanation(task, reasons, redis_cli(self.session.store, task))

    async def stats(self) -> dict[str, Any]:
        found = await self._system.snapshot()
        return {
            "total": found.counts.total,
            "by_status": found.counts.by_status,
            "by_queue": found.counts.by_queue,
            "moves": found.moves,
            "findings": found.findings,
            "schedulers": found.schedulers,
            "workers": found.workers,
            "lag": None if found.lag_ms is None else format_duration(found.lag_ms),
        }

    async def workers(self) -> list[dict[str, Any]]:
        return [dict(worker) for worker in await self._system.workers()]

    async def audit(self, limit: int, cursor: str | None) -> dict[str, Any]:
        found = await Audit(self.session.store).page(limit=limit, cursor=cursor)
        return {"items": [told(each) for each in found.items], "next_cursor": found.next_cursor}

    async def close(self) -> None:
        await self.session.close()


async def open_direct(settings: Settings, codec: Codec | None = None) -> Direct:
    """Raises Unavailable, or Unsafe for a namespace that contradicts the settings."""
    return Direct(await open_session(settings, patience_ms=settings.patience_ms, codec=codec))


def embedded_url(directory: str, *, start: bool) -> str:
    """The URL of the server on this data directory. Blocks; raises Unavailable if none may start."""
    path = Path(directory or ".tasksched")
    running = embedded.attach(path)
    if running is not None:
        return running.url
    if not start:
        raise Unavailable(
            f"no server runs on {path}: start one with `tasksched dev`, or name one with --url or "
            "TASKSCHED_URL"
        )
    try:
        running = embedded.start(path)
    except Conflict:
        # Somebody else is just starting one. That is the one we want.
        running = embedded.attach(path, timeout_s=START_RACE_S)
        if running is None:
            raise
        return running.url
    atexit.register(running.stop)
    return running.url


def _change(changed: Changed) -> Change:
    state = next(state for state in STATES if state == changed.state)
    return Change(state, changed.version, changed.word == "requested")
