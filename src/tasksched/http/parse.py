"""Parse: bodies, headers and query values become commands. The only way in, and a strict one.

One pass reads every member through the rule of its kind (``tasksched.model``) and collects what is
wrong with each, so that a refusal names all bad fields by JSON pointer, not the first. Unknown members
are refused. Of a member that is there twice the last one counts, as for most readers of JSON. Bytes that
are not JSON in UTF-8, NaN among them, are malformed (400); numbers and strings outside the domain are
JSON, so they are invalid (422) at their place. ``null`` means "not given", but for a payload it is a value.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from tasksched.commands.tasks import Changes
from tasksched.errors import Invalid, Malformed, Problem
from tasksched.http.schema import ChangesBody, HandlerTargetBody, HttpTargetBody, TaskBody
from tasksched.model import codec, names
from tasksched.model.durations import DAY_MS, SECOND_MS, parse_duration
from tasksched.model.http_rules import check_headers, check_url
from tasksched.model.instants import parse_bound, parse_instant
from tasksched.model.limits import check_concurrency_limit
from tasksched.model.names import check_concurrency_key
from tasksched.model.receivers import check_queue, check_receivers
from tasksched.model.retry import Retry
from tasksched.model.task import (
    DEFAULT_RETRY,
    HTTP_ROUTE,
    Concurrency,
    HandlerTarget,
    HttpTarget,
    Target,
    TaskSpec,
)
from tasksched.model.trace import check_traceparent
from tasksched.model.zones import check_timezone

T = TypeVar("T")
Rule = Callable[[object, str], T]

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
UNKNOWN_MAX: Final = 20
"""Of unknown members, so many are named."""

_INT_DIGITS: Final = 40  # any longer integer is outside the domain, and slow to convert
_TOO_BIG: Final = 10**_INT_DIGITS
_decode = msgspec.json.Decoder().decode
_UNSET: Any = msgspec.UNSET
_REFUSED: Any = object()
_ABSENT: Any = object()


class Source(NamedTuple):
    """What a command owes to its request rather than to its body."""

    tenant: str
    key: str | None
    payload_bytes_max: int
    traceparent: str | None = None


def decode_json(raw: bytes) -> Any:
    """The value of a JSON text. Raises Malformed."""
    if not raw:
        raise Malformed("the body is empty; JSON is needed")
    try:
        return _decode(raw)
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except msgspec.DecodeError:
        return _decode_slowly(raw)


def _decode_slowly(raw: bytes) -> Any:
    """As the fast decoder, but lone surrogates and huge numbers pass, to be refused at their place."""
    try:
        return json.loads(raw.decode(), parse_int=_integer, parse_constant=_constant)
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise Malformed(f"not JSON: {error.msg} ({at})") from None


def _integer(text: str) -> int:
    if len(text) <= _INT_DIGITS:
        return int(text)
    return -_TOO_BIG if text.startswith("-") else _TOO_BIG


def _constant(text: str) -> object:
    raise Malformed(f"{text} is not JSON")


# -- bodies -------------------------------------------------------------------------------------


class Members:
    """The members of an object, read one by one; what is wrong is collected, not raised."""

    def __init__(self, body: object, pointer: str, known: tuple[str, ...]) -> None:
        if type(body) is not dict:
            raise Invalid("an object is needed", pointer)
        self._body: dict[str, Any] = body
        self._pointer = pointer
        self._errors: list[Invalid] = []
        unknown = [name for name in body if name not in known]
        for name in unknown[:UNKNOWN_MAX]:
            hint = f"unknown; known are {', '.join(known)}"
            self._errors.append(Invalid(hint, f"{pointer}/{_token(name)}"))

    @property
    def wrong(self) -> int:
        """How much has been found wrong so far."""
        return len(self._errors)

    def has(self, name: str) -> bool:
        return self._body.get(name) is not None

    def take(self, name: str, rule: Rule[T], absent: T, null: T = _REFUSED) -> T:
        """The member by its rule; ``null`` is what JSON null stands for, if the rule is not asked."""
        value = self._body.get(name, _ABSENT)
        if value is _ABSENT:
            return absent
        if value is None and null is not _REFUSED:
            return null
        try:
            return rule(value, f"{self._pointer}/{name}")
        except Invalid as error:
            self._errors.append(error)
            return absent

    def attempt(self, read: Callable[[], T]) -> T | None:
        """What ``read`` makes of several members together; None where it refuses them."""
        try:
            return read()
        except Invalid as error:
            self._errors.append(error)
            return None

    def refuse(self, name: str, detail: str) -> None:
        self._errors.append(Invalid(detail, f"{self._pointer}/{name}"))

    def finish(self) -> None:
        """Raise what was wrong, all of it."""
        if not self._errors:
            return
        if len(self._errors) == 1:
            raise self._errors[0]
        problems: list[Problem] = []
        for error in self._errors:
            problems += error.problems
        raise Invalid(f"{len(problems)} fields are wrong", problems=tuple(problems))


_TASK = TaskBody.__struct_fields__
_CHANGES = ChangesBody.__struct_fields__
_HTTP = ("type", *HttpTargetBody.__struct_encode_fields__)
_HANDLER = ("type", *HandlerTargetBody.__struct_fields__)


def task_spec(body: object, source: Source) -> TaskSpec:
    """The command to create a task. Raises Invalid, or TooLarge for its payload."""
    members = Members(body, "", _TASK)
    if not members.has("target"):
        members.refuse("target", "a target is needed")
    run_at_ms, delay_ms, zone = _due(members, None)
    key = members.take("idempotency_key", names.check_key, None, None)
    if key is not None and source.key is not None and key != source.key:
        members.refuse("idempotency_key", "differs from the header Idempotency-Key")
    spec = TaskSpec(
        target=members.take("target", read_target, NO_TARGET, NO_TARGET),
        payload=members.take("payload", payload_rule(source.payload_bytes_max), b""),
        tenant=source.tenant,
        queue=members.take("queue", check_queue, "default"),
        priority=members.take("priority", names.check_priority, "normal"),
        run_at_ms=run_at_ms,
        delay_ms=delay_ms,
        retry=members.take("retry", Retry.parse, DEFAULT_RETRY, DEFAULT_RETRY),
        timeout_ms=members.take("timeout", read_timeout, None, None),
        lease_ms=members.take("lease", read_lease, None, None),
        expires_at_ms=members.take("expires_at", _expiry_rule(zone), None, None),
        tags=members.take("tags", names.check_tags, (), ()),
        notify=members.take("notify", check_receivers, (), ()),
        concurrency=read_concurrency(members),
        traceparent=members.take("traceparent", check_traceparent, source.traceparent, None),
        key=source.key if key is None else key,
    )
    members.finish()
    return spec


def changes(body: object, payload_bytes_max: int) -> Changes:
    """The command to edit a task: what is named changes, and null empties where that is possible."""
    members = Members(body, "", _CHANGES)
    run_at_ms, delay_ms, zone = _due(members, _UNSET)
    found = Changes(
        run_at_ms=run_at_ms,
        delay_ms=delay_ms,
        payload=members.take("payload", payload_rule(payload_bytes_max), _UNSET),
        queue=members.take("queue", check_queue, _UNSET),
        priority=members.take("priority", names.check_priority, _UNSET),
        target=members.take("target", read_target, _UNSET),
        retry=members.take("retry", Retry.parse, _UNSET, DEFAULT_RETRY),
        timeout_ms=members.take("timeout", read_timeout, _UNSET, None),
        lease_ms=members.take("lease", read_lease, _UNSET),
        expires_at_ms=members.take("expires_at", _expiry_rule(zone), _UNSET, None),
        tags=members.take("tags", names.check_tags, _UNSET, ()),
        notify=members.take("notify", check_receivers, _UNSET, ()),
        concurrency_key=members.take("concurrency_key", check_concurrency_key, _UNSET, None),
        concurrency_limit=members.take("concurrency_limit", check_concurrency_limit, _UNSET),
    )
    members.finish()
    return found


def no_members(body: object) -> None:
    """The body of a verb that takes no options: an empty object."""
    Members(body, "", ()).finish()


def _due(members: Members, absent: Any) -> tuple[Any, Any, str | None]:
    """``run_at`` and ``delay``, at most one of them, and the ``timezone`` of local times."""
    zone = members.take("timezone", check_timezone, None, None)
    if members.has("run_at") and members.has("delay"):
        members.refuse("delay", "give run_at or delay, not both")
        return absent, absent, zone
    if members.has("timezone") and not (members.has("run_at") or members.has("expires_at")):
        members.refuse("timezone", "a timezone belongs to a local run_at")
    null = absent if absent is None else _REFUSED
    if members.has("timezone") and zone is None:
        return absent, absent, None  # one complaint, about the zone, is enough

    def instant(value: object, pointer: str) -> int:
        return parse_instant(value, pointer, timezone=zone)

    return (
        members.take("run_at", instant, absent, null),
        members.take("delay", parse_duration, absent, null),
        zone,
    )


def _expiry_rule(zone: str | None) -> Rule[int]:
    def rule(value: object, pointer: str) -> int:
        if zone is None:
            return parse_instant(value, pointer)
        return parse_bound(value, pointer, timezone=zone)

    return rule if zone else parse_instant


def payload_rule(most: int) -> Rule[bytes]:
    def rule(value: object, pointer: str) -> bytes:
        return codec.encode(value, pointer, most=most)

    return rule


def read_timeout(value: object, pointer: str) -> int:
    return parse_duration(value, pointer, least_ms=1)


def read_lease(value: object, pointer: str) -> int:
    return parse_duration(value, pointer, least_ms=SECOND_MS, most_ms=DAY_MS)


def read_concurrency(members: Members) -> Concurrency | None:
    """The concurrency key with its limit, 1 where none is named."""
    key = members.take("concurrency_key", check_concurrency_key, None, None)
    limit = members.take("concurrency_limit", check_concurrency_limit, None, None)
    if limit is not None and not members.has("concurrency_key"):
        members.refuse("concurrency_limit", "a limit belongs to a concurrency_key")
    return None if key is None else Concurrency(key, limit or 1)


NO_TARGET: Final[Target] = HandlerTarget("")  # stands in until `finish` raises


def read_target(value: object, pointer: str) -> Target:
    kind = value.get("type") if type(value) is dict else None
    if kind == "handler":
        members = Members(value, pointer, _HANDLER)
        if not members.has("name"):
            members.refuse("name", "the name of a handler is needed")
        handler = HandlerTarget(
            members.take("name", _handler_name, "", ""),
            members.take("version", names.check_name, None, None),
        )
        members.finish()
        return handler
    if kind == "http":
        members = Members(value, pointer, _HTTP)
        if not members.has("url"):
            members.refuse("url", "a URL is needed")
        request = HttpTarget(
            url=members.take("url", check_url, "", ""),
            method=members.take("method", _method, "POST"),
            headers=members.take("headers", check_headers, (), ()),
            is_async=members.take("async", flag, False, False),
        )
        members.finish()
        return request
    if type(value) is not dict:
        raise Invalid('an object with a "type" is needed', pointer)
    raise Invalid('a type is "http" or "handler"', f"{pointer}/type")


def _handler_name(value: object, pointer: str) -> str:
    name = names.check_handler_name(value, pointer)
    if name == HTTP_ROUTE:
        raise Invalid(f"{HTTP_ROUTE!r} is no handler's name: it stands for HTTP targets", pointer)
    return name


def flag(value: object, pointer: str) -> bool:
    if isinstance(value, bool):
        return value
    raise Invalid("true or false is needed", pointer)


def _method(value: object, pointer: str) -> str:
    if isinstance(value, str) and value in METHODS:
        return value
    raise Invalid(f"a method is one of {', '.join(METHODS)}", pointer)


def _token(name: str) -> str:
    """``name`` as part of a JSON pointer (RFC 6901)."""
    return name[:64].replace("~", "~0").replace("/", "~1")


# -- headers ------------------------------------------------------------------------------------

_ESCAPED = re.compile(r'\\(["\\])')
_ETAG = re.compile(r'(W/)?"([^"]*)"')


def demands_absence(if_none_match: str | None) -> bool:
    """Whether a write shall only create: ``If-None-Match: *``. Raises Malformed for any other."""
    if if_none_match is None:
        return False
    if if_none_match.strip() != "*":
        raise Malformed("here If-None-Match can only be *, to create", "@If-None-Match")
    return True


def key_of(header: str | None) -> str | None:
    """The value of ``Idempotency-Key``, quoted (RFC 8941) or bare. Raises Invalid."""
    if header is None:
        return None
    text = header.strip(" \t")
    if len(text) >= 2 and text[0] == '"' == text[-1]:
        text = _ESCAPED.sub(r"\1", text[1:-1])
    elif text.startswith('"'):
        raise Invalid("a quoted key ends with a quote", "@Idempotency-Key")
    return names.check_header_key(text, "@Idempotency-Key")


def whole(text: str | None, name: str, *, default: int, most: int) -> int:
    """The query parameter ``name`` as a whole number from 1 to ``most``. Raises Invalid."""
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most:
        return int(text)
    raise Invalid(f"a whole number from 1 to {most} is needed", f"?{name}")


def version_of(if_match: str | None) -> int | None:
    """The version that ``If-Match`` demands; None for any, and -1 for one that never matches."""
    if if_match is None or if_match.strip() == "*":
        return None
    found = _ETAG.fullmatch(if_match.strip())
    if found is None:
        raise Malformed('If-Match holds one ETag such as "3", or *', "@If-Match")
    digits = found[2]
    # If-Match compares strongly, so a weak tag matches nothing; nor does what is no version.
    usable = found[1] is None and digits.isascii() and digits.isdigit() and len(digits) < 16
    return int(digits) if usable else -1


def none_match(if_none_match: str | None, version: int) -> bool:
    """Whether ``If-None-Match`` names this version: the answer is 304."""
    if if_none_match is None:
        return False
    text = if_none_match.strip()
    return text == "*" or any(tag[1] == str(version) for tag in _ETAG.findall(text))


def lines_of(raw: bytes) -> list[bytes]:
    """The lines of an NDJSON body that hold something."""
    return [line for line in raw.split(b"\n") if line.strip()]
