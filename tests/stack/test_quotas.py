"""A quota under several processes that create as fast as they can: never passed, all of it used."""

import json
import subprocess
import sys

import pytest
import redis
from tests.servers import ServerProcess

from tasksched.commands.session import open_session
from tasksched.settings import Settings
from tasksched.store.records import set_conf

pytestmark = pytest.mark.anyio

MOST, PROCESSES, SHARDS = 300, 3, 8
OPEN_STATES = (b":PENDING", b":QUEUED", b":RUNNING")
PROGRAM = """
import asyncio, json, random, sys
from tasksched import RateLimited
from tasksched.commands.session import open_session
from tasksched.model.task import Created, HandlerTarget, TaskSpec
from tasksched.settings import Settings

async def main(url, shards, rounds):
    session = await open_session(Settings(url=url, shards=shards))
    made = 0

    async def creator(number):
        nonlocal made
        for turn in range(rounds):
            key = None if number % 2 else f"{random.random()}"
            spec = TaskSpec(target=HandlerTarget("charge"), delay_ms=3_600_000, key=key)
            answers = await session.tasks.submit_many([spec] * (1 if key else 4))
            assert all(isinstance(each, Created | RateLimited) for each in answers), answers
            made += sum(isinstance(each, Created) for each in answers)

    await asyncio.gather(*(creator(number) for number in range(6)))
    await session.close()
    print(json.dumps(made))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


async def test_processes_that_create_at_once_never_pass_it(valkey_server: ServerProcess):
    valkey_server.flush()
    session = await open_session(Settings(url=valkey_server.url, shards=SHARDS))
    await set_conf(session.store, "tenant:default", f"pending={MOST}")
    argv = [sys.executable, "-c", PROGRAM, valkey_server.url, str(SHARDS), "40"]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    seen = []
    with redis.Redis(unix_socket_path=str(valkey_server.socket)) as plain:

        def count() -> int:
            pipe = plain.pipeline(transaction=True)
            for keys in session.store.keys:
                pipe.hgetall(keys.counts)
            return sum(
                int(number)
                for counts in pipe.execute()
                for name, number in counts.items()
                if name.endswith(OPEN_STATES)
            )

        while any(each.poll() is None for each in running):
            seen.append(count())
        made = [json.loads(each.communicate()[0]) for each in running]
        assert [0] * PROCESSES == [each.returncode for each in running]
        assert max(seen) <= MOST
        assert MOST == sum(made) == count()
    await session.close()
