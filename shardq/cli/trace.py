"""Traces: recorded events replayed as messages, and the deliveries that consumers record.

```
 trace (JSON lines) ──read──► Event ──replay: start + gap / speed──► Timed ──put──► queue
                                                                                     │
 out file (JSON lines) ◄──────────────────────── TraceLine ◄─────────────────────────┘
```
"""

from __future__ import annotations

import base64
import binascii
import codecs
import gzip
import json
import sys
import zlib
from contextlib import contextmanager, nullcontext
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from shardq.errors import BadName, BadTime, UsageError
from shardq.model import names
from shardq.model.times import due_ms, iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LINE_BYTES_MAX = 8 << 20
"""A line longer than this is no event: the largest body in base64 has a fifth of this."""
_MAGIC = b"\x1f\x8b"
_GZIP = _MAGIC[:1]
"""The first byte of a gzip file, and never of JSON."""

_LATEST_MS = 253_402_300_799_000
"""The end of 9999, the last year of a datetime."""


class Event(NamedTuple):
    """A line of a trace.

    Attributes:
        body: The bytes of the line without its end.
        at_ms: Its time, epoch milliseconds.
        key: The key in the line; None if keys are not read.
    """

    body: bytes
    at_ms: int
    key: str | None = None


class Timed(NamedTuple):
    """A message to put.

    Attributes:
        body: Its body.
        due_ms: Its due, epoch milliseconds.
        key: Its key, or None.
    """

    body: bytes
    due_ms: int
    key: str | None = None


def read(
    source: Path | BinaryIO, due_field: str, name: str = "", key_field: str | None = None
) -> Iterator[Event]:
    """The events of JSON Lines, plain or gzipped; blank lines are skipped.

    Args:
        source: A file, or an open stream like stdin. Gzip is recognized by its first byte, whatever
            the file's name; a byte order mark at the start is dropped. A line of a stream is read
            as soon as it arrives, from gzip too.
        due_field: The field that holds each line's time, ISO 8601 with a zone.
        name: The name in errors; by default the path, or stdin.
        key_field: The field that holds each line's key, a text or an integer; None: no key.

    Raises:
        UsageError: If a line is no JSON object, or lacks the field, or its key is unusable, or the
            file is damaged; the text names the line.
        BadTime: If a line's time has no zone or cannot be read.
        OSError: If the file cannot be read; the error names it.
    """
    name = name or name_of(source)
    for number, line in _lines(source, name):
        try:
            event = json.loads(line)
            at = event[due_field]
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name}, line {number:,} is not JSON: {_fault(error)}.") from error
        except (KeyError, TypeError, IndexError) as error:
            raise UsageError(
                f"{name}, line {number:,} has no field {due_field!r}; name the one with the "
                f"time by --due-field."
            ) from error
        try:
            at_ms = due_ms(at)
        except BadTime as error:
            raise BadTime(f"{name}, line {number:,}: {error}") from error
        key = None if key_field is None else _key_in(event, key_field, f"{name}, line {number:,}")
        yield Event(line, at_ms, key)


def _key_in(event: Mapping[str, Any], key_field: str, where: str) -> str:
    """The key of a line."""
    key = event.get(key_field)
    if type(key) is int:
        key = str(key)
    if not isinstance(key, str):
        has = "no text or whole number in" if key_field in event else "no"
        raise UsageError(
            f"{where} has {has} field {key_field!r}; name the one with the key by --key-field."
        )
    try:
        return names.label(key, what="key")
    except BadName as error:
        raise BadName(f"{where}: {error}") from error


def name_of(source: Path | BinaryIO) -> str:
    """The name of a trace in errors."""
    return str(source) if isinstance(source, Path) else "stdin"


def _fault(error: ValueError | RecursionError) -> str:
    """Why a line cannot be read, in terms of JSON instead of Python."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return f"a number has more than {sys.get_int_max_str_digits():,} digits"


def _lines(source: Path | BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, without its end, and its number from 1."""
    number = 0
    is_first = True
    try:
        with _opened(source, name) as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.strip():
                    continue
                if is_first:
                    _check_kind(line, name)
                    is_first = False
                if len(line) >= LINE_BYTES_MAX:
                    raise UsageError(
                        f"{name}, line {number:,} is longer than {LINE_BYTES_MAX:,} bytes."
                    )
                yield number, line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{name} is damaged after line {number:,}: {error}.") from error
    except OSError as error:
        # Add the file's name, which errors of reads lack.
        raise OSError(error.errno, error.strerror, error.filename or name) from error


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[Any]:
    """The bytes of a trace, unpacked if it is gzipped."""
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as raw:
        file: Any = raw if isinstance(raw, BufferedReader) else BufferedReader(raw)
        if file.peek(1)[:1] == _GZIP:
            packed: Any = _AsItComes(file)
            with gzip.GzipFile(fileobj=packed) as unpacked:
                yield unpacked
        elif name.endswith(".gz"):
            raise UsageError(f"{name} is not gzipped; if it is plain text, rename it without .gz.")
        else:
            yield file


class _AsItComes:
    """A file for gzip that returns the available bytes at once, although gzip asks for more."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """The available bytes, up to `size`; exactly `size` for the two bytes that mark gzip."""
        return self._file.read(size) if size <= len(_MAGIC) else self._file.read1(size)


def _check_kind(first: bytes, name: str) -> None:
    """Check that the first line that is not blank can be a line of JSON Lines.

    Raises:
        UsageError: If it begins a JSON array, or a file of UTF-16.
    """
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{name} is UTF-16; save it as UTF-8.")
    if first.lstrip().startswith(b"["):
        raise UsageError(
            f"{name} is a JSON array; JSON Lines are needed, one object on each line: "
            f"jq -c '.[]' makes them."
        )


def replay(events: Iterable[Event], *, start_ms: int, speed: float) -> Iterator[Timed]:
    """Events as messages: the first due at `start_ms`, the gaps between them divided by `speed`.

    Args:
        events: The events in the order of the trace; one older than the first is due before the
            start.
        start_ms: Epoch milliseconds.
        speed: 1 replays in real time, 3600 turns an hour into a second.

    Raises:
        UsageError: If the speed is not above 0, or moves an event to before 1970 or after 9999.

    >>> [timed.due_ms for timed in replay([Event(b"a", 5_000), Event(b"b", 65_000)], start_ms=0,
    ...                                   speed=60)]
    [0, 1000]
    """
    if not speed > 0:
        raise UsageError(f"the speed must be more than 0, not {speed}.")
    first_ms: int | None = None
    for number, event in enumerate(events, 1):
        if first_ms is None:
            first_ms = event.at_ms
        if not 0 <= start_ms + (event.at_ms - first_ms) / speed <= _LATEST_MS:
            raise BadTime(
                f"at speed {speed:g}, event {number:,} of the trace would be due before 1970 or "
                f"after 9999; choose another speed or start."
            )
        due_ms = start_ms + round((event.at_ms - first_ms) / speed)
        yield Timed(event.body, due_ms, event.key)


class TraceLine(NamedTuple):
    """One line of a consumer's `--out` file.

    Attributes:
        id: The message's id.
        body: The bytes of its body.
        due_ms: When this delivery was due, epoch milliseconds.
        delivered_ms: When it began, by the consumer's corrected clock, epoch milliseconds.
        at_us: When it began, by the machine's own clock, epoch microseconds.
        attempt: The number of this delivery, from 1.
        consumer: The consumer that recorded the delivery: the file's name.
        queue: The message's queue.
        key: The message's key, if it has one.
    """

    id: str
    body: bytes
    due_ms: int
    delivered_ms: int
    at_us: int
    attempt: int
    consumer: str = ""
    queue: str = ""
    key: str | None = None

    def to_json(self) -> str:
        """One line without its end; a body that is not UTF-8 text is base64, and marked so."""
        line: dict[str, Any] = {
            "id": self.id,
            "queue": self.queue,
            "due": iso(self.due_ms),
            "delivered": iso(self.delivered_ms),
            "at_us": self.at_us,
            "attempt": self.attempt,
        } | shown_body(self.body)
        if self.key is not None:
            line["key"] = self.key
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, consumer: str = "") -> TraceLine:
        """A delivery from its line.

        Raises:
            ValueError: If the line is incomplete, or was not written by `to_json`.
        """
        try:
            line = json.loads(text)
            body = line["body"].encode("utf-8", "surrogatepass")
            if line.get("encoding") == "base64":
                body = base64.b64decode(body, validate=True)
            return cls(
                id=line["id"],
                queue=line.get("queue", ""),
                body=body,
                due_ms=_ms(line["due"]),
                delivered_ms=_ms(line["delivered"]),
                at_us=line["at_us"],
                attempt=line["attempt"],
                consumer=consumer,
                key=line.get("key"),
            )
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ValueError(f"not a delivery: {text!r}") from error


def shown_body(body: bytes) -> dict[str, str]:
    r"""A body for JSON: text if it is UTF-8, else base64 with `"encoding": "base64"`.

    >>> shown_body(b"\xff")
    {'body': '/w==', 'encoding': 'base64'}
    """
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "encoding": "base64"}


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)
