"""Patterns: handlers by shell wildcards (``billing.*``), of which the server knows a beginning only."""

import fnmatch
import re

from tasksched.model.task import HandlerTarget

_GLOB = re.compile(r"[*?\[]")


def prefix_of(pattern: str) -> str:
    """What the server can filter by: a whole name, or what stands before the first wildcard."""
    plain = _GLOB.split(pattern, maxsplit=1)[0]
    return pattern if plain == pattern else f"{plain}*"


def matches(target: object, pattern: str) -> bool:
    """Whether it is a handler whose name fits."""
    return isinstance(target, HandlerTarget) and fnmatch.fnmatchcase(target.name, pattern)
