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

    url: str = field(default=DEFAULT_URL, repr=False)  # may hold a password
    redis_ca: str = ""  # paths of PEM files, for rediss://
    redis_cert: str = ""
    redis_key: str = ""
    namespace: str = "ts"
    shards: int = 16
    tenant: str = "default"
    api_key: str = field(default="", repr=False)  # of a client of the HTTP API
    unsafe_redis: bool = False
    log_level: str = "info"

    host: str = "127.0.0.1"
    port: int = 8000
    body_bytes_max: int = 1024 * 1024
    batch_bytes_max: int = 16 * 1024 * 1024
    sse_connections_max: int = 100  # of one API process
    api_waiting_max: int = 1_000  # requests of one API process that wait for Redis
    api_slow_ms: int = 1_000  # a create that waits longer lets no further one in
    memory_budget: int = 0  # bytes; 0 = the server's maxmemory, where it has one
    memory_refuse: float = 0.9  # of the budget: above it nothing new is accepted
    patience_ms: int = 10_000  # of a client: how long it asks again after "later"

    lease_ms: int = 30_000
    payload_bytes_max: int = 256 * 1024
    result_bytes_max: int = 64 * 1024
    encryption_keys: str = field(default="", repr=False)  # id:base64,…: read by model.seal

    queues: tuple[str, ...] = ("*",)
    concurrency: int = 100
    grace_ms: int = 25_000
    processes: int = 1
    cells: int = 0  # 0 = one per CPU
    abort_on_lease_loss: bool = False
    http_allow: tuple[str, ...] = ()
    http_deny: tuple[str, ...] = ()
    http_timeout_ms: int = 30_000
    http_response_bytes_max: int = 64 * 1024
    http_host_concurrency: int = 20  # of one worker; 0 = any number
    http_breaker_failures: int = 10  # in a row; 0 = no circuit breaker
    http_breaker_open_ms: int = 30_000
    callback_lease_ms: int = 5 * 60_000

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
        _between("cells", self.cells, 0, 256)
        _between("port", self.port, 0, 65535)
        _between("http_host_concurrency", self.http_host_concurrency, 0, 10_000)
        _between("http_breaker_failures", self.http_breaker_failures, 0, 10_000)
        _between("http_breaker_open_ms", self.http_breaker_open_ms, 100, 5 * 60_000)
        _between("callback_lease_ms", self.callback_lease_ms, 500, 24 * 3_600_000)
        _between("sse_connections_max", self.sse_connections_max, 0, 100_000)
        _between("api_waiting_max", self.api_waiting_max, 4, 1_000_000)
        _between("api_slow_ms", self.api_slow_ms, 10, 10 * 60_000)
        _between("memory_budget", self.memory_budget, 0, 1 << 50)
        _between("memory_refuse", self.memory_refuse, 0.1, 1)
        _between("patience_ms", self.patience_ms, 0, 24 * 3_600_000)
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


def _between(name: str, value: float, least: float, most: float) -> None:
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
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise Invalid(f"{where} must be a number; got {text!r}") from None
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
