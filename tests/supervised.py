"""A supervisor in a process of its own, over small scripts, and what it and they print."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import textwrap
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from forked import DEVNULL, STDOUT, Process

from shardq import tasks
from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMEOUT_S = 60

SUPERVISOR = """
import ctypes, json, os, signal, sys
from pathlib import Path
from shardq.errors import ShardqError
from shardq.tasks import processes
from shardq.tasks.sources import Sources

settings, constants = map(json.loads, sys.argv[1:3])
if settings.pop("inherits"):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if settings.pop("ignores"):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
for name, value in constants.items():
    assert hasattr(processes, name)
    setattr(processes, name, value)
if "reload" in settings:
    settings["reload"] = Sources(Path(settings["reload"]))

def say(*words):
    os.write(1, " ".join(words).encode() + b"\\n")

command = [sys.executable, *sys.argv[3:]]
supervisor = processes.Supervisor(command, report=lambda text: say("told:", text), **settings)
try:
    say("outcome:", json.dumps(supervisor.run()))
except ShardqError as error:
    say("error:", type(error).__name__, str(error))
"""

CHILD = f"""
import os, signal, sys, threading, types
# The package imports all that tasks need, and this needs one module of it.
package = sys.modules["shardq.tasks"] = types.ModuleType("shardq.tasks")
package.__path__ = {tasks.__path__!r}
from shardq.tasks import line as lines

me = os.getpid()
reader, writer = os.pipe()

def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")

def heed(number, _frame):
    say("signal", me, signal.Signals(number).name)
    os.write(writer, b"x")

def wait():
    # For a signal, or for the supervisor's death.
    os.read(reader, 1)

signal.signal(signal.SIGTERM, heed)
signal.signal(signal.SIGINT, heed)
line = lines.ProcessLine.inherited()
line.on_lost(lambda: os.write(writer, b"x"), 0.1)
"""
"""What each script begins with: `wait()` returns when it is to end."""

WORKS = """
line.ready()
say("ready", me)
wait()
say("ended", me)
"""


class Supervised:
    """A supervisor that runs, and the lines that it and its children have printed.

    Args:
        directory: Where it runs.
        script: What each of its processes runs, after `CHILD`.
        constants: Of its module, set before it begins.
        inherits: True if it has what its children leave, as process 1 of a container; on Linux.
        ignores: True if SIGHUP is ignored, as `nohup` lets it be.
        stdin: Its stdin.
        settings: Its own; a deadline of 30 s unless given.
    """

    def __init__(
        self,
        directory: Path,
        script: str = WORKS,
        *,
        processes: int = 1,
        constants: dict[str, int] | None = None,
        inherits: bool = False,
        ignores: bool = False,
        stdin: int = DEVNULL,
        **settings: Any,
    ) -> None:
        path = directory / "child.txt"
        path.write_text(CHILD + textwrap.dedent(script))
        settings = {"processes": processes, "deadline_s": 30.0, **settings}
        settings |= {"inherits": inherits, "ignores": ignores}
        words = [json.dumps(settings, default=str), json.dumps(constants or {}), str(path)]
        self.process = Process(
            ["-c", SUPERVISOR, *words],
            cwd=directory,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": ""},
            stdin=stdin,
            stderr=STDOUT,
            own_group=True,
        )
        self.lines: list[str] = []
        """All that have been looked at."""
        self._read: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._fill, daemon=True)
        self._reader.start()

    def _fill(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._read.put(line.decode().rstrip("\n"))
        self._read.put(None)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        # Its children end by themselves, and only then is its output at its end.
        self._reader.join(TIMEOUT_S)
        assert not self._reader.is_alive(), self.lines
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def expect(self, pattern: str) -> str:
        """Wait for a line that matches; returns what its first group does, or all of it."""
        while (line := self._next()) is not None:
            if found := re.search(pattern, line):
                return found[1] if found.groups() else line
        raise AssertionError(f"no line matches {pattern!r}: {self.lines}")

    def ready(self) -> int:
        """Wait until a process works; returns its number."""
        return int(self.expect(r"^ready (\d+)$"))

    def rest(self) -> list[str]:
        """Wait for the end; returns all lines that have not been looked at."""
        before = len(self.lines)
        while self._next() is not None:
            pass
        self.process.wait(TIMEOUT_S)
        return self.lines[before:]

    def _next(self) -> str | None:
        try:
            line = self._read.get(timeout=TIMEOUT_S)
        except Empty:
            raise AssertionError(f"no line for a minute, after {self.lines}") from None
        if line is not None:
            self.lines.append(line)
        return line

    def stop(self) -> list[str]:
        """End it as an init system does; returns what it and its children print."""
        self.process.send_signal(signal.SIGTERM)
        return self.rest()


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    clock = SystemClock()
    for _ in range(TIMEOUT_S * 100):
        if is_so():
            return
        clock.sleep(0.01)
    raise AssertionError(f"not within a minute: {what}")


def wait_until_gone(process: int) -> None:
    """Wait until a process that is no child of this one has ended."""
    wait_for(lambda: not is_running(process), f"process {process} has ended")


def is_running(process: int) -> bool:
    """True if it is there, and no zombie that its parent has not asked for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    told = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return bool(told.stdout.strip()) and not told.stdout.startswith("Z")
