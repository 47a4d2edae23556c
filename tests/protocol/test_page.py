"""page: exact cursors over time indexes, whatever is removed between the pages."""

import pytest
from tests.protocol.kit import Kit

from tasksched.store.reads import Entry, Place, Reads

pytestmark = pytest.mark.anyio

LANE = "done:default"


def fill(kit: Kit, members: dict[str, int], index: str = LANE) -> None:
    kit.audited = False  # an index of its own, without records
    pairs = list(members.items())
    for first in range(0, len(pairs), 1_000):
        kit.plain.zadd(f"{kit.keys.shard}:{index}", dict(pairs[first : first + 1_000]))


async def pages(kit: Kit, indexes=(LANE,), between=lambda page: None, **how) -> list[Entry]:
    found: list[Entry] = []
    after = None
    while True:
        page = await Reads(kit.store).page({0: list(indexes)}, after, **how)
        if not page:
            return found
        found += page
        assert len(found) <= 10_000, "the pages do not end"
        after = Place(page[-1].score, page[-1].id)
        between(page)


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_give_every_entry_once_in_order(kit: Kit, limit: int, newest: bool):
    members = {f"t{n:02}": n // 4 for n in range(25)}  # scores that repeat
    fill(kit, members)
    expected = sorted((Entry(v, k) for k, v in members.items()), reverse=newest)
    assert expected == await pages(kit, limit=limit, newest=newest)


@pytest.mark.parametrize("newest", [False, True])
async def test_ten_thousand_equal_scores_are_paged_exactly(valkey: Kit, newest: bool):
    members = {f"t{n:05}": 1_764_000_000_000 for n in range(10_000)}
    fill(valkey, members)
    expected = sorted((Entry(v, k) for k, v in members.items()), reverse=newest)
    assert expected == await pages(valkey, limit=997, newest=newest)


@pytest.mark.parametrize("newest", [False, True])
async def test_what_is_removed_or_added_between_pages_shifts_nothing(kit: Kit, newest: bool):
    members = {f"t{n:03}": 5 for n in range(300)}
    fill(kit, members)

    def meddle(page: list[Entry]) -> None:
        """The page just seen is removed, and others come before it."""
        kit.plain.zrem(kit.keys.done("default"), *(entry.id for entry in page))
        kit.plain.zadd(kit.keys.done("default"), {f"z{page[0].id}": 9 if newest else 1})

    found = await pages(kit, limit=7, newest=newest, between=meddle)
    assert sorted(members, reverse=newest) == [entry.id for entry in found]


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "scores"),
    [
        (None, None, range(1, 10)),
        (3, None, range(3, 10)),
        (None, 3, range(1, 4)),
        (3, 5, range(3, 6)),
        (4, 4, range(4, 5)),
        (5, 4, range(0)),
        (99, None, range(0)),
        (None, 0, range(0)),
    ],
)
async def test_ranges_are_inclusive(kit: Kit, low, high, scores, newest: bool):
    fill(kit, {f"{kind}{n}": n for n in range(1, 10) for kind in "ab"})
    expected = sorted((Entry(n, f"{kind}{n}") for n in scores for kind in "ab"), reverse=newest)
    assert expected == await pages(kit, limit=4, newest=newest, due=(low, high))


@pytest.mark.parametrize("newest", [False, True])
async def test_several_indexes_are_merged_by_time(kit: Kit, newest: bool):
    fill(kit, {f"a{n}": n for n in range(0, 20, 2)}, "done:x")
    fill(kit, {f"b{n}": n for n in range(0, 20, 3)}, "dead:x")
    found = await pages(kit, ("done:x", "dead:x", "due:none"), limit=3, newest=newest)
    assert sorted(found, reverse=newest) == found
    assert 17 == len(set(found))


async def test_a_place_that_is_gone_is_where_the_next_begins(kit: Kit):
    fill(kit, {"a": 1, "c": 3})
    reads = Reads(kit.store)
    assert [Entry(3, "c")] == await reads.page({0: [LANE]}, Place(2, "zzz"), limit=5)
    assert [Entry(1, "a")] == await reads.page({0: [LANE]}, Place(3, "b"), limit=5, newest=True)


async def test_a_page_of_the_end_is_empty(kit: Kit):
    fill(kit, {"a": 1})
    reads = Reads(kit.store)
    assert [] == await reads.page({0: [LANE]}, Place(1, "a"), limit=5)
    assert [] == await reads.page({0: [LANE]}, Place(1, "a"), limit=5, newest=True)
    assert [] == await reads.page({0: ["done:nobody"]}, None, limit=5)


async def test_a_page_costs_the_same_anywhere(valkey: Kit):
    """Some searching, no scanning: at the end of 10,000 it reads what it reads at their start."""
    fill(valkey, {f"t{n:05}": n // 1_000 for n in range(10_000)})
    costs = []
    for place in (None, Place(9, "t09990")):
        before = sum(s["calls"] for s in valkey.plain.info("commandstats").values())
        await Reads(valkey.store).page({0: [LANE]}, place, limit=5)
        costs.append(sum(s["calls"] for s in valkey.plain.info("commandstats").values()) - before)
    assert costs[1] - costs[0] < 16, costs
