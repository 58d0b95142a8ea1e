"""An app in a directory, and `shardq work` on it in processes of its own."""

from __future__ import annotations

import importlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from shell import TIMEOUT_S, Done, Shell

from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP = """
import asyncio, datetime, os, signal, sys, time
from shardq import App

app = App(attempts=2, backoff="10ms")

@app.task(queue="mail", aliases=["old.welcome"], priority=1)
def welcome(user: str, *, lang: str = "en") -> None:
    pass

@app.task
async def nap(n: int = 0) -> None:
    await asyncio.sleep(0.001)

@app.task(attempts=3)
def flaky(n: int) -> None:
    raise ValueError(f"no {n}")

@app.task(batch=10)
def index(pages: list[datetime.date]) -> None:
    pass

@app.task(name="many", timeout="30s")
def many(first: int, /, *others: int, **named: int) -> None:
    pass
"""


class Works:
    """A `shardq work` that runs, whose lines are read as they come."""

    def __init__(self, shell: Shell, *arguments: str, url: str | None = None) -> None:
        self.process = shell.fork("work", *arguments, url=url)
        self.err: list[str] = []
        self._left = b""

    def expect(self, pattern: str) -> str:
        """Wait for a line on stderr; returns what its first group matches, or all of it."""
        while line := self._line():
            self.err.append(line)
            if found := re.search(pattern, line):
                return found[1] if found.groups() else line
        raise AssertionError(f"no line matches {pattern!r}: {self.err}")

    def _line(self) -> str:
        read = self.process.stderr
        assert read is not None
        # Not by its buffer: what that has of later lines, `select` does not see.
        while b"\n" not in self._left:
            assert select.select([read], [], [], TIMEOUT_S)[0], self.err
            data = os.read(read.fileno(), 65_536)
            if not data:
                break
            self._left += data
        line, end, self._left = self._left.partition(b"\n")
        return (line + end).decode()

    def stop(self) -> Done:
        """End it by SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> Done:
        """Wait for its end."""
        with self.process:
            try:
                out, err = self.process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        return Done(
            self.process.returncode, out.decode(), "".join(self.err) + (self._left + err).decode()
        )


def write_app(directory: Path, text: str = APP, name: str = "app") -> None:
    """Write an app's module; another one of its name is forgotten."""
    (directory / f"{name}.py").write_text(textwrap.dedent(text))
    sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def app_shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a directory that has an app."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)
        write_app(tmp_path)
        yield Shell(tmp_path)
    sys.modules.pop("app", None)


def finished(shell: Shell, *arguments: str, url: str | None = None) -> Done:
    """Run `shardq work` to its end: here, or in a process of its own where it has several."""
    if "--processes" in arguments:
        return Works(shell, *arguments, url=url).ended()
    return shell.run("work", *arguments, url=url)


def wait_for(path: Path) -> str:
    """What a job writes into a file, once its line is whole."""
    clock = SystemClock()
    for _ in range(TIMEOUT_S * 100):
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.rstrip("\n")
        clock.sleep(0.01)
    raise AssertionError(f"{path} was not written")
