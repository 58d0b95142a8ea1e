"""The stderr of commands of `consume --exec`: forwarded at once, and its end kept.

```
 command ──► pipe ──┐
 command ──► pipe ──┼─ one thread, while a pipe is open ──► our stderr
 left by one ► pipe ┘            └──► the last bytes of each ──► why its command failed
```

A program that a command leaves running keeps its pipe open, and is not waited for.
"""

from __future__ import annotations

import os
import re
import select
import threading
from contextlib import suppress

from shardq.cli import streams

_KEPT_BYTES = 8_192
_READ_BYTES = 65_536
"""The capacity of a pipe: at most this much was unread when its command ended."""
_LEFT_MAX = 64
"""At most this many open pipes of ended commands; then the next commands write to our own
stderr."""
_WAIT_S = 1.0
"""How long a failure waits for the end of its stderr, if ours is blocked."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Tail:
    """The end of a command's stderr.

    Args:
        given: The descriptor that the command inherits; None: ours.
        read: The other end of its pipe.
    """

    def __init__(self, given: int | None = None, read: int = -1) -> None:
        self.given = given
        self.read = read
        self.kept = b""
        self.is_left = False
        """True if its command has ended, and its pipe is open."""
        self.is_read = threading.Event()
        """Set once the output from before the command's end is kept."""


class Tails:
    """Reads the stderr of commands. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[int, Tail] = {}
        """The tails with open pipes, by the descriptor to read."""
        self._wake: int | None = None
        """Wakes the thread; None if none runs."""
        self._out = streams.stderr()

    def open(self) -> Tail:
        """Make a pipe for a command that is about to start.

        Raises:
            OSError: If there is no room for it.
        """
        with self._lock:
            if sum(tail.is_left for tail in self._tails.values()) >= _LEFT_MAX:
                return Tail()
            read, given = os.pipe()
            try:
                self._start_or_wake()
            except (OSError, RuntimeError) as error:
                os.close(read)
                os.close(given)
                if isinstance(error, OSError):
                    raise
                # No thread can be started: the command writes to our stderr itself.
                return Tail()
            os.set_blocking(read, False)
            tail = self._tails[read] = Tail(given, read)
            return tail

    def begun(self, tail: Tail) -> None:
        """Close our copy of the other end, once the command has started, or failed to."""
        if tail.given is not None:
            os.close(tail.given)

    def ended(self, tail: Tail) -> None:
        """Note that the command has ended: its output is to be read now."""
        with self._lock:
            if tail.read in self._tails:
                tail.is_left = True
                self._start_or_wake()

    def end_of(self, tail: Tail, room: int) -> str:
        """The end of an ended command's output, up to a number of characters."""
        if tail.given is None:
            return ""
        tail.is_read.wait(_WAIT_S)
        return reason_of(tail.kept, room)

    def flush(self) -> None:
        """Wait until the output of ended commands is forwarded."""
        with self._lock:
            left = [tail for tail in self._tails.values() if tail.is_left]
        # At most one wait is in vain: one thread forwards all output.
        all(tail.is_read.wait(_WAIT_S) for tail in left)

    def _start_or_wake(self) -> None:
        """Let the thread see the change; the caller holds the lock."""
        if self._wake is not None:
            # A full pipe wakes it as well.
            with suppress(BlockingIOError):
                os.write(self._wake, b"\0")
            return
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        thread = threading.Thread(
            target=self._run, args=(woken, wake), name="shardq-exec-stderr", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            os.close(woken)
            os.close(wake)
            raise
        self._wake = wake

    def _run(self, woken: int, wake: int) -> None:
        """Read until no pipe is open."""
        ready = select.poll()
        ready.register(woken, select.POLLIN)
        watched: set[int] = set()
        while True:
            with self._lock:
                if not self._tails:
                    self._wake = None
                    break
                tails = dict(self._tails)
            for read in tails.keys() - watched:
                ready.register(read, select.POLLIN)
            watched |= tails.keys()
            events = {read for read, _ in ready.poll()}
            if woken in events:
                os.read(woken, _READ_BYTES)
            for read, tail in tails.items():
                # Set before the read: the read then returns the rest of the command's output.
                is_last = tail.is_left and not tail.is_read.is_set()
                if not (is_last or read in events):
                    continue
                if self._pass_on(tail):
                    ready.unregister(read)
                    watched.discard(read)
                    with self._lock:
                        del self._tails[read]
                    os.close(read)
                    is_last = True
                if is_last:
                    tail.is_read.set()
        os.close(woken)
        os.close(wake)

    def _pass_on(self, tail: Tail) -> bool:
        """Forward the contents of a pipe; True if they were the last: its other end is closed."""
        try:
            data = os.read(tail.read, _READ_BYTES)
        except BlockingIOError:
            return False
        tail.kept = (tail.kept + data)[-_KEPT_BYTES:]
        self._out.write(data)
        return not data


def reason_of(written: bytes, room: int) -> str:
    """The last line of an output; if it has more lines, the last ones follow it.

    A list has room for one line, and the last one mostly tells the cause.
    """
    lines = last_lines(written, room)
    last = lines.rpartition("\n")[2].strip()
    if last == lines:
        return lines
    more = last_lines(written, room - len(last) - 1)
    return f"{last}\n{more}" if more != last else last


def last_lines(written: bytes, room: int) -> str:
    r"""The last lines of an output, as a reason holds them.

    Args:
        written: Output for a terminal: with colours, and with lines that replace one another.
        room: The number of characters; of a longer line its end is kept.

    >>> last_lines(b"connecting\n 10 %\r 20 %\r\x1b[31mrefused\x1b[0m\n\n", 20)
    'connecting\nrefused'
    """
    taken: list[str] = []
    for line in reversed(_ESCAPES.sub("", written.decode(errors="replace")).split("\n")):
        shown = line.rstrip("\r").rpartition("\r")[2]
        text = _CONTROLS.sub("", shown).rstrip()
        if not text and not taken:
            continue
        if len(text) > room:
            if not taken:
                taken.append(text[-room:])
            break
        taken.append(text)
        room -= len(text) + 1
    return "\n".join(reversed(taken)).strip()
