"""Filters: read strictly, written back alike, and matched by every field."""

import pytest

from tasksched.errors import Invalid
from tasksched.model.filters import DEAD_FIELDS, EVERYTHING, RULES, TASK_FIELDS, Filter, filter_of
from tasksched.model.notify import QUEUE, Cause
from tasksched.model.task import HandlerTarget, HttpTarget, NoticeTarget, Task

WORDS = {
    "status": ["FAILED"],
    "queue": "billing",
    "priority": "high",
    "handler": "billing.*",
    "tag": "eu",
    "reason": "expired",
    "fingerprint": "5f3a9c21d0e4b7aa",
    "due_from": "2026-01-01T00:00:00.000Z",
    "due_to": "2026-01-02T00:00:00.000Z",
    "finished_from": "2026-01-01T00:00:00.000Z",
    "finished_to": "2026-01-03T00:00:00.000Z",
}
DAY_MS = 86_400_000
FIRST_MS = 1_767_225_600_000  # 2026-01-01


def task(**fields) -> Task:
    usual = {
        "id": "t", "status": "FAILED", "version": 1, "tenant": "default", "queue": "billing",
        "priority": "high", "target": HandlerTarget("billing.pay", "2"), "created_ms": 1,
        "due_ms": FIRST_MS, "tags": ("us", "eu"), "reason": "expired",
        "fingerprint": "5f3a9c21d0e4b7aa", "finished_ms": FIRST_MS + DAY_MS,
    }  # fmt: skip
    return Task(**{**usual, **fields})


def test_what_is_read_is_written_back_alike():
    asked = filter_of(WORDS, tuple(RULES))
    assert {**WORDS, "status": ("FAILED",)} == asked.to_json()
    assert asked == filter_of(asked.to_json(), tuple(RULES))
    assert set(RULES) == set(WORDS) == {*DEAD_FIELDS, *TASK_FIELDS}


def test_none_says_nothing():
    assert EVERYTHING == filter_of(dict.fromkeys(WORDS), tuple(RULES))
    assert frozenset() == EVERYTHING.named
    assert EVERYTHING.matches(task())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "SUCCESS"),
        ("queue", "other"),
        ("priority", "low"),
        ("target", HandlerTarget("reports.pay")),
        ("target", HttpTarget("https://example.com")),
        ("tags", ()),
        ("reason", None),
        ("fingerprint", "0"),
        ("due_ms", FIRST_MS - 1),
        ("due_ms", FIRST_MS + DAY_MS + 1),
        ("finished_ms", FIRST_MS - 1),
        ("finished_ms", FIRST_MS + 2 * DAY_MS + 1),
        ("finished_ms", None),
    ],
)
def test_each_field_decides(field: str, value: object):
    asked = filter_of(WORDS, tuple(RULES))
    assert asked.matches(task())
    assert not asked.matches(task(**{field: value}))


def test_bounds_are_inclusive():
    asked = Filter(due_from_ms=5, due_to_ms=5)
    assert [False, True, False] == [asked.matches(task(due_ms=ms)) for ms in (4, 5, 6)]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("status", "WAITING"),
        ("status", []),
        ("status", ["FAILED", "FAILED"]),
        ("status", 5),
        ("queue", "a:b"),
        ("handler", "*x"),
        ("handler", ""),
        ("handler", "a b*"),
        ("fingerprint", "a:b"),
        ("reason", ""),
        ("tag", "ä"),
        ("due_from", "today"),
        ("finished_to", 5),
        ("colour", "red"),
    ],
)
def test_bad_words_are_refused_at_their_place(word: str, value: object):
    with pytest.raises(Invalid) as refused:
        filter_of({word: value}, tuple(RULES), "?")
    assert f"?{word}" == refused.value.problems[0].pointer


def test_several_states_with_commas_or_as_a_list():
    expected = ("QUEUED", "FAILED")
    assert expected == filter_of({"status": "FAILED,QUEUED"}, TASK_FIELDS).status
    assert expected == filter_of({"status": ["QUEUED", "FAILED"]}, TASK_FIELDS).status


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (Filter(), True),
        (Filter(queue="billing"), True),
        (Filter(queue="other"), False),
        (Filter(priority="low"), False),
        (Filter(handler="charge"), True),
        (Filter(handler="ch*"), True),
        (Filter(handler="charge@2"), False),
    ],
)
def test_lanes_that_cannot_hold_it_are_not_read(asked: Filter, fits: bool):
    assert fits == asked.fits_lane("billing:high:default:charge@2")


def test_http_targets_have_no_handler():
    assert not Filter(handler="*").fits_route("http")
    assert not Filter(handler="http").fits_lane("billing:high:default:http")


def test_notifications_are_left_alone_unless_their_queue_is_named():
    cause = Cause("task.failed", "t", "1", 5)
    notice = task(status="PENDING", queue=QUEUE, target=NoticeTarget(cause), finished_ms=None)
    assert [False, True] == [EVERYTHING.matches(notice), Filter(queue=QUEUE).matches(notice)]
    lane = f"{QUEUE}:normal:default:http@notify"
    assert [False, True] == [EVERYTHING.fits_lane(lane), Filter(queue=QUEUE).fits_lane(lane)]
