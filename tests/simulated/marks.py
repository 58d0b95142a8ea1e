"""The ledger of simulated tables: a put, an end and the failures of each message.

As on Cassandra, the write time of a put is the birth in its id. The write time of an end is lower
the later it ends, so that the first end wins, whatever is repeated.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from shardq.stores.store import Mark, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.stores.store import Entry

K = TypeVar("K")
_Cell = tuple[int, Mark, int]
"""(write time, mark, expiry), times in epoch microseconds."""


def _silent(_mark: Mark) -> None:
    pass


class MarkCells:
    """The table `ledger`. Any number of threads may use it.

    Args:
        machine_us: The node's clock, by which TTLs expire.

    Attributes:
        on_mark: Called with each put and end that is written.
    """

    def __init__(self, machine_us: Callable[[], int]) -> None:
        self._machine_us = machine_us
        self._lock = threading.Lock()
        self._puts: dict[Entry, _Cell] = {}
        self._ends: dict[Entry, _Cell] = {}
        self._tries: dict[Entry, dict[int, _Cell]] = {}
        self.on_mark: Callable[[Mark], None] = _silent

    def write(self, mark: Mark, at_us: int, ttl_ms: int) -> None:
        """Write the cells of a mark at a time; the latest time wins."""
        with self._lock:
            if mark.tries:
                failed = self._tries.setdefault(mark.entry, {})
                self._put(failed, slot_of(mark.tries[0]), mark, at_us, ttl_ms)
                return
            cells = self._puts if mark.fate is None else self._ends
            if self._put(cells, mark.entry, mark, at_us, ttl_ms):
                self.on_mark(mark)

    def _put(self, cells: dict[K, _Cell], key: K, mark: Mark, at_us: int, ttl_ms: int) -> bool:
        """Write a cell unless a later one is there; returns True if it was written."""
        before = cells.get(key)
        if before is not None and before[0] > at_us:
            return False
        cells[key] = at_us, mark, self._machine_us() + ttl_ms * 1_000
        return True

    def find(self, entries: Iterable[Entry]) -> list[Mark]:
        """The marks of those entries that have any."""
        with self._lock:
            return [mark for entry in entries if (mark := self._mark(entry)) is not None]

    def read(self, queue: str, minutes: range) -> list[Mark]:
        """The marks of entries of some minutes."""
        with self._lock:
            entries = self._puts.keys() | self._ends.keys()
        return self.find(
            entry for entry in sorted(entries) if entry.queue == queue and entry.minute in minutes
        )

    def _mark(self, entry: Entry) -> Mark | None:
        now_us = self._machine_us()
        put, end = (
            cell[1] if cell is not None and cell[2] > now_us else None
            for cell in (self._puts.get(entry), self._ends.get(entry))
        )
        mark = put or end
        if mark is None:
            return None
        failed = self._tries.get(entry, {}).values()
        tries = tuple(one.tries[0] for _, one, until_us in failed if until_us > now_us)
        if end is not None and put is not None:
            mark = end._replace(due_ms=put.due_ms, name=put.name, task=put.task)
        return mark._replace(tries=tries)
