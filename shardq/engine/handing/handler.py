"""What a user's function has to be so that a call does its work, and whether a call has done it.

A call of an async function, or of one with `yield`, only makes an object. Its work runs when that
is awaited or iterated over, which a consumer does not do.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from shardq.engine.handing.outcome import Request
from shardq.errors import BadSetting, shown

_ASYNC = "give `lambda message: asyncio.run(handle(message))`"
_LAZY = "give a function that runs it to its end, as `lambda message: list(handle(message))` does"
_KINDS = (
    (inspect.iscoroutinefunction, "async", _ASYNC),
    (inspect.isasyncgenfunction, "an async generator", "give a function that runs it to its end"),
    (inspect.isgeneratorfunction, "a generator", _LAZY),
)
"""How a function is recognised, what it is, and what to give instead."""
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, tuple, dict, set))
"""What handlers return, most of them: to look closer would cost each delivery 2 us."""
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
"""Where a coroutine or generator keeps what is left to run: None once it has ended."""


def check_function(given: object, what: str) -> None:
    """Refuse what can be seen not to do its work when it is called with a message.

    Args:
        given: What was given as a function.
        what: The name of the argument, for the error.

    Raises:
        BadSetting: If it cannot be called, is async, a generator, or a class.
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
    """Whether what is called is of a kind: a function, or what an object's class is called by."""
    while isinstance(function, partial):
        function = function.func
    plain = function.__func__ if isinstance(function, staticmethod) else function
    return is_kind(plain) or is_kind(type(plain).__call__)


def undone(returned: object) -> str:
    """What a call's result shows not to have been done, and what to do; empty where all has.

    The result of a future is waited for. A coroutine or a generator is closed.

    Raises:
        BaseException: What the work of a future raised.
    """
    return unrun(finished(returned), _ASYNC, _LAZY)


def unrun(result: object, if_async: str, if_lazy: str) -> str:
    """What a result shows not to have been done; empty where it shows nothing.

    Args:
        result: What a call has come to.
        if_async: What to do where it is a coroutine.
        if_lazy: What to do where it is a generator.
    """
    if type(result) in _PLAIN:
        return ""
    asked = result if isinstance(result, type) else type(result)
    if issubclass(asked, Request):
        return f"{asked.__name__} and did not raise it; raise it"
    is_lazy = isinstance(result, (Generator, AsyncGenerator, map, filter))
    if not (is_lazy or isinstance(result, Awaitable)):
        return ""
    if any(getattr(result, frame, result) is None for frame in _FRAMES):
        return ""
    if isinstance(result, (Coroutine, Generator)):
        # Python would complain that a coroutine was never awaited, once more and without a name.
        result.close()
    name = getattr(result, "__qualname__", "")
    made = f"the {type(result).__name__} {name}".strip()
    if is_lazy:
        return f"{made}, which has not run; {if_lazy}"
    return f"{made}, which nobody awaits; {if_async}"


def finished(returned: object) -> object:
    """What a call returned; where that is a future, its result.

    Waited for, because the work of a future has begun: if its message failed now, it would be done
    once more. What asyncio has not done yet cannot be waited for here, and stays what it is.

    Raises:
        BaseException: What the work of the future raised.
    """
    while (kind := type(returned)) not in _PLAIN:
        # Whoever has one of these has imported its module.
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
