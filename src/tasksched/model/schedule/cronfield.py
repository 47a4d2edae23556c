"""One field of a cron expression: names, ranges, steps, lists and the special day words.

Owns the grammar within a field. Each item of a list becomes bits of the field's values, or, for days
that depend on the month (``L``, ``15W``, ``FRI#2``), a ``DayWord`` for ``cron`` to turn into dates.
Invariants: a field that parses names at least one value, all of them in its range; the text alone
decides (``1-31`` is no star, ``*/2`` is); ``H`` is a pure function of the seed and the field.
Every refusal says which field it is and, where one can be guessed, what to write instead.
Deliberately not here: what the fields mean together.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, NoReturn

from tasksched.errors import Invalid
from tasksched.model.schedule.civil import MONTHS, WEEKDAYS

POINTER: Final = "/cron"
FIRST_CRON_YEAR: Final = 1970
LAST_CRON_YEAR: Final = 2200
"""The horizon of the product: no time after it is ever accepted."""

# R, for random, is no part of the grammar: it is caught here to be refused with a hint.
HASH_LETTERS: Final = ("H", "R")
_HASH = re.compile(r"H(?:\((?P<low>[0-9]+)-(?P<high>[0-9]+)\))?(?:/(?P<step>[0-9]+))?")

DayKind = Literal["last", "last_weekday", "nearest_weekday", "last_of", "nth_of"]


@dataclass(frozen=True, slots=True)
class DayWord:
    """A day that each month places elsewhere; ``n`` and ``of`` as the kind needs them.

    ``last``: L-n, n days before the end. ``last_weekday``: LW. ``nearest_weekday``: nW.
    ``last_of``: the last weekday ``of`` the month. ``nth_of``: the n-th weekday ``of``.
    """

    kind: DayKind
    n: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class FieldKind:
    """A field's place in the grammar: its name, its values and the words it knows."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int | None = None  # the last value that a bare H may choose; None: as `high`


SECOND: Final = FieldKind("second", 0, 59)
MINUTE: Final = FieldKind("minute", 0, 59)
HOUR: Final = FieldKind("hour", 0, 23)
# H stays within the days that every month has.
DAY: Final = FieldKind("day-of-month", 1, 31, hash_high=28)
MONTH: Final = FieldKind("month", 1, 12, tuple(name[:3].upper() for name in MONTHS))
WEEKDAY: Final = FieldKind("day-of-week", 0, 6, tuple(name[:3].upper() for name in WEEKDAYS))
YEAR: Final = FieldKind("year", FIRST_CRON_YEAR, LAST_CRON_YEAR)


@dataclass(frozen=True, slots=True)
class Field:
    """A parsed field. ``values`` are in the field's range (Sunday is 0), ``words`` beside them."""

    text: str
    is_star: bool
    values: frozenset[int]
    words: tuple[DayWord, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldParser:
    """Parses the text of one field, in upper case. ``position`` is the field's place, from 1."""

    kind: FieldKind
    position: int

    def resolve(self, text: str, seed: str) -> str:
        """``text`` with the values that ``seed`` chooses in place of ``H``. Raises as ``parse``."""
        return ",".join(
            self._hashed(item, seed) if item.startswith(HASH_LETTERS) else item
            for item in text.split(",")
        )

    def parse(self, text: str) -> Field:
        """The values and words of a field without ``H``. Raises ``Invalid`` at ``/cron``."""
        values: set[int] = set()
        words: list[DayWord] = []
        for item in text.split(","):
            if not item:
                self.fail(f"has an empty item in '{text}'", "write each value once between commas")
            word = self._word(item)
            if word is not None:
                words.append(word)
            elif self.kind is WEEKDAY:
                values.update(value % 7 for value in self._values(item, text))
            else:
                values.update(self._values(item, text))
        return Field(text, text.startswith(("*", "?")), frozenset(values), tuple(words))

    def fail(self, problem: str, hint: str) -> NoReturn:
        raise Invalid(
            f"cron field {self.position} ({self.kind.name}) {problem}; {hint}",
            POINTER,
            field=self.kind.name,
            position=self.position,
        )

    def _word(self, item: str) -> DayWord | None:
        if self.kind is DAY:
            return self._word_in_month(item)
        if self.kind is WEEKDAY:
            return self._word_of_weekday(item)
        return None

    def _word_in_month(self, item: str) -> DayWord | None:
        if item == "L":
            return DayWord("last")
        if item == "LW":
            return DayWord("last_weekday")
        if found := re.fullmatch(r"L-([0-9]+)", item):
            back = int(found[1])
            if back > 30:
                self.fail(f"has '{item}', which is before any month", "L-n takes 0 to 30")
            return DayWord("last", back)
        if found := re.fullmatch(r"([0-9]+)W", item):
            return DayWord("nearest_weekday", self._value(found[1]))
        return None

    def _word_of_weekday(self, item: str) -> DayWord | None:
        if item == "L" or re.fullmatch(r"L[0-9]", item):
            self.fail(f"has '{item}'", "write 5L or FRIL for the last Friday of the month")
        if found := re.fullmatch(r"([0-9]+|[A-Z]{3})L", item):
            return DayWord("last_of", of=self._value(found[1]) % 7)
        if found := re.fullmatch(r"([0-9]+|[A-Z]{3})#([0-9]+)", item):
            nth = int(found[2])
            if not 1 <= nth <= 5:
                self.fail(f"has '{item}'", "the number after # is 1 to 5; the last one is 5L")
            return DayWord("nth_of", nth, self._value(found[1]) % 7)
        return None

    def _values(self, item: str, text: str) -> range:
        """The values of an item, in the order of the field; 7 may stand for Sunday among weekdays."""
        kind = self.kind
        if item == "?":
            if kind not in {DAY, WEEKDAY} or text != "?":
                self.fail("has '?'", "? stands alone, for day-of-month or day-of-week; write *")
            return range(kind.low, kind.high + 1)
        base, slash, step_text = item.partition("/")
        step = self._step(step_text, item) if slash else 1
        if base == "*":
            return range(kind.low, kind.high + 1, step)
        low_text, dash, high_text = base.partition("-")
        if dash:
            low, high = self._range(low_text, high_text)
        else:
            low = high = self._value(low_text)
            if slash:
                # 10/15 runs on to the end of the field; 7/2 is Sunday, from which nothing follows.
                high = max(kind.high, low)
        return range(low, high + 1, step)

    def _range(self, low_text: str, high_text: str) -> tuple[int, int]:
        low, high = self._value(low_text), self._value(high_text)
        if self.kind is WEEKDAY and high_text == "SUN" and low > 0:
            high = 7
        if low > high:
            problem = f"has '{low_text}-{high_text}', which runs backwards"
            self.fail(problem, f"write {self._unrolled(low, high, low_text in self.kind.names)}")
        return low, high

    def _unrolled(self, low: int, high: int, is_named: bool) -> str:
        """What a range that wraps round would be: ``22-2`` as ``22-23,0-2``."""
        kind = self.kind
        values = [low % 7 if kind is WEEKDAY else low, kind.high, kind.low, high]
        if values[0] <= high:
            values = [values[0], high]  # 7-3 is 0-3
        ends = [kind.names[value - kind.low] if is_named else str(value) for value in values]
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return ",".join(first if first == last else f"{first}-{last}" for first, last in pairs)

    def _value(self, text: str) -> int:
        kind = self.kind
        if text in kind.names:
            return kind.low + kind.names.index(text)
        if not text.isdigit():
            self.fail(
                f"has '{text}', which is no value of it" if text else "lacks a value", self._takes()
            )
        value = int(text)
        high = 7 if kind is WEEKDAY else kind.high
        if not kind.low <= value <= high:
            self.fail(f"has {text}, which is out of range", self._takes())
        return value

    def _takes(self) -> str:
        kind = self.kind
        named = f" or {kind.names[0]} to {kind.names[-1]}" if kind.names else ""
        high = 7 if kind is WEEKDAY else kind.high
        return f"it takes {kind.low} to {high}{named}"

    def _step(self, text: str, item: str) -> int:
        if not text.isdigit() or int(text) == 0:
            self.fail(f"has '{item}'", "a step is a whole number of at least 1, as in */5")
        return int(text)

    def _hashed(self, item: str, seed: str) -> str:
        """The values of ``H``, ``H/n``, ``H(a-b)`` or ``H(a-b)/n``, as a list."""
        found = _HASH.fullmatch(item)
        if found is None or self.kind is YEAR:
            self.fail(
                f"has '{item}'",
                "H may stand as H, H/n, H(a-b) or H(a-b)/n in any field but the year; there is no R",
            )
        low, high = self.kind.low, self.kind.hash_high or self.kind.high
        if found["low"]:
            low, high = self._value(found["low"]), self._value(found["high"])
            if low > high:
                self.fail(f"has '{item}', which runs backwards", f"write H({high}-{low})")
        size = high - low + 1
        step = self._step(found["step"], item) if found["step"] else size
        # A step wider than the range still leaves one value: the offset stays inside both.
        low += hash_number(seed, self.kind.name) % min(step, size)
        return ",".join(str(value) for value in range(low, high + 1, step))


def hash_number(seed: str, what: str) -> int:
    """A number of 64 bits, evenly spread, that is the same on every host and for ever."""
    return int.from_bytes(blake2b(f"{what}\0{seed}".encode(), digest_size=8).digest(), "big")
