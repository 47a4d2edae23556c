"""Quotas: how many tasks of a tenant may be unfinished, and how many it may create a second.

Set in the home record ``conf``, field ``tenant:<name>``: ``pending=1000 creates=50``; read again after
RULES_TTL_MS. ``pending``: each shard has permits of the limit ``p/<tenant>`` and refuses what it has none
for (``lua/submit.lua``); here it gets those that are free anywhere, so the sum is never above the limit and
all of it can be used from every shard. ``creates``: tokens of ``c/<tenant>``, leased from one home in slices
and good for a second. Over all processes no more than ``rate · T + 2 · max(rate, 1)`` tasks are created in
any T seconds: what the bucket gives in T, its fill, and what was leased in the second before. A refused
task was not created, and its key is as unused as before.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from tasksched import clock
from tasksched.errors import QuotaReached, RateLimited, TaskschedError
from tasksched.model.limits import TenantRules
from tasksched.model.notify import QUEUE
from tasksched.model.task import TaskSpec
from tasksched.store.limits import Limits, Tell
from tasksched.store.protocol import Store
from tasksched.store.rules import RuleBook, tenant_field

RULES_TTL_MS: Final = 1_000
TENANTS_MAX: Final = 10_000
"""Of so many tenants the rules and tokens are remembered."""

TRIES: Final = 3
ROUNDS_MAX: Final = 8
LOCKS: Final = 64
SLICES: Final = 10
"""A lease takes what is needed now, or so small a part of a second's tokens."""

SPARE_SHARE, SPARE_MAX = 4, 50
"""A shard takes a little more than it needs: this part of its even share, and no more than so many."""

EXHAUSTED_MS: Final = 250
"""After no permit was free anywhere nobody here asks again for so long."""

PENDING_RETRY_MS: Final = 1_000
TOKEN_MS: Final = 1_000

Row = tuple[str, TaskSpec, str]
Report = tuple[int, int, int, int, int]
"""A shard, its epoch, the permits it has, those it wants, and since when: a row of ``allot``."""


class Made(NamedTuple):
    """What became of a row: the word of ``lua/submit.lua``, ``rate``, or ``""``; the server's now."""

    word: str
    now_ms: int


class _Claim(NamedTuple):
    limit: str
    capacity: int
    shard: int


class _Lease(NamedTuple):
    tokens: int = 0
    until_ms: int = 0
    next_ms: int = 0  # no token is there before


class Quota:
    """The quotas of one namespace. One per process; safe for concurrent use in one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._limits = Limits(store)
        self._book = RuleBook(store)
        self._rules: dict[str, tuple[int, int, TenantRules]] = {}  # read at, version, what is set
        self._leases: dict[str, _Lease] = {}
        self._exhausted: dict[str, int] = {}
        self._locks = [asyncio.Lock() for _ in range(LOCKS)]

    async def submit(self, shard: int, rows: Sequence[Row]) -> list[Made]:
        """Create the rows of one shard, as far as the quotas of their tenants go."""
        over = await self._metered([spec for _, spec, _ in rows])
        made = [Made("rate", 0)] * len(rows)
        places = [n for n in range(len(rows)) if n not in over]
        for attempt in range(TRIES + 1):
            if not places:
                break
            try:
                now_ms, words = await self._store.submit(shard, [rows[n] for n in places])
            except TaskschedError:
                if attempt == 0:
                    raise
                break  # the first call has made tasks: that must not be told as a failure
            for n, place in enumerate(places):
                made[place] = Made(words.get(n, ""), now_ms)
            places = [n for n in places if made[n].word == "quota"]
            if attempt == TRIES or not await self._got_permits(shard, [rows[n][1] for n in places]):
                break
        return made

    def refusal(self, tenant: str, word: str) -> RateLimited:
        """The error that ``quota`` or ``rate`` stands for."""
        _, _, rules = self._rules.get(tenant, (0, 0, TenantRules()))
        if word == "quota":
            return QuotaReached(
                f"tenant {tenant} has as many unfinished tasks as it may have",
                limit="max_pending",
                quota=rules.max_pending,
                retry_after_ms=PENDING_RETRY_MS,
            )
        rate = rules.create_rate or 1.0
        wait_ms = self._leases.get(tenant, _Lease()).next_ms - self._now_ms()
        return RateLimited(
            f"tenant {tenant} may create {rate:g} tasks a second",
            limit="create_rate",
            quota=max(math.floor(rate), 1),
            window_s=1 if rate >= 1 else math.ceil(1 / rate),
            retry_after_ms=max(wait_ms, 1),
        )

    # -- what is set ----------------------------------------------------------------------------

    async def rules(self, tenant: str) -> TenantRules:
        """What is set for the tenant, as it was RULES_TTL_MS ago at most."""
        known = self._rules.get(tenant)
        if known is not None and clock.mono_ms() - known[0] < RULES_TTL_MS:
            return known[2]
        version, words = await self._book.get(tenant_field(tenant))
        found = TenantRules.of_words(words)
        if len(self._rules) >= TENANTS_MAX:
            self._rules.clear()
        self._rules[tenant] = clock.mono_ms(), version, found
        is_new = known is None or known[1] != version
        if is_new and found.max_pending is not None:
            # The limit may have been lowered: what the shards do not use of it is counted anew.
            try:
                await self._gather(f"p/{tenant}", found.max_pending)
            except TaskschedError:
                self._rules.pop(tenant, None)  # the next one does it
                raise
        return found

    # -- the rate -------------------------------------------------------------------------------

    async def _metered(self, specs: Sequence[TaskSpec]) -> set[int]:
        """The places of those that are too many for now; the first of a tenant go first."""
        wanted = Counter(spec.tenant for spec in specs if spec.queue != QUEUE)
        over: set[int] = set()
        for tenant, number in wanted.items():
            rate = (await self.rules(tenant)).create_rate
            if rate is None:
                continue
            given = await self._spend(tenant, rate, number)
            places = [n for n, spec in enumerate(specs) if spec.tenant == tenant]
            over.update([n for n in places if specs[n].queue != QUEUE][given:])
        return over

    async def _spend(self, tenant: str, rate: float, want: int) -> int:
        async with self._lock(f"c/{tenant}"):
            now_ms = self._now_ms()
            lease = self._leases.get(tenant, _Lease())
            left = lease.tokens if lease.until_ms > now_ms else 0
            missing = want - left
            if missing <= 0:
                self._leases[tenant] = lease._replace(tokens=left - want)
                return want
            if lease.next_ms > now_ms:
                self._leases[tenant] = lease._replace(tokens=0)
                return left
            asked = max(missing, math.ceil(rate / SLICES))
            given, until_ms, next_ms = await self._limits.ration(f"c/{tenant}", rate, asked)
            wait_ms = next_ms - (until_ms - TOKEN_MS)
            if len(self._leases) >= TENANTS_MAX:
                self._leases.clear()
            used = min(missing, given)
            self._leases[tenant] = _Lease(given - used, now_ms + TOKEN_MS, now_ms + wait_ms)
            return left + used

    def _lock(self, limit: str) -> asyncio.Lock:
        return self._locks[hash(limit) % LOCKS]

    def _now_ms(self) -> int:
        return self._store.now_ms or clock.mono_ms()

    # -- permits --------------------------------------------------------------------------------

    async def _got_permits(self, shard: int, specs: Sequence[TaskSpec]) -> bool:
        """Whether the shard has got permits for some of these that it refused."""
        got = 0
        for tenant, number in Counter(spec.tenant for spec in specs).items():
            try:
                got += await self._claim(shard, tenant, number)
            except TaskschedError:
                continue  # Redis is away: what was created is told, what was refused is refused
        return got > 0

    async def _claim(self, shard: int, tenant: str, number: int) -> int:
        """Permits that the shard has got, at most ``number`` and a few to spare."""
        limit, shards = f"p/{tenant}", self._store.shards
        async with self._lock(limit):
            if self._exhausted.get(tenant, 0) > clock.mono_ms():
                return 0
            pending = (await self.rules(tenant)).max_pending
            if pending is None:
                # Just set, or just lifted: what we remember is not what the shard knows.
                self._rules.pop(tenant, None)
                pending = (await self.rules(tenant)).max_pending
            if not pending:
                return 0
            want = number + min(pending // (SPARE_SHARE * shards), SPARE_MAX)
            claim = _Claim(limit, pending, shard)
            got, back = await self._ask(claim, want)
            if got < number:
                rows = [*back, *await self._given_back(limit, {shard, *(row[0] for row in back)})]
                for _ in range(ROUNDS_MAX):
                    more, rows = await self._ask(claim, want - got, rows)
                    got += more
                    if got >= number or not rows:
                        break
                # Nobody waits at the home: who is refused here asks again or not at all.
                await self._ask(claim, 0, rows)
            if got < number:
                if len(self._exhausted) >= TENANTS_MAX:
                    self._exhausted.clear()
                self._exhausted[tenant] = clock.mono_ms() + EXHAUSTED_MS
            return got

    async def _ask(
        self, claim: _Claim, want: int, rows: Sequence[Report] = ()
    ) -> tuple[int, list[Report]]:
        """What the shard got, and what others gave back when they heard that somebody waits."""
        limit, capacity, shard = claim
        had, epoch, _ = await self._limits.report(shard, limit)
        mine = (shard, epoch, had, want, 0)
        _, told = await self._limits.allot(limit, capacity, self._store.shards, [mine, *rows])
        has = had
        for tell in told:
            if tell.shard == shard:
                # What it is given is for those who ask now, whoever else waits.
                has, _ = await self._limits.apportion(limit, tell._replace(contended=0, short_ms=0))
        return has - had, await self._heard(limit, [tell for tell in told if tell.shard != shard])

    async def _heard(self, limit: str, told: Sequence[Tell]) -> list[Report]:
        """Tells the shards; what those have now that gave something back on hearing it."""
        back = []
        for tell in told:
            permits, epoch = await self._limits.apportion(limit, tell)
            if permits < tell.permits and epoch == tell.epoch:
                back.append((tell.shard, epoch, permits, 0, 0))
        return back

    async def _gather(self, limit: str, capacity: int) -> None:
        """Brings home what no shard uses."""
        rows = await self._given_back(limit)
        for _ in range(ROUNDS_MAX):
            if not rows:
                return
            _, told = await self._limits.allot(limit, capacity, self._store.shards, rows)
            rows = await self._heard(limit, told)

    async def _given_back(self, limit: str, but: Collection[int] = ()) -> list[Report]:
        """What each shard has after it gave back all that it does not use."""
        shards = [number for number in range(self._store.shards) if number not in but]
        return list(await asyncio.gather(*(self._emptied(number, limit) for number in shards)))

    async def _emptied(self, shard: int, limit: str) -> Report:
        permits, epoch, used = await self._limits.report(shard, limit)
        if permits > used:
            tell = Tell(shard, permits, epoch, contended=1, short_ms=0)
            permits, epoch = await self._limits.apportion(limit, tell)
        return shard, epoch, permits, 0, 0
