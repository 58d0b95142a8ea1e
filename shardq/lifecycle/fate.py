"""What deliveries come to, and what becomes of those that were not acked.

How a handler says so, `engine/outcome.py` knows; what it does to a row, `planner.py`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from shardq.model import names

if TYPE_CHECKING:
    from shardq.model.message import Row
    from shardq.records.register import Register

OUT_OF_ATTEMPTS = "out of attempts"
LOST = f"{OUT_OF_ATTEMPTS}: its consumer died, or its time ran out"
"""Why a message dies of which no attempt is left, and the last one ended without an outcome."""
_NO_REASON = "retried without a reason"
"""Kept all the same: the error before it is not why this attempt failed, nor when."""


class Fate(Enum):
    """How a delivery ended."""

    ACK = auto()
    RETRY = auto()
    SNOOZE = auto()
    BURY = auto()
    GIVE_UP = auto()
    """It was not handed out after all: its lease had lapsed."""
    LEAVE = auto()
    """It was not handed out after all: somebody else has settled it."""
    CANCEL = auto()
    """By its key it was cancelled as it ran before; or its handler says that it is of no use."""
    DROP = auto()
    """It was not handed out after all: its name is not its own, which is another's to count."""


class Step(NamedTuple):
    """The row that a message goes on as when it comes again by a plan of its own.

    Attributes:
        new: Its row, with a fixed id, of the same message.
        beside: Rows that are written with it, with fixed ids.
    """

    new: Row
    beside: tuple[Row, ...] = ()


class Outcome(NamedTuple):
    """How a delivery ended, and what it asks for.

    Attributes:
        fate: What to do.
        delay_ms: For a retry or snooze; None takes the queue's back-off.
        reason: Why it failed, or was snoozed.
        traceback: The handler's, where it raised.
        attempts: How many its message has, for the log, where that is not what its queue says.
        is_for_others: Of a snooze: it is to come to another member, for this one has no use for it.
        step: Of a snooze: as what it goes on, in the place of a delay.
    """

    fate: Fate
    delay_ms: int | None = None
    reason: str = ""
    traceback: str = ""
    attempts: int | None = None
    is_for_others: bool = False
    step: Step | None = None


def decided(outcome: Outcome, attempt: int, register: Register) -> Outcome:
    """What becomes of a delivery that was not acked, by its queue's settings.

    Args:
        outcome: What it came to; decided twice, it is the same.
        attempt: Its number.
        register: Its queue's.

    Returns:
        A burial where that was its last attempt; a retry where a burial was asked for in a
        dead-letter queue. What comes again has its delay, and what failed a reason.
    """
    if outcome.fate is Fate.RETRY and register.is_spent(attempt):
        reason = f"{OUT_OF_ATTEMPTS}: {outcome.reason}" if outcome.reason else OUT_OF_ATTEMPTS
        return outcome._replace(fate=Fate.BURY, reason=reason)
    if outcome.fate is Fate.BURY and names.is_dead_queue(register.name):
        # Already where the dead are kept: it comes again, and again, until it is acked.
        outcome = outcome._replace(fate=Fate.RETRY)
    if outcome.fate is not Fate.BURY and outcome.delay_ms is None:
        outcome = outcome._replace(delay_ms=register.settings.backoff_of(attempt))
    if outcome.fate is Fate.RETRY and not outcome.reason:
        outcome = outcome._replace(reason=_NO_REASON)
    return outcome
