"""Limits: what is set for a queue or a tenant, and how it stands as words in ``conf``.

Scripts read the words (``lua/lib/rules.lua``): ``paused strict running=10 rate=0.5``. They are made
here alone, of checked values, so no text of a user reaches a script. Invariant: what ``words`` writes,
``of_words`` reads back as the same value.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Final, Self

import msgspec

from tasksched.errors import Invalid

WEIGHT_LEAST, WEIGHT_MOST = 0.1, 100.0
NUMBER_MAX: Final = 1_000_000_000
RATE_LEAST, RATE_MOST = 0.001, 1_000_000.0
DECIMALS: Final = 3
CONCURRENCY_MAX: Final = 10_000


class _Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What queues and tenants have in common. ``draining``: nothing new is created there."""

    paused: bool = False
    draining: bool = False
    max_running: int | None = None
    dispatch_rate: float | None = None

    WORDS: ClassVar[dict[str, str]] = {"max_running": "running", "dispatch_rate": "rate"}

    @property
    def words(self) -> str:
        """As scripts read it; empty where everything is as it is without any rule."""
        found = []
        for name, default in _defaults(type(self)).items():
            value = getattr(self, name)
            if value != default:
                found.append(self._word(name) + ("" if value is True else f"={_text(value)}"))
        return " ".join(found)

    @classmethod
    def of_words(cls, text: str) -> Self:
        """What the words say; those that are not known here say nothing."""
        names = {cls._word(name): name for name in cls.__struct_fields__}
        found: dict[str, Any] = {}
        for word in text.split():
            key, is_number, value = word.partition("=")
            if key in names:
                found[names[key]] = _number(names[key], value) if is_number else True
        return cls(**found)

    @classmethod
    def _word(cls, name: str) -> str:
        return cls.WORDS.get(name, name)

    def changed(self, given: Mapping[str, Any], pointer: str = "") -> Self:
        """With these values, checked; None is the default. Raises Invalid at ``pointer/name``."""
        defaults, found = _defaults(type(self)), {}
        for name, value in given.items():
            if name not in defaults:
                raise Invalid(f"unknown; known are {', '.join(defaults)}", f"{pointer}/{name}")
            is_given = value is not None
            found[name] = CHECKS[name](value, f"{pointer}/{name}") if is_given else defaults[name]
        return msgspec.structs.replace(self, **found)


class QueueRules(_Rules, frozen=True, kw_only=True):
    """Of a queue. ``strict``: a higher class always goes first. Rates are a second, over all shards."""

    strict: bool = False


class TenantRules(_Rules, frozen=True, kw_only=True):
    """Of a tenant. ``weight``: its part of what tenants share, against 1 of the others."""

    weight: float = 1.0
    max_pending: int | None = None
    create_rate: float | None = None

    WORDS: ClassVar[dict[str, str]] = {
        **_Rules.WORDS, "max_pending": "pending", "create_rate": "creates",
    }  # fmt: skip


Switches = ("paused", "draining")
"""What verbs turn on and off, and a PUT leaves alone that does not name it."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: its rules, and how it is. Version 0: nothing was ever set.

    ``counts``: the asking tenant's tasks by state. ``in_use``: tasks of all tenants that run or are
    about to. ``allotted``: permits that the shards have of ``max_running``. ``paused_by``: ``everything``,
    ``queue`` or ``share`` (the tenant's own), or None.
    """

    name: str
    version: int = 0
    rules: QueueRules = QueueRules()
    counts: dict[str, int] = {}
    in_use: int = 0
    allotted: int = 0
    paused_by: str | None = None


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant: its rules and its use of them. ``running``: tasks that run or are about to."""

    name: str
    version: int = 0
    rules: TenantRules = TenantRules()
    unfinished: int = 0
    running: int = 0


# -- checks -------------------------------------------------------------------------------------


def check_weight(value: object, pointer: str = "") -> float:
    return _decimal(value, pointer, WEIGHT_LEAST, WEIGHT_MOST)


def check_rate(value: object, pointer: str = "") -> float:
    """A number a second, with three decimals at most. Raises Invalid."""
    return _decimal(value, pointer, RATE_LEAST, RATE_MOST)


def check_count(value: object, pointer: str = "") -> int:
    return _whole(value, pointer, 0)


def check_positive(value: object, pointer: str = "") -> int:
    return _whole(value, pointer, 1)


def check_concurrency_limit(value: object, pointer: str = "") -> int:
    """How many tasks with one concurrency key may run at a time. Raises Invalid."""
    if type(value) is int and 1 <= value <= CONCURRENCY_MAX:
        return value
    raise Invalid(f"a whole number from 1 to {CONCURRENCY_MAX} is needed", pointer)


def check_flag(value: object, pointer: str = "") -> bool:
    if type(value) is bool:
        return value
    raise Invalid("true or false is needed", pointer)


CHECKS: Final[dict[str, Callable[[object, str], Any]]] = {
    "paused": check_flag,
    "draining": check_flag,
    "strict": check_flag,
    "weight": check_weight,
    "max_running": check_positive,
    "max_pending": check_count,
    "dispatch_rate": check_rate,
    "create_rate": check_rate,
}


def _whole(value: object, pointer: str, least: int) -> int:
    if type(value) is int and least <= value <= NUMBER_MAX:
        return value
    raise Invalid(f"a whole number from {least} to {NUMBER_MAX} is needed", pointer)


def _decimal(value: object, pointer: str, least: float, most: float) -> float:
    wanted = f"a number from {least:g} to {most:.0f} with at most {DECIMALS} decimals is needed"
    if type(value) not in {int, float} or not least <= value <= most:  # type: ignore[operator]  # a number by now
        raise Invalid(wanted, pointer)
    found = float(value)  # type: ignore[arg-type]  # likewise
    if round(found, DECIMALS) != found:
        raise Invalid(wanted, pointer)
    return found


def _defaults(kind: type[_Rules]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


def _text(value: float) -> str:
    """Digits and a point, never an exponent: the scripts read nothing else."""
    return f"{Decimal(str(round(value, DECIMALS))).normalize():f}"


def _number(name: str, text: str) -> float | int:
    return int(float(text)) if name.startswith("max_") else float(text)
