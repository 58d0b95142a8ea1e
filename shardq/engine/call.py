"""Calls of a user's functions: what passes through them, and what a child forked in one does."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import NoReturn

ENDS_PROCESS: tuple[type[BaseException], ...] = ()
"""What a simulated process ends by; the end of a real one is no exception in a function."""


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
