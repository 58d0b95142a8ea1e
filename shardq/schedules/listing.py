"""The list of a queue's schedules, kept beside their ticks: from it a lost tick is put again.

It is written before the tick is: what it has and the tick has not is completed from here. Of a
schedule that was removed it keeps an empty definition for a day, so that nothing brings it back. Of
one that code has declared and that has ended, or that code has removed, it keeps the revision: the
same code, started again, does not make it anew.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import StoreCorrupt
from shardq.schedules.definition import Definition
from shardq.stores.tables import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.clock import Clock
    from shardq.stores.store import Registers

_KEPT_US = 86_400_000_000
_ENDED = "ended: "
"""What the note of a schedule that has ended begins with, before its revision."""


class Listed(NamedTuple):
    """A schedule on the list.

    Attributes:
        definition: What it is; None of one that was removed, or has ended.
        written: When that was written, epoch microseconds.
        ended: Of one that has ended the revision of the code that has declared it; 0 of any other.
    """

    definition: Definition | None
    written: int
    ended: int = 0


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
        found = sorted(self._notes(asked).items())
        return {name: self._listed(name, text, written) for name, (text, written) in found}

    def names(self, asked: Iterable[str] | None = None) -> list[str]:
        """Those of these names that are on the list, or all, damaged ones too: one read."""
        found = self._notes(asked).items()
        return sorted(name for name, (text, _) in found if text and not text.startswith(_ENDED))

    def noted(self, asked: Iterable[str] | None = None) -> list[str]:
        """The names that `names` gives, and those that have ended."""
        return sorted(name for name, (text, _) in self._notes(asked).items() if text)

    def known(self) -> tuple[list[str], list[str]]:
        """The names that `noted` gives, and those that were removed: one read.

        Returns:
            All, and those that were removed so long ago that nobody is about to write of them.
        """
        before_us = self._clock.now_us() - _KEPT_US
        notes = self._notes(None)
        return sorted(notes), [name for name, note in notes.items() if _is_over(note, before_us)]

    def definitions(self) -> list[Definition]:
        """What all are that are not damaged: one read."""
        made = []
        for name, (text, written) in sorted(self._notes(None).items()):
            with suppress(StoreCorrupt):
                made.append(self._listed(name, text, written).definition)
        return [one for one in made if one is not None]

    def next_version(self, before: Listed | None) -> int:
        """The version of a definition that is to be written now."""
        return max(self._clock.now_us(), 0 if before is None else before.written + 1)

    def write(self, definition: Definition) -> None:
        """Put a definition on the list, in the place of those with lower versions."""
        named = {definition.name: (definition.text(), definition.version)}
        self._store.note(SCHEDULES, (self._queue,), named)

    def removal(self, name: str) -> int | None:
        """The version by which what is listed of a name by now is removed; None: nothing is.

        Also of one that is damaged, or has ended.
        """
        text, written = self._notes([name]).get(name, ("", 0))
        # One more than who lists it again for another writes.
        return max(self._clock.now_us(), written + 2) if text else None

    def remove(self, name: str, version: int) -> None:
        """Take a schedule off the list; one of a later version stays."""
        self._store.note(SCHEDULES, (self._queue,), {name: ("", version)})

    def withdraw(self, name: str, version: int) -> None:
        """Take a definition off the list that is none any more; a later one stays."""
        self.remove(name, version + 1)

    def end(self, definition: Definition) -> None:
        """Take a schedule off the list that never fires again, or that code has removed.

        One that has been changed or made anew since stays.
        """
        name, revision, version = definition.name, definition.revision, definition.version
        with suppress(StoreCorrupt):
            listed = self.read([name]).get(name)
            if listed and listed.definition == replace(definition, version=listed.written):
                # The same has been listed again, for one that was refused.
                version = listed.written
        text = f"{_ENDED}{revision}" if revision else ""
        named = {name: (text, version + 1)}
        self._store.note(SCHEDULES, (self._queue,), named)

    def forget(self, over: Iterable[str]) -> None:
        """Erase what `known` has found to be over, and still is."""
        before_us, over = self._clock.now_us() - _KEPT_US, list(over)
        notes = self._notes(over) if over else {}
        if left := [name for name, note in notes.items() if _is_over(note, before_us)]:
            self._store.erase(SCHEDULES, (self._queue,), left)

    def _notes(self, asked: Iterable[str] | None) -> dict[str, tuple[str, int]]:
        return self._store.notes(SCHEDULES, (self._queue,), asked)

    def _listed(self, name: str, text: str, written: int) -> Listed:
        whose = f"schedule {name!r} of queue {self._queue!r}"
        if text.startswith(_ENDED):
            return Listed(None, written, int(text.removeprefix(_ENDED)))
        return Listed(Definition.read(text, whose) if text else None, written)


def _is_over(note: tuple[str, int], before_us: int) -> bool:
    text, written = note
    return not text and written < before_us
