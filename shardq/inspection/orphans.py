"""Removes names and notes of messages that no longer exist, left by processes that crashed.

Such names block nothing, because a put takes them over. But names and notes would stay for ever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.errors import StoreOverread
from shardq.model import names
from shardq.model.key import BUCKETS
from shardq.records.standing import Is
from shardq.stores.tables import KEYS, PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.records.keys import MessageKeys
    from shardq.records.register import Register
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

_PAGE = 500


class Orphans:
    """Removes the orphans of one queue.

    Args:
        register: The queue's record. The names of dead messages are in the queue that they died in:
            nothing is removed from a dead-letter queue.
    """

    def __init__(self, store: Store, register: Register, keys: MessageKeys) -> None:
        self._store = store
        self._register = register
        self._keys = keys

    def remove(self) -> int:
        """Free the names whose messages have ended, and erase unreachable notes.

        Reads all names of the queue, bucket by bucket. A bucket is skipped this time if more
        messages than can be read have ended in it within the last three hours.

        Returns:
            How many names were freed.
        """
        queue = self._register.name
        if names.is_dead_queue(queue):
            return 0
        remove = self._remove_from if self._register.settings.keys_used else self._remove_nameless
        freed = 0
        for bucket in range(BUCKETS):
            try:
                freed += remove((queue, bucket))
            except StoreOverread as error:
                log.warning("queue %s: keys of bucket %d are not checked: %s", queue, bucket, error)
        return freed

    def _remove_nameless(self, partition: tuple[str, int]) -> int:
        self._with_name(self._store.notes(PLACES, partition))
        return 0

    def _with_name(self, notes: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The notes with a name. Erases notes of receipts whose messages have ended."""
        named: list[tuple[str, str]] = []
        nameless: list[tuple[str, str]] = []
        for note in notes:
            (named if note[0] else nameless).append(note)
        for n in range(0, len(nameless), _PAGE):
            self._keys.erase_ended(nameless[n : n + _PAGE])
        return named

    def _remove_from(self, partition: tuple[str, int]) -> int:
        freed = 0
        # Read before the names: a note that a message's move writes later is not among these.
        notes = self._with_name(self._store.notes(PLACES, partition))
        stored = self._store.notes(KEYS, partition)
        taken = [name for name, (live, _) in stored.items() if live is not None]
        for n in range(0, len(taken), _PAGE):
            found = self._keys.seek(taken[n : n + _PAGE])
            ended = [
                one.key for one in found.values() if one.state is Is.ENDED and one.running is None
            ]
            refused = self._keys.write([self._keys.clear(key) for key in ended])
            gone = [key for key in ended if key.name not in refused]
            for key in gone:
                self._keys.forget(key)
            freed += len(gone)
        for n in range(0, len(notes), _PAGE):
            noted = notes[n : n + _PAGE]
            rows = self._keys.look({name for name, _ in noted})
            lost = [
                (name, message)
                for name, message in noted
                if message not in (*rows[name].messages, rows[name].buried)
            ]
            if lost:
                self._store.erase(PLACES, partition, lost)
        return freed
