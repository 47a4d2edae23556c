"""Two tenants: whatever of one stands in a request of the other is answered like what nobody has.

Every position where an id can stand is asked twice by the stranger: with what the owner has, and with
something of the same shape that nobody has. The answers are equal byte for byte, but for what differs from
request to request; the owner's things stay as they were; and no answer holds a word of the owner's.
"""

import json
import random
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx2
import pytest
from tests.http.conftest import BROKEN, CHARGE
from tests.http.keys_kit import ALL_OF_A_TENANT, Guarded, open_guarded
from tests.http.test_live import Listener, begun
from tests.servers import ServerProcess

from tasksched.http.api import OPS
from tasksched.model import ids
from tasksched.model.endpoint import new_endpoint_id

pytestmark = pytest.mark.anyio

CANARY = "canary"
A, B = f"{CANARY}-tenant", "stranger"
QUEUE = f"{CANARY}-queue"
ALPHABET = ids.ALPHABET


class Owned(NamedTuple):
    """What the owner has: the words that name it, by kind."""

    task: str
    dead: str
    keyed: str
    recurring: str
    webhook: str
    delivery: str
    operation: str
    fingerprint: str
    fence: str
    cursors: dict[str, str]


class World:
    """Owner and stranger on one API."""

    def __init__(self, api: Guarded, owner: str, stranger: str, owned: Owned) -> None:
        self.api, self.owner, self.stranger, self.owned = api, owner, stranger, owned
        self.heard: list[str] = []

    async def as_stranger(
        self, verb: str, path: str, said: str, body: Any = None, **headers: str
    ) -> str:
        """The answer, with what was said and what is new each time taken out."""
        answer = await self.api.ask(verb, path, self.stranger, body, **headers)
        shown = normal(answer, said)
        self.heard.append(shown)
        return shown

    async def things(self) -> dict[str, Any]:
        """All that the owner has, as it sees it."""
        o = self.owned
        paths = [
            *(f"/tasks/{each}" for each in (o.task, o.dead, o.keyed, o.delivery)),
            f"/recurring-tasks/{o.recurring}", f"/webhooks/{o.webhook}", f"/operations/{o.operation}",
            "/tasks/count", "/tasks", "/recurring-tasks", "/webhooks", "/operations", "/dead-letters",
            "/dead-letters/groups", f"/webhooks/{o.webhook}/deliveries", f"/tenants/{A}", f"/queues/{QUEUE}",
        ]  # fmt: skip
        found = {}
        for path in paths:
            answer = await self.api.ask("GET", path, self.owner)
            assert answer.status_code == 200, (path, answer.text)
            found[path] = answer.json()
        return found


def normal(answer: httpx2.Response, said: str) -> str:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in {"x-request-id", "date", "content-length"}
    }
    shown = f"{answer.status_code}\n{json.dumps(headers, sort_keys=True)}\n{answer.text}"
    shown = shown.replace(said, "SAID").replace(answer.headers["x-request-id"], "REQUEST")
    shown = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", shown)
    shown = re.sub(rf"\bop_[0-9a-f]{{16}}\b|\b[{ALPHABET}]{{23}}\b", "NEW", shown)
    return re.sub(rf"ep_[{ALPHABET}]{{20}}|whsec_[\w+/=]+", "NEW", shown)


def like(word: str) -> str:
    """Something of the same shape that nobody has. A task's keeps its shard."""
    if re.fullmatch(rf"[{ALPHABET}]{{23}}", word):
        middle = "".join(random.choice(ALPHABET) for _ in range(12))
        return word[:9] + middle + word[-2:]
    if word.startswith("ep_"):
        return new_endpoint_id()
    if word.startswith("op_"):
        return f"op_{random.getrandbits(64):016x}"
    kinds = [(r"[a-f]", "abcdef"), (r"[0-9]", "0123456789"), (r"[g-z]", "ghjkmnpqrstvwxyz")]
    while True:
        made = "".join(
            next((random.choice(of) for shape, of in kinds if re.fullmatch(shape, c)), c)
            for c in word
        )
        if made != word:
            return made


async def make_owned(api: Guarded, owner: str) -> Owned:
    async def made(path: str, body: Any, **headers: str) -> Any:
        answer = await api.ask("POST", path, owner, body, **headers)
        assert answer.is_success, answer.text
        return answer.json()

    task = {
        "target": CHARGE,
        "queue": QUEUE,
        "tags": [f"{CANARY}-tag"],
        "payload": {"p": f"{CANARY}-payload"},
    }
    dead = (await made("/tasks", task))["task_id"]
    other = (await made("/tasks", task))["task_id"]
    started = await api.rig.start()
    await api.rig.finish(started, BROKEN)
    assert {dead, other} == {grant.id for _, grant in started}
    fence = str(started[0][1].fence)
    waiting = (await made("/tasks", {**task, "delay": "1h"}))["task_id"]
    keyed = (await made("/tasks", {**task, "delay": "1h"}, Idempotency_Key=f"{CANARY}-key"))[
        "task_id"
    ]
    named = {"target": CHARGE, "interval": "1h", "queue": QUEUE}
    for name in (f"{CANARY}-nightly", f"{CANARY}-daily"):
        await made("/recurring-tasks", {**named, "id": name})
    hook = {"url": f"https://{CANARY}.example/hook", "events": ["task.failed"]}
    webhook = (await made("/webhooks", hook))["webhook_id"]
    deliveries = [(await made(f"/webhooks/{webhook}/test", None))["delivery_id"] for _ in range(2)]
    bulk = {"filter": {"tag": f"{CANARY}-none"}, "rate": 1}
    operations = [(await made("/tasks/cancel", bulk))["operation_id"] for _ in range(2)]
    cursors = {}
    for path in (
        "/tasks", "/recurring-tasks", "/dead-letters", "/operations", f"/webhooks/{webhook}/deliveries"
    ):  # fmt: skip
        page = (await api.ask("GET", f"{path}?limit=1", owner)).json()
        assert page["next_cursor"], path
        cursors[path] = page["next_cursor"]
    groups = (await api.ask("GET", "/dead-letters/groups", owner)).json()
    return Owned(
        task=waiting, dead=dead, keyed=keyed, recurring=f"{CANARY}-nightly", webhook=webhook,
        delivery=deliveries[0], operation=operations[0], fence=fence, cursors=cursors,
        fingerprint=groups["items"][0]["fingerprint"],
    )  # fmt: skip


@pytest.fixture
async def world(valkey_server: ServerProcess) -> AsyncIterator[World]:
    valkey_server.flush()
    async with open_guarded(valkey_server.url) as api:
        owner = (await api.key(*ALL_OF_A_TENANT, tenant=A)).text
        stranger = (await api.key("admin", tenant=B)).text
        assert owner is not None
        assert stranger is not None
        yield World(api, owner, stranger, await make_owned(api, owner))


def candidates(path: str, owned: Owned) -> list[dict[str, str]]:
    """What of the owner's can stand in a path: the values of its parts."""
    if path.startswith(("/tasks/{id}", "/recurring-tasks/{id}", "/operations/{id}")):
        of_tasks = [owned.task, owned.dead, owned.keyed, owned.delivery]
        kinds = {"/tasks": of_tasks, "/recur": [owned.recurring], "/opera": [owned.operation]}
        return [{"id": each} for each in kinds[path[:6]]]
    if "{delivery}" in path:
        return [{"id": owned.webhook, "delivery": owned.delivery}]
    if path.startswith("/webhooks/{id}"):
        return [{"id": owned.webhook}]
    if "{queue}" in path:
        return [{"queue": QUEUE}]
    return [{"tenant": A}] if "{tenant}" in path else []


BODIES: dict[str, Any] = {
    "PATCH /tasks/{id}": {"delay": "2h"},
    "PUT /recurring-tasks/{id}": {"target": CHARGE, "interval": "2h"},
    "PATCH /recurring-tasks/{id}": {"interval": "2h"},
    "POST /recurring-tasks/{id}/backfill": {
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-01T02:00:00Z",
    },
    "PATCH /webhooks/{id}": {"description": "mine now"},
    "PUT /queues/{queue}": {"max_running": 1},
    "PUT /tenants/{tenant}": {"max_running": 1},
}
IN_PATHS = [op for op in OPS if "{" in op.path and op.scope != "public"]


@pytest.mark.parametrize("op", IN_PATHS, ids=lambda op: f"{op.verb} {op.path}")
async def test_what_stands_in_a_path(world: World, op):
    before = await world.things()
    known = candidates(op.path, world.owned)
    assert known
    for values in known:
        answers = []
        for said in (values, {name: like(value) for name, value in values.items()}):
            path = re.sub(r"{(\w+)}", lambda part, said=said: said[part[1]], op.path)
            body, headers = BODIES.get(f"{op.verb} {op.path}"), {}
            if op.scope == "callback":
                headers["Tasksched-Callback-Token"] = "x" * 43
                body = {"fence": world.owned.fence}
                body |= {"error": {"message": "no"}} if path.endswith("fail") else {}
            versions = ['"1"', None] if "If-Match" in op.hears else [None]
            told = []
            for version in versions:
                sent = headers | ({"If-Match": version} if version else {})
                told.append(
                    await world.as_stranger(op.verb, path, said[next(iter(said))], body, **sent)
                )
            answers.append([each.replace(said.get("delivery", "-"), "SAID2") for each in told])
        assert answers[0] == answers[1], op
    assert await world.things() == before
    require_no_canary(world)


async def test_a_stranger_with_its_own_endpoint_and_the_owners_delivery(world: World):
    hook = {"url": "https://example.com/", "events": ["task.failed"]}
    own = (await world.api.ask("POST", "/webhooks", world.stranger, hook)).json()["webhook_id"]
    before = await world.things()
    answers = []
    for said in (world.owned.delivery, like(world.owned.delivery)):
        path = f"/webhooks/{own}/deliveries/{said}/replay"
        answers.append(await world.as_stranger("POST", path, said))
    assert answers[0] == answers[1]
    assert await world.things() == before


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/tasks", "tag"), ("/tasks", "queue"), ("/dead-letters", "tag"), ("/dead-letters", "queue"),
        ("/dead-letters", "fingerprint"), ("/dead-letters/groups", "fingerprint"),
        ("/dead-letters/groups", "queue"),
    ],
)  # fmt: skip
async def test_what_stands_in_a_filter(world: World, path: str, name: str):
    values = {"tag": f"{CANARY}-tag", "queue": QUEUE, "fingerprint": world.owned.fingerprint}
    answers = []
    for said in (values[name], like(values[name])):
        answers.append(await world.as_stranger("GET", f"{path}?{name}={said}", said))
    assert answers[0] == answers[1]
    assert answers[0].startswith("200")
    require_no_canary(world)


@pytest.mark.parametrize("kind", ["tag", "queue", "fingerprint"])
@pytest.mark.parametrize("path", ["/tasks/cancel", "/tasks/edit", "/tasks/delete", "/dead-letters/redrive",
                                  "/dead-letters/purge"])  # fmt: skip
async def test_what_stands_in_the_filter_of_a_bulk_operation(world: World, path: str, kind: str):
    values = {"tag": f"{CANARY}-tag", "queue": QUEUE, "fingerprint": world.owned.fingerprint}
    before = await world.things()
    for more in ({}, {"dry_run": True}):
        answers = []
        for said in (values[kind], like(values[kind])):
            body = {"filter": {kind: said}, **more}
            body |= {"changes": {"delay": "5h"}} if path.endswith("edit") else {}
            answers.append(await world.as_stranger("POST", path, said, body))
        assert answers[0] == answers[1]
    everything = {"all": True} | ({"changes": {"delay": "5h"}} if path.endswith("edit") else {})
    assert (await world.as_stranger("POST", path, "-", everything))[0] == "2"
    assert await world.things() == before
    require_no_canary(world)


async def test_the_cursors_of_the_owner(world: World):
    third = (await world.api.key(tenant="third")).text
    for _ in range(2):
        await world.api.ask("POST", "/tasks", third, {"target": CHARGE, "delay": "1h"})
    page = (await world.api.ask("GET", "/tasks?limit=1", third)).json()
    for path, cursor in world.owned.cursors.items():
        if "{" in path or world.owned.webhook in path:
            continue
        asked = f"{path}?limit=1&cursor="
        answer = await world.as_stranger("GET", asked + cursor, cursor)
        assert answer[:3] in {"200", "400"}
        if path == "/tasks":
            other = page["next_cursor"]
            assert answer == await world.as_stranger("GET", asked + other, other)
    require_no_canary(world)


async def test_the_owners_idempotency_key_makes_the_strangers_own_task(world: World):
    before = await world.things()
    key = f"{CANARY}-key"
    for where in ("header", "body", "batch"):
        answers = []
        for said in (key, like(key)):
            body = {"target": CHARGE, "delay": "1h"}
            if where == "header":
                answers.append(
                    await world.as_stranger("POST", "/tasks", said, body, Idempotency_Key=said)
                )
                continue
            body["idempotency_key"] = f"{said}-{where}"
            path = "/tasks/batch" if where == "batch" else "/tasks"
            sent = [body] if where == "batch" else body
            answers.append(await world.as_stranger("POST", path, said, sent))
        assert answers[0] == answers[1], where
    assert await world.things() == before
    require_no_canary(world)


async def test_the_id_of_the_owners_recurring_task_is_free_for_the_stranger(world: World):
    before = await world.things()
    name = world.owned.recurring
    answers = []
    for said in (name, like(name)):
        body = {"target": CHARGE, "interval": "1h", "id": said, "start_at": "2100-01-01T00:00:00Z"}
        answers.append(await world.as_stranger("POST", "/recurring-tasks", said, body))
    assert answers[0] == answers[1]
    assert answers[0].startswith("201")
    assert await world.things() == before


@pytest.mark.parametrize(
    "member", ["tenant", "id", "task_id", "state", "status", "fence", "attempt", "version"]
)
@pytest.mark.parametrize("path", ["/tasks", "/tasks/batch", "/recurring-tasks", "/webhooks"])
async def test_no_body_names_a_tenant_or_what_only_the_server_says(
    world: World, path: str, member: str
):
    """Mass assignment: what is not asked for is refused, and changes nothing."""
    if path == "/recurring-tasks" and member == "id":
        return  # a name of the caller's choice
    before = await world.things()
    bodies: dict[str, Any] = {
        "/tasks": {"target": CHARGE}, "/recurring-tasks": {"target": CHARGE, "interval": "1h"},
        "/webhooks": {"url": "https://example.com/", "events": ["task.failed"]},
    }  # fmt: skip
    body = {
        **bodies[path.removesuffix("/batch")],
        member: A if member == "tenant" else world.owned.task,
    }
    answer = await world.api.ask("POST", path, world.stranger, [body] if "batch" in path else body)
    told = answer.json()["items"][0] if "batch" in path else answer.json()
    assert told["status"] == 422, answer.text
    assert await world.things() == before


async def test_the_tenant_header_of_the_owner(world: World):
    for op in OPS:
        if op.scope in {"public", "callback", "namespace"}:
            continue
        path = re.sub(r"{\w+}", world.owned.task, op.path)
        for said in (A, like(A)):
            answer = await world.api.ask(op.verb, path, world.stranger, Tasksched_Tenant=said)
            assert answer.status_code == 403, (op.path, answer.text)


LISTS = [op.path for op in OPS if op.verb == "GET" and "{" not in op.path and op.path != "/events"]


async def test_no_list_count_or_metric_holds_a_word_of_the_owners(world: World):
    for path in LISTS:
        answer = await world.api.ask("GET", path, world.stranger)
        assert answer.status_code == 200, (path, answer.text)
        # Names of queues are the namespace's own; whoever may read its numbers reads them there.
        shown = answer.text.replace(QUEUE, "Q") if path in {"/metrics", "/stats"} else answer.text
        assert CANARY not in shown, path
    counted = (await world.api.ask("GET", "/tasks/count", world.stranger)).json()
    assert counted["total"] == 0
    assert (await world.api.ask("GET", "/dead-letters/groups", world.stranger)).json()[
        "items"
    ] == []


async def test_no_event_of_the_owners_is_told(world: World):
    sent = {"Authorization": f"Bearer {world.stranger}"}
    async with Listener(world.api, "/events", **sent) as told:
        await begun(told)
        begin = told.place
        await world.api.ask("POST", f"/tasks/{world.owned.task}/cancel", world.owner)
        await world.api.ask("POST", "/tasks", world.owner, {"target": CHARGE, "queue": QUEUE})
        mine = await world.api.ask("POST", "/tasks", world.stranger, {"target": CHARGE})
        first = await told.next()
        assert first is not None
        assert first.data["task_id"] == mine.json()["task_id"]
    # Asked for the owner's task by name, from before its event on: there is nothing to tell.
    path = f"/events?task_id={world.owned.task}"
    async with Listener(world.api, path, **sent, Last_Event_ID=begin) as of_task:
        assert b"event:" not in (await of_task._said.get())["body"]


async def test_a_stream_ends_with_its_key(world: World):
    api = world.api
    made = await api.key(tenant=A)
    async with Listener(api, "/events", Authorization=f"Bearer {made.text}") as told:
        await api.keys.revoke(made.id)
        api.now_ms += 2_000
        assert await told.next() is None


def require_no_canary(world: World) -> None:
    assert world.heard
    for answer in world.heard:
        assert CANARY not in answer


async def test_the_audit_of_the_owner_is_its_own(world: World):
    items = (await world.api.ask("GET", "/audit", world.stranger)).json()["items"]
    assert {each["tenant"] for each in items} == {B}
