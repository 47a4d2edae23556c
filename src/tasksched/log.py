"""Logging: structlog over the standard library. Payloads never.

Events are words (``task.start``, ``lease.lost``), values are fields. A program that uses the client
sees what it configured for the logger ``tasksched``; the command line calls ``set_up``: JSON lines
where nobody looks, colour where somebody does, always on stderr.
"""

import logging
import sys
from typing import Any

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def get(part: str) -> Any:
    """The logger of one part of the program, ``tasksched.<part>``."""
    return structlog.wrap_logger(
        logging.getLogger(f"tasksched.{part}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        part=part,
    )


def set_up(level: str = "info", *, json: bool | None = None) -> None:
    """Sends what ``tasksched`` logs to stderr, as JSON or (default on a terminal) readable."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tasksched").setLevel(level.upper())
