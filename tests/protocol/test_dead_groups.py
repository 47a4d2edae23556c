"""The groups of dead letters: counted by every verdict, uncounted by whatever takes one away.

The audit after each test recounts the cells and the members from the records.
"""

import pytest
from tests.protocol.kit import BROKEN, DAY_MS, HOUR_MS, Kit, lost, spec

from tasksched.commands.dead_letters import CELLS_MAX, DeadLetters
from tasksched.model.filters import Filter
from tasksched.model.fingerprint import fingerprint_of
from tasksched.model.operation import Count
from tasksched.model.outcome import Outcome, error_info

pytestmark = pytest.mark.anyio

EVERYTHING = Filter()


def broken(message: str, kind: str = "ValueError", reason: str = "not_retryable") -> Outcome:
    return Outcome(kind="FAILED", reason=reason, error=error_info(kind, message))


async def fail(kit: Kit, outcome: Outcome = BROKEN, **fields) -> str:
    route = fields.pop("route", "charge")
    await kit.announce("w1", "queue:*", "route:charge", "route:billing.pay@2", "route:http")
    task_id = await kit.submit(spec(route, **fields))
    await kit.settle(await kit.start(task_id), outcome)
    return task_id


def cells(kit: Kit, tenant: str = "default") -> dict[str, int]:
    found = kit.plain.hgetall(kit.keys.groups(tenant))
    return {name.decode(): int(number) for name, number in found.items()}


async def groups(kit: Kit, asked: Filter = EVERYTHING, limit: int = 10, cursor: str | None = None):
    return await DeadLetters(kit.store).groups("default", asked, cursor, limit)


async def test_numbers_ids_and_quotes_do_not_tell_failures_apart(kit: Kit):
    for number in range(3):
        await fail(kit, broken(f"invoice {number} of 'customer {number}' is gone"))
    assert [3] == list(cells(kit).values())


async def test_a_group_says_what_failed_where_and_since_when(kit: Kit):
    began_ms = kit.now_ms
    await fail(kit, broken("row 7 is bad"), queue="a")
    kit.leap(1_000)
    await fail(kit, broken("row 8 is bad", reason="attempts_exhausted"), route="billing.pay@2")
    kit.leap(1_000)
    latest = await fail(kit, broken("row 9 is bad"), queue="a")
    await fail(kit, broken("another", "KeyError"))

    page = await groups(kit)

    assert [3, 1] == [group.count for group in page.items]
    first = page.items[0]
    assert ("ValueError", "row <n> is bad") == (first.type, first.message)
    assert fingerprint_of(error_info("ValueError", "row 1 is bad")) == first.fingerprint
    assert (latest, "row 9 is bad") == (first.sample_task_id, first.sample_error.message)
    assert {"a": 2, "default": 1} == first.queues
    assert {"charge": 2, "billing.pay": 1} == first.handlers
    assert {"not_retryable": 2, "attempts_exhausted": 1} == first.reasons
    assert (began_ms, began_ms + 2_000) == (first.first_seen_ms, first.last_seen_ms)
    assert (None, False) == (page.next_cursor, page.is_partial)


async def test_pages_of_groups_follow_one_another(kit: Kit):
    kinds = ["KeyError", "OSError", "TypeError", "ValueError", "IndexError"]
    for kind in kinds:
        await fail(kit, broken("x", kind))
    seen, cursor = [], None
    for _ in range(3):
        page = await groups(kit, limit=2, cursor=cursor)
        seen += [group.type for group in page.items]
        cursor = page.next_cursor
    assert (sorted(kinds), None) == (sorted(seen), cursor)


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        (Filter(queue="a"), [2]),
        (Filter(queue="nowhere"), []),
        (Filter(handler="billing.*"), [1]),
        (Filter(handler="charge"), [2, 1]),
        (Filter(reason="attempts_exhausted"), [1]),
        (Filter(queue="a", reason="not_retryable", handler="charge"), [2]),
    ],
)
async def test_counts_are_of_those_that_match(kit: Kit, asked: Filter, counts: list[int]):
    await fail(kit, broken("one"), queue="a")
    await fail(kit, broken("one"), queue="a")
    await fail(kit, broken("one", reason="attempts_exhausted"), route="billing.pay@2")
    await fail(kit, broken("two", "KeyError"))
    page = await groups(kit, asked)
    assert counts == [group.count for group in page.items]
    assert Count(sum(counts)) == await DeadLetters(kit.store).count("default", asked)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Filter(), 4),
        (Filter(fingerprint="expired"), 0),
        (Filter(tag="x"), 1),
        (Filter(finished_from_ms=0, finished_to_ms=1), 0),
        (Filter(handler="*"), 4),
        (Filter(handler="charge", tag="x"), 1),
    ],
)
async def test_a_count_is_exact_by_counter_index_or_look(kit: Kit, asked: Filter, expected: int):
    for tags in ((), (), ("y",), ("x", "y")):
        await fail(kit, tags=tags)
    assert Count(expected) == await DeadLetters(kit.store).count("default", asked)


async def test_a_list_of_one_group_reads_its_index(kit: Kit):
    made = []
    for _ in range(5):
        made.append(await fail(kit, broken("one")))
        await fail(kit, broken("two", "KeyError"))
        kit.leap(10)
    asked = Filter(fingerprint=fingerprint_of(error_info("ValueError", "one")))
    letters, found, cursor, pages = DeadLetters(kit.store), [], None, 0
    while True:
        page = await letters.page("default", asked, cursor, 2)
        found, pages = found + [task.id for task in page.items], pages + 1
        cursor = page.next_cursor
        if cursor is None:
            break
    assert (made[::-1], 3) == (found, pages)


async def test_an_expired_task_has_a_group_of_its_own(kit: Kit):
    await kit.submit(spec(expires_at_ms=kit.now_ms + 5, delay_ms=HOUR_MS))
    kit.leap(10)
    await kit.dispatch()
    assert {"expired:default:charge:expired": 1} == cells(kit)


async def test_a_lost_worker_has_a_group(kit: Kit):
    await kit.announce()
    task_id = await kit.submit()
    grant = await kit.start(task_id)
    await kit.wait(30_000)
    await kit.reap(grant, lost())
    (group,) = (await groups(kit)).items
    assert ("WorkerLost", {"worker_lost": 1}) == (group.type, group.reasons)


async def test_redrive_purge_and_retention_take_from_the_groups(kit: Kit):
    made = [await fail(kit, broken("one")) for _ in range(4)]
    await kit.store.redrive(0, made[0], "default", None)
    assert [3] == list(cells(kit).values())
    await kit.store.purge(0, "default", [(made[1], None)], keyed_ms=1, unkeyed_ms=1)
    assert [2] == list(cells(kit).values())
    kit.leap(14 * DAY_MS)
    await kit.store.prune(
        0, "default", done_ms=DAY_MS, dead_ms=14 * DAY_MS, count_max=9, bytes_max=1 << 40,
        keyed_ms=1, unkeyed_ms=1, limit=9,
    )  # fmt: skip
    assert {} == cells(kit)
    assert [] == [key for key in kit.dump() if ":group" in key]


async def test_a_task_that_fails_again_counts_once(kit: Kit):
    task_id = await fail(kit, broken("one"))
    await kit.store.redrive(0, task_id, "default", None)
    await kit.settle(await kit.start(task_id), broken("two", "KeyError"))
    (group,) = (await groups(kit)).items
    assert ("KeyError", 1) == (group.type, group.count)


async def test_tenants_do_not_see_each_others_groups(kit: Kit):
    await fail(kit, tenant="acme")
    assert [] == (await groups(kit)).items
    assert Count(0) == await DeadLetters(kit.store).count("default", EVERYTHING)


async def test_too_many_counters_are_not_all_read(kit: Kit):
    """Seeded by hand: nobody waits for a hundred thousand failures."""
    kit.audited = False
    names = {f"{n:016x}:default:charge:expired": 1 for n in range(CELLS_MAX + 5_000)}
    kit.plain.hset(kit.keys.groups("default"), mapping=names)
    page = await groups(kit, limit=1)
    assert (1, True) == (len(page.items), page.is_partial)
    assert (await DeadLetters(kit.store).count("default", Filter(queue="default"))).at_least
