"""Hosts: the circuit as a table of events and times, the places under contention, and what is forgotten."""

import asyncio

import pytest
from tests.runtime.kit import until

from tasksched.model.outcome import Outcome
from tasksched.runtime.hosts import OPEN_MAX_MS, REST_MS, Circuit, Hosts, Turn

pytestmark = pytest.mark.anyio

ALIVE, FAILED, NEUTRAL = True, False, None


def play(*steps, failures=2, open_ms=100):
    """Each step: (at_ms, turn, ending) ends a turn, (at_ms, turn) asks for one. The waits asked."""
    circuit = Circuit(failures, open_ms)
    waits = []
    for at_ms, turn, *ending in steps:
        if ending:
            circuit.leave(turn, at_ms, is_alive=ending[0])
        else:
            waits.append(circuit.wait_ms(at_ms))
            if waits[-1] == 0:
                circuit.enter(turn)
    return waits


OPEN_AT_10 = [(0, "a"), (0, "b"), (10, "a", FAILED), (10, "b", FAILED)]
HALF_OPEN_AT_110 = [*OPEN_AT_10, (110, "probe")]


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        ([(0, "a"), (1, "b"), (2, "c")], [0, 0, 0]),
        ([(0, "a"), (1, "a", FAILED), (2, "b")], [0, 0]),
        ([(0, "a", FAILED), (1, "b", ALIVE), (2, "c", FAILED), (3, "d")], [0]),
        ([(0, "a", FAILED), (1, "b", NEUTRAL), (2, "c", FAILED), (3, "d")], [99]),
        ([*OPEN_AT_10, (10, "c"), (60, "c"), (109, "c"), (110, "c")], [0, 0, 100, 50, 1, 0]),
        # what was under way when it opened does not open it again, but may close it
        ([*OPEN_AT_10, (50, "old", FAILED), (109, "c"), (110, "c")], [0, 0, 1, 0]),
        ([*OPEN_AT_10, (50, "old", ALIVE), (51, "c"), (52, "d")], [0, 0, 0, 0]),
        # half-open: exactly one probe
        ([*HALF_OPEN_AT_110, (111, "c"), (5000, "c")], [0, 0, 0, REST_MS, REST_MS]),
        ([*HALF_OPEN_AT_110, (120, "probe", ALIVE), (121, "c"), (122, "d")], [0, 0, 0, 0, 0]),
        ([*HALF_OPEN_AT_110, (120, "probe", NEUTRAL), (121, "c"), (122, "d")], [0, 0, 0, 0, REST_MS]),
        ([*HALF_OPEN_AT_110, (120, "probe", FAILED), (121, "c"), (320, "c")], [0, 0, 0, 199, 0]),
        ([*HALF_OPEN_AT_110, (115, "old", FAILED), (116, "c")], [0, 0, 0, REST_MS]),
        ([*HALF_OPEN_AT_110, (115, "old", NEUTRAL), (116, "c")], [0, 0, 0, REST_MS]),
        # a success begins from the beginning: counting, and the length of the opening
        (
            [*HALF_OPEN_AT_110, (120, "probe", ALIVE), (121, "c", FAILED), (122, "d"), (123, "d", FAILED), (124, "e")],
            [0, 0, 0, 0, 99],
        ),
        # a probe of an opening that is over by now is a request like any other
        ([*HALF_OPEN_AT_110, (115, "old", ALIVE), (116, "probe", FAILED), (117, "c")], [0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_the_circuit(steps, waits):
    assert waits == play(*steps)


def test_each_failed_probe_doubles_the_opening_up_to_five_minutes():
    circuit, now_ms, spans = Circuit(1, 30_000), 0, []
    for turn in range(7):
        assert 0 == circuit.wait_ms(now_ms)
        circuit.enter(turn)
        circuit.leave(turn, now_ms, is_alive=FAILED)
        spans.append(circuit.wait_ms(now_ms))
        now_ms += spans[-1]

    assert [30_000, 60_000, 120_000, 240_000, OPEN_MAX_MS, OPEN_MAX_MS, OPEN_MAX_MS] == spans
    assert 300_000 == OPEN_MAX_MS


def test_without_a_number_of_failures_it_never_opens():
    steps = [(n, n, FAILED) for n in range(100)]

    assert [0] == play(*steps, (101, "x"), failures=0)


# -- the hosts of a worker --------------------------------------------------------------------------


def hosts_of(**limits):
    hosts = Hosts(**limits)
    hosts.at_ms = 0
    hosts.now_ms = lambda: hosts.at_ms
    hosts.rng = lambda: 0.5
    return hosts


async def fail(hosts, name, times=1):
    for _ in range(times):
        hosts.leave(await hosts.enter(name), is_alive=FAILED)


def handed_back(reason, retry_ms):
    return Outcome(kind="RELEASED", retry_ms=retry_ms, reason=reason)


async def test_a_full_host_hands_back_after_a_while_and_others_are_not_concerned():
    hosts = hosts_of(concurrency=2)
    turns = [await hosts.enter("a"), await hosts.enter("a")]

    assert handed_back("host_busy", 1000) == await hosts.enter("a")
    assert isinstance(await hosts.enter("b"), Turn)
    hosts.leave(turns[0], is_alive=ALIVE)
    assert isinstance(await hosts.enter("a"), Turn)


@pytest.mark.parametrize("how", [ALIVE, FAILED, NEUTRAL])
async def test_who_waits_gets_the_place_that_is_given_back(how):
    hosts = hosts_of(concurrency=1)
    turn = await hosts.enter("a")
    waiting = asyncio.create_task(hosts.enter("a"))
    await asyncio.sleep(0)
    assert not waiting.done()

    hosts.leave(turn, is_alive=how)

    assert isinstance(await waiting, Turn)


async def test_who_is_cancelled_while_waiting_takes_no_place_along():
    hosts = hosts_of(concurrency=1)
    turn = await hosts.enter("a")
    waiting = [asyncio.create_task(hosts.enter("a")) for _ in range(3)]
    await asyncio.sleep(0)
    hosts.leave(turn, is_alive=ALIVE)
    waiting[0].cancel()  # the place is its already
    waiting[1].cancel()

    assert isinstance(await waiting[2], Turn)
    hosts.leave(waiting[2].result(), is_alive=ALIVE)
    assert 0 == hosts.known


async def test_who_waits_while_the_circuit_opens_is_handed_back_and_keeps_no_place():
    hosts = hosts_of(concurrency=1, failures=1, open_ms=1000)
    turn = await hosts.enter("a")
    waiting = [asyncio.create_task(hosts.enter("a")) for _ in range(2)]
    await asyncio.sleep(0)
    hosts.leave(turn, is_alive=FAILED)

    assert [handed_back("circuit_open", 1500)] * 2 == [await each for each in waiting]
    hosts.at_ms = 1000
    assert isinstance(await hosts.enter("a"), Turn)


async def test_without_a_limit_everybody_is_let_in():
    hosts = hosts_of(concurrency=0)

    assert all([isinstance(await hosts.enter("a"), Turn) for _ in range(500)])


async def test_an_open_circuit_hands_back_until_it_half_opens_and_spreads_who_comes():
    hosts = hosts_of(failures=3, open_ms=60_000)
    await fail(hosts, "a", 3)

    hosts.at_ms = 20_000
    assert handed_back("circuit_open", 40_000 + 3_000) == await hosts.enter("a")
    hosts.at_ms = 60_000
    probe = await hosts.enter("a")
    assert handed_back("circuit_open", REST_MS + 3_000) == await hosts.enter("a")
    hosts.leave(probe, is_alive=ALIVE)
    assert isinstance(await hosts.enter("a"), Turn)


async def test_openings_are_logged_with_the_host(caplog):
    hosts = hosts_of(failures=1)
    caplog.set_level("INFO", logger="tasksched")
    await fail(hosts, "https://a:443", 1)
    hosts.at_ms = 30_000
    hosts.leave(await hosts.enter("https://a:443"), is_alive=ALIVE)

    events = [(record.msg["event"], record.msg["host"]) for record in caplog.records]
    assert [("circuit.opened", "https://a:443"), ("circuit.closed", "https://a:443")] == events


async def test_a_host_is_remembered_only_while_there_is_a_reason():
    hosts = hosts_of(failures=2)
    turn = await hosts.enter("a")
    assert 1 == hosts.known
    hosts.leave(turn, is_alive=NEUTRAL)
    assert 0 == hosts.known
    await fail(hosts, "a")
    assert 1 == hosts.known
    hosts.leave(await hosts.enter("a"), is_alive=ALIVE)
    assert 0 == hosts.known


async def test_of_too_many_hosts_the_one_idle_for_longest_is_forgotten():
    hosts = hosts_of(failures=1, most=3)
    used = await hosts.enter("in use")
    for name in ("old", "new"):
        await fail(hosts, name)
    assert isinstance(await hosts.enter("old"), Outcome)  # asked for again: "new" is older now

    await fail(hosts, "newest")

    assert 3 == hosts.known
    assert isinstance(await hosts.enter("old"), Outcome)
    assert isinstance(await hosts.enter("new"), Turn)
    hosts.leave(used, is_alive=ALIVE)


async def test_a_host_in_use_is_never_forgotten():
    hosts = hosts_of(concurrency=1, most=1)
    turn = await hosts.enter("a")
    for name in "bcd":
        await fail(hosts, name)
    waiting = asyncio.create_task(hosts.enter("a"))
    await asyncio.sleep(0)
    hosts.leave(turn, is_alive=ALIVE)

    await until(waiting.done)
    assert isinstance(waiting.result(), Turn)
