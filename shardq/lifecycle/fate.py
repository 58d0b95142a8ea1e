"""How deliveries end, and what follows for those that were not acked.

`engine/handing/outcome.py` reads the outcome from a handler, and `planner.py` plans the change of
the row. `decided` buries a message after its last attempt. `engine/storing/outbox.py` buries a
message whose last attempt left no outcome, and `tasks/runner.py` judges jobs by their own attempts.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from shardq.model import names

if TYPE_CHECKING:
    from shardq.records.register import Register

OUT_OF_ATTEMPTS = "out of attempts"
LOST = f"{OUT_OF_ATTEMPTS}: its consumer died, or its time ran out"
"""Why a message dies if its last attempt ended without an outcome."""
BEHIND_A_RUN = "the message that had its key before still runs"
"""Why a message is postponed that waits for the end of a long run."""
NO_REASON = "retried without a reason"
"""The error of a retry without a reason; it replaces the error of an earlier attempt."""


class Fate(Enum):
    """How a delivery ended."""

    ACK = auto()
    RETRY = auto()
    SNOOZE = auto()
    BURY = auto()
    GIVE_UP = auto()
    """The message was not handed out, because its lease had lapsed."""
    LEAVE = auto()
    """The message was not handed out, because another process has settled it."""
    CANCEL = auto()
    """The message was cancelled by key while it ran before, or its handler discarded it as
    useless."""
    EXPIRE = auto()
    """The message was too old to be delivered."""
    DROP = auto()
    """The message was not handed out: another message has its name, and its end is counted
    elsewhere."""


FAILED = (Fate.RETRY, Fate.BURY)
"""Fates of attempts that failed."""


class Outcome(NamedTuple):
    """How a delivery ended, and what is to happen to its message.

    Attributes:
        fate: What to do with the message.
        delay_ms: Delay of a retry or snooze; None takes the queue's back-off.
        reason: Why the delivery failed, or was snoozed.
        traceback: The handler's traceback, if it raised.
        attempts: How many attempts the message has, for the log; None if as many as the queue
            gives.
        is_for_others: For a snooze: True to pass the message on, as this member cannot run it.
        is_limit: For a snooze: True if the whole group of the message is to wait.
        is_reported: True if a listener of its runs was given it: its worker's line says why.
        ran_ms: When its run ended, epoch milliseconds, and how long it took; None: not measured.
    """

    fate: Fate
    delay_ms: int | None = None
    reason: str = ""
    traceback: str = ""
    attempts: int | None = None
    is_for_others: bool = False
    is_limit: bool = False
    is_reported: bool = False
    ran_ms: tuple[int, int] | None = None


def decided(outcome: Outcome, attempt: int, register: Register) -> Outcome:
    """The outcome of a delivery that was not acked, completed by its queue's settings. Idempotent.

    Args:
        outcome: The outcome.
        attempt: The delivery's number.
        register: The queue's record.

    Returns:
        A burial after the last attempt; a retry in place of a burial in a dead-letter queue. A
        retry or snooze has a delay, and a retry a reason.
    """
    if outcome.fate is Fate.RETRY and register.is_spent(attempt):
        reason = f"{OUT_OF_ATTEMPTS}: {outcome.reason}" if outcome.reason else OUT_OF_ATTEMPTS
        return outcome._replace(fate=Fate.BURY, reason=reason)
    if outcome.fate is Fate.BURY and names.is_dead_queue(register.name):
        # A dead message stays in its queue, and is delivered until it is acked.
        outcome = outcome._replace(fate=Fate.RETRY)
    if outcome.fate is not Fate.BURY and outcome.delay_ms is None:
        outcome = outcome._replace(delay_ms=register.settings.backoff_of(attempt))
    if outcome.fate is Fate.RETRY and not outcome.reason:
        outcome = outcome._replace(reason=NO_REASON)
    return outcome
