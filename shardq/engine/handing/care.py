"""Rows that another may settle yet: looked at once more, just before they are handed out.

Such are claims, and rows after another's unclean end, whose attempts are recorded first.

```
 row ──► still there? ── no: left to whoever settled it       asked of a hundred at once
     ──► after an unclean end: attempt recorded?
             └── no: given up, and read again                 tried until the lease is nearly over
     ──► handed out
```
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING

from shardq.engine.handing.outcome import GIVEN_UP, LEFT
from shardq.errors import ShardqError, StoreTimeout
from shardq.model.message import SERIALS_AFTER_TAKEOVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.reading.memory import Memory
    from shardq.lifecycle.fate import Outcome
    from shardq.lifecycle.home import QueueHome

log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_RECORD_US = 2_000_000
"""How long recording an attempt may well take."""
_LOOKED_US = 1_000_000
_LOOK_ROWS = 100
_LOOK_BYTES = 256 * 1024


class Care:
    """Begins deliveries of rows that another may have handed out. From any thread.

    Args:
        memory: Holds them.
        is_stopping: Tells whether nothing is to begin any more.
    """

    def __init__(self, home: QueueHome, memory: Memory, is_stopping: Callable[[], bool]) -> None:
        self._store = home.store
        self._clock = home.clock
        self._memory = memory
        self._is_stopping = is_stopping

    def begin(self, one: Delivery) -> Outcome | None:
        """Look for a delivery's row and, with care, record its attempt.

        Returns:
            None where it may begin; else what it comes to.
        """
        row = one.row
        # Recorded and not begun it has lost an attempt: so not when the lease is nearly over.
        while not self._is_stopping() and (
            self._clock.boot_us() < one.lease.deadline_us - _RECORD_US
        ):
            try:
                if not self._is_there(one):
                    return LEFT
                if one.is_stale:
                    # Another has edited it: its lane places it anew.
                    return GIVEN_UP
                if one.careful:
                    # No longer before any time: by that a retry is told from what runs.
                    edit = row._replace(
                        attempt=row.attempt + 1,
                        not_before_ms=None,
                        serial=row.serial + SERIALS_AFTER_TAKEOVER,
                    )
                    self._store.edit([edit])
                    # The handler sees the due of the retry, which the recorded row has no more.
                    one.replace(edit._replace(not_before_ms=row.not_before_ms))
                    one.note_edit()
            except StoreTimeout as error:
                # Maybe recorded: given up now, each new try could use up one more attempt.
                log.warning("message %s waits: %s", row.message_id, error)
                self._clock.sleep(_PAUSE_S)
            except ShardqError as error:
                log.warning("message %s not handed out: %s", row.message_id, error)
                return GIVEN_UP
            else:
                return None
        return GIVEN_UP

    def _is_there(self, one: Delivery) -> bool:
        """Whether a row has not been settled up to a second ago.

        Who had it before may have been slow, not dead: what it has settled since this one was read
        is not to come again, nor what it has moved on.
        """
        now_us = self._clock.boot_us()
        if now_us < one.there_until_us:
            return True
        asked = self._with_next(one)
        there = {row.id: row for row in self._store.find(each.row.position for each in asked)}
        for each in asked:
            if (row := there.get(each.row.id)) is not None:
                is_stale = each.grouped and row.serial != each.row.serial
                each.note_look(now_us + _LOOKED_US, is_stale=is_stale)
        return one.row.id in there

    def _with_next(self, one: Delivery) -> list[Delivery]:
        """A delivery, and those of its shard that come next."""
        waiting = (
            other
            for other in list(self._memory.known.values())
            if other.lease is one.lease and other.doubtful and not other.begun_us
        )
        asked = [one]
        size = len(one.row.body)
        for other in heapq.nsmallest(_LOOK_ROWS - 1, waiting, key=_due):
            size += len(other.row.body)
            if size > _LOOK_BYTES:
                break
            asked.append(other)
        return asked


def _due(one: Delivery) -> int:
    return one.row.due_ms
