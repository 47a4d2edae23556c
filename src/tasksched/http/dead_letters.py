"""Dead letters over HTTP: lists, groups, and the two things to do with all that match.

A redrive or purge is an operation: 200 when it has ended before the answer, 202 with its ``Location``
while it goes on. A dry run answers how many match.
"""

from typing import Final

from tasksched.commands.dead_letters import GROUPS_MAX
from tasksched.http import parse, parse_bulk, render, render_bulk
from tasksched.http.exchange import JSON, Reply
from tasksched.http.operations import begin
from tasksched.http.paging import limit_of, next_link
from tasksched.http.services import Call
from tasksched.http.tasks import PRIVATE, json_body, tenant_of
from tasksched.model.filters import DEAD_FIELDS, GROUP_FIELDS

GROUPS_USUAL: Final = 50


async def dead_list(call: Call) -> Reply:
    """Failed tasks, the newest first."""
    query = call.query(*DEAD_FIELDS, "limit", "cursor")
    asked, limit = parse_bulk.query_filter(query, DEAD_FIELDS), limit_of(query.get("limit"))
    letters = call.services.bulk.dead_letters
    page = await letters.page(tenant_of(call), asked, query.get("cursor"), limit)
    headers = [JSON, PRIVATE, *next_link(call, query, page.next_cursor)]
    return Reply(200, render.page(page.items, page.next_cursor), headers)


async def dead_groups(call: Call) -> Reply:
    """Failures of the same kind with their counts, the most frequent first."""
    query = call.query(*GROUP_FIELDS, "limit", "cursor")
    asked = parse_bulk.query_filter(query, GROUP_FIELDS)
    limit = parse.whole(query.get("limit"), "limit", default=GROUPS_USUAL, most=GROUPS_MAX)
    letters = call.services.bulk.dead_letters
    page = await letters.groups(tenant_of(call), asked, query.get("cursor"), limit)
    headers = [JSON, PRIVATE, *next_link(call, query, page.next_cursor)]
    return Reply(200, render_bulk.groups(page), headers)


async def dead_redrive(call: Call) -> Reply:
    """Give all dead letters that match a new life."""
    raw = await json_body(call)
    return await begin(call, "redrive", parse_bulk.dead_request(parse.decode_json(raw)))


async def dead_purge(call: Call) -> Reply:
    """Remove all dead letters that match."""
    raw = await json_body(call)
    return await begin(call, "purge", parse_bulk.dead_request(parse.decode_json(raw)))
