"""Settings: one frozen value, read from the environment once, handed out in slices.

Every default stands here, with its unit in its name. ``from_environment`` is the only reader of
``os.environ``: ``TASKSCHED_<NAME>`` (durations as ``30s``), ``TASKSCHED_<NAME>_FILE`` for secrets
in files, ``REDIS_URL`` where ``TASKSCHED_URL`` is not set. Flags of the command line are laid over
it with ``with_flags``. ``sources`` remembers where each value came from (``tasksched config show``).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tasksched.errors import Invalid

# The layer of plain values may not import the rules above it; durations here are parsed by the
# caller that knows them (``parse_duration`` is handed in by the composition root).
ParseDuration = Callable[[object, str], int]

DEFAULT_URL = "embedded:.tasksched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it. See ``docs/configuration.md`` for the same list with words around it."""

    url: str = DEFAULT_URL
    namespace: str = "ts"
    shards: int = 16
    tenant: str = "default"
    unsafe_redis: bool = False
    log_level: str = "info"

    host: str = "127.0.0.1"
    port: int = 8000
    body_bytes_max: int = 1024 * 1024
    batch_bytes_max: int = 16 * 1024 * 1024

    lease_ms: int = 30_000
    payload_bytes_max: int = 256 * 1024
    result_bytes_max: int = 64 * 1024

    queues: tuple[str, ...] = ("*",)
    concurrency: int = 100
    grace_ms: int = 25_000
    processes: int = 1
    abort_on_lease_loss: bool = False
    http_allow: tuple[str, ...] = ()
    http_timeout_ms: int = 30_000
    http_response_bytes_max: int = 64 * 1024

    retention_success_ms: int = 24 * 3_600_000
    retention_failed_ms: int = 14 * 24 * 3_600_000
    retention_count_max: int = 1_000_000
    retention_bytes_max: int = 0  # 0 = a quarter of the server's memory budget
    key_memory_ms: int = 24 * 3_600_000
    id_memory_ms: int = 3_600_000

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _between("shards", self.shards, 1, 1024)
        _between("lease_ms", self.lease_ms, 500, 24 * 3_600_000)
        _between("concurrency", self.concurrency, 1, 10_000)
        _between("processes", self.processes, 1, 256)
        _between("port", self.port, 0, 65535)
        _between("payload_bytes_max", self.payload_bytes_max, 1, 512 * 1024)
        _between("result_bytes_max", self.result_bytes_max, 1, 512 * 1024)

    def to_environment(self) -> dict[str, str]:
        """The environment with which a child process has these very settings."""
        given = {
            variable(name): _written(name, getattr(self, name))
            for name in self.sources
            if self.sources[name] == "flag"
        }
        return {**os.environ, **given}

    def with_flags(self, **flags: Any) -> "Settings":
        """These settings with the flags that were given (not None) laid over them."""
        given = {name: value for name, value in flags.items() if value is not None}
        sources = {**self.sources, **dict.fromkeys(given, "flag")}
        return replace(self, **given, sources=sources)


def _written(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return f"{value}ms"
    return (
        ",".join(value)
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise Invalid(f"{name} must be from {least} to {most}; got {value}", f"/{name}")


def variable(name: str) -> str:
    """The environment variable of a setting: its name without the unit of a duration."""
    return "TASKSCHED_" + name.removesuffix("_ms").upper()


def from_environment(
    parse_duration: ParseDuration, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings as the environment gives them. Raises Invalid naming the variable."""
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for spec in fields(Settings):
        if spec.name == "sources":
            continue
        found = _look_up(env, variable(spec.name))
        if found is None and spec.name == "url" and env.get("REDIS_URL"):
            found = (env["REDIS_URL"], "REDIS_URL")
        if found is not None:
            values[spec.name] = _read(spec.name, spec.type, found[0], parse_duration)
            sources[spec.name] = found[1]
    return Settings(**values, sources=sources)


def _look_up(env: Mapping[str, str], name: str) -> tuple[str, str] | None:
    if name in env:
        return env[name], name
    path = env.get(f"{name}_FILE")
    if path is None:
        return None
    try:
        return Path(path).read_text().strip(), f"{name}_FILE"
    except OSError as error:
        raise Invalid(f"{name}_FILE: {error}") from error


def _read(name: str, kind: Any, text: str, parse_duration: ParseDuration) -> Any:
    where = variable(name)
    if name.endswith("_ms"):
        return parse_duration(text, where)
    if kind is bool:
        if text.lower() not in {"1", "0", "true", "false", "yes", "no"}:
            raise Invalid(f"{where} must be true or false; got {text!r}")
        return text.lower() in {"1", "true", "yes"}
    if kind is int:
        if not (text.isascii() and text.isdigit()):
            raise Invalid(f"{where} must be a whole number; got {text!r}")
        return int(text)
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
