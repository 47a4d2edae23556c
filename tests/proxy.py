"""A proxy between a client and a real server, for faults that need the right moment.

Understands RESP2 and RESP3 framing, so that it knows which reply answers which command: a reply can
be lost *after* the server has executed the command, which no amount of killing does reliably.
Pushes and pub/sub messages pass through. Subscribe commands are confirmed by messages, not by
replies, so rules do not apply to them; CLIENT REPLY and MONITOR are not understood.

    async with Proxy(server.url) as proxy:
        proxy.drop_reply(command("EVALSHA"))
        client = redis.asyncio.Redis.from_url(proxy.url)
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

LINE_MAX = 1 << 20
CONNECT_S = 5.0
SUBSCRIBES = {p + b"SUBSCRIBE" for p in (b"", b"UN", b"P", b"PUN", b"S", b"SUN")}
MESSAGES = {name.lower() for name in SUBSCRIBES} | {b"message", b"pmessage", b"smessage"}

When = Callable[[list[bytes]], bool]


def command(*names: str) -> When:
    """Commands of these names, whatever their arguments."""
    wanted = {name.upper().encode() for name in names}
    return lambda words: bool(words) and words[0].upper() in wanted


@dataclass
class Rule:
    """What happens to the replies of matching commands; ``hits`` counts them."""

    when: When
    times: int | None  # None: always
    drop: bool = False
    delay_s: float = 0.0
    hits: int = 0


@dataclass(eq=False)
class Connection:
    """One client, its server side, and the commands whose replies are still to come."""

    writers: list[asyncio.StreamWriter]
    pending: deque[Rule | None] = field(default_factory=deque)
    is_subscriber: bool = False

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class Proxy:
    """Listens on a unix socket, or with ``tcp=True`` on a loopback port."""

    def __init__(self, upstream: str, *, tcp: bool = False) -> None:
        self.commands_seen = 0
        self.dropped = 0
        self._upstream = urlsplit(upstream)
        self._tcp = tcp
        self._rules: list[Rule] = []
        self._refusing = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._directory = tempfile.mkdtemp(prefix="ts-proxy-")

    async def __aenter__(self) -> Self:
        if self._tcp:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LINE_MAX)
            self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        else:
            path = f"{self._directory}/s"
            self._server = await asyncio.start_unix_server(self._accept, path, limit=LINE_MAX)
            self.url = f"unix://{path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    def drop_reply(self, when: When, times: int | None = 1) -> Rule:
        """The server executes the command; the client loses the connection instead of hearing."""
        return self._arm(Rule(when, times, drop=True))

    def delay(self, when: When, seconds: float, times: int | None = None) -> Rule:
        """The reply comes late, and with it all later replies of that connection."""
        return self._arm(Rule(when, times, delay_s=seconds))

    def refuse(self, on: bool = True) -> None:
        """New connections are closed at once."""
        self._refusing = on

    def cut(self) -> None:
        """Every connection ends now, in both directions."""
        for connection in self._connections:
            for writer in connection.writers:
                writer.transport.abort()

    def blackhole(self, on: bool = True) -> None:
        """Nothing passes, nobody is told; what was sent meanwhile arrives when it ends."""
        (self._flowing.clear if on else self._flowing.set)()

    def clear(self) -> None:
        """Disarm everything."""
        self._rules.clear()
        self.refuse(False)
        self.blackhole(False)

    def _arm(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule

    # ── traffic ──────────────────────────────────────────────────────────────────────────────────

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.close()
            return
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        connection = Connection([writer])
        self._connections.add(connection)
        try:
            async with asyncio.timeout(CONNECT_S):
                from_server, to_server = await self._connect()
            connection.writers.append(to_server)
            await self._pump(connection, reader, from_server)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # asyncio's server would log it; for the client it is a closed connection
        finally:
            connection.close()
            self._connections.discard(connection)
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._upstream.scheme == "unix":
            return await asyncio.open_unix_connection(unquote(self._upstream.path), limit=LINE_MAX)
        host, port = self._upstream.hostname, self._upstream.port or 6379
        return await asyncio.open_connection(host, port, limit=LINE_MAX)

    async def _pump(
        self,
        connection: Connection,
        from_client: asyncio.StreamReader,
        from_server: asyncio.StreamReader,
    ) -> None:
        """Both directions, until one of them ends."""
        async with asyncio.TaskGroup() as group:
            pumps = [
                group.create_task(self._requests(connection, from_client)),
                group.create_task(self._replies(connection, from_server)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()

    async def _requests(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                raw, words = await read_frame(reader)
                await self._flowing.wait()
                if words[:1] and words[0].upper() in SUBSCRIBES:
                    connection.is_subscriber = True
                else:
                    connection.pending.append(self._match(words))
                self.commands_seen += 1
                connection.writers[1].write(raw)
                await connection.writers[1].drain()

    async def _replies(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                raw, words = await read_frame(reader)
                rule = None
                if not is_message(raw, words, connection) and connection.pending:
                    rule = connection.pending.popleft()
                if rule and rule.delay_s:
                    await asyncio.sleep(rule.delay_s)
                await self._flowing.wait()
                if rule and rule.drop:
                    self.dropped += 1
                    return
                connection.writers[0].write(raw)
                await connection.writers[0].drain()

    def _match(self, words: list[bytes]) -> Rule | None:
        """The first rule that has not had its fill."""
        for rule in self._rules:
            if (rule.times is None or rule.hits < rule.times) and rule.when(words):
                rule.hits += 1
                return rule
        return None


def is_message(raw: bytes, words: list[bytes], connection: Connection) -> bool:
    """A push (RESP3), or what looks like one on a connection that subscribed (RESP2)."""
    if raw[:1] == b">":
        return True
    return connection.is_subscriber and raw[:1] == b"*" and words[:1] != [] and words[0] in MESSAGES


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    """One whole frame: its bytes, and the strings at its first level (the words of a command)."""
    raw = await reader.readuntil(b"\r\n")
    kind, count = raw[:1], raw[1:-2]
    if kind in b"$=!":
        if count == b"-1":
            return raw, []
        body = await reader.readexactly(int(count) + 2)
        return raw + body, [body[:-2]]
    if kind in b"*~>%|":
        parts = [await read_frame(reader) for _ in range(int(count) * (2 if kind in b"%|" else 1))]
        if kind == b"|":  # attributes: the frame they belong to follows
            parts.append(await read_frame(reader))
        words = [words[0] if words else b"" for _, words in parts]
        return raw + b"".join(part for part, _ in parts), words
    return raw, raw[:-2].split() if kind.isalpha() else [raw[:-2]]  # an inline command, or a line
