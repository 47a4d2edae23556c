"""Hosts: how much one worker asks of one target host, whoever's tasks they are.

A host (scheme, name, port) has so many places for requests at a time, and a circuit: after so many
failures in a row it opens, and nobody asks for a while; then one request at a time probes whether the
host is back. Who gets no turn hands its run back, not counted. Invariant: every turn that was given
is given back by ``leave``, whatever becomes of the request; and what is remembered is bounded, since
a host is kept only while it is in use or has failed, and of the idle ones the oldest go first.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from tasksched import clock, log
from tasksched.model.outcome import Outcome

PATIENCE_MS: Final = 250  # for a place
REST_MS: Final = 1000  # of a run that was handed back, on the average
OPEN_MAX_MS: Final = 300_000
HOSTS_MAX: Final = 10_000

_log = log.get("hosts")


class Circuit:
    """Closed; open until a time; then half-open, with at most one probe. Times are arguments.

    ``turn`` is whatever identifies a request: the circuit only asks whether it was its probe.
    ``failures``: in a row, that open it; 0 = it never opens. ``open_ms``: the first time; each
    probe that fails doubles it.
    """

    __slots__ = ("_failed", "_failures", "_open_ms", "_probe", "span_ms", "until_ms")

    def __init__(self, failures: int, open_ms: int) -> None:
        self._failures = failures
        self._open_ms = open_ms
        self._failed = 0
        self._probe: object | None = None
        self.span_ms = 0  # of the last opening
        self.until_ms: int | None = None

    @property
    def is_pristine(self) -> bool:
        """Whether there is nothing to remember."""
        return self.until_ms is None and self._failed == 0

    def wait_ms(self, now_ms: int) -> int:
        """0: a request may be made. Else how long to wait before asking again."""
        if self.until_ms is None:
            return 0
        if now_ms < self.until_ms:
            return self.until_ms - now_ms
        return 0 if self._probe is None else REST_MS

    def enter(self, turn: object) -> None:
        """A request is made, now that ``wait_ms`` was 0."""
        if self.until_ms is not None:
            self._probe = turn

    def leave(self, turn: object, now_ms: int, *, is_alive: bool | None) -> None:
        """How it ended. None says nothing about the host: it frees a probe and no more."""
        is_probe = turn is self._probe
        if is_probe:
            self._probe = None
        if is_alive:
            self._failed, self.span_ms, self.until_ms, self._probe = 0, 0, None, None
        elif is_alive is False and (is_probe or self.until_ms is None):
            self._failed += 1
            if is_probe or self._failed == self._failures:
                self.span_ms = min(2 * self.span_ms or self._open_ms, OPEN_MAX_MS)
                self.until_ms = now_ms + self.span_ms


class Host:
    """What is known of one host while it is in use or has failed."""

    __slots__ = ("circuit", "name", "places", "users")

    def __init__(self, name: str, circuit: Circuit, places: asyncio.Semaphore | None) -> None:
        self.name = name
        self.circuit = circuit
        self.places = places
        self.users = 0  # requests under way or waiting for a place


class Turn:
    """The right to make one request. Give it back with ``Hosts.leave``."""

    __slots__ = ("host",)

    def __init__(self, host: Host) -> None:
        self.host = host


class Hosts:
    """``concurrency``: requests to one host at a time, 0 = any number. The rest as ``Circuit``."""

    def __init__(
        self,
        *,
        concurrency: int = 20,
        failures: int = 10,
        open_ms: int = 30_000,
        most: int = HOSTS_MAX,
    ) -> None:
        self._concurrency = concurrency
        self._failures = failures
        self._open_ms = open_ms
        self._most = most
        self._hosts: dict[str, Host] = {}
        self.rng: Callable[[], float] = random.random
        self.now_ms: Callable[[], int] = clock.mono_ms

    @property
    def known(self) -> int:
        """Hosts that are in use or have failed."""
        return len(self._hosts)

    async def enter(self, name: str) -> Turn | Outcome:
        """A turn at the host, after at most 250 ms; or the outcome of a run that gets none."""
        host = self._used(name)
        turn = None
        try:
            if refusal := self._refusal(host):
                return refusal
            if not await self._placed(host):
                return _handed_back("host_busy", self._rest_ms())
            # It may have opened while we waited; from here on nothing is awaited.
            if refusal := self._refusal(host):
                self._free(host)
                return refusal
            turn = Turn(host)
            host.circuit.enter(turn)
            return turn
        finally:
            if turn is None:
                self._unused(host)

    def leave(self, turn: Turn, *, is_alive: bool | None) -> None:
        """The request is over. ``is_alive``: whether the host answered as one that works does;
        None where its end says nothing about the host.
        """
        host = turn.host
        was_ms = host.circuit.span_ms
        host.circuit.leave(turn, self.now_ms(), is_alive=is_alive)
        self._free(host)
        self._unused(host)
        if host.circuit.span_ms > was_ms:
            _log.warning("circuit.opened", host=host.name, open_ms=host.circuit.span_ms)
        elif host.circuit.span_ms < was_ms:
            _log.info("circuit.closed", host=host.name)

    def _refusal(self, host: Host) -> Outcome | None:
        wait_ms = host.circuit.wait_ms(self.now_ms())
        if not wait_ms:
            return None
        # All that wait for the host come back then, and one of them may ask: spread them.
        jitter_ms = int(self.rng() * max(REST_MS, host.circuit.span_ms // 10))
        return _handed_back("circuit_open", wait_ms + jitter_ms)

    async def _placed(self, host: Host) -> bool:
        if host.places is None:
            return True
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000 if host.places.locked() else None):
                return await host.places.acquire()
        except TimeoutError:
            return False

    def _rest_ms(self) -> int:
        return int(REST_MS * (0.5 + self.rng()))

    @staticmethod
    def _free(host: Host) -> None:
        if host.places is not None:
            host.places.release()

    def _used(self, name: str) -> Host:
        host = self._hosts.pop(name, None)
        if host is None:
            if len(self._hosts) >= self._most:
                self._forget_one()
            places = asyncio.Semaphore(self._concurrency) if self._concurrency else None
            host = Host(name, Circuit(self._failures, self._open_ms), places)
        self._hosts[name] = host  # the last one used is the last one in order
        host.users += 1
        return host

    def _unused(self, host: Host) -> None:
        host.users -= 1
        if host.users == 0 and host.circuit.is_pristine:
            del self._hosts[host.name]

    def _forget_one(self) -> None:
        idle = next((name for name, host in self._hosts.items() if not host.users), None)
        if idle is not None:
            del self._hosts[idle]


def _handed_back(reason: str, wait_ms: int) -> Outcome:
    return Outcome(kind="RELEASED", retry_ms=wait_ms, reason=reason)
