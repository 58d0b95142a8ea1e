"""Taking names for rows that enter a queue: by a put, or back from the dead."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import StoreError, StoreRefused, begun
from shardq.records.keyrow import Does, own_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Row
    from shardq.records.keys import Keys
    from shardq.records.standing import Standing
    from shardq.stores.store import Move, Store
    from shardq.stores.tables import Change


class Taken(NamedTuple):
    """The names that were not taken.

    Attributes:
        refused: Names that other messages have; nothing was written.
        displaced: Names that were taken so slowly that others have taken them over meanwhile. The
            rows are written.
    """

    refused: set[str]
    displaced: set[str]


class Taker:
    """Takes names of one queue, and writes the rows of names that it gets.

    Args:
        keys: The queue's names.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    def take(self, changes: Sequence[Change]) -> Taken:
        """Take different names.

        Use `again` for a row whose name an earlier try may have taken: this would write the row a
        second time, wherever its message is by now.

        Raises:
            StoreTimeout: Some names may be taken.
        """
        try:
            refused = self._keys.write(changes).keys()
            done = [change for change in changes if change.key[0] not in refused]
            with begun("some of the keys are taken"):
                return Taken(set(refused), set(self._keys.displaced(done)))
        except StoreRefused:
            self._give_back(changes)
            raise

    def again(self, found: Standing, row: Row) -> Taken:
        """Write a row whose name an earlier try has taken, unless that try has written the row.

        Args:
            found: What the name stands for: the row's own message.
            row: The row that the earlier try was to write.
        """
        key = found.key
        is_waiting = key.does is Does.WAITING and key.place == row.position and key.at is None
        # On SQLite the row was written together with its name.
        if found.row is None and is_waiting and self._store.write_timeout_ms:
            return self.take([self._keys.renew(key)._replace(insert=(row,))])
        return Taken(set(), set())

    def revive(self, moves: Sequence[Move]) -> tuple[list[Move], list[Move]]:
        """Take the names of dead messages that are put back, and write their new rows.

        Args:
            moves: Moves of rows with a key, which existed a moment ago; safe to repeat.

        Returns:
            The moves whose names others have: the messages stay dead. And those of them that were
            displaced: the caller deletes their new rows.
        """
        of: dict[str, list[Move]] = {}
        for move in moves:
            of.setdefault(own_key(move.new).name, []).append(move)
        found = self._keys.seek(of)
        chosen: dict[str, Move] = {}
        changes: list[Change] = []
        taken = Taken(set(), set())
        for name, wanted in of.items():
            key = found[name].key
            # An earlier try has taken the name.
            own = [move for move in wanted if key.is_of(move.new)]
            # Of several messages that died under one name the last one has it.
            last = [move for move in wanted if move.old in key.places]
            if own:
                chosen[name] = own[0]
                refused, displaced = self.again(found[name], own[0].new)
                taken.refused.update(refused)
                taken.displaced.update(displaced)
            elif found[name].state.is_absent:
                chosen[name] = (last or wanted)[0]
                changes.append(self._keys.put(chosen[name].new, found[name]))
        refused, displaced = self.take(changes)
        taken.refused.update(refused)
        taken.displaced.update(displaced)
        done = {
            move.old
            for name, move in chosen.items()
            if name not in taken.refused and name not in taken.displaced
        }
        for name, move in chosen.items():
            if move.old in done and not found[name].key.is_of(move.new):
                self._keys.forget(found[name].key)
        slow = [chosen[name] for name in taken.displaced]
        return [move for move in moves if move.old not in done], slow

    def _give_back(self, changes: Sequence[Change]) -> None:
        """Free names that were taken for rows that the store refuses for good."""
        with suppress(StoreError):
            rows = [row.position for change in changes for row in change.insert]
            there = {row.id for row in self._store.find(rows)}
            self._keys.write(
                [self._keys.undo(change) for change in changes if change.insert[0].id not in there]
            )
