"""``stage``: an App over either transport, on a real server, and a hand that plays the worker."""

import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from tests.servers import ServerProcess

from tasksched import App, Ctx, Retry
from tasksched.client.backend import Backend
from tasksched.client.direct import Direct
from tasksched.client.remote import Remote
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
from tasksched.model import codec
from tasksched.model.outcome import Outcome, error_info
from tasksched.settings import Settings

BROKEN = Outcome(kind="FAILED", reason="not_retryable", error=error_info("ValueError", "no luck"))
_numbers = itertools.count()


def done(value: object) -> Outcome:
    return Outcome(kind="SUCCEEDED", result=codec.encode(value))


def fresh(url: str, **settings: Any) -> Settings:
    """Settings for a namespace nobody used yet, so that tests may share a server."""
    return Settings(url=url, shards=4, namespace=f"t{os.getpid()}-{next(_numbers)}", **settings)


def asgi(session: Session) -> httpx2.ASGITransport:
    system = System(session.store, session.settings)
    services = Services(
        tasks=session.tasks,
        admission=session.admission,
        recurring=Recurring(session.store, session.bodies),
        endpoints=Endpoints(session.store, session.bodies),
        system=system,
        settings=session.settings,
        callbacks=session.callbacks,
        live=session.live,
        bulk=Bulk.of(session.store, session.settings),
        tenants=Tenants(session.store),
        queues=Queues(session.store),
        access=Access(session.store),
        audit=Audit(session.store),
    )
    return httpx2.ASGITransport(app=make_api(services), raise_app_exceptions=False)


def remote(transport: httpx2.AsyncBaseTransport, patience_ms: int = 5_000) -> Remote:
    client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
    return Remote(client, patience_ms=patience_ms)


class Stage:
    """An App whose requests go to ``backend``, with handlers to submit to."""

    def __init__(self, session: Session, backend: Backend) -> None:
        self.session = session
        self.backend = backend
        self.app = App(settings=session.settings)
        self._calls = itertools.count(1)

        @self.app.task(queue="billing", retry=Retry(3, never=(ValueError,)), timeout="30s")
        async def charge(ctx: Ctx, invoice: str, cents: int) -> str:
            return f"{invoice} {cents}"

        @self.app.task
        def add(a: int, b: int = 2) -> int:
            return a + b

        self.charge, self.add = charge, add

    async def run(self, outcome: Outcome, route: str = "charge") -> int:
        """Everything that is due runs and ends like this; how many."""
        count = 0
        for shard in range(self.session.store.shards):
            for _, fence, task_id in await self.start(shard, route):
                await self.session.store.settle(shard, [(task_id, fence, outcome)])
                count += 1
        return count

    async def start(self, shard: int, route: str = "charge") -> list[tuple[int, str, str]]:
        store = self.session.store
        await store.announce(shard, "w1", 600_000, ("queue:*", f"route:{route}"))
        await store.dispatch(shard)
        _, _, grants = await store.take(
            shard, "w1", call=next(self._calls), slots=128, lease_ms=30_000
        )
        return [(shard, grant.fence, grant.id) for grant in grants]

    async def start_all(self, route: str = "charge") -> list[tuple[int, str, str]]:
        return [
            run
            for shard in range(self.session.store.shards)
            for run in await self.start(shard, route)
        ]

    async def count(self) -> int:
        return sum((await self.session.tasks.reads.counts()).values())


@pytest.fixture
async def session(valkey_server: ServerProcess) -> AsyncIterator[Session]:
    opened = await open_session(fresh(valkey_server.url))
    yield opened
    await opened.close()


@pytest.fixture(params=["redis", "http"])
async def stage(request: pytest.FixtureRequest, session: Session) -> AsyncIterator[Stage]:
    """The same App over Redis and over HTTP."""
    backend: Backend = Direct(session)
    if request.param == "http":
        backend = remote(asgi(session))
    found = Stage(session, backend)
    with found.app.using(backend):
        yield found
    if isinstance(backend, Remote):
        await backend.close()


@pytest.fixture
async def direct(session: Session) -> AsyncIterator[Stage]:
    backend = Direct(session)
    found = Stage(session, backend)
    with found.app.using(backend):
        yield found


Make = Callable[..., App]


@pytest.fixture
def make_app(valkey_server: ServerProcess) -> Make:
    """An App that connects by itself, in a namespace of its own."""

    def make(**settings: Any) -> App:
        return App(settings=fresh(valkey_server.url, **settings))

    return make
