"""idle: what processes with nothing to do cost: commands, CPU and memory.

The processes are real; API and scheduler reach Redis by its unix socket, the worker by TCP, so
that MONITOR tells them apart. ``commands``: what each sent, a second. ``inside``: what its scripts
did beyond that. ``INFO`` counts both together. One task at the end proves that all were awake.
"""

import asyncio
import socket
import threading
import time
from collections import Counter
from typing import Any

import redis
from bench.measure import Meter
from bench.processes import NAMESPACE, WORKER, stack
from bench.producer import producing
from bench.scenarios.common import PAD, Job, audit_records, wait_until
from bench.servers import Server, running

AOF = "everysec"
SECONDS = {"long": 10.0, "short": 4.0}
SETTLE_S = 1.5


class Monitor(threading.Thread):
    """Counts MONITOR's lines by who sent them: 'unix', 'tcp', 'lua'."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.sent: Counter[str] = Counter()
        self.verbs: Counter[str] = Counter()

    def run(self) -> None:
        try:
            with self._client.monitor() as monitor:
                for said in monitor.listen():
                    kind = said["client_type"]
                    self.sent[kind] += 1
                    self.verbs[f"{kind} {said['command'].split(' ')[0].upper()}"] += 1
        except (redis.RedisError, OSError, ValueError):
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _submit_one(server: Server) -> list[str]:
    async with producing(server) as producer:
        return await producer.submit([(0, PAD)], [0])


def run(job: Job) -> dict[str, Any]:
    seconds = SECONDS[job.length]
    with running(job.server, aof=job.aof or AOF) as server, stack(server) as made:
        meter = Meter(server)
        port = _free_port()
        meter.client.config_set("port", port)
        made.start(("api", "--scheduler", "--port", str(_free_port())))
        made.start(WORKER, {"TASKSCHED_URL": f"redis://127.0.0.1:{port}"})
        made.await_ready()
        time.sleep(SETTLE_S)
        cpu = {role.name: role.cpu_s for role in made.roles}
        cost, commands = meter.read(), meter.client.info("stats")["total_commands_processed"]
        monitor = Monitor(server.client())
        monitor.start()
        time.sleep(seconds)
        sent, verbs = Counter(monitor.sent), Counter(monitor.verbs)
        cost, cpu_after = meter.read() - cost, {role.name: role.cpu_s for role in made.roles}
        commands = meter.client.info("stats")["total_commands_processed"] - commands
        rows = {
            name: {
                "commands": round(sent[kind] / seconds, 2),
                "cpu_percent": round((cpu_after[name] - cpu[name]) / seconds * 100, 2),
                "rss_mib": role.rss_mib,
            }
            for (name, kind), role in zip(
                (("api", "unix"), ("worker", "tcp")), made.roles, strict=True
            )
        }
        (task_id,) = asyncio.run(_submit_one(server))
        wait_until("the task ran", lambda: made.runs.exists() and made.runs.stat().st_size, 5.0)
        time.sleep(0.2)
        result = {
            "budget_commands": 5,
            "seconds": seconds,
            **rows,
            "inside_scripts": round(sent["lua"] / seconds, 2),
            "info_commands": round(commands / seconds, 2),
            "redis_cpu_percent": round(cost.redis_s / seconds * 100, 2),
            "verbs": dict(verbs.most_common(12)),
            "audit": audit_records(meter.client, NAMESPACE, [task_id], {}),
        }
        return job.sealed(result, server)
