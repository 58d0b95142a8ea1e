"""stdin, stdout and stderr, and the files of deliveries: complete, or an error.

```
 the shell gives               Python alone                          here
 a pipe that does not block    writes a part in silence              waits until all is written
 a disk that gets full         unbuffered: the same                  an error that names the stream
 a stream that is closed       None; the next file that is opened    the null device in its place
                               takes its number, and the output
```
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import contextmanager
from io import (
    BufferedReader,
    BufferedWriter,
    FileIO,
    RawIOBase,
    TextIOWrapper,
    UnsupportedOperation,
)
from typing import TYPE_CHECKING

import click

from shardq.errors import UsageError
from shardq.model.names import is_printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO, TextIO

    from _typeshed import ReadableBuffer, WriteableBuffer

_STDIN, _STDOUT, _STDERR = range(3)
_NAMES_OF_STDIN = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}
_NAMES_OF_STDOUT = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}


class BlockingFile(FileIO):
    """A file that reads and writes as if it blocked, whatever mode other programs have set.

    The mode is shared with every program that has the same pipe or terminal, so it is not changed.

    Args:
        descriptor: The descriptor.
        mode: `rb` or `wb`.
        said: Its name in errors.
        closes: True to close the descriptor with this.
    """

    def __init__(self, descriptor: int, mode: str, said: str, *, closes: bool = True) -> None:
        super().__init__(descriptor, mode, closefd=closes)
        self._said = said

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all bytes.

        Raises:
            OSError: If that fails, maybe after a part of them.
        """
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                # The result is None if there is no room now, although the type excludes None.
                written: int | None = super().write(left)
                if written is None:
                    _wait_for(self, select.POLLOUT)
                else:
                    left = left[written:]
        except OSError as error:
            error.filename = self._said
            raise
        return size

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the available bytes, and wait if there are none; 0 is the end."""
        try:
            while (count := super().readinto(buffer)) is None:
                _wait_for(self, select.POLLIN)
        except OSError as error:
            error.filename = self._said
            raise
        return count

    # FileIO's `read` and `readall` do not use `readinto`, and take "nothing yet" for the end.

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some bytes at most; all if the size is negative."""
        return RawIOBase.read(self, -1 if size is None else size) or b""

    def readall(self) -> bytes:
        """Read up to the end."""
        return RawIOBase.readall(self) or b""


class _Lossy(BlockingFile):
    """stderr: an error of its output never changes the work."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _Nowhere(TextIOWrapper):
    """The replacement of a closed stream."""


def take_over() -> None:
    """Replace this process's streams by ours, once, before any file is opened."""
    _hold_places()
    if sys.stdin is not None:
        raw = BlockingFile(_STDIN, "rb", "stdin", closes=False)
        sys.stdin = TextIOWrapper(BufferedReader(raw), sys.stdin.encoding, sys.stdin.errors)
    sys.stdout = _writer(sys.stdout, BlockingFile(_STDOUT, "wb", "stdout", closes=False))
    sys.stderr = _writer(sys.stderr, _Lossy(_STDERR, "wb", "stderr", closes=False))


def _hold_places() -> None:
    """Open the null device in place of a closed 0, 1 or 2.

    Otherwise output would go into the next file that is opened, a database say.
    """
    for place in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(place)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != place:
                os.dup2(opened, place)
                os.close(opened)
            # Commands of `consume --exec` inherit the descriptor too.
            os.set_inheritable(place, True)


def _writer(was: TextIO | None, raw: BlockingFile) -> TextIOWrapper:
    if was is None:
        return _Nowhere(BufferedWriter(raw), "utf-8")
    return TextIOWrapper(
        BufferedWriter(raw), was.encoding, was.errors, newline="\n", line_buffering=True
    )


def give_back() -> None:
    """Flush stdout a last time; ignore an error, which an earlier write has raised already."""
    try:
        sys.stdout.flush()
    except OSError:
        # Replace stdout, because Python would flush it again at its exit, and print an error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)


@contextmanager
def saying(text: str) -> Iterator[None]:
    """If a print fails, add a note to the error that names the work that was done before."""
    try:
        yield
    except OSError as error:
        error.add_note(text)
        raise


def note(text: str) -> None:
    """Print a line on stderr: `shardq: ..`. What is not printable is escaped, joiners too."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    click.echo(f"shardq: {line}", err=True)


def escaped(text: str) -> str:
    """A text with control characters escaped."""
    return "".join(c if is_shown(c) else repr(c)[1:-1] for c in text)


def is_shown(character: str) -> bool:
    """True if a character of a text can be seen, and controls no terminal."""
    # Test it after a letter, because an emoji joiner counts as printable only after a character.
    return is_printable("x" + character)


def is_stdout(path: Path) -> bool:
    """True if a path names stdout, which is not opened again."""
    return str(path) in _NAMES_OF_STDOUT


def is_stdin(path: Path) -> bool:
    """True if a path names stdin."""
    return str(path) in _NAMES_OF_STDIN


def stdout(what: str) -> BinaryIO:
    """Return stdout as a file of bytes, without the buffer and the lock of `sys.stdout`.

    Args:
        what: The name of the output, for the error.

    Raises:
        UsageError: If stdout is closed.
    """
    if isinstance(sys.stdout, _Nowhere):
        raise UsageError(f"stdout is closed, so {what} cannot be written to it.")
    try:
        return BlockingFile(sys.stdout.fileno(), "wb", "stdout", closes=False)
    except UnsupportedOperation:
        # In tests stdout is a stream in memory.
        return sys.stdout.buffer


def stderr() -> FileIO:
    """Return stderr as a file of bytes, for the output of programs that this one has started."""
    return _Lossy(_STDERR, "wb", "stderr", closes=False)


def _wait_for(file: FileIO, event: int) -> None:
    ready = select.poll()
    ready.register(file, event)
    ready.poll()
