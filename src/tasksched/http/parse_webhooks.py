"""Parse webhooks: bodies about webhook endpoints become commands. As ``parse``, by the same rules."""

from typing import Any, Final

import msgspec

from tasksched.commands.endpoints import EndpointChanges, EndpointSpec
from tasksched.http.parse import Members, flag
from tasksched.http.schema_webhooks import ROTATE, WEBHOOK, WEBHOOK_CHANGES
from tasksched.model.durations import parse_duration
from tasksched.model.endpoint import OVERLAP_MAX_MS, OVERLAP_MS, check_description
from tasksched.model.http_rules import check_url
from tasksched.model.receivers import check_events
from tasksched.model.signature import check_secret

_UNSET: Final[Any] = msgspec.UNSET


def endpoint(body: object) -> EndpointSpec:
    """The command to make an endpoint. Raises Invalid for all that is wrong."""
    members = Members(body, "", WEBHOOK)
    for name in ("url", "events"):
        if not members.has(name):
            members.refuse(name, "it is needed")
    spec = EndpointSpec(
        url=members.take("url", check_url, "", ""),
        events=members.take("events", check_events, (), ()),
        description=members.take("description", check_description, "", ""),
        enabled=members.take("enabled", flag, True, True),
        secret=members.take("secret", check_secret, None, None),
    )
    members.finish()
    return spec


def changes(body: object) -> EndpointChanges:
    """The command to change one. Raises Invalid for all that is wrong."""
    members = Members(body, "", WEBHOOK_CHANGES)
    found = EndpointChanges(
        url=members.take("url", check_url, _UNSET),
        events=members.take("events", check_events, _UNSET),
        description=members.take("description", check_description, _UNSET, ""),
        enabled=members.take("enabled", flag, _UNSET),
    )
    members.finish()
    return found


def overlap_ms(body: object) -> int:
    """How long a replaced secret signs along."""
    members = Members(body, "", ROTATE)
    found = members.take("overlap", _overlap, OVERLAP_MS, OVERLAP_MS)
    members.finish()
    return found


def _overlap(value: object, pointer: str) -> int:
    return parse_duration(value, pointer, most_ms=OVERLAP_MAX_MS)
