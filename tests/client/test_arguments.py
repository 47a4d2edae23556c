"""How arguments become the payload, and how wrong ones are refused before anything is sent."""

from typing import Any

import pytest

from tasksched import App, Ctx, Invalid, TooLarge
from tasksched.model import codec
from tasksched.settings import Settings

app = App(settings=Settings(url="redis://nowhere"))


@app.task
def plain(a: int, b: int = 2) -> None: ...
@app.task
def positional(a: int, /, b: int = 2) -> None: ...
@app.task
def named(*, a: int, b: int = 2) -> None: ...
@app.task
def variadic(a: int, *rest: int) -> None: ...
@app.task
def open_ended(a: int, **more: Any) -> None: ...
@app.task
def everything(a: int, *rest: int, **more: int) -> None: ...
@app.task
async def with_ctx(ctx: Ctx, a: int) -> None: ...
@app.task
async def untyped(ctx, a): ...


NOTHING = object()


def sent(handler: Any, *args: Any, **kwargs: Any) -> Any:
    payload = handler.call(*args, **kwargs).spec.payload
    return codec.decode(payload) if payload else NOTHING


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "expected"),
    [
        (plain, (1,), {}, [1]),
        (plain, (1, 3), {}, [1, 3]),
        (plain, (), {"a": 1}, {"a": 1}),
        (plain, (), {"b": 3, "a": 1}, {"b": 3, "a": 1}),
        (plain, (1,), {"b": 3}, {"a": 1, "b": 3}),
        (positional, (1,), {}, [1]),
        (positional, (1,), {"b": 3}, [1, 3]),
        (named, (), {"a": 1}, {"a": 1}),
        (variadic, (1, 2, 3), {}, [1, 2, 3]),
        (open_ended, (1,), {"x": 2}, {"a": 1, "x": 2}),
        (open_ended, (), {"a": 1, "x": 2}, {"a": 1, "x": 2}),
        (everything, (1, 2), {}, [1, 2]),
        (everything, (), {"a": 1, "x": 2}, {"a": 1, "x": 2}),
        (everything, (1,), {"x": 2}, {"a": 1, "x": 2}),
        (with_ctx, (1,), {}, [1]),
        (untyped, (), {"a": 1}, {"a": 1}),
        (app.named("far.away"), (1, "x"), {}, [1, "x"]),
        (app.named("far.away"), (), {"self": 1, "who": 2}, {"self": 1, "who": 2}),
        (app.named("far.away"), (), {}, NOTHING),
    ],
)
def test_arguments_become_an_array_or_an_object(handler, args, kwargs, expected):
    assert sent(handler, *args, **kwargs) == expected


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "said"),
    [
        (plain, (), {}, r"plain\(\) missing a required argument: 'a'"),
        (plain, (1, 2, 3), {}, "too many positional arguments"),
        (plain, (1,), {"a": 1}, "multiple values for argument 'a'"),
        (plain, (1,), {"c": 1}, "unexpected keyword argument 'c'"),
        (plain, (), {"b": 1}, "missing a required argument: 'a'"),
        (positional, (), {"a": 1}, "'a'"),
        (named, (1,), {}, "too many positional arguments"),
        (with_ctx, (), {}, "missing a required argument: 'a'"),
        (with_ctx, (1,), {"ctx": 2}, "unexpected keyword argument 'ctx'"),
        (everything, (1, 2), {"x": 3}, "no payload can hold"),
        (app.named("far.away"), (1,), {"x": 3}, "known by name alone"),
    ],
)
def test_wrong_arguments_are_a_type_error(handler, args, kwargs, said):
    with pytest.raises(TypeError, match=said):
        handler.call(*args, **kwargs)


@pytest.mark.parametrize(
    ("value", "pointer"),
    [({1}, "/payload/0"), ([float("nan")], "/payload/0/0"), (2**64, "/payload/0"),
     ("\ud800", "/payload/0"), ({"x": {1: 2}}, "/payload/0/x")],
)  # fmt: skip
def test_what_is_not_json_is_refused_at_its_place(value, pointer):
    with pytest.raises(Invalid) as refused:
        plain.call(value)
    assert refused.value.problems[0].pointer == pointer


def test_a_payload_over_its_limit_is_refused():
    small = App(settings=Settings(url="redis://nowhere", payload_bytes_max=100))
    with pytest.raises(TooLarge):
        small.named("x").call("y" * 200)


def test_tuples_travel_as_lists():
    assert sent(plain, (1, (2,))) == [[1, [2]]]
