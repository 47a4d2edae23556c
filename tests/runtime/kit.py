"""The worker's test kit: grants without a server, workers on a real one, and a dispatcher's loop."""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Self

from tasksched import clock
from tasksched.ending import end
from tasksched.model import codec, ids
from tasksched.model.retry import Retry
from tasksched.model.task import HandlerTarget, Options, TaskSpec
from tasksched.runtime.context import Ctx, NoDesk, Run
from tasksched.runtime.executor import Executor
from tasksched.runtime.registry import Handler, Registry
from tasksched.runtime.threads import Threads
from tasksched.runtime.worker import Worker
from tasksched.settings import Settings
from tasksched.store.beats import SyncBeats
from tasksched.store.connect import Gateway
from tasksched.store.protocol import Grant, Store

SHARDS = 2
NO_JITTER = Retry(3, initial="1s", jitter="none")


def handler_of(function: Callable[..., Any], **fields: Any) -> Handler:
    """As the decorator of an App makes it: a coroutine function or a thread's, Ctx or not."""
    hints = list(inspect.signature(function).parameters.values())
    return Handler(
        name=fields.pop("name", function.__name__.replace("<lambda>", "fn")),
        function=function,
        mode="async" if inspect.iscoroutinefunction(function) else "thread",
        wants_ctx=bool(hints) and hints[0].annotation in {Ctx, "Ctx"},
        **fields,
    )


def registry_of(*handlers: Callable[..., Any] | Handler) -> Registry:
    registry = Registry()
    for each in handlers:
        registry.add(each if isinstance(each, Handler) else handler_of(each))
    return registry


def grant_of(route: str = "fn", payload: Any = ..., **fields: Any) -> Grant:
    """A grant as ``take`` makes it. ``payload`` is encoded, unless it is bytes."""
    raw: bytes | None = None
    if payload is not ...:
        raw = payload if isinstance(payload, bytes) else codec.encode(payload)
    options = {
        key: fields.pop(key)
        for key in ("http", "retry", "timeout_ms", "tags", "traceparent")
        if key in fields
    }
    options.setdefault("retry", NO_JITTER)
    defaults: dict[str, Any] = {
        "id": ids.mint(0, 1_764_000_000_000), "fence": "451584000000000", "attempt": 1,
        "lane": f"default:normal:acme:{route}", "due_ms": 1_764_000_000_000,
        "created_ms": 1_764_000_000_000, "started_ms": 1_764_000_000_001, "payload": raw,
        "options": Options(**options), "lease_ms": None, "uncounted": 0, "lost": 0,
    }  # fmt: skip
    return Grant(**{**defaults, **fields})


class PulseDesk(NoDesk):
    """Notes which runs wanted a heartbeat."""

    def __init__(self, pulsed: list[Run]) -> None:
        self._pulsed = pulsed

    def pulse(self, run: Run) -> None:
        self._pulsed.append(run)


class Rig:
    """An executor with one handler, and runs that go through it as a worker sends them."""

    def __init__(self, function: Callable[..., Any], **fields: Any) -> None:
        self.threads = Threads(4)
        limits = {key: fields.pop(key) for key in ("result_bytes_max",) if key in fields}
        handler = handler_of(function, name="fn", **fields)
        self.executor = Executor(registry_of(handler), self.threads, **limits)
        self.executor.rng = lambda: 0.5
        self.abandoned: list[Any] = []
        self.executor.abandon = lambda _run, outcome: self.abandoned.append(outcome)
        self.pulsed: list[Run] = []
        self.executor.desk = PulseDesk(self.pulsed)

    def start(self, payload: Any = ..., *, lease_ms: int = 30_000, **fields: Any) -> Run:
        run = Run(grant_of("fn", payload, **fields), 0, lease_ms, clock.mono())
        run.task = asyncio.get_running_loop().create_task(self.executor.run(run))  # type: ignore[assignment]
        return run

    async def run(self, payload: Any = ..., **fields: Any) -> Any:
        return await self.start(payload, **fields).task

    def close(self) -> None:
        self.threads.close()


class Site:
    """A namespace on a real server, with workers, and what a scheduler would do for them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.gateway = Gateway.open(url)
        self.store = Store(self.gateway, "ts", SHARDS)
        self._dispatching: asyncio.Task[None] | None = None
        self._workers: list[Worker] = []

    async def __aenter__(self) -> Self:
        self._dispatching = asyncio.create_task(self._dispatch())
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.hurry()
            await worker.drain(0)
        assert self._dispatching is not None
        await end([self._dispatching])
        await self.gateway.close()

    async def _dispatch(self) -> None:
        while True:
            for shard in range(SHARDS):
                with contextlib.suppress(Exception):
                    await self.store.dispatch(shard)
            await asyncio.sleep(0.02)

    def worker(self, *handlers: Any, url: str | None = None, **settings: Any) -> Worker:
        """A worker that is ended with the site. ``url``: reach the server by another way."""
        store = self.store
        if url is not None:
            store = Store(Gateway.open(url), "ts", SHARDS)
        values = Settings(**{"concurrency": 8, "http_allow": ("127.0.0.0/8",), **settings})
        worker = Worker(
            store, registry_of(*handlers), values,
            open_sync=functools.partial(SyncBeats, url or self.url, store),
        )  # fmt: skip
        self._workers.append(worker)
        return worker

    async def started(self, *handlers: Any, **settings: Any) -> Worker:
        worker = self.worker(*handlers, **settings)
        await worker.start()
        return worker

    async def submit(self, name: str, payload: Any = ..., *, shard: int = 0, **fields: Any) -> str:
        task_id = ids.mint(shard, clock.wall_ms())
        body = b"" if payload is ... else codec.encode(payload)
        fields.setdefault("retry", Retry(3, initial="20ms", jitter="none"))
        fields.setdefault("target", HandlerTarget(name))
        spec = TaskSpec(payload=body, **fields)
        await self.store.submit(shard, [(task_id, spec, "")])
        return task_id

    async def record(self, task_id: str, shard: int = 0) -> dict[str, str]:
        key = self.store.keys[shard].task(task_id)
        raw = await self.gateway.redis.hgetall(key)
        return {name.decode(): value.decode("utf-8", "replace") for name, value in raw.items()}

    async def result(self, task_id: str, shard: int = 0) -> Any:
        key = self.store.keys[shard].task(task_id)
        return codec.decode(await self.gateway.redis.hget(key, "result"))

    async def ends(self, task_id: str, shard: int = 0) -> dict[str, str]:
        """The record, as soon as there is a verdict."""
        return await self.comes_to(task_id, "SUCCESS", "FAILED", "CANCELLED", shard=shard)

    async def comes_to(self, task_id: str, *states: str, shard: int = 0) -> dict[str, str]:
        async with asyncio.timeout(15):
            while (record := await self.record(task_id, shard)).get("state") not in states:
                await asyncio.sleep(0.01)
        return record


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)
