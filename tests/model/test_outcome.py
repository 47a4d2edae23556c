"""How an attempt ends, and the rule that turns a failure into what comes next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksched.model.outcome import (
    ERROR_TEXT_MAX,
    RETRY_AFTER_MAX_MS,
    Failure,
    bounded,
    error_info,
    judge,
    judge_lost,
)
from tasksched.model.retry import Retry
from tasksched.model.task import ErrorInfo

ERROR = ErrorInfo("ValueError", "no")
PLAIN = Retry(max_attempts=3, initial="1s", factor=2, max="1h", jitter="none")


def lowest() -> float:
    return 0.0


def judged(attempts: int = 1, retry: Retry = PLAIN, **fields):
    return judge(Failure(error=ERROR, **fields), retry, attempts=attempts, rng=lowest)


@pytest.mark.parametrize(("attempts", "retry_ms"), [(1, 1_000), (2, 2_000)])
def test_a_retryable_failure_waits_longer_each_time(attempts: int, retry_ms: int):
    outcome = judged(attempts)
    assert ("FAILED", retry_ms, "", ERROR) == (
        outcome.kind, outcome.retry_ms, outcome.reason, outcome.error,
    )  # fmt: skip


@pytest.mark.parametrize("attempts", [3, 4, 1_000])
def test_the_last_attempt_is_final(attempts: int):
    outcome = judged(attempts)
    assert (None, "attempts_exhausted") == (outcome.retry_ms, outcome.reason)


def test_a_budget_of_one_starts_once():
    assert "attempts_exhausted" == judged(1, Retry(max_attempts=1)).reason


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("reason", ["not_retryable", "result_too_large", "payload_not_readable"])
def test_what_is_not_retryable_is_final_at_once_with_its_reason(attempts: int, reason: str):
    outcome = judged(attempts, retryable=False, reason=reason, retry_after_ms=5)
    assert (None, reason) == (outcome.retry_ms, outcome.reason)


@pytest.mark.parametrize("kind", ["FAILED", "TIMED_OUT"])
def test_the_kind_of_the_failure_is_kept(kind: str):
    assert kind == judged(1, kind=kind).kind == judged(3, kind=kind).kind


@pytest.mark.parametrize(
    ("asked_ms", "at_least", "expected_ms"),
    [
        (5_000, True, 5_000), (10, True, 1_000), (0, True, 1_000),  # a target's Retry-After
        (5_000, False, 5_000), (10, False, 10), (0, False, 0),  # the handler's own word
        (10**12, True, RETRY_AFTER_MAX_MS), (10**12, False, 10**12),  # its own affair
    ],
)  # fmt: skip
def test_who_asks_for_a_wait_gets_it_within_reason(asked_ms, at_least, expected_ms):
    assert expected_ms == judged(1, retry_after_ms=asked_ms, at_least=at_least).retry_ms


def test_a_wait_that_was_asked_for_does_not_lengthen_the_budget():
    assert "attempts_exhausted" == judged(3, retry_after_ms=5).reason


@given(attempts=st.integers(0, 10**6), rng=st.floats(0, 1, exclude_max=True))
def test_no_attempt_number_breaks_the_rule(attempts: int, rng: float):
    retry = Retry(max_attempts=1_000, factor=100)
    outcome = judge(Failure(error=ERROR), retry, attempts=attempts, rng=lambda: rng)
    assert outcome.retry_ms is None or 0 <= outcome.retry_ms <= 3_600_000


# ── lost leases ──────────────────────────────────────────────────────────────────────────────────


def lost(attempts: int = 1, lost: int = 1, retry: Retry = PLAIN):
    return judge_lost(retry, attempts=attempts, lost=lost, worker="w1", rng=lowest)


def test_a_lost_lease_is_an_attempt_with_a_retry():
    outcome = lost()
    assert ("LOST", 1_000, "") == (outcome.kind, outcome.retry_ms, outcome.reason)
    assert "w1" in outcome.error.message


def test_a_budget_of_one_ends_as_worker_lost():
    outcome = lost(1, 1, Retry(max_attempts=1))
    assert (None, "worker_lost") == (outcome.retry_ms, outcome.reason)


@pytest.mark.parametrize(
    ("lost_in_a_row", "is_final"), [(1, False), (2, False), (3, True), (4, True)]
)
def test_poison_ends_whatever_attempts_remain(lost_in_a_row: int, is_final: bool):
    outcome = lost(lost_in_a_row, lost_in_a_row, Retry(max_attempts=100))
    assert is_final == (outcome.reason == "worker_lost")


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


@given(text=st.text(max_size=300), most=st.integers(100, 400))
def test_a_bounded_text_fits_and_can_be_encoded(text: str, most: int):
    assert len(bounded(text, most).encode()) <= most


@given(st.text(st.characters(codec="utf-8"), max_size=50))
def test_a_short_text_stays_as_it_is(text: str):
    assert text == bounded(text)


def test_a_long_text_keeps_its_head_and_its_tail():
    text = "begin " + "x" * 100_000 + " end"
    cut = bounded(text)
    assert len(cut.encode()) <= ERROR_TEXT_MAX
    assert cut.startswith("begin x")
    assert cut.endswith("x end")
    assert "bytes" in cut


def test_lone_surrogates_are_shown_and_break_nothing():
    """An exception may hold any string; the record must stay readable."""
    assert "\\ud800" == bounded("\ud800")
    info = error_info("E\udcff", "m\ud800" * 5_000, "t\ud800" * 5_000)
    for part in (info.type, info.message, info.traceback):
        part.encode()


def test_an_error_stays_within_its_limit_however_long_its_parts():
    info = error_info("E" * 10**5, "é" * 10**5, "\U0001f600" * 10**5)
    parts = (info.type, info.message, info.traceback)
    assert sum(len(part.encode()) for part in parts) <= ERROR_TEXT_MAX
