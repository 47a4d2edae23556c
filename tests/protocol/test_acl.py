"""What the tables of ``store.acl`` say is what the sources do, and the rules are what Redis enforces."""

import ast
import re
from pathlib import Path

import pytest
import redis
from tests.servers import ServerProcess
from tests.users import EVERYTHING, denials, user_url

from tasksched.errors import Invalid, Unsafe
from tasksched.settings import Settings
from tasksched.store import acl, scripts
from tasksched.store.acl import MODULES, NEVER_GRANTED, PLAIN, ROLES, SCRIPTS, commands_of
from tasksched.store.connect import Gateway, meaning
from tasksched.store.permissions import permissions, require_roles
from tasksched.store.protocol import Store

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "tasksched"
SENDERS = {"command", "execute_command", "send_command", "send", "_pipeline"}
CONTAINERS = {"ACL", "CLIENT", "COMMAND", "CONFIG", "XGROUP", "XINFO"}
# Where a role begins; what it imports from there on is what it runs.
ENTRIES = {
    "api": ["http.api"],
    "producer": ["client.direct"],
    "scheduler": ["runtime.scheduler", "commands.operator"],
    "worker": ["runtime.worker", "client.declared", "store.beats"],
    "admin": ["client.direct", "commands.reseal"],
}
# A session holds more than every role uses: what those use is reached from their own entries.
LEAVES = {"commands.session"}
DANGEROUS = {
    "ACL|SETUSER", "ACL|LOAD", "CONFIG|SET", "CONFIG|GET", "DEBUG", "SHUTDOWN", "FLUSHALL", "FLUSHDB",
    "KEYS", "SCRIPT|FLUSH", "FUNCTION|LOAD", "MONITOR", "REPLICAOF", "SAVE", "SWAPDB", "MIGRATE",
    "CLIENT|KILL",
}  # fmt: skip


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name] = ast.parse(path.read_text())
    return found


TREES = modules()
del TREES["store.acl"]  # the tables themselves


def constant(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else ""


def words_of(node: ast.AST) -> list[ast.expr]:
    """The words of a command, where the node is one."""
    if isinstance(node, ast.Tuple):
        return node.elts
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return node.args if name in SENDERS else []
    return []


def sent_by(tree: ast.Module, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        words = words_of(node)
        name = constant(words[0]) if words else ""
        if not re.fullmatch(r"[A-Z_]{3,}", name) or name not in known:
            continue
        found.add(f"{name}|{constant(words[1])}" if name in CONTAINERS else name)
    return found


def imports_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("tasksched.") for name in found if name.startswith("tasksched.")}


def reached_from(entries: list[str]) -> set[str]:
    seen: set[str] = set()
    waiting = [*entries]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in TREES:
            continue
        seen.add(name)
        if name not in LEAVES:
            waiting += imports_of(TREES[name])
    return seen


def part(name: str) -> str:
    return name.partition(".")[0]


@pytest.fixture(scope="module")
def known(server_pool) -> set[str]:
    """Every command name there is."""
    with redis.Redis.from_url(server_pool.get("valkey").url, decode_responses=True) as client:
        return {name.upper() for name in client.execute_command(b"COMMAND", "LIST")}


# -- the tables and the sources -------------------------------------------------------------------


def test_every_plain_command_of_the_sources_is_in_the_table(known: set[str]):
    sent = {
        name: tuple(sorted(found))
        for name, tree in TREES.items()
        if part(name) in {"store", "commands", "runtime", "app", "client"}
        and (found := sent_by(tree, known))
    }
    # ``permissions`` tries a transaction where it may not ask.
    sent["store.permissions"] = tuple(sorted({*sent["store.permissions"]} - {"MULTI", "DISCARD"}))
    assert {name: tuple(sorted(found)) for name, found in PLAIN.items()} == sent


@pytest.mark.parametrize("role", sorted(ENTRIES))
def test_a_role_has_the_modules_that_it_reaches(role: str):
    reached = {name for name in reached_from(ENTRIES[role]) if name in PLAIN}
    assert reached - set(MODULES[role]) == set()


def test_every_script_has_a_role():
    assert set().union(*SCRIPTS.values()) == set(scripts.names())


@pytest.mark.parametrize("role", sorted(ENTRIES))
def test_a_role_has_the_scripts_that_its_modules_call(role: str):
    names = set(scripts.names())
    called = set()
    for module in reached_from(ENTRIES[role]):
        if part(module) in {"commands", "runtime", "client"} or module == "store.beats":
            called |= scripts_called_by(TREES[module]) & names
    if role == "scheduler":  # its operator shares a module with clients, and creates nothing
        called -= {"submit", "run_now"}
    assert called - set(SCRIPTS[role]) == set()


def scripts_called_by(tree: ast.Module) -> set[str]:
    """``self._store.settle(…)``, ``schedules.fire(…)``, ``gateway.run("page", …)``."""
    found = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        if name in {"run", "_run"} and node.args:
            found.add(constant(node.args[0]))
        elif re.search(r"(store|schedules|sealed|beats|limits)$", owner) or name == "page":
            found.add(name)
    return found


def test_only_what_is_compiled_here_is_evaluated():
    senders = {
        name: [
            ast.unparse(words_of(node)[1])
            for node in ast.walk(tree)
            if (words := words_of(node)) and constant(words[0]).startswith("EVAL")
        ]
        for name, tree in TREES.items()
    }
    evaluated = {name: set(found) for name, found in senders.items() if found}
    compiled = {"found.sha", "found.source"}
    assert evaluated == {"store.beats": compiled, "store.connect": compiled}


@pytest.mark.parametrize(
    "source", ["redis.call(name, key)", "redis.pcall( verb )", "redis.call('XGROUP', what, key)"]
)
def test_a_command_that_cannot_be_read_from_a_script_is_an_error(source: str):
    with pytest.raises(ValueError, match="not a literal"):
        acl.calls_in(source)


def test_calls_are_read_from_scripts():
    source = "redis.call('HSET', a, b) redis.pcall('XGROUP', 'CREATE', c)\nredis.call('TIME')"
    assert acl.calls_in(source) == {"HSET", "XGROUP|CREATE", "TIME"}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_gets_what_is_dangerous(role: str):
    assert commands_of(role) & (DANGEROUS | NEVER_GRANTED) == set()


def test_the_file_beside_the_compose_file_is_what_is_generated():
    lines = "".join(f"{acl.user_line(role, 'ts')}\n" for role in ROLES)
    assert (ROOT / "docker" / "tasksched.acl").read_text() == lines


@pytest.mark.parametrize("text", ["", "nobody", "api+api", "api,worker", "API"])
def test_only_roles_are_roles(text: str):
    with pytest.raises(Invalid):
        acl.roles_of(text)


@pytest.mark.parametrize("namespace", ["*", "a:b", "a b", "a~*", ""])
def test_a_namespace_cannot_widen_the_rules(namespace: str):
    with pytest.raises(Invalid):
        acl.rules_of(["api"], namespace)


# -- the rules and the servers --------------------------------------------------------------------


def test_every_server_takes_the_file(redis_server: ServerProcess):
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        is_7_0 = client.info("server")["redis_version"].startswith("7.0.")
        for role in ROLES:
            _, name, *rules = acl.user_line(role, "ts", "0" * 64, for_7_0=is_7_0).split(" ")
            assert client.execute_command("ACL", "SETUSER", name, "reset", *rules) == "OK"
            assert "nopass" not in client.acl_getuser(name)["flags"]
            client.acl_deluser(name)


@pytest.mark.anyio
@pytest.mark.parametrize("role", ROLES)
async def test_a_user_of_a_role_is_denied_nothing_that_it_needs(
    redis_server: ServerProcess, role: str
):
    denials(redis_server.url)
    gateway = Gateway.open(user_url(redis_server.url, role))
    found = await permissions(gateway, "ts")
    await gateway.close()
    assert found.is_known
    assert found.user == f"tasksched-{role}"
    assert found.denied >= NEVER_GRANTED
    assert acl.missing_of([role], found.denied) == []
    assert denials(redis_server.url) == []


ALONE = {
    "producer": ("worker", "XREADGROUP"), "api": ("scheduler", "XINFO|CONSUMERS"),
    "scheduler": ("worker", "SMISMEMBER"), "worker": ("scheduler", "XGROUP|DELCONSUMER"),
    "reader": ("producer", "HSET"),
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("role", sorted(ALONE))
async def test_a_role_does_not_start_as_another_ones_user(redis_server: ServerProcess, role: str):
    other, command = ALONE[role]
    gateway = Gateway.open(user_url(redis_server.url, role))
    with pytest.raises(Unsafe, match=re.escape(command)) as refused:
        await require_roles(gateway, "ts", [other], unsafe=False)
    assert f"tasksched-{role} may not do what {other} needs in namespace ts" in str(refused.value)
    await require_roles(gateway, "ts", [other], unsafe=True)  # --unsafe-redis
    await gateway.close()


@pytest.mark.anyio
async def test_a_script_that_its_user_cannot_finish_is_not_begun(redis_server: ServerProcess):
    gateway = Gateway.open(
        user_url(redis_server.url, EVERYTHING, "ts", "-xreadgroup", "-xinfo|consumers")
    )
    await require_roles(gateway, "ts", [], unsafe=False)
    store = Store(gateway, "ts", 1)
    with pytest.raises(Unsafe, match="XREADGROUP, so take was not begun"):
        await store.take(0, "w", call=1, slots=1, lease_ms=1000)
    with pytest.raises(Unsafe, match=r"XINFO\|CONSUMERS, so sweep was not begun"):
        await store.sweep(0, "default:normal:charge", "-")
    await gateway.close()
    with redis.Redis.from_url(redis_server.url) as plain:
        assert plain.keys("*") == []


@pytest.mark.anyio
@pytest.mark.parametrize("namespace", ["other", "ts2", "t"])
async def test_another_namespace_is_out_of_reach(redis_server: ServerProcess, namespace: str):
    gateway = Gateway.open(user_url(redis_server.url, EVERYTHING))
    with pytest.raises(Unsafe, match=f"namespace {namespace}"):
        await require_roles(gateway, namespace, ["api"], unsafe=False)
    with pytest.raises(Unsafe, match="lacks a permission"):
        await gateway.command("HGET", f"{namespace}:meta", "shards")
    with pytest.raises(Unsafe, match="lacks a permission"):
        await gateway.command("GET", f"{{{namespace}:0}}:x")
    with pytest.raises(Unsafe, match="lacks a permission"):
        await gateway.command("SPUBLISH", f"{{{namespace}:0}}:wake", "x")
    await gateway.close()


@pytest.mark.anyio
async def test_a_denial_is_a_clear_error_and_no_outage(redis_server: ServerProcess):
    """A permission that is taken away while we run: one try, not ten seconds of them."""
    gateway = Gateway.open(user_url(redis_server.url, EVERYTHING, "ts", "-hset"))
    with pytest.raises(Unsafe, match=r"lacks a permission, see docs/security\.md") as denied:
        await Store(gateway, "ts", 1).dispatch(0)  # denied in the middle of the script
    assert gateway.replays == 0
    assert not denied.value.retryable
    with pytest.raises(Unsafe, match="lacks a permission"):
        await gateway.command("HSET", "{ts:0}:clock", "seen_ms", 1)
    await gateway.close()


@pytest.mark.anyio
async def test_where_dryrun_is_not_allowed_the_commands_are_queued_and_discarded(
    redis_server: ServerProcess,
):
    rules = ("-acl|dryrun", "-xreadgroup", "+multi", "+discard")
    gateway = Gateway.open(user_url(redis_server.url, EVERYTHING, "ts", *rules))
    found = await permissions(gateway, "ts")
    await gateway.close()
    assert found.is_known
    assert found.denied >= {"XREADGROUP", "ACL|DRYRUN", "CONFIG|GET"}
    assert acl.missing_of(["worker"], found.denied - {"ACL|DRYRUN"}) == ["XREADGROUP"]
    with redis.Redis.from_url(redis_server.url) as plain:
        assert plain.keys("*") == []


@pytest.mark.anyio
@pytest.mark.parametrize("rules", [("-acl|dryrun",), ("-acl|whoami",), ("-command|info",)])
async def test_where_nothing_may_be_asked_nothing_is_known(
    redis_server: ServerProcess, rules: tuple[str, ...]
):
    gateway = Gateway.open(user_url(redis_server.url, EVERYTHING, "ts", *rules))
    await require_roles(gateway, "ts", ["worker"], unsafe=False)
    assert (gateway.denied, gateway.knows_denied) == (frozenset(), False)
    await gateway.close()


def test_what_redis_says_of_a_login_that_fails_names_no_password():
    error = redis.AuthenticationError("invalid username-password pair or user is disabled.")
    assert "password pair" in str(meaning(error))


def test_settings_do_not_show_the_password():
    assert "secret" not in repr(Settings(url="redis://u:secret@h/0"))
