"""What a worker and its cells (child processes) say to each other.

A frame is four bytes of length, most significant first, and that many bytes of msgpack: one of the
structs below. Invariant: both ends run the same code, so nothing here is kept or versioned; nothing
in a frame is ever more than data.
"""

from typing import Any, Literal

import msgspec

from tasksched.errors import Invalid
from tasksched.model.outcome import Outcome
from tasksched.model.task import DEFAULT_OPTIONS, decode_options, encode_options
from tasksched.store.protocol import Grant

HEAD_BYTES = 4
FRAME_BYTES_MAX = 16 * 1024 * 1024


class Job(msgspec.Struct, tag="job", frozen=True, kw_only=True):
    """Worker to cell: run this. ``timeout_ms``: what the worker gives it, from its beginning."""

    grant: dict[str, Any]
    options: str
    lease_ms: int
    timeout_ms: int | None
    result_bytes_max: int


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Worker to cell: the run should end, and why."""

    why: str


class LeaseLost(msgspec.Struct, tag="lease_lost", frozen=True):
    """Worker to cell: somebody else may have the task by now."""


class Answer(msgspec.Struct, tag="answer", frozen=True, kw_only=True):
    """Worker to cell: of the question with this number; ``code`` of an error, with its detail."""

    number: int
    value: bytes | None = None
    code: str = ""
    detail: str = ""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Cell to worker: the app is loaded."""


class Begun(msgspec.Struct, tag="begun", frozen=True):
    """Cell to worker: the run begins; what happens from now on is an attempt."""


class News(msgspec.Struct, tag="news", frozen=True, kw_only=True):
    """Cell to worker: what the run said about itself since the last news.

    ``progress``: None if it asked for no heartbeat, else what goes with it; ``lines``: as ``Run.lines``.
    """

    progress: str | None = None
    lines: list[tuple[int, str]] = []


class Ask(msgspec.Struct, tag="ask", frozen=True, kw_only=True):
    """Cell to worker: something that the worker's desk does (``runtime.context.Desk``)."""

    number: int
    verb: Literal["checkpoint", "restore", "token"]
    value: bytes = b""


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """Cell to worker: how the run ended."""

    outcome: Outcome


ToCell = Job | Stop | LeaseLost | Answer
ToWorker = Ready | Begun | News | Ask | Ended

_encode = msgspec.msgpack.Encoder().encode
_to_cell = msgspec.msgpack.Decoder(ToCell)
_to_worker = msgspec.msgpack.Decoder(ToWorker)


def frame_of(said: ToCell | ToWorker) -> bytes:
    body = _encode(said)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def length_of(head: bytes) -> int:
    """Bytes of the body that follows. Raises Invalid for what cannot be ours."""
    length = int.from_bytes(head, "big")
    if length > FRAME_BYTES_MAX:
        raise Invalid(f"a frame of {length} bytes")
    return length


def read_by_cell(body: bytes) -> ToCell:
    return _to_cell.decode(body)


def read_by_worker(body: bytes) -> ToWorker:
    return _to_worker.decode(body)


def job_of(grant: Grant, *, lease_ms: int, timeout_ms: int | None, result_bytes_max: int) -> Job:
    """The grant as a frame holds it: plain values, the options as the record spells them."""
    fields = grant._asdict()
    options = encode_options(fields.pop("options"))
    return Job(
        grant=fields,
        options=options,
        lease_ms=lease_ms,
        timeout_ms=timeout_ms,
        result_bytes_max=result_bytes_max,
    )


def grant_of(job: Job) -> Grant:
    options = decode_options(job.options.encode()) if job.options else DEFAULT_OPTIONS
    return Grant(**job.grant, options=options)
