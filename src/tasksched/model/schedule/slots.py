"""Slots: the instants at which a set of local times comes round in a zone.

Owns the daylight-saving rule. Time is walked in segments of constant offset (``tzif``); within one,
local time runs on evenly, so the search is a search in the set (``localtimes``) and one subtraction.
Only the seams differ. A *gap* (the clock is set forward) and a *fold* (it is set back, a stretch of
local times comes twice) of up to ``SHIFT_MAX_S`` are daylight saving; a larger jump is a correction of
the calendar, at which nothing is made up for and nothing is left out.

A *wildcard* rule has a slot at every instant whose local time is in the set. A *fixed-time* rule has
one as well at the first instant after a gap that holds a member (``on_gap: next``), and none in the
second pass of a fold (``on_fold: first``): Debian cron's rule, kept for shifts of any size.
Invariants: slots are instants, so what collapses is one; ``after(t)`` > t and ``before(t)`` < t, even
inside a second pass; a search looks at the seams around its start and its answer only.
"""

from dataclasses import dataclass
from typing import Final

from tasksched.model.schedule.localtimes import LocalTimes
from tasksched.model.schedule.tzif import EARLIEST_S, LATEST_S, OFFSET_MAX_S, OffsetTable

SHIFT_MAX_S: Final = 3 * 3600

# Local times of neighbouring segments may overlap within this time of a seam, and never beyond it.
_NEAR_S: Final = 2 * OFFSET_MAX_S


@dataclass(frozen=True, slots=True)
class Seams:
    """What a rule does where the clock is shifted. A wildcard rule: neither."""

    make_up_gaps: bool
    first_pass_only: bool


WILDCARD: Final = Seams(make_up_gaps=False, first_pass_only=False)


class Slots:
    """The slots of one set of local times in one zone; instants in whole seconds since the epoch."""

    __slots__ = ("_known", "_local", "_offsets", "_seams", "_starts", "_table")

    def __init__(self, local: LocalTimes, table: OffsetTable, seams: Seams) -> None:
        self._local = local
        self._table = table
        self._starts, self._offsets = table.starts, table.offsets
        self._seams = seams
        # (t, after(t)): it answers for everything in between, too. A million schedules of one rule
        # ask for the same slot in the same minute; one pair is what that takes. One assignment of a
        # tuple, so threads cannot see halves.
        self._known: tuple[int, int] = (0, 0)

    def after(self, at_s: int) -> int | None:
        """The first slot later than ``at_s``."""
        asked, answer = self._known
        if asked <= at_s < answer:
            return answer
        found = self._search_forward(min(max(at_s, EARLIEST_S), LATEST_S))
        if found is not None:
            self._known = (at_s, found)
        return found

    def before(self, at_s: int) -> int | None:
        """The last slot earlier than ``at_s``."""
        return self._search_backward(min(max(at_s, EARLIEST_S), LATEST_S) - 1)

    def count(self, after_s: int, until_s: int, most: int) -> int:
        """The number of slots in (after_s, until_s], but not more than ``most``."""
        first = max(after_s + 1, EARLIEST_S)
        end = min(until_s + 1, LATEST_S)
        segment = self._table.segment(first)
        total = 0
        while first < end and total < most:
            offset = self._offsets[segment]
            segment_end = min(self._starts[segment + 1], end)
            local = max(first + offset, self._counts_from(segment))
            total += self._local.count(local, segment_end + offset, most - total)
            if first == self._starts[segment] and self._has_made_up_slot(segment):
                total += 1
            first = segment_end
            segment += 1
        return min(total, most)

    def members(self, from_local_s: int, to_local_s: int) -> tuple[int, ...]:
        """Up to three local times of the set in [from, to): the first, the next one, and the last."""
        first = self._local.ceiling(from_local_s)
        last = self._local.floor(to_local_s - 1)
        if first is None or last is None or first >= to_local_s:
            return ()
        second = self._local.ceiling(first + 1)
        found = (first, last) if second is None else (first, min(second, last), last)
        return tuple(sorted(set(found)))

    def makes_up(self, segment: int) -> bool:
        """Whether members in the gap before the segment, if there are any, run at its begin."""
        gap_s = self._offsets[segment] - self._offsets[segment - 1]
        return self._seams.make_up_gaps and 0 < gap_s <= SHIFT_MAX_S

    def leaves_out(self, segment: int) -> bool:
        """Whether the segment begins with a second pass in which there are no slots."""
        repeated_s = self._offsets[segment - 1] - self._offsets[segment]
        return self._seams.first_pass_only and 0 < repeated_s <= SHIFT_MAX_S

    def _search_forward(self, at_s: int) -> int | None:
        """The first slot after ``at_s``."""
        starts, offsets = self._starts, self._offsets
        segment = self._table.segment(at_s)
        # The next local time of this segment, even at its very end: a gap there is still to be seen.
        local = at_s + 1 + offsets[segment]
        if self._seams.first_pass_only:
            local = max(local, self._counts_from(segment))
        # `member` is the first one not before `local`, the local time from which the segment counts.
        member = self._local.ceiling(local)
        while member is None or member - offsets[segment] >= starts[segment + 1]:
            if starts[segment + 1] > at_s + _NEAR_S:
                # No fold from here on repeats what lies before `member`: go straight to it.
                if member is None:
                    return None
                segment = max(segment, self._table.segment(member - OFFSET_MAX_S) - 1)
            segment += 1
            if segment == len(offsets):
                return None
            begins = self._counts_from(segment)
            if member is None or member < begins:
                if member is not None and self.makes_up(segment):
                    return starts[segment]
                member = self._local.ceiling(begins)
            elif begins < starts[segment] + offsets[segment - 1]:
                member = self._local.ceiling(begins)
        return member - offsets[segment]

    def _search_backward(self, at_s: int) -> int | None:
        """The last slot at or before ``at_s``."""
        starts, offsets = self._starts, self._offsets
        segment = self._table.segment(at_s)
        latest_s = at_s
        while True:
            member = self._local.floor(latest_s + offsets[segment])
            if member is not None and member >= self._counts_from(segment):
                return member - offsets[segment]
            if segment == 0:
                return None
            gap_from = starts[segment] + offsets[segment - 1]
            if member is not None and member >= gap_from and self.makes_up(segment):
                return starts[segment]
            if starts[segment] < at_s - _NEAR_S:
                # No segment before this one shows a local time after `member`: go straight to it.
                if member is None:
                    return None
                segment = min(segment, self._table.segment(member + OFFSET_MAX_S) + 1)
            segment -= 1
            latest_s = starts[segment + 1] - 1

    def _counts_from(self, segment: int) -> int:
        """The local time from which on a segment has slots: its begin, or the end of its repetition."""
        if segment and self.leaves_out(segment):
            return self._starts[segment] + self._offsets[segment - 1]
        return self._starts[segment] + self._offsets[segment]

    def _has_made_up_slot(self, segment: int) -> bool:
        """Whether the begin of the segment is a slot only because the gap before it has a member."""
        if not segment or not self.makes_up(segment):
            return False
        begins = self._starts[segment] + self._offsets[segment]
        member = self._local.ceiling(self._starts[segment] + self._offsets[segment - 1])
        return member is not None and member < begins != self._local.ceiling(begins)
