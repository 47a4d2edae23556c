"""Payloads and results at rest, on a real server: nobody who reads Redis reads them."""

import asyncio
import base64
import os
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from tests.protocol.audit import read_dump
from tests.runtime import cell_app
from tests.runtime.kit import Rig, Site, grant_of, registry_of, until
from tests.servers import ServerProcess

from tasksched import clock
from tasksched.commands.recurring import Recurring
from tasksched.commands.reseal import Resealed, reseal_all
from tasksched.commands.session import Session, open_session
from tasksched.commands.tasks import Changes
from tasksched.errors import Conflict, Invalid, KeyReused
from tasksched.model import codec, ids
from tasksched.model.control import RetryLater
from tasksched.model.endpoint import Endpoint, open_receivers
from tasksched.model.notify import Receiver
from tasksched.model.recurring import Schedule, ScheduleSpec
from tasksched.model.schedule import Every
from tasksched.model.seal import AesGcmCodec, Bodies, codec_of, is_sealed, task_place
from tasksched.model.task import HandlerTarget, Task, TaskSpec
from tasksched.model.tenant import Secret
from tasksched.runtime.cells import Cells
from tasksched.runtime.context import Ctx, Run
from tasksched.runtime.executor import SUCCEEDED_NULL
from tasksched.runtime.sealing import executor_of
from tasksched.runtime.threads import Threads
from tasksched.runtime.ticker import fire_owed
from tasksched.runtime.worker import Worker
from tasksched.settings import Settings
from tasksched.store.beats import SyncBeats
from tasksched.store.schedules import Schedules
from tasksched.store.webhooks import WebhookRecords

pytestmark = pytest.mark.anyio

CANARY = "canary-7f3a"
OLD = "k1:" + base64.b64encode(b"o" * 32).decode()
NEW = "k2:" + base64.b64encode(b"n" * 16).decode()
LARGE = [CANARY] * 500
FOREVER_MS = 4_102_444_800_000


class Vault:
    """One namespace with keys; ``session`` plays producer, ``work`` brings a worker."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.called: list[Any] = []
        self._open: list[Session] = []

    async def session(self, keys: str = OLD) -> Session:
        """Another process, with these keys."""
        settings = Settings(
            url=self.site.url, shards=2, encryption_keys=keys, concurrency=8,
            http_allow=("127.0.0.0/8",),
        )  # fmt: skip
        opened = await open_session(settings)
        self._open.append(opened)
        return opened

    async def work(self, session: Session, *handlers: Any) -> None:
        async def echo(*args: Any, **kwargs: Any) -> Any:
            self.called.append(args or kwargs)
            return [CANARY, *args] if args else kwargs or None

        worker = Worker(
            session.store, registry_of(echo, *handlers), session.settings,
            open_sync=lambda: SyncBeats(self.site.url, session.store), bodies=session.bodies,
        )  # fmt: skip
        self.site._workers.append(worker)
        await worker.start()

    async def fire(self, session: Session) -> None:
        for shard in range(session.store.shards):
            await fire_owed(Schedules(session.store), shard)

    async def stop_workers(self) -> None:
        while self.site._workers:
            await self.site._workers.pop().drain(1_000)

    def plain(self) -> redis.Redis:
        return redis.Redis.from_url(self.site.url)

    def dump(self) -> str:
        """All that is in Redis, as it is read and as DUMP writes it."""
        with self.plain() as plain:
            raw = [plain.dump(key) or b"" for key in plain.scan_iter(count=1000)]
            return repr(read_dump(plain)) + repr(raw)

    async def close(self) -> None:
        for session in self._open:
            await session.close()


@pytest.fixture
async def vault(valkey_server: ServerProcess) -> AsyncIterator[Vault]:
    valkey_server.flush()
    async with Site(valkey_server.url) as site:
        made = Vault(site)
        yield made
    await made.close()


def shard_of(task_id: str) -> int:
    shard = ids.shard_of(task_id, 2)
    assert shard is not None
    return shard


def echo(payload: Any = ..., **fields: Any) -> TaskSpec:
    raw = b"" if payload is ... else codec.encode(payload)
    return TaskSpec(target=HandlerTarget("echo"), payload=raw, **fields)


def every(name: str, payload: Any, **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(
        id=name, template=echo(payload), rule=Every("1h").bind(f"default:{name}", 0), **fields
    )


async def ended(session: Session, task_id: str) -> Task:
    return await session.tasks.wait("default", task_id, 15_000)


def values(task: Task) -> tuple[str, Any, Any]:
    def read(raw: bytes | None) -> Any:
        return codec.decode(raw) if raw else raw

    return task.status, read(task.payload), read(task.result)


def told(task: Task) -> tuple[str, str | None]:
    return task.status, task.reason


async def test_redis_never_holds_a_payload_or_a_result(vault: Vault):
    session = await vault.session()
    await vault.work(session)
    recurring = Recurring(session.store, session.bodies)
    small = await session.tasks.submit(echo([CANARY]))
    large = await session.tasks.submit(echo(LARGE, key="with-a-key"))
    later = await session.tasks.submit(echo([CANARY], run_at_ms=FOREVER_MS))
    edited = await session.tasks.submit(echo([1], run_at_ms=FOREVER_MS))
    await session.tasks.edit("default", edited.id, Changes(payload=codec.encode({"a": CANARY})))
    await recurring.put(every("small", [CANARY]))
    await recurring.put(every("large", LARGE))
    runs = [await recurring.trigger("default", name) for name in ("small", "large")]

    assert ("SUCCESS", [CANARY], [CANARY, CANARY]) == values(await ended(session, small.id))
    assert ("SUCCESS", LARGE, [CANARY, *LARGE]) == values(await ended(session, large.id))
    assert ("PENDING", [CANARY], None) == values(await session.tasks.get("default", later.id))
    assert ("PENDING", {"a": CANARY}, None) == values(await session.tasks.get("default", edited.id))
    for task_id, payload in zip(runs, ([CANARY], LARGE), strict=True):
        assert ("SUCCESS", payload, [CANARY, *payload]) == values(await ended(session, task_id))
    assert LARGE == codec.decode((await recurring.get("default", "large")).spec.template.payload)
    found, _ = await recurring.page("default", None, limit=10)
    assert {repr([CANARY]), repr(LARGE)} == {
        repr(codec.decode(one.spec.template.payload)) for one in found
    }
    await session.tasks.run_now("default", edited.id)
    assert ("SUCCESS", {"a": CANARY}, {"a": CANARY}) == values(await ended(session, edited.id))
    assert CANARY not in vault.dump()


async def test_the_canary_would_be_found_without_a_key(vault: Vault):
    """Else the test before would prove nothing."""
    session = await vault.session("")
    for payload in ([CANARY], LARGE):
        await session.tasks.submit(echo(payload, run_at_ms=FOREVER_MS))
    assert CANARY in vault.dump()


async def test_a_result_of_nothing_looks_like_any_other(vault: Vault):
    session = await vault.session()
    await vault.work(session)
    made = await session.tasks.submit(echo())
    assert ("SUCCESS", None, None) == values(await ended(session, made.id))
    key = session.store.keys[shard_of(made.id)].task(made.id)
    # In bytes: read as text, two of them may be one letter.
    assert await session.gateway.command("HSTRLEN", key, "result") >= 30


async def test_an_occurrence_that_the_rule_makes_runs(vault: Vault):
    session = await vault.session()
    await vault.work(session)
    recurring = Recurring(session.store, session.bodies)
    rule = Every("1s").bind("default:s", 0)
    spec = ScheduleSpec(id="s", template=echo([CANARY]), rule=rule, max_runs=1)
    await recurring.put(spec)

    async with asyncio.timeout(15):
        while not vault.called:
            await vault.fire(session)
            await asyncio.sleep(0.02)
    assert [(CANARY,)] == vault.called


async def test_an_edited_occurrence_runs_with_what_it_was_given(vault: Vault):
    session = await vault.session()
    recurring = Recurring(session.store, session.bodies)
    await recurring.put(every("s", [1]))
    task_id = await recurring.trigger("default", "s")
    await session.tasks.edit("default", task_id, Changes(payload=codec.encode([CANARY])))
    await vault.work(session)
    assert ("SUCCESS", [CANARY], [CANARY, CANARY]) == values(await ended(session, task_id))
    assert CANARY not in vault.dump()


async def test_swapped_payloads_run_nowhere(vault: Vault):
    session = await vault.session()
    made = [await session.tasks.submit(echo([n], run_at_ms=FOREVER_MS)) for n in range(2)]
    keys = [session.store.keys[shard_of(one.id)].task(one.id) for one in made]
    with vault.plain() as plain:
        stored = [plain.hget(key, "payload") for key in keys]
        for key, other in zip(keys, reversed(stored), strict=True):
            plain.hset(key, "payload", other)
    for one in made:
        with pytest.raises(Invalid):
            values(await session.tasks.get("default", one.id))
        await session.tasks.run_now("default", one.id)
    await vault.work(session)
    for one in made:
        task = await ended(session, one.id)
        assert ("FAILED", "payload_not_readable") == told(task)
        assert task.error is not None
        assert ("Invalid", "it is not what was encrypted for this place", "") == (
            task.error.type, task.error.message, task.error.traceback,
        )  # fmt: skip
    assert [] == vault.called


async def test_a_payload_of_another_schedule_runs_nowhere(vault: Vault):
    session = await vault.session()
    recurring = Recurring(session.store, session.bodies)
    for name in ("one", "two"):
        await recurring.put(every(name, [name]))
    one, two = [
        (session.store.keys[recurring.schedules.shard_of(ref)].schedule(ref), ref)
        for ref in ("default:one", "default:two")
    ]
    with vault.plain() as plain:
        plain.hset(one[0], "payload", plain.hget(two[0], "payload"))
    await vault.work(session)
    task_id = await recurring.trigger("default", "one")
    assert ("FAILED", "payload_not_readable") == told(await ended(session, task_id))
    assert [] == vault.called


async def test_who_has_no_key_sees_that_it_is_encrypted(vault: Vault):
    session = await vault.session()
    await vault.work(session)
    made = await session.tasks.submit(echo([CANARY]))
    await ended(session, made.id)
    for keys in ("", NEW):
        blind = await vault.session(keys)
        task = await blind.tasks.get("default", made.id)
        assert ("SUCCESS", None, None, True) == (
            task.status, task.payload, task.result, task.encrypted,
        )  # fmt: skip


async def test_a_worker_without_the_key_fails_the_task_for_good(vault: Vault):
    session, blind = await vault.session(), await vault.session("")
    await vault.work(blind)
    made = await session.tasks.submit(echo([CANARY]))
    task = await ended(session, made.id)
    assert ("FAILED", "payload_not_readable") == told(task)
    assert CANARY not in vault.dump()
    assert [] == vault.called


async def test_what_was_stored_before_encryption_still_runs(vault: Vault):
    before = await vault.session("")
    made = await before.tasks.submit(echo([1]))
    await Recurring(before.store).put(every("s", [2]))
    session = await vault.session()
    await vault.work(session)
    assert ("SUCCESS", [1], [CANARY, 1]) == values(await ended(session, made.id))
    task_id = await Recurring(session.store, session.bodies).trigger("default", "s")
    assert ("SUCCESS", [2], [CANARY, 2]) == values(await ended(session, task_id))
    assert CANARY not in vault.dump()


async def test_a_schedule_is_not_edited_without_its_key(vault: Vault):
    """Its payload would be lost, or stored in the clear."""
    session, blind = await vault.session(), await vault.session("")
    await Recurring(session.store, session.bodies).put(every("s", [1]))
    without = Recurring(blind.store, blind.bodies)
    unread: Schedule = await without.get("default", "s")
    with pytest.raises(Conflict, match="encrypted"):
        await without.put(unread.spec, version=unread.version)


async def test_the_same_key_and_payload_are_the_same_command(vault: Vault):
    """Every sealing differs, and yet a repeated create is known."""
    session = await vault.session()
    first, again = [await session.tasks.submit(echo([CANARY], key="k")) for _ in range(2)]
    assert (first.id, True, False) == (again.id, first.created, again.created)
    assert again.task is not None
    assert [CANARY] == codec.decode(again.task.payload or b"")
    with pytest.raises(KeyReused):
        await session.tasks.submit(echo([1], key="k"))
    many = await session.tasks.submit_many([echo([CANARY], key="k"), echo([CANARY])])
    assert [first.id, True] == [many[0].id, many[1].created]
    assert CANARY not in vault.dump()


async def test_a_checkpoint_is_encrypted_too_and_re_encrypted(vault: Vault):
    seen: list[Any] = []

    async def resumed(ctx: Ctx) -> str:
        seen.append(await ctx.restore())
        if len(seen) < 3:
            await ctx.checkpoint([CANARY, len(seen)])
            raise RetryLater("10ms" if len(seen) == 1 else "1h")
        return "done"

    session = await vault.session(OLD)
    await vault.work(session, resumed)
    made = await session.tasks.submit(TaskSpec(target=HandlerTarget("resumed")))
    await until(lambda: len(seen) == 2)
    await vault.site.comes_to(made.id, "PENDING", shard=shard_of(made.id))
    assert CANARY not in vault.dump()

    both = await vault.session(f"{NEW},{OLD}")
    assert Resealed(current="k2", bodies=1, resealed=1) == await reseal_all(both.store, both.bodies)
    await vault.stop_workers()
    new = await vault.session(NEW)
    await vault.work(new, resumed)
    await new.tasks.run_now("default", made.id)
    assert ("SUCCESS", None, "done") == values(await ended(new, made.id))
    assert [None, [CANARY, 1], [CANARY, 2]] == seen


async def test_a_process_of_its_own_gets_and_gives_plain_bodies():
    bodies = Bodies(codec_of(OLD))
    threads, cells = Threads(2), Cells(f"{cell_app.__file__}:app", 1)
    executor = executor_of(bodies, cell_app.app.registry, threads)
    executor.cells = cells
    grant = grant_of("whoami", [CANARY])
    sealed = bodies.seal(grant.payload or b"", task_place(grant.tenant, grant.id, "payload"))
    run = Run(grant._replace(payload=sealed), 0, 30_000, clock.mono())
    run.task = asyncio.get_running_loop().create_task(executor.run(run))  # type: ignore[assignment]
    outcome = await run.task  # type: ignore[func-returns-value]
    assert is_sealed(outcome.result)
    place = task_place(grant.tenant, grant.id, "result")
    pid, _, args, _ = codec.decode(bodies.open(outcome.result, place))
    assert (True, [CANARY]) == (pid != os.getpid(), args)
    await cells.close()
    threads.close()


async def test_limits_count_what_was_sent(vault: Vault):
    async def most() -> str:
        return "x" * (codec.RESULT_MAX - 3)

    session = await vault.session()
    await vault.work(session, most)
    payload = ["x" * (codec.PAYLOAD_MAX - 6)]
    assert codec.PAYLOAD_MAX == len(codec.encode(payload))
    largest = await session.tasks.submit(
        TaskSpec(target=HandlerTarget("nobody"), payload=codec.encode(payload))
    )
    assert payload == values(await session.tasks.get("default", largest.id))[1]
    made = await session.tasks.submit(TaskSpec(target=HandlerTarget("most")))
    assert ("SUCCESS", None, await most()) == values(await ended(session, made.id))


class Exploit:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("keys", ["", OLD], ids=["plain", "encrypted"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
async def test_a_planted_pickle_is_never_loaded(
    vault: Vault, tmp_path: Path, keys: str, protocol: int
):
    file = tmp_path / "created"
    planted = pickle.dumps(Exploit(file), protocol)
    session = await vault.session(keys)
    made = await session.tasks.submit(echo([1], run_at_ms=FOREVER_MS))
    with vault.plain() as plain:
        key = session.store.keys[shard_of(made.id)].task(made.id)
        plain.hset(key, "payload", planted)
    with pytest.raises(Invalid):
        values(await session.tasks.get("default", made.id))
    await session.tasks.run_now("default", made.id)
    await vault.work(session)
    assert ("FAILED", "payload_not_readable") == told(await ended(session, made.id))
    assert ([], False) == (vault.called, file.exists())
    pickle.loads(planted)
    assert file.exists()  # it would have worked


# -- rotation ---------------------------------------------------------------------------------------


async def test_after_re_encryption_the_old_key_is_not_needed(vault: Vault):
    old = await vault.session(OLD)
    plain = await vault.session("")
    await vault.work(old)
    done = await old.tasks.submit(echo(LARGE))
    await ended(old, done.id)
    waits = await old.tasks.submit(echo([CANARY], run_at_ms=FOREVER_MS))
    unsealed = await plain.tasks.submit(echo([CANARY, 2], run_at_ms=FOREVER_MS))
    recurring = Recurring(old.store, old.bodies)
    await recurring.put(every("s", LARGE))
    run = await recurring.trigger("default", "s")
    await ended(old, run)
    versions = [(await old.tasks.get("default", one)).version for one in (done.id, waits.id, run)]

    both = await vault.session(f"{NEW},{OLD}")
    expected = Resealed(current="k2", bodies=7, resealed=7, was_plain=1)
    assert expected == await reseal_all(both.store, both.bodies, dry_run=True)
    assert expected == await reseal_all(both.store, both.bodies)
    assert CANARY not in vault.dump()
    again = Resealed(current="k2", bodies=7, up_to_date=7)
    assert again == await reseal_all(both.store, both.bodies)

    new = await vault.session(NEW)
    assert ("SUCCESS", LARGE, [CANARY, *LARGE]) == values(await new.tasks.get("default", done.id))
    assert ("SUCCESS", LARGE, [CANARY, *LARGE]) == values(await new.tasks.get("default", run))
    assert [CANARY, 2] == values(await new.tasks.get("default", unsealed.id))[1]
    assert versions == [
        (await new.tasks.get("default", one)).version for one in (done.id, waits.id, run)
    ]
    await vault.stop_workers()
    await vault.work(new)
    await new.tasks.run_now("default", waits.id)
    assert ("SUCCESS", [CANARY], [CANARY, CANARY]) == values(await ended(new, waits.id))
    later = await Recurring(new.store, new.bodies).trigger("default", "s")
    assert ("SUCCESS", LARGE, [CANARY, *LARGE]) == values(await ended(new, later))
    blind = await old.tasks.get("default", done.id)
    assert (None, None, True) == (blind.payload, blind.result, blind.encrypted)


async def test_secrets_of_webhooks_are_re_encrypted_too(vault: Vault):
    """Else an old key that is taken away would silence every webhook."""
    plain, old = await vault.session(""), await vault.session(OLD)
    receivers = tuple(
        Receiver(f"https://example.com/{n}", ("task.failed",), "whsec_" + CANARY) for n in range(2)
    )
    asked = echo(run_at_ms=FOREVER_MS, notify=receivers)
    first = await plain.tasks.submit(asked)
    second = await old.tasks.submit(asked)
    template = msgspec.structs.replace(asked, run_at_ms=None)
    rule = Every("1h").bind("default:s", 0)
    await Recurring(old.store, old.bodies).put(ScheduleSpec(id="s", template=template, rule=rule))
    hooks = WebhookRecords(old.store, old.bodies)
    made = await hooks.tenant_secrets("default", 1, make=True)
    (tenant_secret,) = hooks.opened("default", "tenant", [made[0].value])
    endpoint = Endpoint(
        url="https://example.com", events=("task.failed",),
        secrets=(Secret(hooks.sealed("acme", "ep_1", "whsec_" + CANARY)),),
    )  # fmt: skip
    await hooks.put("acme", "ep_1", endpoint, expected=0)
    assert CANARY in vault.dump()  # what was submitted without a key

    both = await vault.session(f"{NEW},{OLD}")
    expected = Resealed(current="k2", bodies=8, resealed=8, was_plain=2)
    assert expected == await reseal_all(both.store, both.bodies, dry_run=True)
    assert expected == await reseal_all(both.store, both.bodies)
    again = Resealed(current="k2", bodies=8, up_to_date=8)
    assert again == await reseal_all(both.store, both.bodies)
    assert CANARY not in vault.dump()

    new = await vault.session(NEW)
    for task_id in (first.id, second.id):
        task = await new.tasks.get("default", task_id)
        assert receivers == open_receivers(new.bodies, "default", task.notify)
    schedule = await Recurring(new.store, new.bodies).get("default", "s")
    assert receivers == open_receivers(new.bodies, "default", schedule.spec.template.notify)
    hooks = WebhookRecords(new.store, new.bodies)
    made = await hooks.tenant_secrets("default", 1, make=False)
    assert [tenant_secret] == hooks.opened("default", "tenant", [made[0].value])
    kept = await hooks.get("acme", "ep_1")
    assert kept is not None
    opened = hooks.opened("acme", "ep_1", [each.value for each in kept.value.secrets])
    assert ["whsec_" + CANARY] == opened


async def test_what_cannot_be_re_encrypted_is_counted_and_left_alone(vault: Vault):
    old, new = await vault.session(OLD), await vault.session(NEW)
    made = [await old.tasks.submit(echo([n], run_at_ms=FOREVER_MS)) for n in range(2)]
    mine = [await new.tasks.submit(echo([n], run_at_ms=FOREVER_MS)) for n in range(2)]
    keys = [new.store.keys[shard_of(one.id)].task(one.id) for one in mine]
    with vault.plain() as plain:
        plain.hset(keys[0], "payload", plain.hget(keys[1], "payload"))
    before = vault.dump()
    found = await reseal_all(new.store, new.bodies)
    assert Resealed(current="k2", bodies=4, up_to_date=1, unknown=2, broken=1) == found
    assert before == vault.dump()
    assert [0] == values(await old.tasks.get("default", made[0].id))[1]


async def test_re_encryption_takes_many_records_of_all_sizes(vault: Vault):
    session = await vault.session("")
    specs = [echo(["x" * (n * 97)], run_at_ms=FOREVER_MS) for n in range(350)]
    specs += [echo(["x" * 200_000], run_at_ms=FOREVER_MS) for _ in range(8)]
    made = await session.tasks.submit_many(specs)
    keyed = await vault.session(OLD)
    found = await reseal_all(keyed.store, keyed.bodies)
    assert Resealed(current="k1", bodies=358, resealed=358, was_plain=358) == found
    for spec, one in list(zip(specs, made, strict=True))[::50]:
        assert spec.payload == (await keyed.tasks.get("default", one.id)).payload


async def test_without_a_key_nothing_is_re_encrypted(vault: Vault):
    session = await vault.session("")
    with pytest.raises(Invalid, match="TASKSCHED_ENCRYPTION_KEYS"):
        await reseal_all(session.store, session.bodies)


# -- codecs -----------------------------------------------------------------------------------------


class Broken(AesGcmCodec):
    def seal(self, raw: bytes, place: str) -> bytes:
        if place.endswith(":result"):
            raise OSError("the key server is away: canary")
        return super().seal(raw, place)


async def test_a_result_that_cannot_be_encrypted_is_a_final_failure(vault: Vault):
    session = await open_session(
        Settings(url=vault.site.url, shards=2, concurrency=8), codec=Broken({"k": b"k" * 16}, "k")
    )
    vault._open.append(session)
    await vault.work(session)
    made = await session.tasks.submit(echo([CANARY]))
    task = await ended(session, made.id)
    assert ("FAILED", "result_not_serialisable") == told(task)
    assert task.error is not None
    assert "it cannot be encrypted: OSError" == task.error.message
    assert CANARY not in vault.dump()


async def test_without_a_key_the_hot_path_makes_nothing_new():
    async def nothing() -> None: ...

    rig = Rig(nothing)
    assert SUCCEEDED_NULL is await rig.run()
    rig.close()
