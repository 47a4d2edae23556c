"""The server fails: frozen, killed, read-only, full, forgetful. Every process recovers by itself."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pytest
import redis
from tests.stack.kit import HANDLERS, LEASE_S, SHARDS, Answer, Api, Stack, free_port, handler, until

pytestmark = pytest.mark.stack

PROBLEM = "application/problem+json"


def connect(stack: Stack) -> redis.Redis:
    return redis.Redis.from_url(stack.url, socket_timeout=10)


class Every:
    """Does something again and again meanwhile."""

    def __init__(self, seconds: float, act: Callable[[], object]) -> None:
        self._seconds, self._act = seconds, act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.times = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._act()
            self.times += 1


def test_flushed_scripts_and_killed_connections_are_invisible_under_load(stack: Stack):
    """redis-faults-006, redis-faults-005: ten times a second, for five seconds."""
    api, _ = stack.up()

    def disturb() -> None:
        with connect(stack) as plain:
            plain.script_flush()
            plain.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    with stack.load([api], handler("work", {"seconds": 0.05})) as load:
        until(lambda: load.created > 20, "some load")
        with Every(0.1, disturb) as nemesis:
            time.sleep(5)
    print(f"{load.created} creates, {nemesis.times} disturbances")
    assert nemesis.times > 20
    assert load.troubles == []
    stack.audit()


def await_outage(api: Api) -> None:
    """The API says so in every way it has, and lives."""
    with ThreadPoolExecutor() as pool:  # a create is patient before it gives up
        asked = [
            pool.submit(api.call, method, path, body, timeout_s=40)
            for method, path, body in (
                ("POST", "/tasks", handler("work")),
                ("GET", "/readyz", None),
                ("GET", "/livez", None),
                ("GET", "/health", None),
            )
        ]
        refused, ready, alive, health = [each.result() for each in asked]
    assert_refused(refused)
    assert (ready.status, ready.headers["content-type"]) == (503, PROBLEM), ready
    assert alive.status == 200
    assert (health.status, health.body["status"]) == (503, "down")


def assert_refused(answer: Answer, code: str = "UNAVAILABLE") -> None:
    assert (answer.status, answer.headers["content-type"]) == (503, PROBLEM), answer
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.body["code"] == code


def recovered(stack: Stack, api: Api, since: float, what: str) -> None:
    """A task goes all the way again, without any help."""
    until(api.is_ready, "the API is ready again")
    ready = time.monotonic() - since
    task_id = stack.submit(api, handler("work"))
    assert api.task(task_id, wait_s=20)["status"] == "SUCCESS"
    print(f"after {what}: ready in {ready:.2f} s, a task done in {time.monotonic() - since:.2f} s")


def test_a_frozen_server_costs_no_live_run_its_attempt(stack: Stack):
    """Frozen for one and a half leases with runs alive: one start each, all recover."""
    api, _ = stack.up()
    long = [stack.submit(api, handler("work", {"seconds": 3 * LEASE_S})) for _ in range(3 * SHARDS)]
    for task_id in long:
        stack.await_start(task_id)
    stack.server.pause()
    time.sleep(1.5 * LEASE_S)
    assert api.call("GET", "/livez", timeout_s=5).status == 200
    assert not api.is_ready()
    stack.server.resume()
    recovered(stack, api, time.monotonic(), "a frozen server")
    assert {api.task(each, wait_s=20)["status"] for each in long} == {"SUCCESS"}
    stack.audit()
    assert len(stack.seen()) == len(long) + 1


def test_a_killed_and_restarted_server_costs_no_live_run_its_attempt(stack: Stack):
    """Away for one and a half leases with runs alive, back with its append-only file."""
    api, _ = stack.up()
    later = stack.submit(api, handler("work", delay="4s"))
    long = [stack.submit(api, handler("work", {"seconds": 3 * LEASE_S})) for _ in range(3 * SHARDS)]
    ending = [stack.submit(api, handler("work", {"seconds": 1.0})) for _ in range(3 * SHARDS)]
    for task_id in [*long, *ending]:
        stack.await_start(task_id)
    stack.server.kill()
    time.sleep(1.5 * LEASE_S)  # the short ones end meanwhile, and their verdicts wait
    stack.server.restart()
    recovered(stack, api, time.monotonic(), "a killed server")
    assert {api.task(each, wait_s=20)["status"] for each in [*long, *ending, later]} == {"SUCCESS"}
    stack.audit()
    assert len(stack.seen()) == len(long) + len(ending) + 2
    assert all(process.status is None for process in stack.processes)


def test_the_api_says_503_while_the_server_is_away_and_recovers(stack: Stack):
    api, _ = stack.up()
    stack.server.kill()
    await_outage(api)
    stack.server.restart()
    recovered(stack, api, time.monotonic(), "an outage")
    stack.audit()


def test_roles_that_start_while_the_server_is_away_wait_for_it(stack: Stack):
    stack.server.kill()
    api = Api(free_port())
    roles = [
        stack.start("api", "--port", str(api.port), "--scheduler"),
        stack.start("worker", HANDLERS),
    ]
    for role in roles:
        until(lambda: "redis.unavailable" in role.said(), "it says that it waits")  # noqa: B023
    stack.server.restart()
    stack.await_ready(api, roles[0])
    assert api.task(stack.submit(api, handler("work")), wait_s=10)["status"] == "SUCCESS"
    assert [role.end() for role in roles] == [0, 0]


def test_a_demoted_primary_is_an_outage_and_no_more(stack: Stack):
    """redis-faults-002, short form: 503 with Retry-After, never 201; no restart is needed."""
    api, _ = stack.up()
    running = stack.submit(api, handler("work", {"seconds": 1}))
    stack.await_start(running)
    with connect(stack) as plain:
        plain.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert_refused(api.call("POST", "/tasks", handler("work"), timeout_s=40))
        assert api.call("GET", "/livez", timeout_s=5).status == 200
        plain.execute_command("REPLICAOF", "NO", "ONE")
    recovered(stack, api, time.monotonic(), "REPLICAOF on the primary")
    assert api.task(running, wait_s=20)["status"] == "SUCCESS"
    stack.audit()


def test_a_full_server_refuses_creates_and_goes_on_draining(stack: Stack):
    """Real OOM: what was accepted is dispatched, run, retried and settled all the same."""
    api, _ = stack.up()
    accepted = [stack.submit(api, handler("work", {"seconds": 0.1}, delay="2s")) for _ in range(20)]
    accepted += [stack.submit(api, handler("flaky", {"failures": 2}, delay="2s")) for _ in range(4)]
    with connect(stack) as plain:
        plain.config_set("maxmemory", "1mb")
        assert_refused(api.call("POST", "/tasks", handler("work")), "MEMORY_BUDGET")
        assert {api.task(each, wait_s=20)["status"] for each in accepted} == {"SUCCESS"}
        assert api.call("POST", f"/tasks/{accepted[0]}/cancel").status == 409
        assert api.call("POST", "/tasks", handler("work")).status == 503
        plain.config_set("maxmemory", "0")
    until(lambda: api.call("POST", "/tasks", handler("work")).status == 201, "it accepts again")
    recovered(stack, api, time.monotonic(), "a full server")
    stack.audit()


def test_a_worker_may_start_and_stop_on_a_full_server(stack: Stack):
    """A deployment must not fail because the server is full: that is when it is needed."""
    stack.env["TASKSCHED_LEASE"] = "30s"
    api, first = stack.up("--grace", "100ms")
    task_id = stack.submit(api, handler("work", {"seconds": 2}))
    stack.await_start(task_id)
    with connect(stack) as plain:
        plain.config_set("maxmemory", "1mb")
        second = stack.start("worker", HANDLERS)
        assert first.end() == 0
        stack.await_start(task_id, 2)
        assert api.task(task_id, wait_s=10)["status"] == "SUCCESS"
        assert [s["pid"] for s in stack.seen(task_id)] == [first.pid, second.pid]
        plain.config_set("maxmemory", "0")
    stack.audit()


def test_roles_refuse_a_server_that_evicts_unless_told_otherwise(stack: Stack):
    """redis-faults-004; and a replica, which would refuse every write."""
    ports = {"api": ["--port", "0"], "scheduler": [], "worker": []}
    with connect(stack) as plain:
        plain.config_set("maxmemory-policy", "allkeys-lru")
        refused = [stack.start(role, *port) for role, port in ports.items()]
        assert [role.wait() for role in refused] == [1, 1, 1]
        for role in refused:
            assert "allkeys-lru evicts tasks" in role.said()
            assert "Traceback" not in role.said()
        overruled = [stack.start(role, "--unsafe-redis", *port) for role, port in ports.items()]
        for role in overruled:
            until(lambda: "allkeys-lru evicts tasks" in role.said(), "it warns")  # noqa: B023
        plain.config_set("maxmemory-policy", "noeviction")
        plain.execute_command("REPLICAOF", "127.0.0.1", "1")
        refused = [stack.start("worker")]
        assert refused[0].wait() == 1
        assert "this server is a replica" in refused[0].said()
        plain.execute_command("REPLICAOF", "NO", "ONE")
    assert [role.end() for role in overruled] == [0, 0, 0]


def test_what_a_201_promised_survives_a_server_killed_5_ms_later(stack: Stack):
    """redis-faults-007: a killed process loses nothing (a power cut may: semantics of everysec)."""
    api, _ = stack.up()
    for _ in range(4):
        stack.submit(api, handler("work", {"seconds": 0.01}, delay="200ms"))
        time.sleep(0.005)
        stack.server.kill()
        stack.server.restart()
        until(api.is_ready, "ready again")
    stack.audit()
    assert len(stack.accepted) == 4


def test_a_deleted_stream_is_made_again_and_nothing_is_missed(stack: Stack, chaos: bool):
    """redis-faults-008, redis-faults-011: the stream and its group go while tasks wait and run."""
    api, _ = stack.up("--concurrency", "2")
    tasks = [stack.submit(api, handler("work", {"seconds": 0.4})) for _ in range(12)]
    stack.await_start(tasks[0])
    with connect(stack) as plain:
        for shard in range(SHARDS):
            plain.delete(f"{{ts:{shard}}}:ready:default:normal:work")
    more = [stack.submit(api, handler("work")) for _ in range(10)]
    assert {api.task(each, wait_s=20)["status"] for each in more} == {"SUCCESS"}
    if chaos:  # what had been handed over is looked for when nobody took it for half a minute
        stack.audit(patience_s=50)


def test_roles_end_cleanly_while_the_server_is_away(stack: Stack):
    api, process = stack.api()
    roles = [process, stack.scheduler(), stack.worker("--grace", "1s")]
    until(lambda: api.get("/health")["schedulers"] == 1, "the scheduler works")
    stack.server.kill()
    began = time.monotonic()
    for role in roles:
        role.send(signal.SIGTERM)
    assert [role.wait() for role in roles] == [0, 0, 0]
    print(f"all ended within {time.monotonic() - began:.2f} s without a server")


def test_every_201_is_stored_when_the_api_stops_while_it_creates(stack: Stack):
    """shutdown-001, short form: two APIs in turn, the load goes on at the other."""
    apis, processes = zip(*(stack.api() for _ in range(2)), strict=True)
    stack.start("worker", HANDLERS)
    stack.scheduler()
    with stack.load(list(apis), handler("work"), threads=4, rest_s=0) as load:
        for number in (0, 1, 0):
            target = load.created + 50
            until(lambda: load.created > target, "load")  # noqa: B023
            assert processes[number].end() == 0
            processes = list(processes)
            processes[number] = stack.start("api", "--port", str(apis[number].port))
            stack.await_ready(apis[number], processes[number])
    # Refused connections are to be expected; answers other than 2xx only while it says 503.
    assert {t[:3] for t in load.troubles if not t.startswith("Conn")} <= {"503", "Rem"}
    assert load.unanswered == set()
    stack.audit()
