"""The state machine as a table; tests/protocol/test_every_edge.py walks it in the scripts."""

from tasksched.model.states import EDGES, FINAL, OUTCOMES, STATES, WAITING


def test_every_state_has_a_row_and_leads_to_states():
    assert set(STATES) == set(EDGES)
    assert set().union(*EDGES.values()) <= set(STATES)


def test_success_is_final_and_the_other_ends_can_be_redriven():
    assert frozenset() == EDGES["SUCCESS"]
    assert {"PENDING"} == EDGES["FAILED"] == EDGES["CANCELLED"]


def test_only_a_dispatched_task_starts_and_only_a_running_one_succeeds():
    assert {"QUEUED"} == {state for state, to in EDGES.items() if "RUNNING" in to}
    assert {"RUNNING"} == {state for state, to in EDGES.items() if "SUCCESS" in to}


def test_every_state_but_an_end_can_be_cancelled_and_can_fail():
    for state in set(STATES) - FINAL:
        assert {"CANCELLED", "FAILED"} <= EDGES[state]


def test_states_are_waiting_running_or_final():
    assert set(STATES) == WAITING | {"RUNNING"} | FINAL
    assert not WAITING & FINAL


def test_no_state_leads_to_itself():
    assert not [state for state, to in EDGES.items() if state in to]


def test_an_attempt_ends_in_one_of_six_ways():
    assert ("SUCCEEDED", "FAILED", "TIMED_OUT", "LOST", "RELEASED", "CANCELLED") == OUTCOMES
