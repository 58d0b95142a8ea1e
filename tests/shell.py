"""The command line as tests call it: in this process, in a forked one, or as `python -m shardq`.

- `Shell.run` is for what a command prints and does; so is `Shell.on_terminal`.
- `Shell.fork` is for what needs a process: signals, and streams that are full, closed or do not
  block.
- `Shell.start` is for what Python itself does at the start and the end of a process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import subprocess
import sys
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pytest
from forked import Process

from shardq import cli
from shardq.model.ids import row_ids
from shardq.schedules.triggers.state import TRIGGERS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 300


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands against one store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory}/jobs.db"

    def start(
        self,
        *arguments: str,
        url: str | None = None,
        redirected: str = "",
        unbuffered: bool = False,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own, as `python -m shardq`.

        Args:
            redirected: What a shell is told to do with its streams, `>&-` say.
            unbuffered: True if Python is told to write at once.
        """
        words = [sys.executable, "-m", "shardq", *arguments]
        if redirected:
            words = ["sh", "-c", f'exec "$@" {redirected}', "sh", *words]
        unset = {"PYTHONUNBUFFERED": "1" if unbuffered else ""}
        return subprocess.Popen(
            words,
            cwd=self.directory,
            env=self._environment(url) | unset,
            stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=more.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            **more,
        )

    def fork(
        self,
        *arguments: str,
        url: str | None = None,
        unbuffered: bool = False,
        before: str = "",
        **streams: Any,
    ) -> Process:
        """Start a command in a forked process.

        Args:
            unbuffered: True if Python is told to write at once.
            before: Code that is run first.
            streams: As for `Process`.
        """
        unset = {"PYTHONUNBUFFERED": "1" if unbuffered else ""}
        words = ["-c", f"{before}\nfrom shardq.cli import main; main()"] if before else None
        return Process(
            [*(words or ["-m", "shardq"]), *arguments],
            cwd=self.directory,
            env=self._environment(url) | unset,
            **streams,
        )

    def on_terminal(self, *arguments: str, columns: int = 80) -> list[str]:
        """The lines that a command prints on a terminal, colours and all."""
        leader, follower = pty.openpty()
        printed: list[bytes] = []
        # A terminal takes no more than a few lines that nobody has read.
        reader = threading.Thread(target=lambda: printed.extend(_until_closed(leader)))
        reader.start()
        terminal = {"COLUMNS": str(columns), "TERM": "xterm"}
        with open(follower, "w", encoding="utf-8") as out:
            done = self._run(arguments, self._environment(None) | terminal, b"", out)
        reader.join()
        os.close(leader)
        assert done.code == 0, done
        return b"".join(printed).decode().splitlines()

    def run(self, *arguments: str, url: str | None = None, stdin: bytes = b"") -> Done:
        """Run a command in this process: starting Python takes longer than most commands do."""
        with _file() as out:
            done = self._run(arguments, self._environment(url), stdin, out)
            return done._replace(out=_text(out))

    def _run(
        self, arguments: tuple[str, ...], environment: dict[str, str], given: bytes, out: IO[str]
    ) -> Done:
        """Run a command whose stdout this is."""
        with (
            kept_loggers(),
            own_environment(environment),
            _file() as sent,
            open(sent.fileno(), closefd=False) as source,
            _file() as err,
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.directory),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            sent.buffer.write(given)
            sent.seek(0)
            patch.setattr(sys, "stdin", source)
            # Row ids never go backwards, and stages have taken this process's to their own year.
            patch.setattr(row_ids, "_last_us", 0)
            try:
                code = self.called(list(arguments))
            except SystemExit as ended:
                code = int(ended.code or 0)
            return Done(code, "", _text(err))

    def called(self, arguments: list[str]) -> int:
        """Run the program itself; returns its exit code."""
        return cli.run(arguments)

    def _environment(self, url: str | None) -> dict[str, str]:
        kept = {TRIGGERS_VARIABLE}
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith("SHARDQ_") or k in kept
        }
        environment["SHARDQ_STORE"] = self.url if url is None else url
        if not environment["SHARDQ_STORE"]:
            del environment["SHARDQ_STORE"]
        environment.pop("COLUMNS", None)
        return environment

    def ok(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> Done:
        """What a command prints that does what it is told, and ends with this code."""
        done = self.run(*arguments, stdin=stdin)
        assert done.code == code, done
        return done

    def fails(self, code: int, *arguments: str, url: str | None = None) -> str:
        done = self.run(*arguments, url=url)
        assert done.code == code, done
        assert "Traceback" not in done.err
        assert done.err.startswith("shardq: ")
        assert done.err.count("\n") == 1
        return done.err


@contextlib.contextmanager
def kept_loggers() -> Iterator[None]:
    """While this lasts, a program finds logging as in a process of its own, and may set it up."""
    loggers = [logging.getLogger(name) for name in (None, "shardq", "cassandra")]
    kept = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    try:
        # The test runner's, which shows what a test logs where that fails.
        loggers[0].handlers.clear()
        yield
    finally:
        for logger, level, handlers in kept:
            for made in set(logger.handlers).difference(handlers):
                made.close()
            logger.setLevel(level)
            logger.handlers[:] = handlers


@contextlib.contextmanager
def own_environment(environment: dict[str, str]) -> Iterator[None]:
    """While this lasts, the environment is this one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


def _until_closed(terminal: int) -> Iterator[bytes]:
    """What is printed on a terminal until nobody has it open."""
    # Linux ends a terminal that everybody has closed with an error, others with nothing.
    with contextlib.suppress(OSError):
        while read := os.read(terminal, 65_536):
            yield read


def _file() -> IO[str]:
    """A stream as a process has them, of bytes in a file."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")


def _text(stream: IO[str]) -> str:
    stream.flush()
    stream.buffer.seek(0)
    return stream.buffer.read().decode()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
