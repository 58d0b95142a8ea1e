"""Calls users' functions; says which errors pass through, and how a forked child ends."""

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
from shardq.logs import handled

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.model.message import Message

ENDS_PROCESS: tuple[type[BaseException], ...] = ()
"""The exceptions that end a simulated process; a real process ends without an exception."""


class HandlerCall:
    """Calls a user's function with messages, and returns how each call has ended.

    Args:
        function: A function that `check_function` accepts.
    """

    def __init__(self, function: Callable[[Message], object]) -> None:
        self._function = function
        self._is_parents = False
        locks.in_child(self, HandlerCall._begin_child)

    def __call__(self, message: Message) -> tuple[str, BaseException | None]:
        """Call the function.

        The function runs in a context of its own: the next call does not see the context variables
        and `decimal` settings that this call changes. A child process that the function forks ends
        when the function does, because the code that follows is the parent's.

        Returns:
            The work that the call left undone, empty if none; and the error that it raised, or
            None.
        """
        try:
            try:
                own = _own_context()
                own.run(handled.set, message)
                returned = own.run(self._function, message)
                # Most handlers return nothing.
                return "" if returned is None else undone(returned), None
            finally:
                if self._is_parents:
                    end_child(sys.exception())
        # Catch every error, also SystemExit, GeneratorExit and those of time-outs, asyncio and
        # greenlets. Uncaught, an error would end a thread of ours, and the row would be held for
        # ever.
        except BaseException as error:
            if passes(error):
                raise
            return "", error

    def _begin_child(self) -> None:
        self._is_parents = True


def _own_context() -> contextvars.Context:
    made = contextvars.copy_context()
    # In a thread of ours the context is empty. Elsewhere the copy shares its values with the
    # original, and functions change one of these values: the context of decimal.
    if len(made) and "decimal" in sys.modules:
        made.run(_copy_decimal)
    return made


def _copy_decimal() -> None:
    decimal = sys.modules["decimal"]
    decimal.setcontext(decimal.getcontext().copy())


def passes(error: BaseException) -> bool:
    """True if an error must pass: Ctrl-C in the main thread, or the end of a simulated process."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, ENDS_PROCESS)


def end_child(error: BaseException | None) -> NoReturn:
    """End this process as `sys.exit` in the main thread would, without calling exit handlers."""
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code or 0
    status = code & 0xFF if isinstance(code, int) else 1
    # Standard streams may be closed, or None.
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
