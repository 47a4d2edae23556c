"""A seeded nemesis: processes die, freeze and are told to stop, the server too, all under load.

The schedule of the nemesis is a pure function of the seed, which is printed; ``--seed N`` repeats it,
``--chaos`` lets it rage for two minutes instead of fifteen seconds. Afterwards everything is healed,
everything drains, and the books must be right: nothing lost, nothing twice without a cause.
"""

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest
import redis
from tests.stack.kit import Process, Stack, handler, until

from tasksched import App
from tasksched.errors import Unavailable
from tasksched.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

LEASE_MS = 3_000
SHORT_S, LONG_S = 15.0, 120.0
STUBBORN = {"max_attempts": 100, "max_lost": 100, "backoff": {"initial": "50ms", "max": "500ms"}}
BODIES = [
    handler("work", {"seconds": 0.02}, retry=STUBBORN),
    handler("work", {"seconds": 1.0}, retry=STUBBORN),
    handler("work", {"seconds": 0.1}, retry=STUBBORN, delay="1s"),
    handler("flaky", {"failures": 2}, retry=STUBBORN),
]


class Nemesis:
    """Does one bad thing after the other. Whatever it breaks it also mends."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.random = random.Random(seed)
        self.workers = [stack.start_worker() for _ in range(2)]
        self.schedulers = [stack.scheduler() for _ in range(2)]
        self.leaving: list[Process] = []
        self.deeds: list[str] = []

    def rage(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.random.uniform(0.2, 1.5))
            deed = self.random.choice(self.choices())
            self.deeds.append(deed.__name__)
            deed()

    def choices(self) -> list[Callable[[], None]]:
        return [
            *[self.kill_worker, self.freeze_worker, self.dismiss_worker] * 2,
            *[self.kill_scheduler, self.freeze_scheduler],
            *[self.kill_server, self.freeze_server, self.flush_scripts, self.kill_connections],
        ]

    def kill_worker(self) -> None:
        number = self.random.randrange(2)
        self.stack.kill(self.workers[number])
        self.workers[number] = self.stack.start_worker()

    def freeze_worker(self) -> None:
        worker = self.random.choice(self.workers)
        self.stack.harmed.add(worker.pid)
        self._freeze(worker, self.random.choice((0.5, 1.5)) * LEASE_MS / 1000)

    def dismiss_worker(self) -> None:
        number = self.random.randrange(2)
        self.workers[number].send(signal.SIGTERM)
        self.leaving.append(self.workers[number])
        self.workers[number] = self.stack.start_worker()

    def kill_scheduler(self) -> None:
        number = self.random.randrange(2)
        self.stack.kill(self.schedulers[number])
        self.schedulers[number] = self.stack.scheduler()

    def freeze_scheduler(self) -> None:
        self._freeze(self.random.choice(self.schedulers), self.random.uniform(0.5, 3))

    def kill_server(self) -> None:
        self.stack.server.kill()
        time.sleep(self.random.choice((0, 0.3, 2.0)))
        self.stack.server.restart()

    def freeze_server(self) -> None:
        self.stack.server.pause()
        time.sleep(self.random.choice((0.3, 1.0, 1.5 * LEASE_MS / 1000)))
        self.stack.server.resume()

    def flush_scripts(self) -> None:
        with redis.Redis.from_url(self.stack.url, socket_timeout=10) as plain:
            plain.script_flush()

    def kill_connections(self) -> None:
        with redis.Redis.from_url(self.stack.url, socket_timeout=10) as plain:
            plain.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    @staticmethod
    def _freeze(process: Process, seconds: float) -> None:
        process.send(signal.SIGSTOP)
        time.sleep(seconds)
        process.send(signal.SIGCONT)


class ClientLoad:
    """Creates through the Python client, each with a key: repeated until it has an answer."""

    def __init__(self, stack: Stack) -> None:
        settings = Settings(url=stack.url, lease_ms=LEASE_MS)
        self._stack, self._app = stack, App(settings=settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.created = 0
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._app.close_sync()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.wait(0.02):
                return
            call = self._app.named("work").options(key=f"client-{number}")
            while True:
                try:
                    task = call.submit_sync(seconds=0.02)
                except Unavailable:
                    continue
                self._stack.accepted.add(task.id)
                self.created += 1
                break


def test_under_a_nemesis_everything_accepted_ends_once(
    stack: Stack, chaos: bool, request: pytest.FixtureRequest
):
    seed = request.config.getoption("--seed", default=None)
    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"\nseed {seed}")
    stack.env["TASKSCHED_LEASE"] = f"{LEASE_MS}ms"
    api, _ = stack.api()
    nemesis = Nemesis(stack, seed)
    stack.submit(api, BODIES[0])
    until(stack.seen, "it works")
    client = ClientLoad(stack)
    with stack.load([api], BODIES, rest_s=0.02) as load:
        nemesis.rage(LONG_S if chaos else SHORT_S)
    client.stop()
    print(f"{load.created} creates over HTTP, {client.created} through the client")
    print("deeds:", ", ".join(nemesis.deeds))
    assert load.unanswered == set()
    healed = time.monotonic()
    books = stack.audit(patience_s=60)
    print(f"drained and audited {time.monotonic() - healed:.1f} s after the last deed")
    assert {record["state"] for record in books.records.values()} == {"SUCCESS"}
    assert set(books.records) == stack.accepted
    # -15: told to stop before it had begun to listen.
    assert {each.wait(40) for each in nemesis.leaving} <= {0, -signal.SIGTERM}
    living = [p for p in stack.processes if p.status is None]
    assert len(living) == 5  # API, two schedulers, two workers: nobody died by himself
