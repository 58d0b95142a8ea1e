"""The stderr of commands of `consume --exec`: forwarded at once, and its end kept.

```
 command ──► pipe ──► a thread ──► our stderr
                         └──► the last bytes ──► why the command failed
```

A program that a command leaves running keeps the pipe open. Nobody waits for its end.
"""

from __future__ import annotations

import os
import re
import select
import threading

from shardq.cli import streams

_KEPT_BYTES = 8_192
_READ_BYTES = 65_536
"""The capacity of a pipe, so at most this much was unread when the command ended."""
_WAIT_S = 1.0
"""How long the end of a command waits for its output to be forwarded, if our stderr is blocked."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Tail:
    """The end of the stderr of a command that is about to start: its pipe, which a thread reads.

    Args:
        has_pipe: False for a command that writes to our stderr itself.

    Attributes:
        given: The descriptor that the command inherits as stderr; None: our stderr.
        is_open: True while a program has the pipe.

    Raises:
        OSError: If there is no room for a pipe.
    """

    def __init__(self, *, has_pipe: bool) -> None:
        self.given: int | None = None
        self.is_open = False
        self._kept = b""
        self._out = streams.stderr()
        self._reading = threading.Lock()
        """Held while a part of the output is read and forwarded."""
        if not has_pipe:
            return
        self._read, self.given = os.pipe()
        os.set_blocking(self._read, False)
        self.is_open = True
        thread = threading.Thread(target=self._run, name="shardq-exec-stderr", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # If no thread can be started, the command writes to our stderr itself.
            self._close()
            self.begun()
            self.given = None

    def begun(self) -> None:
        """Close our copy of the writing end, once the command has started or failed to start."""
        if self.given is not None:
            os.close(self.given)

    def ended(self) -> None:
        """Forward what the command has written before its end."""
        if self._reading.acquire(timeout=_WAIT_S):
            try:
                self._pass_on()
            finally:
                self._reading.release()

    def end(self, room: int) -> str:
        """The end of an ended command's output, up to a number of characters."""
        return reason_of(self._kept, room)

    def _run(self) -> None:
        """Read until no program has the pipe."""
        ready = select.poll()
        ready.register(self._read, select.POLLIN)
        while self.is_open:
            ready.poll()
            with self._reading:
                if not self._pass_on():
                    # Close only in this thread: otherwise it might wait for a closed descriptor.
                    self._close()

    def _pass_on(self) -> bool:
        """Forward the contents of the pipe; False if no program has it any more."""
        if not self.is_open:
            return False
        try:
            data = os.read(self._read, _READ_BYTES)
        except BlockingIOError:
            return True
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        self._out.write(data)
        return bool(data)

    def _close(self) -> None:
        self.is_open = False
        os.close(self._read)


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
