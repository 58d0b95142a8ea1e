"""The client's verbs on the ledger of simulated tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.model.ids import birth_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.stores.store import Entry, Mark
    from simulated.cells import Cells


class SimulatedHistory:
    """The verbs on the ledger."""

    _cells: Cells
    _read: Callable[..., Any]
    _write: Callable[..., None]

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add marks."""
        write = self._cells.marks.write
        self._write("record", list(marks), _no_rows, lambda mark: write(mark, _at_us(mark), ttl_ms))

    def recorded(self, entries: Iterable[Entry]) -> list[Mark]:
        """What the ledger says of those entries that it knows."""
        wanted = list(entries)
        found: list[Mark] = self._read("recorded", lambda: self._cells.marks.find(wanted))
        return found

    def history(self, queue: str, minutes: range) -> Iterator[Mark]:
        """The ledger of those minutes."""
        yield from self._read("history", lambda: self._cells.marks.read(queue, minutes))


def _at_us(mark: Mark) -> int:
    born_us = birth_us(mark.entry.id)
    if mark.tries:
        _, ended, _ = mark.tries[0].split(":", 2)
        return int(ended) * 1_000
    return born_us if mark.fate is None else born_us - max(mark.ended_ms * 1_000 - born_us, 0)


def _no_rows(_: Mark) -> tuple[bytes, ...]:
    return ()
