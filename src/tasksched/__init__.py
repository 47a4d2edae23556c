"""tasksched: durable task scheduling on Redis.

What is public stands in ``__all__`` and in ``__init__.pyi``, which type checkers read. The names
are loaded when first used: the command line and a worker need only some of them, and an import of
everything takes longer than a ``tasksched --help``.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "App": "client.app",
    "Call": "client.handler",
    "Conflict": "errors",
    "Cron": "model.schedule",
    "Ctx": "runtime.context",
    "Delay": "model.schedule",
    "Discard": "model.control",
    "Every": "model.schedule",
    "Forbidden": "errors",
    "Handler": "client.handler",
    "Invalid": "errors",
    "KeyReused": "errors",
    "MemoryBudget": "errors",
    "NotFound": "errors",
    "Operation": "client.bulk",
    "Overloaded": "errors",
    "PartlyFailed": "client.many",
    "PreconditionFailed": "errors",
    "QuotaReached": "errors",
    "RRule": "model.schedule",
    "RateLimited": "errors",
    "Receiver": "model.notify",
    "Recurring": "client.recurring",
    "Retry": "model.retry",
    "RetryLater": "model.control",
    "Submitter": "client.handler",
    "Task": "client.task",
    "TaskCancelled": "client.task",
    "TaskFailed": "client.task",
    "TaskschedError": "errors",
    "TooLarge": "errors",
    "TooManyRequests": "errors",
    "Unauthorized": "errors",
    "Unavailable": "errors",
    "Unsafe": "errors",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
