"""What is a traceparent, and what is none."""

import pytest

from tasksched.errors import Invalid
from tasksched.model.trace import check_traceparent, heard_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
BAD = [
    "",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE}-{SPAN}-01-more",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}",
    f"ff-{TRACE}-{SPAN}-01",
    f"{GOOD}\n",
]


def test_a_good_one_stays_as_it_is():
    assert (
        check_traceparent(GOOD) == heard_traceparent(GOOD) == heard_traceparent(f" {GOOD} ") == GOOD
    )


@pytest.mark.parametrize("text", BAD)
def test_a_bad_one_is_refused_where_it_was_written_down(text: str):
    with pytest.raises(Invalid) as refused:
        check_traceparent(text, "/traceparent")
    assert refused.value.problems[0].pointer == "/traceparent"


@pytest.mark.parametrize("text", [None, *BAD[:-1]])
def test_a_bad_one_in_a_header_is_none(text: str | None):
    assert heard_traceparent(text) is None


@pytest.mark.parametrize("more", ["", "-what later versions add"])
def test_a_later_version_is_kept_as_the_first(more: str):
    assert heard_traceparent(f"cc-{TRACE}-{SPAN}-01{more}") == GOOD
