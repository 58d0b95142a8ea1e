"""Methods of a synchronous class as coroutines: the same arguments, run by a thread."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shardq.aio.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
Q = TypeVar("Q")
S = TypeVar("S")


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


@overload
def threaded(
    method: Callable[Concatenate[Any, P], R], *, is_long: bool | Callable[..., bool] = False
) -> Callable[[Callable[[S], object]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]]: ...
@overload
def threaded(
    method: Callable[Concatenate[Any, P], R], *, face: Callable[[R, Threads], F]
) -> Callable[[Callable[[S], object]], Callable[Concatenate[S, P], Coroutine[Any, Any, F]]]: ...
def threaded(
    method: Callable[..., Any],
    *,
    face: Callable[[Any, Threads], object] | None = None,
    is_long: bool | Callable[..., bool] = False,
) -> Any:
    """Make a coroutine of a synchronous method, with its parameters, types and docstring.

    The decorated function is never called. It only gives the coroutine its name, and the docstring
    that an editor shows.

    Args:
        method: The synchronous method.
        face: Makes a face of the method's result.
        is_long: True if a call may take minutes; or a function of the arguments that returns this.
    """

    def made(named: Callable[..., object]) -> Any:
        @functools.wraps(method)
        async def call(self: Any, /, *given: Any, **options: Any) -> Any:
            is_so = is_long(*given, **options) if callable(is_long) else is_long

            def run(opened: Any) -> Any:
                own = {name: _opened(value) for name, value in options.items()}
                return method(opened, *given, **own)

            returned = await self._call(run, is_long=is_so)
            return returned if face is None else face(returned, self._threads)

        call.__module__, call.__qualname__ = named.__module__, named.__qualname__
        return call

    return made


def overloaded(method: Any, *, is_long: bool | Callable[..., bool] = False) -> Callable[[F], F]:
    """The same as `threaded` for a method with overloads, which have to be repeated."""
    return cast("Callable[[F], F]", threaded(method, is_long=is_long))


def or_none(face: Callable[[R, Threads], F]) -> Callable[[R | None, Threads], F | None]:
    """A function that makes a face of a method's result, and leaves None as it is."""
    return lambda made, threads: None if made is None else face(made, threads)


def _opened(value: Any) -> Any:
    """The synchronous object of a face; any other value as it is."""
    return value._opened() if isinstance(value, Face) else value  # noqa: SLF001 - its own class
