"""Payload: how the arguments of a call become the payload of a task.

Only positional arguments make an array, only named ones an object, none make no payload. A mixture
is bound to the handler's signature and sent as an object of all, or as an array where a parameter
is positional-only. Defaults are not sent: they belong to the code that runs the task. Arguments are
checked against the signature before anything is sent; the two pure forms are checked by counting
and by sets of names, because ``inspect.Signature.bind`` alone would cost more than all the rest.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from tasksched.model import codec
from tasksched.runtime.context import Ctx

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_POINTER = "/payload"


class Arguments:
    """The parameters of one handler, without its Ctx."""

    __slots__ = ("_least", "_most", "_named", "_required", "_signature", "_who")

    def __init__(self, who: str, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        kinds = {p.kind for p in parameters}
        required = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
        self._who = who
        self._signature = signature
        self._required = frozenset(p.name for p in required)
        self._least = len(required)
        self._most = sum(p.kind in POSITIONAL for p in parameters)
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            self._most = codec.PAYLOAD_MAX
        if any(p.kind is p.KEYWORD_ONLY for p in required):
            self._most = -1  # an array alone can never do
        self._named: frozenset[str] | None = frozenset(
            p.name for p in parameters if p.kind in _BY_NAME
        )
        if inspect.Parameter.VAR_KEYWORD in kinds:
            self._named = None

    @classmethod
    def of(cls, who: str, function: Callable[..., Any], *, wants_ctx: bool) -> "Arguments":
        signature = inspect.signature(function)
        if wants_ctx:
            rest = list(signature.parameters.values())[1:]
            signature = signature.replace(parameters=rest)
        return cls(who, signature)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], most: int) -> bytes:
        """The payload, of at most ``most`` bytes. Raises TypeError as the call itself would."""
        if not kwargs:
            if self._least <= len(args) <= self._most:
                return codec.encode(args, _POINTER, most=most) if args else b""
        elif not args and self._required <= kwargs.keys() and self._knows(kwargs):
            return codec.encode(kwargs, _POINTER, most=most)
        return codec.encode(self._bound(args, kwargs), _POINTER, most=most)

    def _knows(self, kwargs: Mapping[str, Any]) -> bool:
        return self._named is None or kwargs.keys() <= self._named

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._who}() {error}") from None
        if not bound.kwargs and not kwargs:
            return bound.args
        by_name = self._by_name(bound)
        if by_name is not None:
            return by_name
        if bound.kwargs:
            raise TypeError(
                f"{self._who}() takes these positional and named arguments together, which no "
                "payload can hold: give all by name, or all by position"
            )
        return bound.args

    def _by_name(self, bound: inspect.BoundArguments) -> dict[str, Any] | None:
        """The arguments as one object; None where one of them has no name to go by."""
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            elif kind in _BY_NAME:
                found[name] = value
            else:
                return None
        return found


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class AnyArguments(Arguments):
    """Of a handler known by its name alone: nothing can be checked."""

    __slots__ = ()

    def __init__(self, who: str) -> None:
        super().__init__(who, inspect.signature(_anything))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:  # noqa: ARG002
        raise TypeError(
            f"{self._who}() is known by name alone, without its parameters: give all its "
            "arguments by name, or all by position"
        )


def _anything(*args: Any, **kwargs: Any) -> None: ...


def takes_ctx(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is the Ctx: by its annotation, or without one by its name."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    if first.annotation is first.empty:
        return first.name == "ctx"
    if isinstance(first.annotation, str):
        try:
            return get_type_hints(function).get(first.name) is Ctx
        except NameError:  # some other annotation names what exists for type checkers only
            return first.annotation.rpartition(".")[2] == Ctx.__name__
    return first.annotation is Ctx
