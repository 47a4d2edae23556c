"""Links to the next page and to what a problem means; and clients that leave while they wait."""

import asyncio
import re

import pytest
from tests.http.conftest import CHARGE, assert_problem

from tasksched.errors import BY_CODE
from tasksched.http.problems import slug

pytestmark = pytest.mark.anyio


async def test_a_list_links_to_its_next_page(rig):
    await rig.ask("POST", "/tasks/batch", [{"target": CHARGE, "tags": ["a"]}] * 5)

    path, seen = "/v1/tasks?limit=2&tag=a", 0
    while path:
        answer = await rig.ask("GET", path)
        seen += len(answer.json()["items"])
        link = answer.headers.get("link")
        assert (link is None) == (answer.json()["next_cursor"] is None)
        path = link and re.fullmatch(r'<(/v1/tasks\?[!-~]+)>; rel="next"', link)[1]

    assert seen == 5


async def test_every_problem_leads_to_its_page(rig):
    problem = assert_problem(await rig.ask("GET", "/tasks/x"), 404)
    found = await rig.ask("GET", problem["type"])

    assert found.status_code == 200
    assert found.json() == {
        "code": "NOT_FOUND", "title": "Not found", "status": 404, "retryable": False,
        "detail": found.json()["detail"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "code", [*BY_CODE, "METHOD_NOT_ALLOWED", "UNSUPPORTED_MEDIA_TYPE", "MISDIRECTED", "PRECONDITION_REQUIRED"],
)  # fmt: skip
async def test_every_code_has_a_page(rig, code):
    as_json = await rig.ask("GET", f"/problems/{slug(code)}")
    as_html = await rig.ask("GET", f"/v1/problems/{slug(code)}", Accept="text/html,*/*;q=0.8")

    assert as_json.json()["code"] == code
    assert as_json.json()["detail"] != as_json.json()["title"]
    assert as_html.headers["content-type"] == "text/html; charset=utf-8"
    assert code in as_html.text
    assert as_html.headers["vary"] == "accept"
    assert "default-src 'none'" in as_html.headers["content-security-policy"]


@pytest.mark.parametrize("code", ["nope", "NOT_FOUND", "%3Cscript%3E", "%00"])
async def test_there_is_no_page_of_another_code(rig, code):
    assert_problem(await rig.ask("GET", f"/problems/{code}"), 404)


@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_a_client_that_leaves_is_not_waited_for(rig, verb):
    task_id = await rig.make(delay="1h")
    left, sent = asyncio.Event(), []
    body = b'{"target":{"type":"handler","name":"charge"},"delay":"1h"}' if verb == "POST" else b""
    messages = iter([{"type": "http.request", "body": body}])

    async def receive():
        found = next(messages, None)
        if found is None:
            await left.wait()
            return {"type": "http.disconnect"}
        return found

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": verb, "path": f"/tasks/{task_id}" if verb == "GET" else "/tasks",
        "query_string": b"wait=60", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    waiting = asyncio.create_task(rig.http._transport.app(scope, receive, send))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    left.set()
    await asyncio.wait_for(waiting, 2)

    assert sent == []
    assert not rig.session.tasks._waiter._interests
