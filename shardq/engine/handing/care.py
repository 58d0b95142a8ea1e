"""Care for rows that others may have settled: each is reread just before its hand-out.

Such rows are claims, and rows of a shard whose last holder did not release its lease. For the
second kind the attempt is recorded before the hand-out.

```
 row ──► does it exist? ── no: forgotten: somebody else settled it     one read for up to 100 rows
     ──► careful: attempt recorded?
             └── no: released, and reread              tried until the lease is nearly over
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
"""No attempt is recorded if the lease ends within this time: the write may take as long."""
_LOOKED_US = 1_000_000
_LOOK_ROWS = 100
_LOOK_BYTES = 256 * 1024


class Care:
    """Begins deliveries of rows that another member may have handed out. From any thread.

    Args:
        memory: The rows in memory.
        is_stopping: Returns True once no delivery is to begin any more.
    """

    def __init__(self, home: QueueHome, memory: Memory, is_stopping: Callable[[], bool]) -> None:
        self._store = home.store
        self._clock = home.clock
        self._memory = memory
        self._is_stopping = is_stopping

    def begin(self, one: Delivery) -> Outcome | None:
        """Check that a delivery's row exists and, if it is careful, record its attempt.

        Returns:
            None if the delivery may begin; else its outcome.
        """
        row = one.row
        # An attempt that is recorded for a delivery that then cannot begin is lost: record none
        # just before the lease ends.
        while not self._is_stopping() and (
            self._clock.boot_us() < one.lease.deadline_us - _RECORD_US
        ):
            try:
                if not self._is_there(one):
                    return LEFT
                if one.is_stale:
                    # Another member has edited the row: its group takes it in anew.
                    return GIVEN_UP
                if one.careful:
                    # A row with `not_before_ms` counts as waiting for a retry, not as running.
                    edit = row._replace(
                        attempt=row.attempt + 1,
                        not_before_ms=None,
                        serial=row.serial + SERIALS_AFTER_TAKEOVER,
                    )
                    self._store.edit([edit])
                    # The stored row has lost the due of the retry, which the handler is to see.
                    one.replace(edit._replace(not_before_ms=row.not_before_ms))
                    one.note_edit()
            except StoreTimeout as error:
                # The store may have recorded the attempt. Try again without a release: after a
                # release, each new try might use up another attempt.
                log.warning("message %s waits: %s", row.message_id, error)
                self._clock.sleep(_PAUSE_S)
            except ShardqError as error:
                log.warning("message %s not handed out: %s", row.message_id, error)
                return GIVEN_UP
            else:
                return None
        return GIVEN_UP

    def _is_there(self, one: Delivery) -> bool:
        """True if a delivery's row existed within the last second.

        The shard's former holder may have been slow, not dead. A row that it has settled or
        postponed since this member read the row must not be delivered again.
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
        """A delivery, and the next ones of its lease that need a check and have not begun."""
        waiting = (
            other
            for other in list(self._memory.known.values())
            if other.lease is one.lease and other.doubtful and not other.begun_us
        )
        asked = [one]
        size = one.row.size_bytes
        for other in heapq.nsmallest(_LOOK_ROWS - 1, waiting, key=_due):
            size += other.row.size_bytes
            if size > _LOOK_BYTES:
                break
            asked.append(other)
        return asked


def _due(one: Delivery) -> int:
    return one.row.due_ms
