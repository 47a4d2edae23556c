"""A producer for scenarios whose question is not the client: many tasks, each with its due time."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from bench.processes import NAMESPACE, SHARDS
from bench.scenarios.common import HANDLER
from bench.servers import Server

from tasksched.commands.session import Session, open_session
from tasksched.model import codec
from tasksched.model.task import Created, HandlerTarget, TaskSpec
from tasksched.settings import Settings


class Producer:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def submit(self, calls: Sequence[tuple[int, str]], due_ms: Sequence[int]) -> list[str]:
        """Ids of tasks of the handler ``noop`` with these arguments; due 0 is now."""
        specs = [
            TaskSpec(
                target=HandlerTarget(HANDLER),
                payload=codec.encode(list(arguments)),
                run_at_ms=due or None,
            )
            for arguments, due in zip(calls, due_ms, strict=True)
        ]
        answers = await self._session.tasks.submit_many(specs)
        refused = [answer for answer in answers if not isinstance(answer, Created)]
        if refused:
            raise RuntimeError(f"{len(refused)} tasks refused, the first: {refused[0]}")
        return [answer.id for answer in answers if isinstance(answer, Created)]


@contextlib.asynccontextmanager
async def producing(server: Server) -> AsyncIterator[Producer]:
    session = await open_session(Settings(url=server.url, namespace=NAMESPACE, shards=SHARDS))
    try:
        yield Producer(session)
    finally:
        await session.close()
