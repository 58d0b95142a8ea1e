"""The list of a queue's schedules, kept beside their ticks: from it a lost tick is put again.

It is written before the tick is: what it has and the tick has not is completed from here. Of a
schedule that was removed it keeps an empty definition for a day, so that nothing brings it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.schedules.definition import Definition
from shardq.stores.tables import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.clock import Clock
    from shardq.stores.store import Registers

_KEPT_US = 86_400_000_000


class Listed(NamedTuple):
    """A schedule on the list.

    Attributes:
        definition: What it is; None of one that was removed.
        written: When that was written, epoch microseconds.
    """

    definition: Definition | None
    written: int


class Listing:
    """The list of one queue's schedules.

    Args:
        queue: The queue's name.
    """

    def __init__(self, store: Registers, clock: Clock, queue: str) -> None:
        self._store = store
        self._clock = clock
        self._queue = queue

    def read(self, asked: Iterable[str] | None = None) -> dict[str, Listed]:
        """Those of these names that are on the list, or all: one read.

        Raises:
            StoreCorrupt: If one is damaged.
        """
        found = self._store.notes(SCHEDULES, (self._queue,), asked)
        return {
            name: Listed(self._definition(name, text), written)
            for name, (text, written) in sorted(found.items())
        }

    def names(self, asked: Iterable[str] | None = None) -> list[str]:
        """Which of these names are on the list, or all that are, also damaged ones: one read."""
        found = self._store.notes(SCHEDULES, (self._queue,), asked)
        return sorted(name for name, (text, _) in found.items() if text)

    def next_version(self, before: Listed | None) -> int:
        """The version of a definition that is to be written now."""
        return max(self._clock.now_us(), 0 if before is None else before.written + 1)

    def write(self, definition: Definition) -> None:
        """Put a definition on the list, in the place of those with lower versions."""
        named = {definition.name: (definition.text(), definition.version)}
        self._store.note(SCHEDULES, (self._queue,), named)

    def remove(self, name: str) -> None:
        """Take a schedule off the list, also a damaged one."""
        found = self._store.notes(SCHEDULES, (self._queue,), [name])
        _, written = found.get(name, ("", 0))
        named = {name: ("", max(self._clock.now_us(), written + 1))}
        self._store.note(SCHEDULES, (self._queue,), named)

    def forget(self, listed: dict[str, Listed]) -> None:
        """Erase what was removed so long ago that nobody is about to write of it any more."""
        before_us = self._clock.now_us() - _KEPT_US
        over = [
            name
            for name, one in listed.items()
            if one.definition is None and one.written < before_us
        ]
        if over:
            self._store.erase(SCHEDULES, (self._queue,), over)

    def _definition(self, name: str, text: str) -> Definition | None:
        whose = f"schedule {name!r} of queue {self._queue!r}"
        return Definition.read(text, whose) if text else None
