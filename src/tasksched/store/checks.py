"""Checks of a server before it is trusted with tasks, each with a name, a level and a sentence.

``refuse``: it would lose tasks (an evicting policy, a replica, commands that are missing); a start
goes on only with ``--unsafe-redis``. ``warn``: it works, for a price that is named. ``ok``: so that
``tasksched doctor`` can show what was looked at. Facts a managed server does not tell are skipped.
"""

from typing import Any, Literal, NamedTuple

from tasksched import clock
from tasksched.errors import TaskschedError, Unsafe
from tasksched.store.acl import OPTIONAL, ROLES, every_command, missing_of
from tasksched.store.connect import Gateway

LISTPACK_VALUE_MIN = 1024
SKEW_MAX_MS = 2_000

# The first release of each line without CVE-2025-49844 and its neighbours.
PATCHED = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}

Level = Literal["ok", "warn", "refuse"]


class Finding(NamedTuple):
    level: Level
    name: str
    text: str


async def check_server(gateway: Gateway) -> list[Finding]:
    """Everything that was looked at, worst first. Raises Unavailable when Redis does not answer."""
    info = _info(await gateway.command("INFO"))
    config = await _config(gateway)
    found = [
        _version(info),
        _role(info),
        _policy(info),
        _persistence(info, config),
        _listpack(config),
        await _commands(gateway),
        _permissions(gateway),
        await _skew(gateway),
        *(Finding("warn", "transport", text) for text in gateway.remarks),
    ]
    order = {"refuse": 0, "warn": 1, "ok": 2}
    return sorted((f for f in found if f is not None), key=lambda f: order[f.level])


async def require_safe(gateway: Gateway, *, unsafe: bool) -> list[Finding]:
    """The findings that are not ok. Raises Unsafe for a refusal, unless ``unsafe``."""
    found = [finding for finding in await check_server(gateway) if finding.level != "ok"]
    refused = [finding.text for finding in found if finding.level == "refuse"]
    if refused and not unsafe:
        raise Unsafe("; ".join(refused) + " (--unsafe-redis starts all the same)")
    return found


def _info(raw: Any) -> dict[str, str]:
    if isinstance(raw, dict):
        return {str(name): str(value) for name, value in raw.items()}
    lines = raw.decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


async def _config(gateway: Gateway) -> dict[str, str]:
    """What CONFIG GET tells; nothing where it is not allowed."""
    found: dict[str, str] = {}
    if "CONFIG|GET" in gateway.denied:
        return found
    for name in ("appendfsync", "no-appendfsync-on-rewrite", "hash-max-listpack-value"):
        try:
            reply = await gateway.command("CONFIG", "GET", name)
        except TaskschedError as error:
            if error.retryable:
                raise
            return {}
        flat = list(reply.items()) if isinstance(reply, dict) else [tuple(reply)] if reply else []
        for key, value in flat:
            found[_text(key)] = _text(value)
    return found


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def _version(info: dict[str, str]) -> Finding:
    make = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get(f"{make.lower()}_version", "0")
    major, minor, patch = (int(part) for part in [*version.split("."), "0", "0"][:3])
    if major < 7:
        return Finding(
            "refuse", "version", f"Redis {version} is too old; 7.0 is the oldest that works"
        )
    floors = PATCHED[make]
    if (major, minor) > max(floors) or patch >= floors.get((major, minor), 1 << 30):
        return Finding("ok", "version", f"{make} {version}")
    text = f"{make} {version} as its makers left it lets Lua code take over the server"
    if (major, minor) in floors:
        mended = f"{major}.{minor}.{floors[major, minor]}"
        return Finding("warn", "version", f"{text}; {mended} does not")
    return Finding("warn", "version", f"{text}: use a newer one, or a distribution that mends it")


def _role(info: dict[str, str]) -> Finding:
    role = info.get("role", "master")
    if role != "master":
        return Finding(
            "refuse", "role", "this server is a replica; name its primary, or use Sentinel"
        )
    return Finding("ok", "role", "primary")


def _policy(info: dict[str, str]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return Finding(
            "refuse", "eviction", f"maxmemory-policy {policy} evicts tasks; set noeviction"
        )
    return Finding("ok", "eviction", "noeviction")


def _persistence(info: dict[str, str], config: dict[str, str]) -> Finding:
    if info.get("aof_enabled") != "1":
        return Finding(
            "warn",
            "persistence",
            "no append-only file: a crash loses what came since the last snapshot",
        )
    fsync = config.get("appendfsync", "unknown")
    if fsync == "no":
        return Finding(
            "warn",
            "persistence",
            "appendfsync no: a crash of the machine loses up to half a minute",
        )
    if config.get("no-appendfsync-on-rewrite") == "yes":
        return Finding(
            "warn",
            "persistence",
            "no-appendfsync-on-rewrite yes: a crash during a rewrite loses more",
        )
    return Finding("ok", "persistence", f"append-only file, appendfsync {fsync}")


def _listpack(config: dict[str, str]) -> Finding | None:
    if "hash-max-listpack-value" not in config:
        return None
    value = int(config["hash-max-listpack-value"])
    if value < LISTPACK_VALUE_MIN:
        text = f"hash-max-listpack-value {value}: tasks take about twice the memory; set 2048"
        return Finding("warn", "memory", text)
    return Finding("ok", "memory", f"hash-max-listpack-value {value}")


async def _commands(gateway: Gateway) -> Finding:
    names = sorted(every_command() - OPTIONAL)
    # The name as bytes: the library cannot read a reply that lacks some of them.
    told = await gateway.command(b"COMMAND", "INFO", *names)
    missing = [name for name, about in zip(names, told, strict=True) if about is None]
    if missing:
        return Finding("refuse", "commands", f"the server lacks {', '.join(missing)}")
    return Finding("ok", "commands", "all there")


def _permissions(gateway: Gateway) -> Finding:
    if not gateway.knows_denied:
        text = "the server does not say what our user may do: see docs/security.md"
        return Finding("warn", "permissions", text)
    able = [role for role in ROLES if not missing_of([role], gateway.denied)]
    return Finding("ok", "permissions", f"enough for {', '.join(able) or 'no role'}")


async def _skew(gateway: Gateway) -> Finding:
    seconds, micros = await gateway.command("TIME")
    skew_ms = int(seconds) * 1000 + int(micros) // 1000 - clock.wall_ms()
    if abs(skew_ms) > SKEW_MAX_MS:
        text = f"this host's clock and the server's differ by {skew_ms} ms; the server's decides"
        return Finding("warn", "clock", text)
    return Finding("ok", "clock", f"differs by {skew_ms} ms")
