"""The schema of the database: every key, its type, its members, who writes it.

All keys of one shard begin with ``{ns:shard}``: the braces keep them in one cluster slot, so that
one script may touch them all. Nothing a user typed reaches a key raw: queues, tenants and routes
are validated names without a colon, ids are ours. ``lua/lib/keys.lua`` mirrors this file; a test
compares the two. ``docs/redis.md`` shows each key with the redis-cli line that reads it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard. ``shard`` is ``{ns:7}``."""

    shard: str

    @classmethod
    def of(cls, namespace: str, number: int) -> "ShardKeys":
        return cls(f"{{{namespace}:{number}}}")

    # -- records ------------------------------------------------------------------------------

    def task(self, task_id: str) -> str:
        """hash · the truth about one task · until retention · submit, then every verb."""
        return f"{self.shard}:task:{task_id}"

    def body(self, task_id: str) -> str:
        """string · a payload too large for the compact hash · with its task."""
        return f"{self.shard}:body:{task_id}"

    def attempts(self, task_id: str) -> str:
        """list · JSON of each finished attempt but the last · with its task · take."""
        return f"{self.shard}:attempts:{task_id}"

    def lines(self, task_id: str) -> str:
        """stream ms, attempt, text, the last 200 · what its runs said · with its task · lines."""
        return f"{self.shard}:lines:{task_id}"

    def checkpoint(self, task_id: str) -> str:
        """string · the value its next attempt receives · with its task · checkpoint."""
        return f"{self.shard}:checkpoint:{task_id}"

    def stub(self, task_id: str) -> str:
        """string "until_ms fingerprint" · what is left of an id · prune, purge, remove_schedule."""
        return f"{self.shard}:stub:{task_id}"

    # -- waiting ------------------------------------------------------------------------------

    def due(self, lane: str) -> str:
        """zset · task id → due_ms · one lane (queue:priority:tenant:route) of PENDING tasks."""
        return f"{self.shard}:due:{lane}"

    @property
    def lanes(self) -> str:
        """zset · lane → its earliest due_ms, or an earlier time."""
        return f"{self.shard}:lanes"

    def index(self, tenant: str) -> str:
        """set · the lanes of a tenant that may hold tasks · for lists."""
        return f"{self.shard}:index:{tenant}"

    def turns(self, stream: str) -> str:
        """zset · tenant → service had / weight · tenants with due tasks of one stream · dispatch."""
        return f"{self.shard}:turns:{stream}"

    @property
    def backlog(self) -> str:
        """zset · stream → service had / weight · streams with due tasks that may be served."""
        return f"{self.shard}:backlog"

    @property
    def full(self) -> str:
        """set · streams whose window is full · dispatch, take."""
        return f"{self.shard}:full"

    @property
    def allot(self) -> str:
        """hash · limit → "permits epoch contended short_ms" that this shard has · apportion."""
        return f"{self.shard}:allot"

    @property
    def freed(self) -> str:
        """zset · limits and settings for which somebody may go on · verdicts, configure."""
        return f"{self.shard}:freed"

    @property
    def tokens(self) -> str:
        """hash · limit of a rate → "tokens until_ms mark" that this shard has · credit."""
        return f"{self.shard}:tokens"

    def blocked(self, what: str) -> str:
        """set · parked streams and lanes that wait for a limit, a setting or a route · dispatch."""
        return f"{self.shard}:blocked:{what}"

    def held(self, key: str) -> str:
        """zset · task → due_ms · those of a concurrency key that wait for its permit · dispatch."""
        return f"{self.shard}:held:{key}"

    def withheld(self, tenant: str) -> str:
        """zset · task → due_ms · a tenant's held tasks, for lists · dispatch."""
        return f"{self.shard}:withheld:{tenant}"

    @property
    def keyed(self) -> str:
        """string · there are, or were, tasks with a concurrency key in this shard."""
        return f"{self.shard}:keyed"

    def limit(self, limit: str) -> str:
        """hash · at the home of a limit: what each shard has and wants; a rate's tokens · allot, ration."""
        return f"{self.shard}:limit:{limit}"

    @property
    def parked(self) -> str:
        """zset · stream, lane, k/key or !limit → ms at which to look again · what may not go on now."""
        return f"{self.shard}:parked"

    @property
    def parked_why(self) -> str:
        """hash · stream or lane → "reason what": no_worker, paused, running, rate."""
        return f"{self.shard}:parked:why"

    @property
    def expiry(self) -> str:
        """zset · task id → expires_ms · tasks that must start before it."""
        return f"{self.shard}:expiry"

    # -- ready and running ----------------------------------------------------------------------

    def ready(self, stream: str) -> str:
        """stream, group `workers` · entry {id} · the window workers read · dispatch, submit."""
        return f"{self.shard}:ready:{stream}"

    @property
    def opened(self) -> str:
        """set · the ready streams that exist · until sweep finds one empty."""
        return f"{self.shard}:opened"

    @property
    def unread(self) -> str:
        """zset · ready streams that may hold entries nobody read."""
        return f"{self.shard}:unread"

    @property
    def window(self) -> str:
        """hash · stream → entries that may wait in it · take, sweep."""
        return f"{self.shard}:window"

    @property
    def watch(self) -> str:
        """zset · QUEUED and RUNNING task → ms at which it must be looked at (lease end, take-by)."""
        return f"{self.shard}:watch"

    @property
    def classes(self) -> str:
        """hash · priority class → service had / weight · take."""
        return f"{self.shard}:classes"

    @property
    def routes(self) -> str:
        """zset · route → ms until which some worker serves it · announce."""
        return f"{self.shard}:routes"

    def worker(self, worker: str) -> str:
        """hash call, grants, until_ms · a worker as this shard knows it · announce, take."""
        return f"{self.shard}:worker:{worker}"

    def serves(self, worker: str) -> str:
        """set · route:<route> and queue:<queue> that the worker serves · announce."""
        return f"{self.shard}:worker:{worker}:serves"

    # -- finished ---------------------------------------------------------------------------------

    def done(self, tenant: str) -> str:
        """zset · SUCCESS or CANCELLED task → ms of its verdict."""
        return f"{self.shard}:done:{tenant}"

    def dead(self, tenant: str) -> str:
        """zset · FAILED task → ms of its verdict: the dead letters."""
        return f"{self.shard}:dead:{tenant}"

    def groups(self, tenant: str) -> str:
        """hash · fingerprint:queue:route:reason → FAILED tasks · verdicts."""
        return f"{self.shard}:groups:{tenant}"

    def group(self, name: str) -> str:
        """zset · FAILED task → ms of its verdict · those of tenant:fingerprint · verdicts."""
        return f"{self.shard}:group:{name}"

    def purged(self, op: str) -> str:
        """string with TTL · the ids that one call removed, for its replays · purge."""
        return f"{self.shard}:purged:{op}"

    @property
    def tenants(self) -> str:
        """set · tenants with finished tasks · for retention."""
        return f"{self.shard}:tenants"

    # -- recurring --------------------------------------------------------------------------------

    def schedule(self, ref: str) -> str:
        """hash · the definition of a recurring task (ref: tenant:id) · until it is removed."""
        return f"{self.shard}:schedule:{ref}"

    def schedule_body(self, ref: str) -> str:
        """string · its payload, where it is too large for the compact hash."""
        return f"{self.shard}:schedule:{ref}:body"

    @property
    def schedules(self) -> str:
        """zset · tenant:id → next_run_ms, +inf where there is none."""
        return f"{self.shard}:schedules"

    def open(self, ref: str) -> str:
        """set · occurrences that the rule made and that have no verdict yet · fire, verdicts."""
        return f"{self.shard}:open:{ref}"

    def extra(self, ref: str) -> str:
        """set · likewise those that were made by hand · trigger, verdicts."""
        return f"{self.shard}:extra:{ref}"

    def catchup(self, ref: str) -> str:
        """list · nominal times that wait to be caught up with, oldest first · fire."""
        return f"{self.shard}:catchup:{ref}"

    def ledger(self, ref: str) -> str:
        """list · "outcome first_ms last_ms count note" of each nominal time, the last 100 ranges."""
        return f"{self.shard}:ledger:{ref}"

    # -- of the shard ---------------------------------------------------------------------------

    @property
    def clock(self) -> str:
        """hash seen_ms, lease_ms, hold_ms, server, barrier_ms · the shard's time."""
        return f"{self.shard}:clock"

    @property
    def counts(self) -> str:
        """hash · tenant:queue:STATE → tasks in it; bytes:tenant → of finished records; t/ q/ k/ p/ → permits."""
        return f"{self.shard}:counts"

    @property
    def stats(self) -> str:
        """hash · queue:STATE → moves into it since ever; stray:*, illegal:* → what was found."""
        return f"{self.shard}:stats"

    @property
    def events(self) -> str:
        """stream, bounded · ms, then tenant:queue:WORD → ids that moved there in one call."""
        return f"{self.shard}:events"

    @property
    def conf(self) -> str:
        """hash · queue:, tenant:, share:, hooks:<…>, all → "version words" · configure."""
        return f"{self.shard}:conf"

    @property
    def wake(self) -> str:
        """sharded channel · "due <ms>", "work", "cancel <id>"."""
        return f"{self.shard}:wake"

    @property
    def live(self) -> str:
        """sharded channel · id of a task with a new line or progress · lines, heartbeat."""
        return f"{self.shard}:live"

    @property
    def finished(self) -> str:
        """sharded channel · "id:STATE id:STATE …" of each verdict."""
        return f"{self.shard}:finished"


@dataclass(frozen=True, slots=True)
class NamespaceKeys:
    """The few keys that belong to no shard."""

    namespace: str

    @property
    def meta(self) -> str:
        """hash shards, schema, secret · written once, checked by every process at start."""
        return f"{self.namespace}:meta"

    @property
    def conf(self) -> str:
        """hash · the home of every shard's ``conf``: field → "version value" · put_record."""
        return f"{self.namespace}:conf"

    @property
    def tenants(self) -> str:
        """hash · tenant → "version JSON" of its settings and secrets · put_record."""
        return f"{self.namespace}:tenants"

    def endpoints(self, tenant: str) -> str:
        """hash · endpoint → "version JSON" of a webhook endpoint · put_record."""
        return f"{self.namespace}:endpoints:{tenant}"

    @property
    def operations(self) -> str:
        """hash · operation → "version JSON" of its filter and progress · put_record."""
        return f"{self.namespace}:operations"

    @property
    def api_keys(self) -> str:
        """hash · key id → "version JSON" of an API key, its secret as SHA-256 · put_record."""
        return f"{self.namespace}:keys"

    @property
    def api_keys_used(self) -> str:
        """hash · key id → ms of its last use, to the minute · the API processes."""
        return f"{self.namespace}:keys:used"

    @property
    def audit(self) -> str:
        """stream, bounded · key, tenant, route, object, outcome, request_id · the API, `keys`."""
        return f"{self.namespace}:audit"

    @property
    def schedulers(self) -> str:
        """zset · scheduler → ms until which it lives · the schedulers, once a second."""
        return f"{self.namespace}:schedulers"

    @property
    def workers(self) -> str:
        """zset · worker → ms until which it lives · the workers."""
        return f"{self.namespace}:workers"

    def worker(self, worker: str) -> str:
        """hash with TTL · host, pid, queues, routes, slots, running, since, version."""
        return f"{self.namespace}:worker:{worker}"
