"""Calls of a user's functions: what passes through them, and what a child forked in one does."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from shardq import locks
from shardq.engine.handing.handler import undone

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.model.message import Message

ENDS_PROCESS: tuple[type[BaseException], ...] = ()
"""What a simulated process ends by; the end of a real one is no exception in a function."""


class Call:
    """A user's function of a message, called in this process.

    Args:
        function: Checked by `check_function`.
    """

    def __init__(self, function: Callable[[Message], object]) -> None:
        self._function = function
        self._is_parents = False
        locks.in_child(self, Call._begin_child)

    def __call__(self, message: Message) -> tuple[str, BaseException | None]:
        """Call it; returns what it has not done, empty where it has done all, and what it raised.

        It has a context of its own: no context variable and no setting of `decimal` that it changes
        is seen by the next. A child that it forks ends here: what follows is its parent's.
        """
        try:
            try:
                returned = _own_context().run(self._function, message)
                # Most handlers return nothing.
                return "" if returned is None else undone(returned), None
            finally:
                if self._is_parents:
                    end_child(sys.exception())
        # All of it, SystemExit, GeneratorExit and what time-outs, asyncio and greenlets raise: else
        # it would end a thread of ours, and what that was to do would be held for ever.
        except BaseException as error:
            if passes(error):
                raise
            return "", error

    def _begin_child(self) -> None:
        self._is_parents = True


def _own_context() -> contextvars.Context:
    made = contextvars.copy_context()
    # Empty in a thread of ours. Elsewhere a copy shares the objects that are in it, and decimal's
    # is one that functions change.
    if len(made) and "decimal" in sys.modules:
        made.run(_copy_decimal)
    return made


def _copy_decimal() -> None:
    decimal = sys.modules["decimal"]
    decimal.setcontext(decimal.getcontext().copy())


def passes(error: BaseException) -> bool:
    """Whether this is nobody's failure: Ctrl-C, which reaches the main thread wherever it is."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, ENDS_PROCESS)


def end_child(error: BaseException | None) -> NoReturn:
    """End this process as `sys.exit` in the main thread would, but for what runs at exit."""
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code or 0
    status = code & 0xFF if isinstance(code, int) else 1
    # Streams may be closed, or None.
    is_unwritten = suppress(OSError, ValueError, AttributeError)
    try:
        with is_unwritten:
            if not isinstance(code, int):
                sys.stderr.write(f"{code}\n")
            elif error is not None and not isinstance(error, SystemExit):
                traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            with is_unwritten:
                stream.flush()
    finally:
        os._exit(status)
