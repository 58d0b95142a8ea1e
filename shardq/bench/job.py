"""The work of a consumer process, and the time of the put in each body."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SENT = struct.Struct(">q")
"""The beginning of each body: the time since boot at its put, in microseconds."""


@dataclass(frozen=True, slots=True)
class BenchJob:
    """The work of a child process.

    Attributes:
        url: The store.
        queue: The queue.
        threads: How many handlers run at once.
        work_ms: How long each handler takes.
        out: A file that gets a line for each message that is done: its id and time since boot.
    """

    url: str
    queue: str
    threads: int = 8
    work_ms: int = 0
    out: str | None = None

    def to_json(self) -> str:
        """The JSON text that the child reads."""
        return json.dumps(asdict(self))


def ended(path: Path) -> list[tuple[str, int]]:
    """Id and time since boot of each message that is done, as children write them into `out`.

    A line that is still being written is left out.
    """
    lines = path.read_text(encoding="ascii").splitlines(keepends=True)
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return [(message_id, int(at_us)) for message_id, at_us in pairs]
