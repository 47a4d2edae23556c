"""Fingerprints: which failures are the same one, seen from the outside.

Type, normalised message and the innermost frame of the handler. What differs from task to task
(numbers, ids, quoted values, addresses) is no part of it, so a thousand tasks that fail for one
reason are one group of dead letters. Line numbers are left out: a deploy that moves a function
would split its group.
"""

import hashlib
import re

from tasksched.model.task import ErrorInfo

_FRAME = re.compile(r'File "([^"]*)", line \d+, in (\S+)')
_NOISE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\b(?=\w*\d)\w{8,}\b"), "<id>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)
MESSAGE_MAX = 512  # of what distinguishes one message from another


def normalised(message: str) -> str:
    """The message without what differs from task to task."""
    text = message[: 4 * MESSAGE_MAX]
    for pattern, word in _NOISE:
        text = pattern.sub(word, text)
    return text.strip()[:MESSAGE_MAX]


def top_frame(traceback: str) -> str:
    """``file:function`` of the innermost frame; empty without a traceback."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    path, function = frames[-1]
    return f"{path.rsplit('/', 1)[-1]}:{function}"


def fingerprint_of(error: ErrorInfo) -> str:
    """16 hex digits, equal for failures of the same kind."""
    parts = (error.type, normalised(error.message), top_frame(error.traceback))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
