"""What is found out about a server before it is trusted: from replies that a test makes up."""

from typing import Any

import pytest

from tasksched.errors import Unsafe
from tasksched.store.acl import OPTIONAL, every_command
from tasksched.store.checks import Finding, check_server, require_safe

pytestmark = pytest.mark.anyio

SAFE = {"role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1"}


class Stub:
    """A gateway whose server says this of itself."""

    def __init__(self, *, lacks: str = "", **info: str) -> None:
        self.denied = frozenset({"CONFIG|GET"})
        self.knows_denied = True
        self.remarks: list[str] = []
        self._info = {"redis_version": "8.4.0", **SAFE, **info}
        self._lacks = lacks

    async def command(self, name: str | bytes, *arguments: Any) -> Any:
        match name:
            case "INFO":
                return self._info
            case b"COMMAND":
                return [None if each == self._lacks else [each] for each in arguments[1:]]
            case "TIME":
                return [1_764_000_000, 0]
        raise AssertionError(f"{name!r} is not allowed")


async def found(stub: Stub, name: str) -> list[Finding]:
    return [each for each in await check_server(stub) if each.name == name]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("info", "level", "part"),
    [
        ({"redis_version": "6.2.20"}, "refuse", "too old"),
        ({"redis_version": "7.0.15"}, "warn", "a distribution that mends it"),
        ({"redis_version": "7.2.10"}, "warn", "7.2.11 does not"),
        ({"redis_version": "7.2.11"}, "ok", "Redis 7.2.11"),
        ({"redis_version": "7.4.5"}, "warn", "7.4.6 does not"),
        ({"redis_version": "8.0.3"}, "warn", "8.0.4 does not"),
        ({"redis_version": "8.2.1"}, "warn", "8.2.2 does not"),
        ({"redis_version": "8.2.2"}, "ok", "Redis 8.2.2"),
        ({"redis_version": "8.4.0"}, "ok", "Redis 8.4.0"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.3"}, "warn", "8.1.4 does not"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "ok", "Valkey 9.1.2"),
        ({"redis_version": "9"}, "ok", "Redis 9"),
    ],
)
async def test_versions_that_lua_code_can_take_over_are_told(
    info: dict[str, str], level: str, part: str
):
    (version,) = await found(Stub(**info), "version")
    assert version.level == level
    assert part in version.text


async def test_a_server_that_lacks_a_command_is_refused():
    for lacking in sorted(every_command() - OPTIONAL)[:3]:
        with pytest.raises(Unsafe, match="the server lacks"):
            await require_safe(Stub(lacks=lacking), unsafe=False)  # type: ignore[arg-type]


async def test_config_is_not_asked_for_where_it_is_denied():
    (persistence,) = await found(Stub(), "persistence")
    assert persistence.text == "append-only file, appendfsync unknown"


async def test_what_a_user_is_enough_for_is_told():
    stub = Stub()
    stub.denied |= {"XREADGROUP", "XINFO|CONSUMERS"}
    (told,) = await found(stub, "permissions")
    assert told == Finding("ok", "permissions", "enough for api, producer, reader, admin")
    stub.knows_denied = False
    (told,) = await found(stub, "permissions")
    assert told.level == "warn"


async def test_the_way_to_the_server_is_told():
    stub = Stub()
    stub.remarks = ["not encrypted"]
    assert await found(stub, "transport") == [Finding("warn", "transport", "not encrypted")]
