"""The jitter of recurring tasks."""

from hypothesis import given
from hypothesis import strategies as st
from tests.model.schedule.oracle import examples

from tasksched.model.schedule.jitter import jitter_delay_ms


@examples(200)
@given(st.text(max_size=20), st.integers(0, 2**43), st.integers(0, 10**9), st.integers(1, 10**9))
def test_it_is_below_the_jitter_and_before_the_next_time(schedule_id, nominal_ms, jitter, step_ms):
    schedule_id = schedule_id.encode("ascii", "replace").decode()
    ask = {"jitter_ms": jitter, "next_ms": nominal_ms + step_ms}
    delay_ms = jitter_delay_ms(schedule_id, nominal_ms, **ask)
    assert 0 <= delay_ms <= max(min(jitter, step_ms) - 1, 0)
    assert delay_ms == jitter_delay_ms(schedule_id, nominal_ms, **ask)


def test_it_spreads_evenly_over_schedules_and_times():
    for delays in (
        [jitter_delay_ms(f"s{n}", 0, jitter_ms=1000, next_ms=None) for n in range(4000)],
        [jitter_delay_ms("s", n * 60_000, jitter_ms=1000, next_ms=None) for n in range(4000)],
    ):
        assert 480 < sum(delays) / len(delays) < 520
        assert all(
            300 < sum(low <= d < low + 100 for d in delays) < 500 for low in range(0, 1000, 100)
        )


def test_it_is_the_same_for_ever():
    assert jitter_delay_ms("nightly", 1_772_445_600_000, jitter_ms=60_000, next_ms=None) == 40_219
