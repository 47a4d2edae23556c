"""The scripts of limits one by one, on every server: who is given what, what is told, what is forgotten."""

from itertools import pairwise

import pytest
from tests.protocol.kit import HOUR_MS, Kit, spec

from tasksched.model.task import Concurrency
from tasksched.store.limits import Limits, Tell

pytestmark = pytest.mark.anyio

LIMIT = "t/x"


@pytest.fixture
def limits(kit: Kit) -> Limits:
    return Limits(kit.store)


# -- allot ----------------------------------------------------------------------------------------


async def test_free_permits_are_given(kit: Kit, limits: Limits):
    is_ready, told = await limits.allot(LIMIT, 5, 0, [(0, 0, 0, 3, 0)])
    assert (True, [Tell(0, 3, kit.now_ms, 0, 0)]) == (is_ready, told)


async def test_what_is_missing_is_waited_for_and_everybody_hears_of_it(kit: Kit, limits: Limits):
    await limits.allot(LIMIT, 5, 0, [(0, 0, 0, 3, 0)])
    _, told = await limits.allot(LIMIT, 5, 0, [(1, 0, 0, 4, 0)])
    now = kit.now_ms
    assert {Tell(0, 3, now, 1, 0), Tell(1, 2, now, 1, now + 1_000)} == set(told)


async def test_every_shard_reports_before_anything_is_given(kit: Kit, limits: Limits):
    is_ready, told = await limits.allot(LIMIT, 5, 3, [(0, 0, 0, 3, 0)])
    assert (False, 0) == (is_ready, told[0].permits)
    rows = [(0, 0, 0, 3, 0), (1, 0, 1, 0, 0), (2, 0, 2, 0, 0)]
    is_ready, told = await limits.allot(LIMIT, 5, 3, rows)
    assert (True, {0: 2, 1: 1, 2: 2}) == (is_ready, {each.shard: each.permits for each in told})


async def test_a_shard_that_missed_the_last_is_told_again(kit: Kit, limits: Limits):
    _, first = await limits.allot(LIMIT, 5, 0, [(0, 0, 0, 3, 0)])
    assert (True, first) == await limits.allot(LIMIT, 5, 0, [(0, 0, 0, 0, 0)])


async def test_an_epoch_ahead_is_believed(kit: Kit, limits: Limits):
    """The home lost its book: a shard knows better."""
    ahead = kit.now_ms + 50
    assert (True, [Tell(0, 2, ahead, 0, 0)]) == await limits.allot(
        LIMIT, 5, 0, [(0, ahead, 2, 0, 0)]
    )
    _, told = await limits.allot(LIMIT, 5, 0, [(1, 0, 0, 9, 0)])
    assert 3 == {each.shard: each.permits for each in told}[1]


async def test_what_is_given_back_is_for_others(kit: Kit, limits: Limits):
    await limits.allot(LIMIT, 5, 0, [(0, 0, 0, 5, 0)])
    rows = [(0, kit.now_ms, 1, 0, 0), (1, 0, 0, 4, 0)]
    _, told = await limits.allot(LIMIT, 5, 0, rows)
    assert {0: 1, 1: 4} == {each.shard: each.permits for each in told}


async def test_an_older_report_of_more_changes_nothing(kit: Kit, limits: Limits):
    """Under one epoch a shard only has fewer: otherwise two would have the same permit."""
    now = kit.now_ms
    await limits.allot(LIMIT, 3, 0, [(0, 0, 0, 3, 0)])
    await limits.allot(LIMIT, 3, 0, [(0, now, 1, 0, 0), (1, 0, 0, 2, 0)])
    _, told = await limits.allot(LIMIT, 3, 0, [(0, now, 3, 0, 0)])
    assert [Tell(0, 1, now, 0, 0)] == told


async def test_a_lowered_limit_gives_nothing_until_enough_came_back(kit: Kit, limits: Limits):
    await limits.allot(LIMIT, 5, 0, [(0, 0, 0, 5, 0)])
    _, told = await limits.allot(LIMIT, 2, 0, [(1, 0, 0, 1, 0)])
    epoch = {each.shard: each.epoch for each in told}[0]
    for left, given in ((3, 0), (2, 0), (1, 1)):
        _, told = await limits.allot(LIMIT, 0, 0, [(0, epoch, left, 0, 0), (1, 0, 0, 1, 0)])
        assert given == {each.shard: each.permits for each in told}[1]


async def test_who_waits_longest_is_first(kit: Kit, limits: Limits):
    await limits.allot(LIMIT, 1, 0, [(0, 0, 0, 1, 0)])
    for shard, head_ms in ((1, 30), (2, 10), (3, 20)):
        await limits.allot(LIMIT, 1, 0, [(shard, 0, 0, 1, kit.now_ms + head_ms)])
    _, told = await limits.allot(LIMIT, 0, 0, [(0, kit.now_ms + 1, 0, 0, 0)])
    assert {2} == {each.shard for each in told if each.permits == 1}


async def test_whoever_is_silent_for_half_a_minute_is_forgotten(kit: Kit, limits: Limits):
    await limits.allot(LIMIT, 1, 0, [(0, 0, 0, 1, 0)])
    _, told = await limits.allot(LIMIT, 1, 0, [(1, 0, 0, 1, 0)])
    epoch = {each.shard: each.epoch for each in told}[0]
    await kit.wait(30_000)
    _, told = await limits.allot(LIMIT, 1, 0, [(0, epoch, 1, 0, 0)])
    assert [(0, 1, 0)] == [(each.shard, each.permits, each.contended) for each in told]


async def test_a_row_below_nothing_is_refused_and_nothing_is_written(kit: Kit, limits: Limits):
    before = kit.dump()
    for row in ((0, 0, -1, 0, 0), (0, 0, 0, -1, 0), (-1, 0, 0, 0, 0)):
        with pytest.raises(Exception, match="BADARG row 1"):
            await limits.allot(LIMIT, 5, 0, [row])
    assert before == kit.dump()


# -- apportion and report -------------------------------------------------------------------------


async def test_report_begins_with_what_is_in_use(kit: Kit, limits: Limits):
    await kit.announce()
    await kit.submit()
    assert "QUEUED" == kit.state((await kit.submit_many(1))[0])
    assert (2, 0, 2) == await limits.report(0, "t/default")
    assert (0, 0, 0) == await limits.report(0, "t/nobody")


async def test_a_newer_part_is_kept_and_an_older_one_is_not(kit: Kit, limits: Limits):
    assert (3, 50) == await limits.apportion(LIMIT, Tell(0, 3, 50, 0, 0))
    assert (3, 50) == await limits.apportion(LIMIT, Tell(0, 9, 49, 0, 0))
    assert (2, 51) == await limits.apportion(LIMIT, Tell(0, 2, 51, 0, 7))
    assert b"2 51 0 7" == kit.plain.hget(kit.keys.allot, LIMIT)


async def test_what_is_in_use_is_not_given_back(kit: Kit, limits: Limits):
    await kit.announce()
    await kit.submit_many(2)
    assert (2, 51) == await limits.apportion("t/default", Tell(0, 5, 51, 1, 0))


# -- ration and credit ----------------------------------------------------------------------------


async def test_a_bucket_holds_a_seconds_tokens_and_fills_with_time(kit: Kit, limits: Limits):
    now = kit.now_ms
    assert (10, now + 1_000, now + 100) == await limits.ration("rt/x", 10, 15)
    kit.leap(50)
    assert (0, now + 1_050, now + 100) == await limits.ration("rt/x", 10, 1)
    kit.leap(50)
    assert (1, now + 1_100, now + 200) == await limits.ration("rt/x", 10, 5)
    kit.leap(HOUR_MS)
    assert 10 == (await limits.ration("rt/x", 10, 99))[0]


async def test_a_rate_below_one_a_second_holds_one_token(kit: Kit, limits: Limits):
    """Half a token a second: one every two seconds, however long nobody came."""
    assert (1, kit.now_ms + 1_000, kit.now_ms + 2_000) == await limits.ration("rt/x", 0.5, 3)
    starts = []
    for _ in range(100):
        kit.leap(100)
        given, _, _ = await limits.ration("rt/x", 0.5, 3)
        starts += [kit.now_ms] * given
    assert 5 == len(starts)
    assert {2_000} == {after - before for before, after in pairwise(starts)}


async def test_tokens_are_good_for_a_second(kit: Kit, limits: Limits):
    until_ms = kit.now_ms + 1_000
    assert 3 == await limits.credit(0, "rt/x", 3, until_ms, 0)
    assert 5 == await limits.credit(0, "rt/x", 2, until_ms + 1, 0)
    kit.leap(1_000)
    assert 0 == await limits.credit(0, "rt/x", 0, 0, kit.now_ms + 100)


async def test_an_answer_of_the_home_counts_once(kit: Kit, limits: Limits):
    answers = [await limits.ration("rt/x", 10, 3) for _ in range(2)]
    first, second = [(tokens, until_ms, 0) for tokens, until_ms, _ in answers]
    assert first[1] < second[1]
    heard = [
        await limits.credit(0, "rt/x", *each) for each in (first, first, second, second, first)
    ]
    assert [3, 3, 6, 6, 6] == heard


@pytest.mark.parametrize(("late_ms", "tokens"), [(-4_000, 3), (4_000, 3), (7_000, 0)])
async def test_the_clocks_of_two_shards_may_differ(
    kit: Kit, limits: Limits, late_ms: int, tokens: int
):
    given, until_ms, next_ms = await limits.ration("rt/x", 10, 3)
    kit.leap(late_ms)
    assert tokens == await limits.credit(0, "rt/x", given, until_ms, next_ms)


async def test_numbers_below_nothing_are_refused(kit: Kit, limits: Limits):
    before = kit.dump()
    with pytest.raises(Exception, match="BADARG"):
        await limits.ration("rt/x", 1, -1)
    with pytest.raises(Exception, match="BADARG"):
        await limits.credit(0, "rt/x", -1, 0, 0)
    assert before == kit.dump()


# -- expire ---------------------------------------------------------------------------------------


async def test_what_expires_fails_wherever_it_waits(kit: Kit):
    await kit.announce()
    until_ms = kit.now_ms + 1_000
    pending = await kit.submit(spec(delay_ms=HOUR_MS, expires_at_ms=until_ms))
    queued = await kit.submit(spec(expires_at_ms=until_ms))
    key = Concurrency("k")
    await kit.submit(spec(concurrency=key))
    held = await kit.submit(spec(concurrency=key, expires_at_ms=until_ms))
    await kit.dispatch()
    assert "1" == kit.record(held)["held"]
    assert (0, until_ms) == await kit.store.expire(0)
    kit.leap(1_000)
    assert (3, -1) == await kit.store.expire(0)
    assert ["FAILED"] * 3 == [kit.state(each) for each in (pending, queued, held)]
    assert "held" not in kit.record(held)
    assert (0, -1) == await kit.store.expire(0)
