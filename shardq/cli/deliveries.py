"""What `consume` does with a delivery: run a command, write it down, print it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.clock import machine_us
from shardq.errors import UsageError
from shardq.inspection.trace import Delivery
from shardq.model.times import iso

if TYPE_CHECKING:
    from shardq.model.message import Message


_STDOUT = Path("-")
_NO_READER = "nobody reads this pipe"


class CommandError(RuntimeError):
    """A command ended with another exit code than 0: its message is retried."""


class Command:
    """Runs a program for a message: the body on its stdin, the rest in its environment.

    Args:
        text: The program and its arguments, split as a shell would, but run without one.

    Raises:
        UsageError: If it is empty, cannot be split, or names no program.
    """

    def __init__(self, text: str) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--exec {text!r} cannot be split: {error}.") from error
        if not words:
            raise UsageError("--exec needs a command.")
        program = shutil.which(words[0])
        if program is None:
            raise UsageError(f"--exec: there is no program {words[0]!r}; give its path.")
        self._words = [program, *words[1:]]

    def __call__(self, message: Message) -> None:
        """Run it.

        Raises:
            CommandError: If its exit code is not 0.
        """
        # A group of its own: the Ctrl-C that stops this consumer gracefully must not kill it.
        done = subprocess.run(  # noqa: S603 - the user's own command, without a shell
            self._words,
            input=message.body,
            env=os.environ | _environment(message),
            process_group=0,
            check=False,
        )
        if done.returncode:
            raise CommandError(f"exit code {done.returncode} of {self._words[0]}")


def _environment(message: Message) -> dict[str, str]:
    return {
        "SHARDQ_QUEUE": message.queue,
        "SHARDQ_ID": message.id,
        "SHARDQ_DUE": iso(message.due_ms),
        "SHARDQ_ATTEMPT": str(message.attempt),
        "SHARDQ_PRIORITY": str(message.priority),
        "SHARDQ_GROUP": message.group or "",
        "SHARDQ_RECEIPT": message.receipt,
        "SHARDQ_HEADERS": json.dumps(message.headers),
    }


class OutFile:
    """Appends lines to a file; `write` returns when its line is on disk.

    Lines of several threads that wait at the same time share one fsync: who comes first flushes
    for all who came while the one before was flushed. To a pipe or a device, which has no disk,
    they are written only.

    Args:
        path: Made where it does not exist; `-` is stdout. A torn last line, left by a kill, is
            ended first.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        if path == _STDOUT:
            self._name = "stdout"
            self._file = _stdout()
        elif path.exists() and not path.is_file():
            self._file = _special(path)
        else:
            self._file = path.open("a+b", buffering=0)
            _end_last_line(self._file)
        self._is_on_disk = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._state = threading.Condition()
        self._waiting: list[bytes] = []
        self._given = 0
        self._synced = 0
        self._flushing = False
        self.error: OSError | None = None

    def write(self, line: str) -> None:
        """Append a line and wait until it is on disk.

        Raises:
            OSError: If it could not be written, now or once before.
        """
        with self._state:
            self._waiting.append(line.encode("utf-8", "surrogatepass") + b"\n")
            self._given += 1
            mine = self._given
            while self._synced < mine and self.error is None:
                if self._flushing:
                    self._state.wait()
                else:
                    self._flush()
            if self._synced < mine and self.error is not None:
                raise self.error

    def _flush(self) -> None:
        """Write and sync all that wait; the state is held before and after, let go of between."""
        lines, until = b"".join(self._waiting), self._given
        self._waiting.clear()
        self._flushing = True
        self._state.release()
        failed: OSError | None = None
        try:
            _write_all(self._file, lines)
            if self._is_on_disk:
                os.fsync(self._file.fileno())
        except BrokenPipeError as error:
            # That of stdout ends us in silence, as it does any program.
            failed = error if self._name == "stdout" else OSError(errno.EIO, _NO_READER, self._name)
        except OSError as error:
            failed = error
            error.filename = self._name
        finally:
            self._state.acquire()
            self._flushing = False
        if failed is None:
            self._synced = until
        else:
            self.error = failed
        self._state.notify_all()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def _stdout() -> FileIO:
    # A descriptor of its own, without the lock and the buffer of sys.stdout.
    return FileIO(os.dup(sys.stdout.fileno()), "wb")


def _special(path: Path) -> FileIO:
    """A pipe or a device, opened for writing alone.

    Raises:
        OSError: If nobody reads the pipe: that would be waited for, in silence.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            error.strerror = f"{_NO_READER}; start its reader first"
        raise
    os.set_blocking(descriptor, True)
    return FileIO(descriptor, "wb")


def _end_last_line(file: FileIO) -> None:
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _write_all(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def delivery_of(message: Message, delivered_ms: int) -> Delivery:
    """What is written down of a delivery that begins now.

    Args:
        message: What was delivered.
        delivered_ms: Now, by the corrected clock.
    """
    return Delivery(
        queue=message.queue,
        id=message.id,
        body=message.body,
        due_ms=message.due_ms,
        delivered_ms=delivered_ms,
        at_us=machine_us(),
        attempt=message.attempt,
    )
