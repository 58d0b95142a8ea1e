"""Checks that a call of a user's function does the work: before the call, and by the call's result.

A call of an async function, or of a function with `yield`, only makes an object. The work runs when
the object is awaited or iterated over, which a consumer does not do.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from shardq.engine.handing.outcome import HandlerDecision
from shardq.errors import BadSetting, shown

_ASYNC = "give `lambda message: asyncio.run(handle(message))`"
_LAZY = "give a function that runs it to its end, as `lambda message: list(handle(message))` does"
_KINDS = (
    (inspect.iscoroutinefunction, "async", _ASYNC),
    (inspect.isasyncgenfunction, "an async generator", "give a function that runs it to its end"),
    (inspect.isgeneratorfunction, "a generator", _LAZY),
)
"""Each refused kind of function: how to recognise it, its name, and what to give instead."""
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, tuple, dict, set))
"""Types that most handlers return. For these a closer look, which takes 2 us, is skipped."""
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
"""Attributes by which a coroutine or generator holds the code left to run: None once it has
ended."""


def check_function(given: object, what: str) -> None:
    """Refuse a function that evidently would not do its work when called with a message.

    Args:
        given: The value given as a function.
        what: The name of the argument, for the error.

    Raises:
        BadSetting: If the value cannot be called, is async, a generator, or a class.
    """
    if not callable(given):
        raise BadSetting(f"{what} must be a function of a message, not {shown(given)}.")
    called: Any = given
    while isinstance(called, partial):
        called = called.func
    if isinstance(called, type):
        raise BadSetting(
            f"{what} must be a function of a message, not the class {called.__qualname__}, of "
            f"which a call only makes an object; give one of its objects, or a function."
        )
    for is_kind, kind, instead in _KINDS:
        if is_any(is_kind, called):
            raise BadSetting(
                f"{what} {shown(given)} is {kind}, of which a call by itself runs nothing; "
                f"{instead}."
            )


def is_any(is_kind: Callable[[Any], bool], function: Any) -> bool:
    """True if a function, or the `__call__` of a callable object, is of a kind."""
    while isinstance(function, partial):
        function = function.func
    plain = function.__func__ if isinstance(function, staticmethod) else function
    return is_kind(plain) or is_kind(type(plain).__call__)


def undone(returned: object) -> str:
    """The work that a call has left undone, and what to do about it; empty if all was done.

    If the call returned a future, wait for its result; a coroutine or generator is closed.

    Raises:
        BaseException: The error of a future's work.
    """
    return unrun(finished(returned), _ASYNC, _LAZY)


def unrun(result: object, if_async: str, if_lazy: str) -> str:
    """The work that a result shows to be undone, and what to do about it; empty if there is none.

    Args:
        result: The result of a call.
        if_async: What to do if the result is a coroutine.
        if_lazy: What to do if the result is a generator.
    """
    if type(result) in _PLAIN:
        return ""
    asked = result if isinstance(result, type) else type(result)
    if issubclass(asked, HandlerDecision):
        return f"{asked.__name__} and did not raise it; raise it"
    is_lazy = isinstance(result, (Generator, AsyncGenerator, map, filter))
    if not (is_lazy or isinstance(result, Awaitable)):
        return ""
    if any(getattr(result, frame, result) is None for frame in _FRAMES):
        return ""
    if isinstance(result, (Coroutine, Generator)):
        # Close it, or Python would complain a second time, and without a name, that a coroutine was
        # never awaited.
        result.close()
    name = getattr(result, "__qualname__", "")
    made = f"the {type(result).__name__} {name}".strip()
    if is_lazy:
        return f"{made}, which has not run; {if_lazy}"
    return f"{made}, which nobody awaits; {if_async}"


def finished(returned: object) -> object:
    """The value that a call returned or, if the value is a future, the future's result.

    A future is waited for, because its work has begun: if the message failed now, the work would be
    done twice. An unfinished future of asyncio is returned itself, as a thread cannot wait for it.

    Raises:
        BaseException: The error of the future's work.
    """
    while (kind := type(returned)) not in _PLAIN:
        # If the value is a result of multiprocessing.pool, that module has been imported.
        pool = sys.modules.get("multiprocessing.pool")
        if pool is not None and isinstance(returned, pool.AsyncResult):
            returned = returned.get()
        elif (
            hasattr(kind, "add_done_callback")
            and hasattr(kind, "result")
            and (not hasattr(kind, "__await__") or returned.done())  # type: ignore[attr-defined]
        ):
            returned = returned.result()  # type: ignore[attr-defined]
        else:
            break
    return returned
