"""Commands by server and shell that changed something: the user, the command, its outcome.

The record contains neither bodies nor secrets. A row is kept for 90 days.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from shardq.errors import StoreError
from shardq.model.ids import birth_us, row_ids
from shardq.model.message import sound_text
from shardq.stores.tables import ACTIONS, ActionNote

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.stores.store import Registers

log = logging.getLogger(__name__)

KEPT_DAYS = 90
DONE: Final = "done"
TEXT_MAX = 200
"""How many characters of each column are kept."""
_DAY_MS = 86_400_000


class What(StrEnum):
    """A command that makes, changes or removes something."""

    CREATE = "create"
    ALTER = "alter"
    PAUSE = "pause"
    RESUME = "resume"
    PURGE = "purge"
    DROP = "drop"
    FORWARD = "forward"
    REDRIVE = "redrive"
    DELETE_DEAD = "delete dead"
    PURGE_DEAD = "purge dead"
    CANCEL = "cancel"
    MOVE = "move"
    EDIT = "edit"
    SCHEDULE_ADD = "schedule add"
    SCHEDULE_CHANGE = "schedule change"
    SCHEDULE_PAUSE = "schedule pause"
    SCHEDULE_RESUME = "schedule resume"
    SCHEDULE_RUN = "schedule run"
    SCHEDULE_BACKFILL = "schedule backfill"
    SCHEDULE_REMOVE = "schedule remove"
    ACCOUNT_CREATE = "account create"
    KEY_ADD = "key add"
    KEY_ROTATE = "key rotate"
    KEY_REVOKE = "key revoke"
    SIGN = "sign"


class Action(NamedTuple):
    """A command that was given.

    Attributes:
        at_ms: When the command ended, epoch milliseconds.
        who: A key's id with its account, or a user at a shell.
        via: The way in: `shell`, `sqs`, `http`.
        what: One of `What`.
        object: What the command was about: a queue, or a message's id.
        outcome: `done`, or the name of the error.
    """

    at_ms: int
    who: str
    via: str
    what: str
    object: str
    outcome: str


class Actions:
    """The recorded commands of a store."""

    def __init__(self, store: Registers, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def record(self, who: str, via: str, what: What, about: str, outcome: str = DONE) -> None:
        """Record a command; a failure is logged, because the command itself has been carried out.

        Costs one round trip.
        """
        row_id = row_ids.next(self._clock.now_us())
        note = ActionNote(*(sound_text(one)[:TEXT_MAX] for one in (who, via, what, about, outcome)))
        day = birth_us(row_id) // 1_000 // _DAY_MS
        try:
            self._store.note(ACTIONS, (day,), {row_id: note}, KEPT_DAYS * _DAY_MS)
        except StoreError as error:
            log.warning("%s of %s by %s is not recorded: %s", what.value, about, who, error)

    def last(
        self,
        limit: int,
        *,
        since_ms: int = 0,
        where: Callable[[Action], bool] = lambda _: True,
    ) -> list[Action]:
        """The last commands, the last one first. Reads a day at a time.

        Args:
            limit: The most commands to return.
            since_ms: Only commands from this time on, epoch milliseconds.
            where: Only commands for which this function returns True.
        """
        today = self._clock.now_ms() // _DAY_MS
        found: list[Action] = []
        # Begin a day ahead: the clock of another process may be ahead of this one.
        for day in range(today + 1, max(since_ms // _DAY_MS, today - KEPT_DAYS) - 1, -1):
            rows = self._store.notes(ACTIONS, (day,))
            actions = [Action(birth_us(row_id) // 1_000, *note) for row_id, note in rows.items()]
            found += sorted(
                filter(where, (a for a in actions if a.at_ms >= since_ms)), reverse=True
            )
            if len(found) >= limit:
                break
        return found[:limit]
