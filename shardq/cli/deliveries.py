"""The outputs of `consume`: files and stdout. `command.py` runs a program."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shardq.cli import streams
from shardq.cli.trace import TraceLine
from shardq.clock import machine_us

if TYPE_CHECKING:
    from shardq.model.message import Message

_NO_READER = "nobody reads this pipe"
_STDOUT = "stdout"


class Lines:
    """Lines that several threads write; `write` returns when its line is written.

    Lines that wait at the same time are written together: the first thread writes for all that
    arrived during the write before. A write that failed may have written a part of its last line,
    and earlier lines whose messages are delivered again.

    Args:
        file: Writes all its bytes, or raises.
        said: Its name in errors.
        is_synced: True if lines must be on disk.
    """

    def __init__(self, file: BinaryIO, said: str, *, is_synced: bool) -> None:
        self._file = file
        self._said = said
        self._is_synced = is_synced
        self._state = threading.Condition()
        self._waiting: list[bytes] = []
        self._given = 0
        self._written = 0
        self._flushing = False
        self.error: OSError | None = None

    def write(self, line: bytes) -> None:
        """Append a line, given without its end.

        Raises:
            OSError: If it could not be written, now or in an earlier call.
        """
        with self._state:
            self._waiting.append(line + b"\n")
            self._given += 1
            mine = self._given
            while self._written < mine and self.error is None:
                if self._flushing:
                    self._state.wait()
                else:
                    self._flush()
            if self._written < mine and self.error is not None:
                raise self.error

    def _flush(self) -> None:
        """Write and sync all waiting lines; the state is held before and after, not in between."""
        lines, until = b"".join(self._waiting), self._given
        self._waiting.clear()
        self._flushing = True
        self._state.release()
        failed: OSError | None = None
        try:
            self._file.write(lines)
            self._file.flush()
            if self._is_synced:
                os.fsync(self._file.fileno())
        except BrokenPipeError as error:
            # Pass on the error of a closed stdout, which ends the program in silence, as usual.
            failed = error if self._said == _STDOUT else OSError(errno.EIO, _NO_READER, self._said)
        except OSError as error:
            failed = error
            error.filename = self._said
        finally:
            self._state.acquire()
            self._flushing = False
        if failed is None:
            self._written = until
        else:
            self.error = failed
        self._state.notify_all()

    def close(self) -> None:
        """Close the file, unless a write still waits for its reader. Idempotent."""
        with self._state:
            if not self._flushing:
                self._file.close()


class OutFile(Lines):
    """Appends lines to a file; `write` returns when its line is on disk.

    Lines to a pipe or a device are only written, because those have no disk.

    Args:
        path: Made if it does not exist; `-` is stdout. An incomplete last line, left by a kill, is
            ended first.

    Raises:
        OSError: If it cannot be written.
        UsageError: If it is stdout, and stdout is closed.
    """

    def __init__(self, path: Path) -> None:
        said = str(path)
        if streams.is_stdout(path):
            said, file = _STDOUT, streams.stdout("deliveries")
        else:
            file = _special(path) if path.exists() and not path.is_file() else _regular(path)
        super().__init__(file, said, is_synced=stat.S_ISREG(os.fstat(file.fileno()).st_mode))


def printed() -> Lines:
    """Lines on stdout.

    Raises:
        UsageError: If stdout is closed.
    """
    return Lines(streams.stdout("bodies"), _STDOUT, is_synced=False)


def _special(path: Path) -> BinaryIO:
    """A pipe or a device, opened for writing only.

    Raises:
        OSError: If nobody reads the pipe: opening would wait in silence.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            error.strerror = f"{_NO_READER}; start its reader first"
        raise
    return streams.BlockingFile(descriptor, "wb", str(path))


def _regular(path: Path) -> BinaryIO:
    """A file, made if it does not exist; its last line is ended."""
    file = streams.BlockingFile(
        os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "r+b", str(path)
    )
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def delivery_of(message: Message, delivered_ms: int) -> TraceLine:
    """The record of a delivery that begins now.

    Args:
        message: The delivered message.
        delivered_ms: Now, by the corrected clock.
    """
    return TraceLine(
        queue=message.queue,
        id=message.id,
        body=message.body,
        due_ms=message.due_ms,
        delivered_ms=delivered_ms,
        at_us=machine_us(),
        attempt=message.attempt,
        key=message.key,
    )
