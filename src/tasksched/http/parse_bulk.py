"""Parse bulk: filters and what shall be done with all that match, from bodies and query values.

One table of rules serves ``?queue=`` and ``{"filter": {"queue": …}}`` alike. An empty filter means
everything, so a request for everything must say so (``"all": true``).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tasksched.commands.tasks import Changes
from tasksched.commands.tenants import RetentionChoice
from tasksched.errors import Invalid
from tasksched.http import parse
from tasksched.model import filters
from tasksched.model.durations import parse_duration
from tasksched.model.filters import DEAD_FIELDS, TASK_FIELDS, Filter
from tasksched.model.operation import RATE_USUAL, check_rate

COUNT_MAX: Final = 10**12
_MEMBERS: Final = ("filter", "dry_run", "rate", "all")
_RETENTION: Final = ("success", "failed", "count", "bytes")


class Asked(NamedTuple):
    """What to do, with whom, how fast. ``dry_run``: only say how many."""

    filter: Filter
    dry_run: bool
    rate: int
    changes: Changes | None


def query_filter(query: Mapping[str, str], fields: Sequence[str]) -> Filter:
    """The filter that query parameters are. Raises Invalid."""
    given = {name: query[name] for name in fields if name in query}
    return filters.filter_of(given, fields, "?")


def dead_request(body: object) -> Asked:
    """A redrive or a purge of dead letters. Raises Invalid."""
    return _asked(parse.Members(body, "", _MEMBERS), DEAD_FIELDS, None)


def task_request(body: object) -> Asked:
    """A cancellation or removal of tasks. Raises Invalid."""
    return _asked(parse.Members(body, "", _MEMBERS), TASK_FIELDS, None)


def edit_request(body: object, payload_bytes_max: int) -> Asked:
    """An edit of tasks, which says what to change. Raises Invalid."""
    members = parse.Members(body, "", (*_MEMBERS, "changes"))
    if not members.has("changes"):
        members.refuse("changes", "say what to change")

    def changes(value: object, pointer: str) -> Changes:
        try:
            found = parse.changes(value, payload_bytes_max)
        except Invalid as error:
            raise error.under(pointer) from None
        if found == Changes():
            raise Invalid("say what to change", pointer)
        return found

    return _asked(members, TASK_FIELDS, members.take("changes", changes, None, None))


def retention(body: object) -> RetentionChoice:
    """What a tenant's settings shall be, as a whole. Raises Invalid."""
    members = parse.Members(body, "", ("retention",))
    nothing = RetentionChoice()
    found = members.take("retention", _retention, nothing, nothing)
    members.finish()
    return found


def _retention(value: object, pointer: str) -> RetentionChoice:
    members = parse.Members(value, pointer, _RETENTION)
    found = RetentionChoice(
        success_ms=members.take("success", parse_duration, None, None),
        failed_ms=members.take("failed", parse_duration, None, None),
        count_max=members.take("count", _whole, None, None),
        bytes_max=members.take("bytes", _positive, None, None),
    )
    members.finish()
    return found


def _asked(members: parse.Members, fields: Sequence[str], changes: Changes | None) -> Asked:
    def read_filter(value: object, pointer: str) -> Filter:
        inner = parse.Members(value, pointer, tuple(fields))
        found = {}
        for name in fields:
            if inner.has(name):
                field, rule = filters.RULES[name]
                found[field] = inner.take(name, rule, None)
        inner.finish()
        return Filter(**found)

    before = members.wrong
    asked = members.take("filter", read_filter, filters.EVERYTHING, filters.EVERYTHING)
    is_all = members.take("all", parse.flag, False, False)
    if members.wrong == before and not asked.named and not is_all:
        members.refuse("all", 'an empty filter means everything: say "all": true')
    found = Asked(
        filter=asked,
        dry_run=members.take("dry_run", parse.flag, False, False),
        rate=members.take("rate", check_rate, RATE_USUAL, RATE_USUAL),
        changes=changes,
    )
    members.finish()
    return found


def _whole(value: object, pointer: str) -> int:
    if type(value) is int and 0 <= value <= COUNT_MAX:
        return value
    raise Invalid(f"a whole number from 0 to {COUNT_MAX} is needed", pointer)


def _positive(value: object, pointer: str) -> int:
    if type(value) is int and 1 <= value <= COUNT_MAX:
        return value
    raise Invalid(f"a whole number from 1 to {COUNT_MAX} is needed", pointer)
