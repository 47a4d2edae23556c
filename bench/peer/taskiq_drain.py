"""The same no-op task for taskiq: ``preload PATH COUNT``, then ``taskiq worker taskiq_drain:broker``."""

import asyncio
import os
import struct
import sys
import time

from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(f"unix://{os.environ['PEER_SOCKET']}", xread_count=1000)
_out = os.open(os.environ["BENCH_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@broker.task(task_name="noop")
async def noop(number: int, pad: str) -> None:  # noqa: ARG001 - the shape of a real one
    os.write(_out, struct.pack("<IQ", number, time.time_ns()))


async def preload(count: int) -> None:
    await broker.startup()
    for first in range(0, count, 50):
        numbers = range(first, min(first + 50, count))
        await asyncio.gather(*(noop.kiq(n, "x" * 80) for n in numbers))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(preload(int(sys.argv[1])))
