"""Methods of a synchronous class as coroutines: the same arguments, run by a thread."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shardq.aio.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
Q = TypeVar("Q")


class Face(Generic[Q]):
    """An asyncio face of a synchronous object, whose methods are called in threads.

    Args:
        opening: Returns the object; called in a thread by the first call.
        threads: The threads of its calls.
    """

    def __init__(self, opening: Callable[[], Q], threads: Threads) -> None:
        self._opening = opening
        self._threads = threads
        self._own: Q | None = None

    def _opened(self) -> Q:
        if self._own is None:
            self._own = self._opening()
        return self._own

    async def _call(self, call: Callable[[Q], R], *, is_long: bool = False) -> R:
        return await self._threads.call(lambda: call(self._opened()), is_long=is_long)


def threaded(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A coroutine of a synchronous method: its parameters, overloads, types and docstring.

    A second parameter here would cost mypy the overloads.
    """
    return _made(method)


def lengthy(
    method: Callable[Concatenate[Any, P], R], is_long: Callable[..., bool] = lambda *_, **__: True
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The same for a method that may take minutes, if `is_long` of its arguments is true."""
    return _made(method, is_long=is_long)


def faced(
    method: Callable[Concatenate[Any, P], R], face: Callable[[R, Threads], F]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, F]]:
    """The same for a method whose result has a face, which `face` makes."""
    return _made(method, face=face)


def _made(
    method: Callable[..., Any],
    *,
    face: Callable[[Any, Threads], Any] = lambda made, _: made,
    is_long: Callable[..., bool] = lambda *_, **__: False,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: Any, /, *given: Any, **options: Any) -> Any:
        def run(opened: Any) -> Any:
            own = {name: _opened(value) for name, value in options.items()}
            return method(opened, *given, **own)

        returned = await self._call(run, is_long=is_long(*given, **options))
        return face(returned, self._threads)

    return call


def declared(call: F) -> Callable[[Callable[..., object]], F]:
    """Declare a coroutine of `threaded` by a function, which is never called.

    The function gives the coroutine its name, and the docstring that an editor shows.
    """

    def made(named: Callable[..., object]) -> F:
        one: Any = call
        one.__module__, one.__qualname__ = named.__module__, named.__qualname__
        return call

    return made


def or_none(face: Callable[[R, Threads], F]) -> Callable[[R | None, Threads], F | None]:
    """A function that makes a face of a method's result, and leaves None as it is."""
    return lambda made, threads: None if made is None else face(made, threads)


def _opened(value: Any) -> Any:
    """The synchronous object of a face; any other value as it is."""
    return value._opened() if isinstance(value, Face) else value  # noqa: SLF001 - its own class
