"""Targets for the tests: raw servers that answer whatever bytes a test wants, and how to be sent there."""

import asyncio
import contextlib
import socket

import msgspec
from tests.runtime.kit import grant_of

from tasksched import clock
from tasksched.model.retry import Retry
from tasksched.model.task import HttpTarget
from tasksched.runtime.context import Run
from tasksched.runtime.egress import Egress
from tasksched.runtime.executor import Executor
from tasksched.runtime.http_target import HttpTargets
from tasksched.runtime.registry import Registry
from tasksched.runtime.threads import Threads

POLICY = Retry(5, initial="30s", max="1h", jitter="none")
LOOPBACK = ("127.0.0.0/8",)


class Target:
    """Answers every request with the same bytes, and keeps what it was sent."""

    def __init__(self, tls=None):
        self._tls = tls
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        self.endless = b""
        self.every_s = 0.0
        self.requests = []
        self.connections = 0
        self.sent = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/hook?x=1"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    def says(self, status, body=b"", **headers):
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line[15:])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                self.requests.append((head.decode(), await reader.readexactly(length)))
                writer.write(self.answer)
                while self.endless:
                    writer.write(self.endless)
                    self.sent += len(self.endless)
                    await writer.drain()
                    await asyncio.sleep(self.every_s)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def caller():
    """``await call(url, payload, **grant)``: the outcome of one attempt, through the executor."""
    opened = []

    async def attempt(url, payload=..., *, allow=LOOPBACK, method="POST", headers=(), **fields):
        http = HttpTargets(Egress(allow))
        opened.append(http)
        executor = Executor(Registry(), Threads(1), http=http)
        grant = grant_to(HttpTarget(url, method, tuple(headers)), payload, **fields)
        run = Run(grant, 0, 30_000, clock.mono())
        run.task = asyncio.create_task(executor.run(run))
        return await run.task

    try:
        yield attempt
    finally:
        for http in opened:
            await http.close()


def grant_to(target, payload=..., *, delivery=None, **fields):
    """A grant of a run that asks this target."""
    fields.setdefault("retry", POLICY)
    grant = grant_of("http", payload, http=target, **fields)
    return grant._replace(options=msgspec.structs.replace(grant.options, delivery=delivery))


def brief(outcome):
    return outcome.kind, outcome.retry_ms, outcome.reason, outcome.error and outcome.error.type


async def resolving(monkeypatch, *rounds):
    """Names resolve to the next round of addresses each time somebody asks."""
    asked = []

    async def getaddrinfo(host, port, **_):
        addresses = rounds[min(len(asked), len(rounds) - 1)]
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    return asked
