"""Admission: creating is refused before Redis must refuse it; what was accepted goes on all the same.

Every script that takes something in passes here (``Gateway.admission``): tasks, batches, recurring
definitions, extra occurrences, new lives. The memory of the server is looked at by those who create, at
most once in LOOK_MS, so an idle process asks nothing. Refused above ``refuse`` of the budget; accepted
again only LEEWAY below it, so that the answer does not flicker. A look that fails refuses nobody: the call
itself will tell. How long the oldest of these calls has waited tells an API process that Redis is slow.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from tasksched import clock
from tasksched.ending import end
from tasksched.errors import MemoryBudget, TaskschedError
from tasksched.settings import Settings
from tasksched.store.connect import Gateway

T = TypeVar("T")

LOOK_MS: Final = 1_000
LOOK_WAIT_S: Final = 0.25
"""A call waits so long for the look it began; then it goes on with what was known before."""

LEEWAY: Final = 0.03
ALARM: Final = 0.7
RETRY_AFTER_MS: Final = 5_000


class Memory(NamedTuple):
    """What the server uses of its budget, in bytes. ``budget`` 0: it has none."""

    used: int = 0
    budget: int = 0

    @property
    def ratio(self) -> float:
        return self.used / self.budget if self.budget else 0.0


class Admission:
    """Whether something new may come in. One per process; safe for concurrent use in one loop."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        budget: int,
        refuse: float,
        now: Callable[[], int] = clock.mono_ms,
    ) -> None:
        self._gateway = gateway
        self._budget = budget
        self._refuse = refuse
        self._now = now
        self._looked_ms: int | None = None
        self._looking: asyncio.Task[None] | None = None
        self._began: OrderedDict[object, int] = OrderedDict()
        self.memory = Memory()
        self.refuses = False

    @classmethod
    def of(cls, gateway: Gateway, settings: Settings) -> "Admission":
        """Of a session; from now on the gateway asks it."""
        found = cls(gateway, budget=settings.memory_budget, refuse=settings.memory_refuse)
        gateway.admission = found
        return found

    async def admit(self) -> None:
        """Returns if something new may come in. Raises MemoryBudget."""
        await self.look()
        if self.refuses:
            raise MemoryBudget(
                f"Redis uses {self.memory.ratio:.0%} of its memory budget: nothing new is accepted",
                retry_after_ms=RETRY_AFTER_MS,
            )

    async def carry(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call that takes something in, if it may. Raises MemoryBudget."""
        await self.admit()
        turn = object()
        self._began[turn] = self._now()
        try:
            return await call()
        finally:
            del self._began[turn]

    def waiting_ms(self) -> int:
        """For how long the oldest of the calls that are on their way has waited; 0 without any."""
        if not self._began:
            return 0
        return self._now() - next(iter(self._began.values()))

    async def look(self) -> None:
        """Sees to it that the memory was looked at within LOOK_MS; callers share one look."""
        if self._looking is None:
            if self._looked_ms is not None and self._now() - self._looked_ms < LOOK_MS:
                return
            self._looking = asyncio.create_task(self._look())
            await asyncio.wait([self._looking], timeout=LOOK_WAIT_S)
        elif self._looked_ms is None:
            await asyncio.wait([self._looking], timeout=LOOK_WAIT_S)

    async def _look(self) -> None:
        try:
            self._judge(await self._gateway.command("INFO", "memory"))
        except TaskschedError:
            pass
        finally:
            self._looked_ms = self._now()
            self._looking = None

    def _judge(self, info: Any) -> None:
        self.memory = Memory(
            int(info.get("used_memory", 0)), self._budget or int(info.get("maxmemory", 0))
        )
        least = self._refuse - LEEWAY if self.refuses else self._refuse
        self.refuses = self.memory.ratio > least

    def warnings(self) -> list[str]:
        """What should be looked after, in words: at ALARM of the budget, and when refusing."""
        if self.refuses:
            return [f"memory: {self.memory.ratio:.0%} of the budget is used; creates are refused"]
        if self.memory.ratio > ALARM:
            return [f"memory: {self.memory.ratio:.0%} of the budget is used"]
        return []

    async def close(self) -> None:
        if self._looking is not None:
            await end([self._looking])
