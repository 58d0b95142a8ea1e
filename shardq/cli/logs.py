"""The log on stderr: the records that no handler of the app shows there, each once."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardq.model.times import iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Lines(logging.Formatter):
    """Lines of the log: the time in UTC to the millisecond, level, module of shardq, and text."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002 - logging's signature
        return iso(int(record.created * 1_000))


class _Unshown(logging.StreamHandler):  # type: ignore[type-arg] # no generic at run time
    """Writes records to stderr that no handler of the app shows, however it sets up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless another handler has it on the terminal."""
        if not any(_shows(one) and record.levelno >= one.level for one in self._others(record)):
            super().emit(record)

    def _others(self, record: logging.LogRecord) -> Iterator[logging.Handler]:
        """The other handlers that a record reaches."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            yield from (one for one in logger.handlers if one is not self)
            logger = logger.parent if logger.propagate else None


def _shows(handler: logging.Handler) -> bool:
    """True if a handler is known to write to this process's streams, or to Rich's console.

    Handlers of unknown classes count as False: twice on the terminal is better than only in a file.
    """
    streams = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    console = getattr(handler, "console", None)
    to = getattr(handler, "stream", None) or getattr(console, "file", None)
    return to is not None and any(to is one for one in streams)


def set_up_logging(verbose: int) -> None:
    """Log to stderr: warnings; from `verbose` 1 on also changes, from 2 on everything."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = _Unshown()
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    own = logging.getLogger("shardq")
    own.setLevel(level)
    own.addHandler(handler)
    # Hide the driver's warnings: an error repeats them, and without an error they are noise.
    driver = logging.getLogger("cassandra")
    driver.setLevel(logging.INFO if verbose > 1 else logging.CRITICAL)
    driver.addHandler(handler)


@contextmanager
def without(is_left_out: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Leave records out on stderr for a while; handlers of the app still receive them.

    Args:
        is_left_out: Called with each record, from any thread.
    """

    def is_kept(record: logging.LogRecord) -> bool:
        return not is_left_out(record)

    ours = [one for one in logging.getLogger("shardq").handlers if isinstance(one, _Unshown)]
    for handler in ours:
        handler.addFilter(is_kept)
    try:
        yield
    finally:
        for handler in ours:
            handler.removeFilter(is_kept)
