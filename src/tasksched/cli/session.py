"""One command's work: settings from flags and environment, a backend, an event loop, a clean end."""

# ruff: noqa: PLC0415 - imports wait until they are needed: see the package

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tasksched.cli.group import said

T = TypeVar("T")


def settings() -> Any:
    """The effective ``Settings`` of this command."""
    from tasksched.client.link import settings_of

    flags = said()
    return settings_of(flags.url, flags.namespace, flags.tenant)


def ask(work: Callable[[Any, str], Awaitable[T]]) -> T:
    """``work(backend, tenant)`` on a connected backend. It attaches to a server, never starts one."""
    import asyncio

    from tasksched.client.link import open_backend

    effective = settings()

    async def run() -> T:
        backend = await open_backend(effective, start_embedded=False)
        try:
            return await work(backend, effective.tenant)
        finally:
            await backend.close()

    return asyncio.run(run())


def duration_ms(text: str | None, pointer: str) -> int | None:
    from tasksched.model.durations import parse_duration

    return None if text is None else parse_duration(number(text), pointer)


def number(text: str) -> int | str:
    """``5`` on a command line is five seconds: there is no other way to write the number."""
    return int(text) if text.isascii() and text.isdigit() else text


def read_text(text: str) -> bytes:
    """The bytes a value stands for: itself, ``@file``, or ``-`` for stdin."""
    import sys

    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        return Path(text[1:]).read_bytes()
    return text.encode()
