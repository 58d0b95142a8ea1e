"""The output of `work`: a line for each run that has ended."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING

import click

from shardq.cli import screen, streams
from shardq.engine.handing.failures import REPORTED
from shardq.model.times import iso

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from shardq.clock import Clock
    from shardq.tasks import Ended

_COLOURS = {
    "done": "green",
    "retrying": "yellow",
    "failed": "red",
    "snoozed": "cyan",
    "expired": "magenta",
    "cancelled": "magenta",
    "unknown": "yellow",
}
_STATE = max(map(len, _COLOURS))
_TASK_MAX = 40
_SPAN = 6
_INDENT = "    "
_TRACEBACKS_MAX = 100
"""At most this many waiting lines have a traceback, which may take kilobytes; further ones have
none."""
_WAITING_MAX = 10_000
"""Most lines that wait for stdout; more are left out, because jobs must not wait for a reader."""


class JobLines:
    """Prints a line for each run, in a thread of its own, so that jobs never wait for it.

    ```
    13:03:35  done       app.welcome     12ms  2f6b8e1c-..
    13:03:36  retrying   app.flaky       1.2s  3a0c77d2-..  attempt 2, again in 4s: OSError: ..
        Traceback (most recent call last):
        ..
    ```

    The log on stderr leaves out the runs that are printed here (`says`).

    If stdout is closed, it reports that once on stderr, and the work continues.

    Args:
        clock: The store's clock.
        tasks: The names of the tasks, for the width of their column.
        as_json: True to print JSON objects.
    """

    def __init__(self, clock: Clock, tasks: Iterable[str], *, as_json: bool) -> None:
        self._clock = clock
        self._as_json = as_json
        self._is_terminal = sys.stdout.isatty()
        self._is_coloured = self._is_terminal and not os.environ.get("NO_COLOR")
        self._width = min(max(map(len, tasks), default=1), _TASK_MAX)
        self._file = streams.stdout("lines of jobs")
        self._state = threading.Condition()
        self._waiting: deque[tuple[int, Ended]] = deque()
        self._left_out = 0
        self._is_closed = self._is_broken = False
        self._counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._write, name="shardq-lines", daemon=True)
        self._thread.start()

    def tell(self, ended: Ended) -> None:
        """Print a run that has ended, soon."""
        now_ms = self._clock.now_ms()
        with self._state:
            self._counts[ended.state] += 1
            if len(self._waiting) >= _WAITING_MAX:
                self._left_out += 1
                return
            if ended.traceback and len(self._waiting) >= _TRACEBACKS_MAX:
                ended = ended._replace(traceback="")
            self._waiting.append((now_ms, ended))
            self._state.notify()

    def says(self, record: logging.LogRecord) -> bool:
        """True if a log record is about a run that has a line here."""
        return getattr(record, REPORTED, False) and not self._is_broken

    def close(self) -> None:
        """Write the waiting lines, and end; waits at most a second for stdout."""
        with self._state:
            self._is_closed = True
            self._state.notify()
        self._thread.join(1.0)

    @property
    def total(self) -> str:
        """The number of runs by outcome, as text."""
        counts = self._counts
        each = [f"{counts[state]:,} {state}" for state in _COLOURS if counts[state]]
        whole = screen.plural(sum(counts.values()), "run")
        return f"{whole}: {', '.join(each)}" if each else whole

    def _write(self) -> None:
        while True:
            with self._state:
                while not (self._waiting or self._is_closed):
                    self._state.wait()
                batch, left_out = [*self._waiting], self._left_out
                self._waiting.clear()
                self._left_out = 0
            if not batch:
                return
            lines = [self._line(now_ms, ended) for now_ms, ended in batch]
            if left_out:
                text = f"{screen.plural(left_out, 'line')} left out: stdout was too slow"
                streams.note(f"{text}.")
            try:
                self._file.write("".join(lines).encode("utf-8", "backslashreplace"))
                self._file.flush()
            except OSError as error:
                self._is_broken = True
                streams.note(
                    f"stdout: {error.strerror}; jobs have no more lines, and are run all the same."
                )
                return

    def _line(self, now_ms: int, ended: Ended) -> str:
        if self._as_json:
            return _json(now_ms, ended)
        when = iso(now_ms)
        # Leave out the day and fractions of a second on a terminal; a file, which is read later,
        # has them.
        when = when[11:19] if self._is_terminal else when
        state = f"{ended.state:{_STATE}}"
        if self._is_coloured:
            state = click.style(state, fg=_COLOURS[ended.state])
        task = screen.squeezed(ended.task or "-", self._width)
        took = screen.span(ended.seconds * 1_000)
        line = f"{when}  {state}  {task:{self._width}}  {took:>{_SPAN}}  {ended.id}"
        more = []
        if ended.attempt > 1 or ended.state in ("retrying", "failed"):
            more.append(f"attempt {ended.attempt:,}")
        if ended.delay_ms is not None:
            more.append(f"again in {screen.span(ended.delay_ms)}")
        tail = ", ".join(more)
        if ended.error:
            tail = f"{tail}: {ended.error}" if tail else ended.error
        lines = [f"{line}  {streams.escaped(tail)}".rstrip()]
        lines += [f"{_INDENT}{streams.escaped(one)}" for one in ended.traceback.splitlines()]
        return "\n".join(lines) + "\n"


def _json(now_ms: int, ended: Ended) -> str:
    again = None if ended.delay_ms is None else iso(now_ms + ended.delay_ms)
    line = {
        "at": iso(now_ms),
        "state": ended.state,
        "task": ended.task or None,
        "id": ended.id,
        "queue": ended.queue,
        "attempt": ended.attempt,
        "seconds": round(ended.seconds, 6),
        "error": ended.error or None,
        "traceback": ended.traceback or None,
        "again": again,
        "process": os.getpid(),
    }
    return screen.json_line(line) + "\n"
