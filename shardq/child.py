"""Processes that are watched and ended: children, others by their ids, this one by its signals.

```
 start ──► runs ──┬─ ends by itself
                  └─ end: SIGTERM, a wait ──► still runs: killed, with all of its process group
```

Each child has a process group of its own: a signal that stops this process does not stop the
child, and whatever the child has started is killed with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from shardq.clock import Clock

_POLL_S = 0.01
"""How exactly a proof knows when a process that it killed was dead."""


class ProcessById:
    """A process that another one has started.

    Args:
        pid: Its id.
        mark: A part of its command line. Process ids are reused: without this part it is another
            process, and this one has ended.
    """

    def __init__(self, pid: int, mark: str) -> None:
        self.pid = pid
        self._mark = mark

    def has_ended(self) -> bool:
        """True if it has ended."""
        return self._mark not in command_of(self.pid)

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)


class ChildProcess(ProcessById):
    """A process that this one has started, in a process group of its own.

    Args:
        command: The program and its arguments.
        options: Arguments of `subprocess.Popen`. Unless they say otherwise, its stdin is empty.

    Attributes:
        pid: Its id.
        process: The process; its streams are bytes.
        is_killed: True if it was killed before its end was noticed.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        options = {"stdin": subprocess.DEVNULL, "process_group": 0} | options
        self.process: subprocess.Popen[Any] = subprocess.Popen(command, **options)  # noqa: S603 - a command of the callers, without a shell
        super().__init__(self.process.pid, "")
        self.is_killed = False

    @property
    def code(self) -> int | None:
        """Its exit code, below 0 for a signal; None while it runs."""
        return self.process.poll()

    def has_ended(self) -> bool:
        """True if it has ended."""
        return self.code is not None

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to its process group.

        The number of a group is not reused while the group has a member.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill all of its process group."""
        self.is_killed |= self.code is None
        self.signal_group(signal.SIGKILL)

    def how_ended(self) -> str:
        """How it has ended, as text: `exited with 3`."""
        code = self.code or 0
        if self.is_killed:
            return "was killed"
        if code >= 0:
            return f"exited with {code}"
        names = {one.value: one.name for one in signal.Signals}
        why = " (out of memory, where nobody killed it)" if code == -signal.SIGKILL else ""
        return f"was ended by {names.get(-code, f'signal {-code}')}{why}"


P = TypeVar("P", bound=ProcessById)


def end(those: Iterable[P], seconds: float, clock: Clock, *, hard: bool = False) -> list[P]:
    """End processes, all at once, and wait; returns those that still run after some seconds.

    Args:
        those: The processes; those that have ended are left alone.
        seconds: The longest wait.
        clock: Measures and waits.
        hard: True to kill them, False to let them end gracefully by SIGTERM.
    """
    running = [one for one in those if not one.has_ended()]
    for one in running:
        if hard:
            one.kill()
        else:
            one.signal(signal.SIGTERM)
            # Wake the process, because a frozen one would not handle SIGTERM.
            one.signal(signal.SIGCONT)
    until_us = clock.boot_us() + round(seconds * 1e6)
    while (running := [one for one in running if not one.has_ended()]) and (
        clock.boot_us() < until_us
    ):
        clock.sleep(_POLL_S)
    return running


@contextmanager
def handled(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], Any]],
) -> Iterator[None]:
    """Handle signals of this process while this lasts. The main thread calls it."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command_of(pid: int) -> str:
    """A process's command line; empty if there is no such process, or only its zombie."""
    return _shown(pid, "cmdline", "command").replace("\0", " ")


def resident_bytes(pid: int) -> int | None:
    """The resident memory of a process; None if it has ended, or the system does not report it."""
    text = _shown(pid, "status", "rss")
    kibibytes = (text.partition("VmRSS:")[2] or text).split()[:1]
    return int(kibibytes[0]) * 1_024 if kibibytes and kibibytes[0].isdigit() else None


def _shown(pid: int, file: str, column: str) -> str:
    """A file below /proc of a process, or where there is none a column of `ps`."""
    if os.path.exists("/proc/self/status"):
        try:
            with open(f"/proc/{pid}/{file}", errors="replace") as opened:
                return opened.read()
        except OSError:
            return ""
    words = ["/bin/ps", "-ww", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout  # noqa: S603 - a program of the system's, and a number
