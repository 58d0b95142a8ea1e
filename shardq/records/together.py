"""Notes of many queues that were read together, for readers of the notes of one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.stores.store import Registers
    from shardq.stores.tables import K, Partition, Table, V


class Noted(Protocol):
    """A source of notes: the store itself, or notes that were read from it together."""

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """See `Registers.notes`."""


class Together:
    """All notes of some partitions of some tables, by one read of each table.

    Args:
        store: The store.
        wanted: Table -> the partitions to read.
        keys: Table whose keys are partitions -> the keys to read.
    """

    def __init__(
        self,
        store: Registers,
        wanted: Mapping[Table[Any, Any], Sequence[Partition]],
        keys: Mapping[Table[Any, Any], Sequence[Any]] | None = None,
    ) -> None:
        self._found = {
            (table, partition): notes
            for table, partitions in wanted.items()
            for partition, notes in store.notes_of(table, partitions).items()
        }
        for table, named in (keys or {}).items():
            self._found[table, ()] = store.notes(table, (), named)

    def has(self, table: Table[Any, Any], partition: Partition) -> bool:
        """True if a partition was read."""
        return (table, partition) in self._found

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The notes of a partition that was read; see `Registers.notes`."""
        found: dict[K, V] = self._found[table, partition]
        return found if keys is None else {key: found[key] for key in keys if key in found}
