"""Retry: how often a task may start, and how long it waits in between.

Owns the policy and its two spellings, the constructor users see and the JSON form. Invariant: a
``Retry`` that exists is within its bounds, and ``delay_ms`` of any attempt is an integer from 0 to
``max_ms``. The exponent is clamped before the power is taken, so attempt 100,000 costs what attempt 2
does: ``2.0 ** 1024`` overflows and ``2 ** 100_000`` has thirty thousand digits.
Deliberately not here: what happens after a failure (that depends on the error and the history), and
the exceptions in ``never`` on the wire: classes exist only in the process that runs the handler.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

from tasksched.errors import Invalid, Problem
from tasksched.model.durations import Duration, format_duration, parse_duration

Jitter = Literal["full", "equal", "none"]
JITTERS: Final[tuple[Jitter, ...]] = ("full", "equal", "none")

ATTEMPTS_MAX: Final = 1_000
FACTOR_MAX: Final = 100
PROBLEMS_MAX: Final = 20
"""Of unknown members, so many are named."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Retry:
    """The retry policy of a task.

    ``Retry(max_attempts=5, initial="1s", factor=2, max="5m", never=(ValueError,))``: at most five
    starts, one second after the first failure, then twice as long each time, five minutes at most.
    ``max_lost`` is how many times in a row the task may lose its worker. ``jitter`` spreads a delay
    over 0 to d (``full``), d/2 to d (``equal``) or not at all (``none``). An error in ``never`` is
    final at once; it takes no part in ``to_json``.
    """

    max_attempts: int
    initial_ms: int
    factor: float
    max_ms: int
    jitter: Jitter
    max_lost: int
    never: tuple[type[BaseException], ...]

    def __init__(
        self,
        max_attempts: int = 5,
        *,
        initial: Duration = "1s",
        factor: float = 2.0,
        max: Duration = "1h",  # noqa: A002 - the name of the member in JSON
        jitter: Jitter = "full",
        max_lost: int = 3,
        never: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Raise ``Invalid`` with pointers into the JSON form, such as ``/backoff/max``."""
        put = object.__setattr__  # the way of frozen dataclasses themselves
        put(self, "max_attempts", _count(max_attempts, "/max_attempts"))
        put(self, "initial_ms", parse_duration(initial, "/backoff/initial"))
        put(self, "factor", _factor(factor, "/backoff/factor"))
        put(self, "max_ms", parse_duration(max, "/backoff/max"))
        put(self, "jitter", _jitter(jitter, "/backoff/jitter"))
        put(self, "max_lost", _count(max_lost, "/max_lost"))
        put(self, "never", _exceptions(never, "/never"))
        if self.initial_ms > self.max_ms:
            raise Invalid(
                f"the first delay, {format_duration(self.initial_ms)}, is above the largest, "
                f"{format_duration(self.max_ms)}; set both initial and max",
                "/backoff/max",
            )

    @classmethod
    def parse(cls, body: object, pointer: str = "") -> "Retry":
        """The policy in the JSON form; what is not named has its default.

        ``{"max_attempts": 5, "max_lost": 3, "backoff": {"initial": "1s", "factor": 2, "max": "1h",
        "jitter": "full"}}``. An unknown member is refused. Raises ``Invalid`` below ``pointer``.
        """
        try:
            members = _members(body, "", ("max_attempts", "max_lost", "backoff"))
            backoff = _members(
                members.pop("backoff", {}), "/backoff", ("initial", "factor", "max", "jitter")
            )
            return cls(**members, **backoff)
        except Invalid as error:
            raise error.under(pointer) from None

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without what is at its default: ``Retry()`` gives ``{}``."""
        body = _changed(_limits(self), _limits(DEFAULT))
        backoff = _changed(_backoff(self), _backoff(DEFAULT))
        if backoff:
            body["backoff"] = backoff
        return body

    def delay_ms(self, attempt: int, rng: Callable[[], float]) -> int:
        """How long to wait after attempt number ``attempt`` (the first is 1), in ms.

        min(max, initial * factor ** (attempt - 1)), then jitter by ``rng``, which answers from
        [0, 1) as ``random.random`` does.
        """
        assert attempt >= 1, attempt
        whole_ms = self._grown_ms(attempt - 1)
        match self.jitter:
            case "none":
                return whole_ms
            case "full":
                least_ms = 0
            case "equal":
                least_ms = whole_ms // 2
            case _:
                assert_never(self.jitter)
        return least_ms + round(rng() * (whole_ms - least_ms))

    def __repr__(self) -> str:
        """The constructor's call, all of it."""
        never = "".join(f"{error.__name__}, " for error in self.never)
        return (
            f"Retry(max_attempts={self.max_attempts}, initial={format_duration(self.initial_ms)!r}, "
            f"factor={self.factor!r}, max={format_duration(self.max_ms)!r}, jitter={self.jitter!r}, "
            f"max_lost={self.max_lost}, never=({never.removesuffix(' ')}))"
        )

    def _grown_ms(self, steps: int) -> int:
        if self.initial_ms == 0 or self.factor == 1:
            return self.initial_ms
        # Compared in logarithms, where nothing overflows; below the bound the power is harmless.
        if steps >= math.log(self.max_ms / self.initial_ms) / math.log(self.factor):
            return self.max_ms
        return min(self.max_ms, round(self.initial_ms * self.factor**steps))


def _limits(policy: Retry) -> dict[str, Any]:
    return {"max_attempts": policy.max_attempts, "max_lost": policy.max_lost}


def _backoff(policy: Retry) -> dict[str, Any]:
    return {
        "initial": format_duration(policy.initial_ms),
        "factor": int(policy.factor) if policy.factor.is_integer() else policy.factor,
        "max": format_duration(policy.max_ms),
        "jitter": policy.jitter,
    }


def _changed(members: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value != usual[name]}


def _members(body: object, pointer: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(body, Mapping):
        raise Invalid(f"an object with some of {', '.join(known)} is needed", pointer)
    unknown = [name for name in body if name not in known]
    if unknown:
        raise Invalid(
            problems=tuple(
                Problem(f"{pointer}/{_token(name)}", f"unknown; known are {', '.join(known)}")
                for name in unknown[:PROBLEMS_MAX]
            )
        )
    return dict(body)


def _token(name: object) -> str:
    """``name`` as part of a JSON pointer (RFC 6901), bounded and encodable whatever it holds."""
    text = str(name)[:64].encode("utf-8", "replace").decode()
    return text.replace("~", "~0").replace("/", "~1")


def _count(value: object, pointer: str) -> int:
    number = _number(value)
    # JSON does not tell 5 from 5.0, so neither do we.
    if not 1 <= number <= ATTEMPTS_MAX or number != int(number):
        raise Invalid(f"a whole number from 1 to {ATTEMPTS_MAX} is needed", pointer)
    return int(number)


def _factor(value: object, pointer: str) -> float:
    number = _number(value)
    if not 1 <= number <= FACTOR_MAX:
        raise Invalid(f"a number from 1 to {FACTOR_MAX} is needed", pointer)
    return float(number)


def _number(value: object) -> float:
    """``value`` if it is a number, else NaN, which lies in no range."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _jitter(value: object, pointer: str) -> Jitter:
    if isinstance(value, str):
        for jitter in JITTERS:
            if jitter == value:
                return jitter
    raise Invalid(f"jitter is one of {', '.join(JITTERS)}", pointer)


def _exceptions(value: object, pointer: str) -> tuple[type[BaseException], ...]:
    if not isinstance(value, tuple):
        raise Invalid("never is a tuple of exception classes, such as (ValueError,)", pointer)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in value):
        raise Invalid("never holds exception classes only", pointer)
    return value


DEFAULT: Final = Retry()
"""What a task has that says nothing: at most 5 starts, 1 s, 2 s, 4 s ... up to 1 h, full jitter."""
