"""``rig``: the API in this process over a real server, and a hand to play worker and scheduler."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
import pytest
from tests.servers import ServerProcess

from tasksched.commands.access import Access
from tasksched.commands.audit import Audit
from tasksched.commands.bulk import Bulk
from tasksched.commands.endpoints import Endpoints
from tasksched.commands.queues import Queues
from tasksched.commands.recurring import Recurring
from tasksched.commands.session import Session, open_session
from tasksched.commands.system import System
from tasksched.commands.tenants import Tenants
from tasksched.http.api import Services, make_api
from tasksched.model.outcome import Outcome, error_info
from tasksched.settings import Settings
from tasksched.store.protocol import Grant

JSON = "application/json"
BASE = "http://localhost:8000"
CHARGE = {"type": "handler", "name": "charge"}
DONE = Outcome(kind="SUCCEEDED", result=b"\x81\xa2ok\xc3")
BROKEN = Outcome(kind="FAILED", reason="not_retryable", error=error_info("ValueError", "no"))


class Rig:
    """An HTTP client of the API, and the session behind it."""

    def __init__(self, session: Session, services: Services, http: httpx2.AsyncClient) -> None:
        self.session = session
        self.services = services
        self.system = services.system
        self.recurring = services.recurring
        self.http = http
        self._calls = 0

    async def ask(self, verb: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """A request; names of headers with ``_`` for ``-``. Bytes are sent as JSON, untouched."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            return await self.http.request(verb, path, headers=names)
        if isinstance(body, bytes | str):
            names = {"Content-Type": JSON, **names}
            return await self.http.request(verb, path, content=body, headers=names)
        return await self.http.request(verb, path, json=body, headers=names)

    async def make(self, **members: Any) -> str:
        """Create a task; returns its id."""
        answer = await self.ask("POST", "/tasks", {"target": CHARGE, **members})
        assert answer.status_code == 201, answer.text
        return answer.json()["task_id"]

    async def show(self, task_id: str) -> dict[str, Any]:
        answer = await self.ask("GET", f"/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def start(self, route: str = "charge", slots: int = 128) -> list[tuple[int, Grant]]:
        """Whatever is due begins to run: (shard, grant)s."""
        store, started = self.session.store, []
        for shard in range(store.shards):
            await store.announce(shard, "w1", 600_000, ("queue:*", f"route:{route}"))
            await store.dispatch(shard)
            self._calls += 1
            _, _, grants = await store.take(
                shard, "w1", call=self._calls, slots=slots, lease_ms=30_000
            )
            started += [(shard, grant) for grant in grants]
        return started

    async def finish(self, started: Sequence[tuple[int, Grant]], outcome: Outcome = DONE) -> None:
        for shard, grant in started:
            await self.session.store.settle(shard, [(grant.id, grant.fence, outcome)])

    async def evalshas(self) -> int:
        """How many script calls the server has seen."""
        stats = await self.session.gateway.command("INFO", "commandstats")
        return sum(
            int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval")
        )


async def open_rig(url: str, **settings: Any) -> tuple[Rig, Session]:
    session = await open_session(Settings(url=url, shards=4, **settings))
    system = System(session.store, session.settings)
    recurring = Recurring(session.store, session.bodies)
    services = Services(
        tasks=session.tasks, admission=session.admission, recurring=recurring, system=system, settings=session.settings,
        endpoints=Endpoints(session.store, session.bodies),
        callbacks=session.callbacks, live=session.live,
        bulk=Bulk.of(session.store, session.settings), tenants=Tenants(session.store),
        queues=Queues(session.store),
        access=Access(session.store), audit=Audit(session.store),
    )  # fmt: skip
    await services.access.is_open()
    transport = httpx2.ASGITransport(app=make_api(services), raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport, base_url=BASE, timeout=30)
    return Rig(session, services, http), session


@pytest.fixture
async def rig(valkey_server: ServerProcess) -> AsyncIterator[Rig]:
    valkey_server.flush()
    found, session = await open_rig(valkey_server.url)
    yield found
    await found.http.aclose()
    await session.close()


def assert_problem(answer: httpx2.Response, *statuses: int) -> dict[str, Any]:
    """The answer is problem+json of one of these statuses; returns it."""
    assert answer.status_code in statuses, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert {"type", "title", "code", "detail", "request_id"} <= set(body)
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def pointers(problem: dict[str, Any]) -> list[str]:
    return [error["pointer"] for error in problem["errors"]]
