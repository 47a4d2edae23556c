"""An API with keys: ``Guarded`` makes them, asks with them, and turns the clock of what is remembered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
from tests.http.conftest import BASE, Rig, open_rig

from tasksched.commands.access import Access
from tasksched.commands.keys import Keys, KeySpec
from tasksched.http.api import make_api
from tasksched.model.apikey import KeyInfo, Scope

ALL_OF_A_TENANT: tuple[Scope, ...] = (
    "tasks:read", "tasks:write", "recurring:read", "recurring:write", "operate", "metrics",
)  # fmt: skip


class Guarded:
    """A rig whose access has a clock of the test's."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.now_ms = 1_000_000
        self.access = Access(rig.session.store, now=lambda: self.now_ms)
        self.services = replace(rig.services, access=self.access)
        transport = httpx2.ASGITransport(app=make_api(self.services), raise_app_exceptions=False)
        self.http = httpx2.AsyncClient(transport=transport, base_url=BASE, timeout=30)
        self.keys = Keys(rig.session.store)

    async def key(self, *scopes: Scope, tenant: str = "default", **more: Any) -> KeyInfo:
        """A new key; ``text`` is how it is sent."""
        spec = KeySpec(name="test", tenant=tenant, scopes=scopes or ALL_OF_A_TENANT, **more)
        return await self.keys.create(spec)

    async def ask(
        self, verb: str, path: str, key: str | None = None, body: Any = None, **headers: str
    ) -> httpx2.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            names["Authorization"] = f"Bearer {key}"
        content = {} if body is None else {"json": body}
        return await self.http.request(verb, path, headers=names, **content)

    async def status(self, verb: str, path: str, key: str | None = None, **more: Any) -> int:
        return (await self.ask(verb, path, key, **more)).status_code


@asynccontextmanager
async def open_guarded(url: str, **settings: Any) -> AsyncIterator[Guarded]:
    rig, session = await open_rig(url, **settings)
    found = Guarded(rig)
    yield found
    await found.access.close()
    await found.http.aclose()
    await rig.http.aclose()
    await session.close()
